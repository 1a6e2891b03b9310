"""`wharf quota`: limits of the resources that one or more namespaces may use together."""

from typing import Final

import click

from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_quotas
from wharf.cli.lazy_group import CommandEntry, LazyGroup

MODULE: Final = "wharf.cli.quota"
COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List quotas."),
    "status": CommandEntry(MODULE, "status", "Show a quota, and how much of it is used."),
    "apply": CommandEntry(MODULE, "apply", "Create or change a quota."),
    "delete": CommandEntry(MODULE, "delete", "Delete a quota that no namespace refers to."),
    "inspect": CommandEntry(MODULE, "inspect", "Print a quota as JSON."),
}
LIMIT_FIELDS: Final = {
    "CPU MHz": "cpu",
    "Cores": "cores",
    "Memory MB": "memory_mb",
    "Memory max MB": "memory_max_mb",
    "Allocations": "count",
}
REQUIRED_LIMIT_FIELDS: Final = ("cpu", "memory_mb")
"""Limits that are shown even if they are 0, which means unlimited."""


quota_argument = click.argument("name", metavar="QUOTA", shell_complete=complete_quotas)


@click.group(cls=LazyGroup, entries=COMMANDS)
def quota() -> None:
    """Limit the resources that namespaces may use."""


@click.command("list", cls=ServerCommand)
def list_(session: Session) -> None:
    """List quotas.

    wharf quota list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.quotas.list().value
    rows = [(quota.name, quota.description) for quota in records]
    session.print_result(records, lambda: render_table(("Name", "Description"), rows) if rows else "No quotas.")


@click.command(cls=ServerCommand)
@quota_argument
def status(session: Session, name: str) -> None:
    """Show a quota, and how much of it is used.

    wharf quota status shops
    """
    from wharf.cli.common.rendering import render_pairs, render_section

    quota = session.client.quotas.read(name).value
    head = render_pairs([("Name", quota.name), ("Description", quota.description)])
    session.print_result(quota, lambda: head + "\n" + render_section("Used", render_quota_usage(session, name)))


@click.command(cls=ServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
def apply(session: Session, file: str) -> None:
    """Create or change a quota.

    FILE is JSON or YAML with Name, Description and Limits; each limit has Region and RegionLimit (CPU, MemoryMB, ...).

    wharf quota apply shops.yaml
    """
    from wharf.cli.common.documents import read_record
    from wharf.contract.model.quotas import Quota

    quota = read_record(file, Quota)
    session.client.quotas.store(quota)
    session.print_change(f"stored quota {quota.name}", Name=quota.name)


@click.command(cls=ServerCommand)
@quota_argument
def delete(session: Session, name: str) -> None:
    """Delete a quota that no namespace refers to.

    wharf quota delete shops
    """
    session.client.quotas.delete(name)
    session.print_change(f"deleted quota {name}", Name=name)


@click.command(cls=ServerCommand)
@quota_argument
def inspect(session: Session, name: str) -> None:
    """Print a quota as JSON.

    wharf quota inspect shops
    """
    session.is_json = not session.template
    session.print_result(session.client.quotas.read(name).value, str)


def render_quota_usage(session: Session, name: str) -> str:
    """Return a table of a quota's limits in each region, and how much is used."""
    from wharf.cli.common.rendering import render_table

    limits = {limit.region: limit.region_limit for limit in session.client.quotas.read(name).value.limits or ()}
    usage = session.client.quotas.usage(name).value.used or {}
    used = {usage_limit.region: usage_limit.region_limit for usage_limit in usage.values()}
    rows: list[tuple[object, ...]] = []
    for region, limit in sorted(limits.items()):
        region_usage = used.get(region)
        for title, field in LIMIT_FIELDS.items():
            value = getattr(limit, field)
            if value == 0 and field not in REQUIRED_LIMIT_FIELDS:
                continue
            limit_text = "none allowed" if value < 0 else "unlimited" if value == 0 else f"{value:,}"
            rows.append((region, title, f"{getattr(region_usage, field) if region_usage else 0:,}", limit_text))
    return render_table(("Region", "Resource", "Used", "Limit"), rows)
