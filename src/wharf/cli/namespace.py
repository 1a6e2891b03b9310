"""`wharf namespace`: creates, changes, shows and deletes namespaces."""

from typing import Final

import click

from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_namespaces
from wharf.cli.lazy_group import CommandEntry, LazyGroup

MODULE: Final = "wharf.cli.namespace"
COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List namespaces."),
    "status": CommandEntry(MODULE, "status", "Show a namespace, and the use of its quota."),
    "apply": CommandEntry(MODULE, "apply", "Create or change a namespace."),
    "delete": CommandEntry(MODULE, "delete", "Delete an empty namespace."),
    "inspect": CommandEntry(MODULE, "inspect", "Print a namespace as JSON."),
}
namespace_argument = click.argument("name", metavar="NAMESPACE", shell_complete=complete_namespaces)


@click.group(cls=LazyGroup, entries=COMMANDS)
def namespace() -> None:
    """Create, change and show namespaces."""


@click.command("list", cls=ServerCommand)
def list_(session: Session) -> None:
    """List namespaces.

    wharf namespace list
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.namespaces.list().value
    rows = [(namespace.name, namespace.quota or "-", namespace.description) for namespace in records]
    session.print_result(records, lambda: render_table(("Name", "Quota", "Description"), rows))


@click.command(cls=ServerCommand)
@namespace_argument
def status(session: Session, name: str) -> None:
    """Show a namespace, and the use of its quota.

    wharf namespace status shop
    """
    show_namespace(session, name)


def show_namespace(session: Session, name: str) -> None:
    """Print the status of one namespace. Raises CliError if it does not exist."""
    from wharf.cli.common.errors import CliError
    from wharf.cli.common.rendering import render_pairs, render_section
    from wharf.cli.quota import render_quota_usage
    from wharf.contract.client.errors import NotFound

    try:
        namespace = session.client.namespaces.read(name).value
    except NotFound as error:
        raise CliError(f"namespace {name} does not exist; `wharf namespace list` lists all") from error
    capabilities = namespace.capabilities

    def render_text() -> str:
        """Return the fields of the namespace, and the use of its quota if it has one."""
        parts = [
            render_pairs(
                [
                    ("Name", namespace.name),
                    ("Description", namespace.description),
                    ("Quota", namespace.quota),
                    ("Weight", namespace.weight),
                    ("Drivers", ", ".join((capabilities.enabled_task_drivers if capabilities else None) or ("all",))),
                    (
                        "Disabled drivers",
                        ", ".join((capabilities.disabled_task_drivers if capabilities else None) or ()),
                    ),
                    ("Meta", ", ".join(f"{key}={value}" for key, value in sorted((namespace.meta or {}).items()))),
                ]
            )
        ]
        if namespace.quota:
            parts.append(render_section(f"Quota {namespace.quota}", render_quota_usage(session, namespace.quota)))
        return "\n".join(parts)

    session.print_result(namespace, render_text)


@click.command(cls=ServerCommand)
@click.argument("name_or_file", metavar="NAME|FILE")
@click.option("--description", help="A description of the namespace.")
@click.option("--quota", help="The quota that its jobs count toward; '' for none.")
@click.option(
    "--weight", type=click.IntRange(1, 1000), help="Its share of the capacity while several namespaces wait for it."
)
def apply(session: Session, name_or_file: str, description: str | None, quota: str | None, weight: int | None) -> None:
    """Create or change a namespace.

    FILE is JSON or YAML with the fields that `inspect` prints. With NAME, only the fields given as options change.

    wharf namespace apply --description "the shop" shop
    """
    from wharf.cli.common.documents import read_or_fetch_record
    from wharf.contract.model.namespaces import Namespace

    namespace = read_or_fetch_record(
        name_or_file, Namespace, session.client.namespaces.read, description=description, quota=quota, weight=weight
    )
    session.client.namespaces.store(namespace)
    session.print_change(f"stored namespace {namespace.name}", Name=namespace.name)


@click.command(cls=ServerCommand)
@namespace_argument
def delete(session: Session, name: str) -> None:
    """Delete an empty namespace.

    wharf namespace delete shop
    """
    session.client.namespaces.delete(name)
    session.print_change(f"deleted namespace {name}", Name=name)


@click.command(cls=ServerCommand)
@namespace_argument
def inspect(session: Session, name: str) -> None:
    """Print a namespace as JSON.

    wharf namespace inspect shop
    """
    session.is_json = not session.template
    session.print_result(session.client.namespaces.read(name).value, str)
