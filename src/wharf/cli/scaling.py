"""`wharf scaling policy`: the bounds within which the counts of groups may be scaled."""

from typing import Final

import click

from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Speaking, Talk

HERE: Final = "wharf.cli.scaling"
COMMANDS: Final = {"policy": Entry(HERE, "policy", "Show scaling policies.")}
OF_POLICIES: Final = {
    "list": Entry(HERE, "list_", "List scaling policies."),
    "info": Entry(HERE, "info", "Show a scaling policy."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def scaling() -> None:
    """Show within which bounds the counts of groups may be scaled. `wharf job scale` changes a count."""


@click.group(cls=LazyGroup, entries=OF_POLICIES)
def policy() -> None:
    """Show scaling policies."""


@click.command("list", cls=Speaking)
@click.option("--job", default="", help="Only of this job.")
@click.option("--type", "kind", default="", help="Only of this type.")
def list_(talk: Talk, job: str, kind: str) -> None:
    """List scaling policies.

    wharf scaling policy list
    """
    from wharf.cli.tables import table

    found = talk.client.scaling.list(job=job, type=kind).value
    rows = [(talk.short(one.id), one.type, _target(one.target), "yes" if one.enabled else "no") for one in found]
    told = ("ID", "Type", "Scales", "Enabled")
    talk.show(found, lambda: table(told, rows) if rows else "There are no scaling policies.")


@click.command(cls=Speaking)
@click.argument("policy_id", metavar="POLICY")
def info(talk: Talk, policy_id: str) -> None:
    """Show a scaling policy.

    wharf scaling policy info 1a2b3c4d
    """
    import msgspec

    from wharf.cli.finding import beginning_so, the_one
    from wharf.cli.tables import pairs

    found = the_one(
        "scaling policy",
        policy_id,
        beginning_so(policy_id, lambda _prefix: talk.client.scaling.list(namespace="*").value),
        id_of=lambda each: each.id,
        about=lambda each: _target(each.target),
        list_by="wharf scaling policy list",
    )
    one = talk.client.scaling.read(found.id, namespace=(found.target or {}).get("Namespace", "")).value
    entries = [
        ("ID", one.id),
        ("Type", one.type),
        ("Scales", _target(one.target)),
        ("At least", one.min),
        ("At most", one.max if one.max >= 0 else "-"),
        ("Enabled", "yes" if one.enabled else "no"),
        ("Policy", msgspec.json.encode(one.policy).decode() if one.policy else ""),
    ]
    talk.show(one, lambda: pairs(entries))


def _target(target: dict[str, str] | None) -> str:
    """`shop/web of team`"""
    target = target or {}
    named = "/".join(target[part] for part in ("Job", "Group", "Task") if part in target)
    namespace = target.get("Namespace", "default")
    return named + (f" of {namespace}" if namespace != "default" else "")
