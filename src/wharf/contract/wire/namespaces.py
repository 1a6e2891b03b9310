"""Endpoints of namespaces."""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.namespaces import Namespace
from wharf.contract.wire.endpoint import Endpoint, ListFeatures, ScopeSource, define_read, define_write

NAMESPACE_PARAMETER: Final = "{namespace_name...}"

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "namespace.list", "/v1/namespaces", need=permissions.ANY_TOKEN,
        summary="List the namespaces in which the caller has any capability.",
        list_features=ListFeatures(record=Namespace, can_reverse=False, can_filter=False, has_pages=False), reply_type=list[Namespace],
    ),
    define_read(
        "namespace.read", f"/v1/namespace/{NAMESPACE_PARAMETER}", need=permissions.READ_NAMESPACE, scope_source=ScopeSource.OBJECT,
        summary="Read a namespace.", reply_type=Namespace,
    ),
    define_write(
        "namespace.store", "/v1/namespace", need=permissions.MANAGEMENT_TOKEN, summary="Create or replace a namespace.",
        body_type=Namespace,
    ),
    define_write(
        "namespace.update", f"/v1/namespace/{NAMESPACE_PARAMETER}", need=permissions.MANAGEMENT_TOKEN,
        summary="Create or replace the namespace with this name.", body_type=Namespace,
    ),
    define_write(
        "namespace.delete", f"/v1/namespace/{NAMESPACE_PARAMETER}", method="DELETE", need=permissions.MANAGEMENT_TOKEN,
        summary="Delete an empty namespace.",
    ),
)  # fmt: skip
