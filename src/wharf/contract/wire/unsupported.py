"""Endpoints that are known and left out: each answers 501 with a sentence.

Storage plugins, policies as code and recommendations are parts of other products; so are licences, which `operator` has.
"""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.acl.permissions import Permission
from wharf.contract.wire.endpoint import Endpoint, EndpointKind

NO_PLUGINS_REASON: Final = (
    "Storage plugins are not a part of this product; volumes of hosts are: see /v1/volumes?type=host"
)
NO_SENTINEL_REASON: Final = (
    "Policies as code are not a part of this product; what may be done is said by access control"
)
NO_RECOMMENDATIONS_REASON: Final = "Recommendations are not a part of this product"


def _left_out(name: str, method: str, path: str, needed: Permission, why: str) -> Endpoint:
    return Endpoint(
        name=name,
        method=method,
        path=path,
        kind=EndpointKind.LOCAL,
        need=needed,
        summary="Left out.",
        unsupported_reason=why,
    )


ROWS: Final[tuple[Endpoint, ...]] = (
    _left_out("plugin.list", "GET", "/v1/plugins", permissions.LIST_PLUGINS, NO_PLUGINS_REASON),
    _left_out("plugin.read", "GET", "/v1/plugin/csi/{plugin_id}", permissions.READ_PLUGIN, NO_PLUGINS_REASON),
    _left_out("csi_volume.read", "GET", "/v1/volume/csi/{volume_id}", permissions.READ_CSI_VOLUME, NO_PLUGINS_REASON),
    _left_out(
        "csi_volume.register", "PUT", "/v1/volume/csi/{volume_id}", permissions.MANAGEMENT_TOKEN, NO_PLUGINS_REASON
    ),
    _left_out(
        "csi_volume.deregister", "DELETE", "/v1/volume/csi/{volume_id}", permissions.MANAGEMENT_TOKEN, NO_PLUGINS_REASON
    ),
    _left_out(
        "csi_volume.create", "PUT", "/v1/volume/csi/{volume_id}/create", permissions.MANAGEMENT_TOKEN, NO_PLUGINS_REASON
    ),
    _left_out(
        "csi_volume.delete",
        "DELETE",
        "/v1/volume/csi/{volume_id}/delete",
        permissions.MANAGEMENT_TOKEN,
        NO_PLUGINS_REASON,
    ),
    _left_out(
        "csi_volume.detach",
        "DELETE",
        "/v1/volume/csi/{volume_id}/detach",
        permissions.MANAGEMENT_TOKEN,
        NO_PLUGINS_REASON,
    ),
    _left_out("csi_volume.external", "GET", "/v1/volumes/external", permissions.LIST_CSI_VOLUMES, NO_PLUGINS_REASON),
    _left_out("csi_snapshot.list", "GET", "/v1/volumes/snapshot", permissions.LIST_CSI_VOLUMES, NO_PLUGINS_REASON),
    _left_out("csi_snapshot.create", "PUT", "/v1/volumes/snapshot", permissions.MANAGEMENT_TOKEN, NO_PLUGINS_REASON),
    _left_out("csi_snapshot.delete", "DELETE", "/v1/volumes/snapshot", permissions.MANAGEMENT_TOKEN, NO_PLUGINS_REASON),
    _left_out("sentinel.list", "GET", "/v1/sentinel/policies", permissions.MANAGEMENT_TOKEN, NO_SENTINEL_REASON),
    _left_out("sentinel.read", "GET", "/v1/sentinel/policy/{name}", permissions.MANAGEMENT_TOKEN, NO_SENTINEL_REASON),
    _left_out("sentinel.write", "PUT", "/v1/sentinel/policy/{name}", permissions.MANAGEMENT_TOKEN, NO_SENTINEL_REASON),
    _left_out(
        "sentinel.delete", "DELETE", "/v1/sentinel/policy/{name}", permissions.MANAGEMENT_TOKEN, NO_SENTINEL_REASON
    ),
    _left_out(
        "recommendation.list", "GET", "/v1/recommendations", permissions.MANAGEMENT_TOKEN, NO_RECOMMENDATIONS_REASON
    ),
    _left_out(
        "recommendation.apply",
        "PUT",
        "/v1/recommendations/apply",
        permissions.MANAGEMENT_TOKEN,
        NO_RECOMMENDATIONS_REASON,
    ),
    _left_out(
        "recommendation.make", "PUT", "/v1/recommendation", permissions.MANAGEMENT_TOKEN, NO_RECOMMENDATIONS_REASON
    ),
    _left_out(
        "recommendation.read", "GET", "/v1/recommendation/{id}", permissions.MANAGEMENT_TOKEN, NO_RECOMMENDATIONS_REASON
    ),
)
