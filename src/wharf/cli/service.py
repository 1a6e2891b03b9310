"""`wharf service`: what jobs offer by a name, and where it is."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.model.registration import ServiceRegistration

HERE: Final = "wharf.cli.service"
COMMANDS: Final = {
    "list": Entry(HERE, "list_", "List services."),
    "info": Entry(HERE, "info", "Show where a service is."),
    "delete": Entry(HERE, "delete", "Take an instance out of a service."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def service() -> None:
    """Show what jobs offer by a name, and where it is."""


@click.command("list", cls=Speaking)
def list_(talk: Talk) -> None:
    """List services.

    wharf service list
    """
    from wharf.cli.tables import table

    found = talk.client.services.list().value
    rows = [
        (each.service_name, namespace.namespace, ", ".join(each.tags))
        for namespace in found
        for each in namespace.services
    ]
    talk.show(found, lambda: table(("Service", "Namespace", "Tags"), rows) if rows else "There are no services.")


@click.command(cls=Speaking)
@click.argument("name", metavar="SERVICE")
@click.option("--filter", "expression", default="", help="Only instances that match.")
def info(talk: Talk, name: str, expression: str) -> None:
    """Show where a service is.

    wharf service info web
    """
    from wharf.cli.failing import Failed

    found = talk.client.services.read(name, filter=expression).value
    if not found and not expression:
        raise Failed(f"nothing offers {name}; `wharf service list` lists all services")
    talk.show(found, lambda: _instances_told(talk, found) if found else f"No instances of {name} match.")


@click.command(cls=Quiet)
@click.argument("name", metavar="SERVICE")
@click.argument("registration_id", metavar="ID")
def delete(talk: Talk, name: str, registration_id: str) -> None:
    """Take an instance out of a service. Its task runs on, and registers it again when it is restarted.

    wharf service delete web _nomad-task-1a2b3c4d-…
    """
    talk.client.services.delete(name, registration_id)
    click.echo(f"{registration_id} is taken out of {name}")


def _instances_told(talk: Talk, instances: "Sequence[ServiceRegistration]") -> str:
    from wharf.cli.tables import table

    rows = [
        (one.job_id, f"{one.address}:{one.port}", ", ".join(one.tags or ()), talk.short(one.node_id), talk.short(one.alloc_id), one.id)
        for one in sorted(instances, key=lambda each: (each.job_id, each.create_index, each.id))
    ]  # fmt: skip
    return table(("Job", "Address", "Tags", "Node", "Allocation", "ID"), rows, spare=("ID",))
