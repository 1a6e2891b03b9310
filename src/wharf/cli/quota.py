"""`wharf quota`: how much the namespaces that name one may use together."""

from typing import Final

import click

from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.completion import complete_quotas
from wharf.cli.lazy_group import CommandEntry, LazyGroup

MODULE: Final = "wharf.cli.quota"
COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List quotas."),
    "status": CommandEntry(MODULE, "status", "Show a quota, and what is used of it."),
    "apply": CommandEntry(MODULE, "apply", "Make or change a quota."),
    "delete": CommandEntry(MODULE, "delete", "Delete a quota that no namespace names."),
    "inspect": CommandEntry(MODULE, "inspect", "Print a quota as servers keep it."),
}
LIMIT_FIELDS: Final = {
    "CPU MHz": "cpu",
    "Cores": "cores",
    "Memory MB": "memory_mb",
    "Memory max MB": "memory_max_mb",
    "Allocations": "count",
}
REQUIRED_LIMIT_FIELDS: Final = ("cpu", "memory_mb")
"""Told also where there is no limit."""


quota_argument = click.argument("name", metavar="QUOTA", shell_complete=complete_quotas)


@click.group(cls=LazyGroup, entries=COMMANDS)
def quota() -> None:
    """Bound what namespaces use."""


@click.command("list", cls=ServerCommand)
def list_(session: Session) -> None:
    """List quotas.

    wharf quota list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.quotas.list().value
    rows = [(one.name, one.description) for one in records]
    session.print_result(
        records, lambda: render_table(("Name", "Description"), rows) if rows else "There are no quotas."
    )


@click.command(cls=ServerCommand)
@quota_argument
def status(session: Session, name: str) -> None:
    """Show a quota, and what is used of it.

    wharf quota status shops
    """
    from wharf.cli.common.rendering import render_pairs, render_section

    one = session.client.quotas.read(name).value
    told = render_pairs([("Name", one.name), ("Description", one.description)])
    session.print_result(one, lambda: told + "\n" + render_section("Used", render_quota_usage(session, name)))


@click.command(cls=QuietServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
def apply(session: Session, file: str) -> None:
    """Make or change a quota.

    FILE is JSON or YAML: Name, Description, and Limits, each with Region and RegionLimit (CPU, MemoryMB, ...).

    wharf quota apply shops.yaml
    """
    from wharf.cli.common.documents import read_record
    from wharf.contract.model.quotas import Quota

    one = read_record(file, Quota)
    session.client.quotas.store(one)
    click.echo(f"quota {one.name} is there")


@click.command(cls=QuietServerCommand)
@quota_argument
def delete(session: Session, name: str) -> None:
    """Delete a quota that no namespace names.

    wharf quota delete shops
    """
    session.client.quotas.delete(name)
    click.echo(f"quota {name} is deleted")


@click.command(cls=ServerCommand)
@quota_argument
def inspect(session: Session, name: str) -> None:
    """Print a quota as servers keep it.

    wharf quota inspect shops
    """
    session.is_json = not session.template
    session.print_result(session.client.quotas.read(name).value, str)


def render_quota_usage(session: Session, name: str) -> str:
    """What is used of each limit."""
    from wharf.cli.common.rendering import render_table

    limits = {limit.region: limit.region_limit for limit in session.client.quotas.read(name).value.limits or ()}
    used = {one.region: one.region_limit for one in (session.client.quotas.usage(name).value.used or {}).values()}
    rows: list[tuple[object, ...]] = []
    for region, limit in sorted(limits.items()):
        spent = used.get(region)
        for title, field in LIMIT_FIELDS.items():
            most = getattr(limit, field)
            if most == 0 and field not in REQUIRED_LIMIT_FIELDS:
                continue
            said = "none allowed" if most < 0 else "no limit" if most == 0 else f"{most:,}"
            rows.append((region, title, f"{getattr(spent, field) if spent else 0:,}", said))
    return render_table(("Region", "Of", "Used", "Limit"), rows)
