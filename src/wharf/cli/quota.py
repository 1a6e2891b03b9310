"""`wharf quota`: how much the namespaces that name one may use together."""

from typing import Final

import click

from wharf.cli.completing import complete_quotas
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

HERE: Final = "wharf.cli.quota"
COMMANDS: Final = {
    "list": Entry(HERE, "list_", "List quotas."),
    "status": Entry(HERE, "status", "Show a quota, and what is used of it."),
    "apply": Entry(HERE, "apply", "Make or change a quota."),
    "delete": Entry(HERE, "delete", "Delete a quota that no namespace names."),
    "inspect": Entry(HERE, "inspect", "Print a quota as servers keep it."),
}
COUNTED: Final = {
    "CPU MHz": "cpu",
    "Cores": "cores",
    "Memory MB": "memory_mb",
    "Memory max MB": "memory_max_mb",
    "Allocations": "count",
}
ALWAYS: Final = ("cpu", "memory_mb")
"""Told also where there is no limit."""


a_quota = click.argument("name", metavar="QUOTA", shell_complete=complete_quotas)


@click.group(cls=LazyGroup, entries=COMMANDS)
def quota() -> None:
    """Bound what namespaces use."""


@click.command("list", cls=Speaking)
def list_(talk: Talk) -> None:
    """List quotas.

    wharf quota list
    """
    from wharf.cli.tables import table

    records = talk.client.quotas.list().value
    rows = [(one.name, one.description) for one in records]
    talk.show(records, lambda: table(("Name", "Description"), rows) if rows else "There are no quotas.")


@click.command(cls=Speaking)
@a_quota
def status(talk: Talk, name: str) -> None:
    """Show a quota, and what is used of it.

    wharf quota status shops
    """
    from wharf.cli.tables import pairs, section

    one = talk.client.quotas.read(name).value
    told = pairs([("Name", one.name), ("Description", one.description)])
    talk.show(one, lambda: told + "\n" + section("Used", usage_told(talk, name)))


@click.command(cls=Quiet)
@click.argument("file", type=click.Path(allow_dash=True))
def apply(talk: Talk, file: str) -> None:
    """Make or change a quota.

    FILE is JSON or YAML: Name, Description, and Limits, each with Region and RegionLimit (CPU, MemoryMB, ...).

    wharf quota apply shops.yaml
    """
    from wharf.cli.records import record_in
    from wharf.model.quota import Quota

    one = record_in(file, Quota)
    talk.client.quotas.store(one)
    click.echo(f"quota {one.name} is there")


@click.command(cls=Quiet)
@a_quota
def delete(talk: Talk, name: str) -> None:
    """Delete a quota that no namespace names.

    wharf quota delete shops
    """
    talk.client.quotas.delete(name)
    click.echo(f"quota {name} is deleted")


@click.command(cls=Speaking)
@a_quota
def inspect(talk: Talk, name: str) -> None:
    """Print a quota as servers keep it.

    wharf quota inspect shops
    """
    talk.as_json = not talk.template
    talk.show(talk.client.quotas.read(name).value, str)


def usage_told(talk: Talk, name: str) -> str:
    """What is used of each limit."""
    from wharf.cli.tables import table

    limits = {limit.region: limit.region_limit for limit in talk.client.quotas.read(name).value.limits or ()}
    used = {one.region: one.region_limit for one in (talk.client.quotas.usage(name).value.used or {}).values()}
    rows: list[tuple[object, ...]] = []
    for region, limit in sorted(limits.items()):
        spent = used.get(region)
        for title, field in COUNTED.items():
            most = getattr(limit, field)
            if most == 0 and field not in ALWAYS:
                continue
            said = "none allowed" if most < 0 else "no limit" if most == 0 else f"{most:,}"
            rows.append((region, title, f"{getattr(spent, field) if spent else 0:,}", said))
    return table(("Region", "Of", "Used", "Limit"), rows)
