"""Endpoints of the services that jobs offer."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from wharf.cluster.api.lists.listing import Listing, list_by_namespace, list_records
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler
from wharf.cluster.operations import services
from wharf.cluster.operations.services import choose_instances, parse_instance_choice
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import REGISTRATIONS_BY_NAME, SERVICES
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.services import NamespaceServices, ServiceStub
from wharf.languages.filters import FilterEvaluationError, FilterSubject, compile_filter

FILTER_SUBJECT: Final = FilterSubject(ServiceRegistration)


def list_services(replica: Replica, _request: Request, options: QueryOptions) -> Listing[ServiceRegistration]:
    return list_by_namespace(replica, SERVICES, replace(options, prefix=""), build_reply=_grouped)


def _grouped(registrations: list[ServiceRegistration]) -> list[NamespaceServices]:
    """By namespace and name, with the tags of all instances together."""
    tags: dict[str, dict[str, set[str]]] = {}
    for registration in registrations:
        names = tags.setdefault(registration.namespace, {})
        names.setdefault(registration.service_name, set()).update(registration.tags or ())
    return [
        NamespaceServices(
            namespace=namespace,
            services=tuple(ServiceStub(service_name=name, tags=tuple(sorted(names[name]))) for name in sorted(names)),
        )
        for namespace, names in sorted(tags.items())
    ]


def list_registrations(replica: Replica, request: Request, options: QueryOptions) -> Listing[ServiceRegistration]:
    key = (options.namespace, request.get_path_value("service_name"))
    given = request.get_text("choose")
    found: Iterable[ServiceRegistration] = replica.list_by_index(REGISTRATIONS_BY_NAME, *key)
    if given:
        # Among those that the filter leaves: else a choice could come to nothing though there is one to choose.
        found = choose_instances(_accepted(found, options.filter), parse_instance_choice(given))
    return list_records(
        found,
        index=replica.get_last_change(SERVICES),
        watched=[watch.watch_index(REGISTRATIONS_BY_NAME, *key)],
        make_token=lambda registration: f"{registration.namespace}.{registration.id}",
        get_namespace=attrgetter("namespace"),
    )


def _accepted(found: Iterable[ServiceRegistration], expression: str) -> Iterable[ServiceRegistration]:
    if not expression:
        return found
    accepts: Callable[[ServiceRegistration], bool] = compile_filter(expression, FILTER_SUBJECT).accepts
    try:
        return [registration for registration in found if accepts(registration)]
    except FilterEvaluationError as error:
        raise invalid_request(f"failed to read result page: {error.text}") from error


READ_HANDLERS: Final[dict[str, ReadHandler]] = {"service.list": list_services, "service.read": list_registrations}


class ServiceActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def delete_service(self, request: Request) -> ActionResult:
        name, registration_id = request.get_path_value("service_name"), request.get_path_value("service_id")
        index = await self._server.writer.execute(
            lambda snapshot, _moment: services.delete_service(
                snapshot, request.namespace, name, registration_id, cause=request.id
            )
        )
        return ActionResult(index=index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {"service.delete": ServiceActions(server).delete_service}
