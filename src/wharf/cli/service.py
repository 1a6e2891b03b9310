"""`wharf service`: shows registered services and their instances, and removes instances."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.contract.model.services import ServiceRegistration

MODULE: Final = "wharf.cli.service"
COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List services."),
    "info": CommandEntry(MODULE, "info", "Show the instances of a service with their addresses."),
    "delete": CommandEntry(MODULE, "delete", "Delete an instance of a service."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def service() -> None:
    """Show registered services and their addresses."""


@click.command("list", cls=ServerCommand)
def list_(session: Session) -> None:
    """List services.

    wharf service list
    """
    from wharf.cli.common.rendering import render_table

    namespaces = session.client.services.list().value
    rows = [
        (service.service_name, namespace.namespace, ", ".join(service.tags))
        for namespace in namespaces
        for service in namespace.services
    ]
    session.print_result(
        namespaces, lambda: render_table(("Service", "Namespace", "Tags"), rows) if rows else "No services."
    )


@click.command(cls=ServerCommand)
@click.argument("name", metavar="SERVICE")
@click.option("--filter", "expression", default="", help="Only instances that match.")
def info(session: Session, name: str, expression: str) -> None:
    """Show the instances of a service with their addresses.

    wharf service info web
    """
    from wharf.cli.common.errors import CliError
    from wharf.cli.common.lookup import require_no_other_namespace

    found = session.client.services.read(name, filter=expression).value
    if not found and not expression:
        require_no_other_namespace(session, "service", name, lambda: _list_namespaces(session, name))
        raise CliError(f"service {name} does not exist; `wharf service list` lists all services")
    session.print_result(
        found, lambda: _render_instances(session, found) if found else f"No instances of {name} match."
    )


def _list_namespaces(session: Session, name: str) -> list[str]:
    """Return the namespaces that have a service of this name."""
    return [
        namespace.namespace
        for namespace in session.client.services.list(namespace="*").value
        if any(service.service_name == name for service in namespace.services)
    ]


@click.command(cls=ServerCommand)
@click.argument("name", metavar="SERVICE")
@click.argument("registration_id", metavar="ID")
def delete(session: Session, name: str, registration_id: str) -> None:
    """Delete an instance of a service. Its task keeps running and registers it again when it is restarted.

    wharf service delete web _nomad-task-1a2b3c4d-…
    """
    session.client.services.delete(name, registration_id)
    session.print_change(f"deleted instance {registration_id} of service {name}", ID=registration_id, ServiceName=name)


def _render_instances(session: Session, instances: "Sequence[ServiceRegistration]") -> str:
    """Return a table of the instances of a service, by job."""
    from wharf.cli.common.rendering import render_table

    # An ID has some 70 characters, and only `wharf service delete` needs it.
    titles = ("Job", "Address", "Tags", "Node", "Allocation", *(["ID"] if session.is_verbose else []))
    rows = [
        (
            instance.job_id, f"{instance.address}:{instance.port}", ", ".join(instance.tags or ()),
            session.shorten_id(instance.node_id), session.shorten_id(instance.alloc_id),
            *([instance.id] if session.is_verbose else []),
        )
        for instance in sorted(instances, key=lambda instance: (instance.job_id, instance.create_index, instance.id))
    ]  # fmt: skip
    return render_table(titles, rows, optional_columns=("Node", "Tags"), shortenable_columns=("Job", "Tags"))
