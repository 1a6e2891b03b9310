"""`wharf service`: what jobs offer by a name, and where it is."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.contract.model.services import ServiceRegistration

MODULE: Final = "wharf.cli.service"
COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List services."),
    "info": CommandEntry(MODULE, "info", "Show where a service is."),
    "delete": CommandEntry(MODULE, "delete", "Take an instance out of a service."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def service() -> None:
    """Show what jobs offer by a name, and where it is."""


@click.command("list", cls=ServerCommand)
def list_(session: Session) -> None:
    """List services.

    wharf service list
    """
    from wharf.cli.common.rendering import render_table

    found = session.client.services.list().value
    rows = [
        (each.service_name, namespace.namespace, ", ".join(each.tags))
        for namespace in found
        for each in namespace.services
    ]
    session.print_result(
        found, lambda: render_table(("Service", "Namespace", "Tags"), rows) if rows else "There are no services."
    )


@click.command(cls=ServerCommand)
@click.argument("name", metavar="SERVICE")
@click.option("--filter", "expression", default="", help="Only instances that match.")
def info(session: Session, name: str, expression: str) -> None:
    """Show where a service is.

    wharf service info web
    """
    from wharf.cli.common.errors import CliError

    found = session.client.services.read(name, filter=expression).value
    if not found and not expression:
        raise CliError(f"nothing offers {name}; `wharf service list` lists all services")
    session.print_result(found, lambda: _instances_told(session, found) if found else f"No instances of {name} match.")


@click.command(cls=QuietServerCommand)
@click.argument("name", metavar="SERVICE")
@click.argument("registration_id", metavar="ID")
def delete(session: Session, name: str, registration_id: str) -> None:
    """Take an instance out of a service. Its task runs on, and registers it again when it is restarted.

    wharf service delete web _nomad-task-1a2b3c4d-…
    """
    session.client.services.delete(name, registration_id)
    click.echo(f"{registration_id} is taken out of {name}")


def _instances_told(session: Session, instances: "Sequence[ServiceRegistration]") -> str:
    from wharf.cli.common.rendering import render_table

    rows = [
        (one.job_id, f"{one.address}:{one.port}", ", ".join(one.tags or ()), session.shorten_id(one.node_id), session.shorten_id(one.alloc_id), one.id)
        for one in sorted(instances, key=lambda each: (each.job_id, each.create_index, each.id))
    ]  # fmt: skip
    return render_table(("Job", "Address", "Tags", "Node", "Allocation", "ID"), rows, optional_columns=("ID",))
