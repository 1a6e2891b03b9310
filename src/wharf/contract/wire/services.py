"""Endpoints and messages of services that jobs register."""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.record import Record
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.endpoint import Endpoint, ListFeatures, define_read, define_write, text


class ServiceStub(Record):
    """The name of a service, with the tags of all its instances."""

    service_name: str
    tags: tuple[str, ...] = ()


class NamespaceServices(Record):
    """The services of one namespace."""

    namespace: str
    services: tuple[ServiceStub, ...] = ()


ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "service.list", "/v1/services", need=permissions.READ_JOB, summary="List services by namespace and name.",
        list_features=ListFeatures(record=ServiceRegistration, can_reverse=False, has_pages=False),
        reply_type=list[NamespaceServices],
    ),
    define_read(
        "service.read", "/v1/service/{service_name}", need=permissions.READ_JOB, summary="List the instances of a service.",
        list_features=ListFeatures(record=ServiceRegistration, can_reverse=False, has_prefix=False),
        reply_type=list[ServiceRegistration],
        parameters=(text("choose", "`<n>|<key>`: select n instances; the same key selects the same ones."),),
    ),
    define_write(
        "service.delete", "/v1/service/{service_name}/{service_id}", method="DELETE", need=permissions.DELETE_SERVICE,
        summary="Delete the registration of a service instance.",
    ),
)  # fmt: skip
