"""Endpoints of the services that jobs offer."""

from typing import Final

from wharf.model import need
from wharf.model.registration import ServiceRegistration
from wharf.wire.endpoints.endpoint import Endpoint, Lists, reads, text, writes
from wharf.wire.work_shapes import ServicesOfNamespace

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "service.list", "/v1/services", need=need.READ_JOB, summary="List services by namespace and name.",
        lists=Lists(record=ServiceRegistration, reverses=False, pages=False),
        returns=list[ServicesOfNamespace],
    ),
    reads(
        "service.read", "/v1/service/{service_name}", need=need.READ_JOB, summary="List the instances of a service.",
        lists=Lists(record=ServiceRegistration, reverses=False, prefix=False), returns=list[ServiceRegistration],
        parameters=(text("choose", "`<n>|<key>`: only so many instances, the same for the same key."),),
    ),
    writes(
        "service.delete", "/v1/service/{service_name}/{service_id}", method="DELETE", need=need.DELETE_SERVICE,
        summary="Take an instance of a service off the list.",
    ),
)  # fmt: skip
