"""Endpoints of services: their names and tags, their registered instances, and deletion of a registration."""

from dataclasses import replace as replace_fields
from functools import partial
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from wharf.cluster.api.index_lists import has_many_records, sort_in_slices
from wharf.cluster.api.lists.listing import Listing, list_by_namespace, list_records
from wharf.cluster.api.replies.pieces import LazyList
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler
from wharf.cluster.operations import services
from wharf.cluster.operations.services import choose_instances, parse_instance_choice
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import REGISTRATIONS_BY_NAME, SERVICES
from wharf.cluster.state.watches import watch_index
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.services import NamespaceServices, ServiceStub

REGISTRATIONS_PER_CHECK: Final = 100
"""Registrations that are grouped before the CPU time is checked: about a tenth of a millisecond."""


def list_services(replica: Replica, _request: Request, options: QueryOptions) -> Listing[ServiceRegistration]:
    return list_by_namespace(replica, SERVICES, replace(options, prefix=""), build_reply=_group_by_name)


async def _group_by_name(registrations: list[ServiceRegistration], work: SlicedWork) -> list[NamespaceServices]:
    """Return the services of each namespace, sorted by name. Each has the tags of all its instances."""
    tags: dict[str, dict[str, set[str]]] = {}
    work.restart()
    for number, registration in enumerate(registrations, start=1):
        names = tags.setdefault(registration.namespace, {})
        names.setdefault(registration.service_name, set()).update(registration.tags or ())
        if not number % REGISTRATIONS_PER_CHECK and work.is_slice_over():
            await work.pause()
    return [
        NamespaceServices(namespace=namespace, services=await _build_service_stubs(tags_by_name, work))
        for namespace, tags_by_name in sorted(tags.items())
    ]


async def _build_service_stubs(tags_by_name: dict[str, set[str]], work: SlicedWork) -> Any:
    """Return the services of one namespace, sorted by name. They are built while they are encoded."""
    services = await sort_in_slices([(name, (name, tags)) for name, tags in tags_by_name.items()], work)
    return LazyList(lambda: (ServiceStub(service_name=name, tags=tuple(sorted(tags))) for name, tags in services))


def list_registrations(replica: Replica, request: Request, options: QueryOptions) -> Listing[ServiceRegistration]:
    """List the registered instances of a service.

    With `choose`, only some of them, always the same for the same key.
    """
    key = (options.namespace, request.get_path_value("service_name"))
    choice = request.get_text("choose")
    # The choice follows the filter: otherwise only instances that the filter rejects could be chosen.
    choose = partial(choose_instances, choice=parse_instance_choice(choice)) if choice else None
    watched = [watch_index(REGISTRATIONS_BY_NAME, *key)]
    if has_many_records(replica, REGISTRATIONS_BY_NAME, *key):
        # The table is in the order of the list and is read in slices; to sort the instances would take a long step.
        listing = list_by_namespace(replica, SERVICES, replace(options, prefix=""), choose=choose)
        return replace_fields(listing, watched=watched, is_selected=lambda each: each.service_name == key[1])
    return list_records(
        replica.list_by_index(REGISTRATIONS_BY_NAME, *key),
        index=replica.get_last_change(SERVICES),
        watched=watched,
        make_token=lambda registration: f"{registration.namespace}.{registration.id}",
        get_namespace=attrgetter("namespace"),
        choose=choose,
    )


READ_HANDLERS: Final[dict[str, ReadHandler]] = {"service.list": list_services, "service.read": list_registrations}


class ServiceActions:
    """Deletes registrations of services."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def delete_service(self, request: Request) -> ActionResult:
        name, registration_id = request.get_path_value("service_name"), request.get_path_value("service_id")
        index = await self._server.writer.execute(
            lambda snapshot, _context: services.delete_service(
                snapshot, request.namespace, name, registration_id, cause=request.id
            )
        )
        return ActionResult(index=index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {"service.delete": ServiceActions(server).delete_service}
