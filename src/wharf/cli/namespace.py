"""`wharf namespace`: the rooms that jobs are kept apart in."""

from typing import Final

import click

from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.completion import complete_namespaces
from wharf.cli.lazy_group import CommandEntry, LazyGroup

MODULE: Final = "wharf.cli.namespace"
COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List namespaces."),
    "status": CommandEntry(MODULE, "status", "Show a namespace, and what its quota leaves."),
    "apply": CommandEntry(MODULE, "apply", "Make or change a namespace."),
    "delete": CommandEntry(MODULE, "delete", "Delete a namespace that is empty."),
    "inspect": CommandEntry(MODULE, "inspect", "Print a namespace as servers keep it."),
}
namespace_argument = click.argument("name", metavar="NAMESPACE", shell_complete=complete_namespaces)


@click.group(cls=LazyGroup, entries=COMMANDS)
def namespace() -> None:
    """Make namespaces, and show them."""


@click.command("list", cls=ServerCommand)
def list_(session: Session) -> None:
    """List namespaces.

    wharf namespace list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.namespaces.list().value
    rows = [(one.name, one.quota or "-", one.description) for one in records]
    session.print_result(records, lambda: render_table(("Name", "Quota", "Description"), rows))


@click.command(cls=ServerCommand)
@namespace_argument
def status(session: Session, name: str) -> None:
    """Show a namespace, and what its quota leaves.

    wharf namespace status shop
    """
    show_namespace(session, name)


def show_namespace(session: Session, name: str) -> None:
    from wharf.cli.common.errors import CliError
    from wharf.cli.common.rendering import render_pairs, render_section
    from wharf.cli.quota import render_quota_usage
    from wharf.contract.client.errors import NotFound

    try:
        one = session.client.namespaces.read(name).value
    except NotFound as error:
        raise CliError(f"there is no namespace {name}; `wharf namespace list` lists all") from error
    may_use = one.capabilities

    def text() -> str:
        parts = [
            render_pairs(
                [
                    ("Name", one.name),
                    ("Description", one.description),
                    ("Quota", one.quota),
                    ("Weight", one.weight),
                    ("Drivers", ", ".join((may_use.enabled_task_drivers if may_use else None) or ("all",))),
                    ("No drivers", ", ".join((may_use.disabled_task_drivers if may_use else None) or ())),
                    ("Meta", ", ".join(f"{key}={value}" for key, value in sorted((one.meta or {}).items()))),
                ]
            )
        ]
        if one.quota:
            parts.append(render_section(f"Quota {one.quota}", render_quota_usage(session, one.quota)))
        return "\n".join(parts)

    session.print_result(one, text)


@click.command(cls=QuietServerCommand)
@click.argument("name_or_file", metavar="NAME|FILE")
@click.option("--description", help="What it is for.")
@click.option("--quota", help="The quota that its jobs share; '' for none.")
@click.option("--weight", type=click.IntRange(1, 1000), help="Its share of the fleet where several wait for room.")
def apply(session: Session, name_or_file: str, description: str | None, quota: str | None, weight: int | None) -> None:
    """Make or change a namespace.

    FILE is JSON or YAML with the fields that `inspect` prints. With a name, what no option says stays as it is.

    wharf namespace apply --description "the shop" shop
    """
    from wharf.cli.common.documents import read_or_fetch_record
    from wharf.contract.model.namespaces import Namespace

    read = session.client.namespaces.read
    one = read_or_fetch_record(name_or_file, Namespace, read, description=description, quota=quota, weight=weight)
    session.client.namespaces.store(one)
    click.echo(f"namespace {one.name} is there")


@click.command(cls=QuietServerCommand)
@namespace_argument
def delete(session: Session, name: str) -> None:
    """Delete a namespace that is empty.

    wharf namespace delete shop
    """
    session.client.namespaces.delete(name)
    click.echo(f"namespace {name} is deleted")


@click.command(cls=ServerCommand)
@namespace_argument
def inspect(session: Session, name: str) -> None:
    """Print a namespace as servers keep it.

    wharf namespace inspect shop
    """
    session.is_json = not session.template
    session.print_result(session.client.namespaces.read(name).value, str)
