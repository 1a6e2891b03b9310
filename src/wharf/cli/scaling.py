"""`wharf scaling policy`: the bounds within which the counts of groups may be scaled."""

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
    """Show within which bounds the counts of groups may be scaled. `wharf job scale` changes a count."""


@click.group(cls=LazyGroup, entries=POLICY_COMMANDS)
def policy() -> None:
    """Show scaling policies."""


@click.command("list", cls=ServerCommand)
@click.option("--job", default="", help="Only of this job.")
@click.option("--type", "kind", default="", help="Only of this type.")
def list_(session: Session, job: str, kind: str) -> None:
    """List scaling policies.

    wharf scaling policy list
    """
    from wharf.cli.common.rendering import render_table

    found = session.client.scaling.list(job=job, type=kind).value
    rows = [
        (session.shorten_id(one.id), one.type, _target(one.target), "yes" if one.enabled else "no") for one in found
    ]
    told = ("ID", "Type", "Scales", "Enabled")
    session.print_result(found, lambda: render_table(told, rows) if rows else "There are no scaling policies.")


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
        get_id=lambda each: each.id,
        describe=lambda each: _target(each.target),
        list_command="wharf scaling policy list",
    )
    one = session.client.scaling.read(found.id, namespace=(found.target or {}).get("Namespace", "")).value
    entries = [
        ("ID", one.id),
        ("Type", one.type),
        ("Scales", _target(one.target)),
        ("At least", one.min),
        ("At most", one.max if one.max >= 0 else "-"),
        ("Enabled", "yes" if one.enabled else "no"),
        ("Policy", msgspec.json.encode(one.policy).decode() if one.policy else ""),
    ]
    session.print_result(one, lambda: render_pairs(entries))


def _target(target: dict[str, str] | None) -> str:
    """`shop/web of team`"""
    target = target or {}
    named = "/".join(target[part] for part in ("Job", "Group", "Task") if part in target)
    namespace = target.get("Namespace", "default")
    return named + (f" of {namespace}" if namespace != "default" else "")
