"""Endpoints of the services that jobs offer."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from wharf.api.answers import Act, Done, Reading
from wharf.api.listing import Listing, by_namespace, gathered
from wharf.api.request import ReadOptions, Request
from wharf.filters import NotReadable, Subject, compile_filter
from wharf.model.refusal import invalid
from wharf.model.registration import ServiceRegistration
from wharf.operations import services
from wharf.operations.services import choose, read_choice
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import REGISTRATIONS_BY_NAME, SERVICES
from wharf.wire.work_shapes import ServicesOfNamespace, ServiceStub

SUBJECT: Final = Subject(ServiceRegistration)


def service_list(replica: Replica, _request: Request, options: ReadOptions) -> Listing[ServiceRegistration]:
    return by_namespace(replica, SERVICES, replace(options, prefix=""), told=_grouped)


def _grouped(registrations: list[ServiceRegistration]) -> list[ServicesOfNamespace]:
    """By namespace and name, with the tags of all instances together."""
    tags: dict[str, dict[str, set[str]]] = {}
    for registration in registrations:
        names = tags.setdefault(registration.namespace, {})
        names.setdefault(registration.service_name, set()).update(registration.tags or ())
    return [
        ServicesOfNamespace(
            namespace=namespace,
            services=tuple(ServiceStub(service_name=name, tags=tuple(sorted(names[name]))) for name in sorted(names)),
        )
        for namespace, names in sorted(tags.items())
    ]


def service_read(replica: Replica, request: Request, options: ReadOptions) -> Listing[ServiceRegistration]:
    key = (options.namespace, request.value("service_name"))
    given = request.text("choose")
    found: Iterable[ServiceRegistration] = replica.those(REGISTRATIONS_BY_NAME, *key)
    if given:
        # Among those that the filter leaves: else a choice could come to nothing though there is one to choose.
        found = choose(_accepted(found, options.filter), read_choice(given))
    return gathered(
        found,
        index=replica.last_change(SERVICES),
        watched=[watch.those(REGISTRATIONS_BY_NAME, *key)],
        token_of=lambda registration: f"{registration.namespace}.{registration.id}",
        namespace_of=attrgetter("namespace"),
    )


def _accepted(found: Iterable[ServiceRegistration], expression: str) -> Iterable[ServiceRegistration]:
    if not expression:
        return found
    accepts: Callable[[ServiceRegistration], bool] = compile_filter(expression, SUBJECT).accepts
    try:
        return [registration for registration in found if accepts(registration)]
    except NotReadable as error:
        raise invalid(f"failed to read result page: {error.text}") from error


READS: Final[dict[str, Reading]] = {"service.list": service_list, "service.read": service_read}


class ServiceActs:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def delete(self, request: Request) -> Done:
        name, registration_id = request.value("service_name"), request.value("service_id")
        index = await self._server.writer.write(
            lambda snapshot, _moment: services.delete(
                snapshot, request.namespace, name, registration_id, cause=request.id
            )
        )
        return Done(index=index)


def acts_of(server: Server) -> dict[str, Act]:
    return {"service.delete": ServiceActs(server).delete}
