"""Endpoints of namespaces."""

from typing import Final

from wharf.model import need
from wharf.model.namespace import Namespace
from wharf.wire.endpoints.endpoint import Decides, Endpoint, Lists, reads, writes

NAME: Final = "{namespace_name...}"

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "namespace.list", "/v1/namespaces", need=need.ANY_TOKEN,
        summary="List the namespaces in which the caller has any right.",
        lists=Lists(record=Namespace, reverses=False, filters=False, pages=False), returns=list[Namespace],
    ),
    reads(
        "namespace.read", f"/v1/namespace/{NAME}", need=need.READ_NAMESPACE, decides=Decides.OBJECT,
        summary="Read a namespace.", returns=Namespace,
    ),
    writes(
        "namespace.store", "/v1/namespace", need=need.MANAGEMENT, summary="Create a namespace or change it.",
        body=Namespace,
    ),
    writes(
        "namespace.update", f"/v1/namespace/{NAME}", need=need.MANAGEMENT,
        summary="Create a namespace or change it, under its name.", body=Namespace,
    ),
    writes(
        "namespace.delete", f"/v1/namespace/{NAME}", method="DELETE", need=need.MANAGEMENT,
        summary="Delete a namespace that nothing lives in.",
    ),
)  # fmt: skip
