"""`wharf scaling policy`: shows scaling policies, the limits for the counts of groups."""

from typing import Final

import click

from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

MODULE: Final = "wharf.cli.scaling"
COMMANDS: Final = {"policy": CommandEntry(MODULE, "policy", "Show scaling policies.")}
POLICY_COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List scaling policies."),
    "info": CommandEntry(MODULE, "info", "Show a scaling policy."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def scaling() -> None:
    """Show scaling policies. `wharf job scale` changes a count."""


@click.group(cls=LazyGroup, entries=POLICY_COMMANDS)
def policy() -> None:
    """Show scaling policies."""


@click.command("list", cls=ServerCommand)
@click.option("--job", default="", help="Only policies of this job.")
@click.option("--type", "kind", default="", help="Only policies of this type.")
def list_(session: Session, job: str, kind: str) -> None:
    """List scaling policies.

    wharf scaling policy list
    """
    from wharf.cli.common.rendering import render_table

    found = session.client.scaling.list(job=job, type=kind).value
    rows = [
        (session.shorten_id(policy.id), policy.type, _format_target(policy.target), "yes" if policy.enabled else "no")
        for policy in found
    ]
    titles = ("ID", "Type", "Target", "Enabled")
    session.print_result(found, lambda: render_table(titles, rows) if rows else "No scaling policies.")


@click.command(cls=ServerCommand)
@click.argument("policy_id", metavar="POLICY")
def info(session: Session, policy_id: str) -> None:
    """Show a scaling policy.

    wharf scaling policy info 1a2b3c4d
    """
    import msgspec

    from wharf.cli.common.lookup import match_id_prefix, require_single
    from wharf.cli.common.rendering import render_pairs

    found = require_single(
        "scaling policy",
        policy_id,
        match_id_prefix(policy_id, lambda _prefix: session.client.scaling.list(namespace="*").value),
        get_id=lambda policy: policy.id,
        describe=lambda policy: _format_target(policy.target),
        list_command="wharf scaling policy list",
    )
    policy = session.client.scaling.read(found.id, namespace=(found.target or {}).get("Namespace", "")).value
    pairs = [
        ("ID", policy.id),
        ("Type", policy.type),
        ("Target", _format_target(policy.target)),
        ("Min", policy.min),
        ("Max", policy.max if policy.max >= 0 else "-"),
        ("Enabled", "yes" if policy.enabled else "no"),
        ("Policy", msgspec.json.encode(policy.policy).decode() if policy.policy else ""),
    ]
    session.print_result(policy, lambda: render_pairs(pairs))


def _format_target(target: dict[str, str] | None) -> str:
    """Return the target as `job/group/task`, and its namespace unless that is the default."""
    target = target or {}
    path = "/".join(target[part] for part in ("Job", "Group", "Task") if part in target)
    namespace = target.get("Namespace", "default")
    return path + (f" (namespace {namespace})" if namespace != "default" else "")
