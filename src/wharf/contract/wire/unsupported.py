"""Endpoints of Nomad that Wharf does not support. Each replies with 501 and the reason.

They belong to CSI plugins, Sentinel policies and recommendations. The license endpoints are in `operator`.
"""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.acl.permissions import Permission
from wharf.contract.model.jobs.volumes import NO_PLUGINS_REASON
from wharf.contract.wire.endpoint import Endpoint, EndpointKind

NO_SENTINEL_REASON: Final = "Sentinel policies are not supported. Use ACL policies to restrict what callers may do"
NO_RECOMMENDATIONS_REASON: Final = "Recommendations are not supported"


def _define_unsupported(name: str, method: str, path: str, permission: Permission, reason: str) -> Endpoint:
    """Return an endpoint of Nomad's API that Wharf does not support: it replies with 501 and `reason`."""
    return Endpoint(
        name=name,
        method=method,
        path=path,
        kind=EndpointKind.LOCAL,
        need=permission,
        summary="Not supported.",
        unsupported_reason=reason,
    )


ROWS: Final[tuple[Endpoint, ...]] = (
    _define_unsupported("plugin.list", "GET", "/v1/plugins", permissions.LIST_PLUGINS, NO_PLUGINS_REASON),
    _define_unsupported("plugin.read", "GET", "/v1/plugin/csi/{plugin_id}", permissions.READ_PLUGIN, NO_PLUGINS_REASON),
    _define_unsupported(
        "csi_volume.read", "GET", "/v1/volume/csi/{volume_id}", permissions.READ_CSI_VOLUME, NO_PLUGINS_REASON
    ),
    _define_unsupported(
        "csi_volume.register", "PUT", "/v1/volume/csi/{volume_id}", permissions.MANAGEMENT_TOKEN, NO_PLUGINS_REASON
    ),
    _define_unsupported(
        "csi_volume.deregister", "DELETE", "/v1/volume/csi/{volume_id}", permissions.MANAGEMENT_TOKEN, NO_PLUGINS_REASON
    ),
    _define_unsupported(
        "csi_volume.create", "PUT", "/v1/volume/csi/{volume_id}/create", permissions.MANAGEMENT_TOKEN, NO_PLUGINS_REASON
    ),
    _define_unsupported(
        "csi_volume.delete",
        "DELETE",
        "/v1/volume/csi/{volume_id}/delete",
        permissions.MANAGEMENT_TOKEN,
        NO_PLUGINS_REASON,
    ),
    _define_unsupported(
        "csi_volume.detach",
        "DELETE",
        "/v1/volume/csi/{volume_id}/detach",
        permissions.MANAGEMENT_TOKEN,
        NO_PLUGINS_REASON,
    ),
    _define_unsupported(
        "csi_volume.external", "GET", "/v1/volumes/external", permissions.LIST_CSI_VOLUMES, NO_PLUGINS_REASON
    ),
    _define_unsupported(
        "csi_snapshot.list", "GET", "/v1/volumes/snapshot", permissions.LIST_CSI_VOLUMES, NO_PLUGINS_REASON
    ),
    _define_unsupported(
        "csi_snapshot.create", "PUT", "/v1/volumes/snapshot", permissions.MANAGEMENT_TOKEN, NO_PLUGINS_REASON
    ),
    _define_unsupported(
        "csi_snapshot.delete", "DELETE", "/v1/volumes/snapshot", permissions.MANAGEMENT_TOKEN, NO_PLUGINS_REASON
    ),
    _define_unsupported(
        "sentinel.list", "GET", "/v1/sentinel/policies", permissions.MANAGEMENT_TOKEN, NO_SENTINEL_REASON
    ),
    _define_unsupported(
        "sentinel.read", "GET", "/v1/sentinel/policy/{name}", permissions.MANAGEMENT_TOKEN, NO_SENTINEL_REASON
    ),
    _define_unsupported(
        "sentinel.write", "PUT", "/v1/sentinel/policy/{name}", permissions.MANAGEMENT_TOKEN, NO_SENTINEL_REASON
    ),
    _define_unsupported(
        "sentinel.delete", "DELETE", "/v1/sentinel/policy/{name}", permissions.MANAGEMENT_TOKEN, NO_SENTINEL_REASON
    ),
    _define_unsupported(
        "recommendation.list", "GET", "/v1/recommendations", permissions.MANAGEMENT_TOKEN, NO_RECOMMENDATIONS_REASON
    ),
    _define_unsupported(
        "recommendation.apply",
        "PUT",
        "/v1/recommendations/apply",
        permissions.MANAGEMENT_TOKEN,
        NO_RECOMMENDATIONS_REASON,
    ),
    _define_unsupported(
        "recommendation.make", "PUT", "/v1/recommendation", permissions.MANAGEMENT_TOKEN, NO_RECOMMENDATIONS_REASON
    ),
    _define_unsupported(
        "recommendation.read", "GET", "/v1/recommendation/{id}", permissions.MANAGEMENT_TOKEN, NO_RECOMMENDATIONS_REASON
    ),
)
