"""Endpoints that are known and left out: each answers 501 with a sentence.

Storage plugins, policies as code and recommendations are parts of other products; so are licences, which `operator` has.
"""

from typing import Final

from wharf.model import need
from wharf.model.need import Need
from wharf.wire.endpoints.endpoint import Endpoint, Kind

NO_PLUGINS: Final = "Storage plugins are not a part of this product; volumes of hosts are: see /v1/volumes?type=host"
NO_SENTINEL: Final = "Policies as code are not a part of this product; what may be done is said by access control"
NO_RECOMMENDATIONS: Final = "Recommendations are not a part of this product"


def _left_out(name: str, method: str, path: str, needed: Need, why: str) -> Endpoint:
    return Endpoint(
        name=name, method=method, path=path, kind=Kind.LOCAL, need=needed, summary="Left out.", left_out=why
    )


ROWS: Final[tuple[Endpoint, ...]] = (
    _left_out("plugin.list", "GET", "/v1/plugins", need.LIST_PLUGINS, NO_PLUGINS),
    _left_out("plugin.read", "GET", "/v1/plugin/csi/{plugin_id}", need.READ_PLUGIN, NO_PLUGINS),
    _left_out("csi_volume.read", "GET", "/v1/volume/csi/{volume_id}", need.READ_CSI_VOLUME, NO_PLUGINS),
    _left_out("csi_volume.register", "PUT", "/v1/volume/csi/{volume_id}", need.MANAGEMENT, NO_PLUGINS),
    _left_out("csi_volume.deregister", "DELETE", "/v1/volume/csi/{volume_id}", need.MANAGEMENT, NO_PLUGINS),
    _left_out("csi_volume.create", "PUT", "/v1/volume/csi/{volume_id}/create", need.MANAGEMENT, NO_PLUGINS),
    _left_out("csi_volume.delete", "DELETE", "/v1/volume/csi/{volume_id}/delete", need.MANAGEMENT, NO_PLUGINS),
    _left_out("csi_volume.detach", "DELETE", "/v1/volume/csi/{volume_id}/detach", need.MANAGEMENT, NO_PLUGINS),
    _left_out("csi_volume.external", "GET", "/v1/volumes/external", need.LIST_CSI_VOLUMES, NO_PLUGINS),
    _left_out("csi_snapshot.list", "GET", "/v1/volumes/snapshot", need.LIST_CSI_VOLUMES, NO_PLUGINS),
    _left_out("csi_snapshot.create", "PUT", "/v1/volumes/snapshot", need.MANAGEMENT, NO_PLUGINS),
    _left_out("csi_snapshot.delete", "DELETE", "/v1/volumes/snapshot", need.MANAGEMENT, NO_PLUGINS),
    _left_out("sentinel.list", "GET", "/v1/sentinel/policies", need.MANAGEMENT, NO_SENTINEL),
    _left_out("sentinel.read", "GET", "/v1/sentinel/policy/{name}", need.MANAGEMENT, NO_SENTINEL),
    _left_out("sentinel.write", "PUT", "/v1/sentinel/policy/{name}", need.MANAGEMENT, NO_SENTINEL),
    _left_out("sentinel.delete", "DELETE", "/v1/sentinel/policy/{name}", need.MANAGEMENT, NO_SENTINEL),
    _left_out("recommendation.list", "GET", "/v1/recommendations", need.MANAGEMENT, NO_RECOMMENDATIONS),
    _left_out("recommendation.apply", "PUT", "/v1/recommendations/apply", need.MANAGEMENT, NO_RECOMMENDATIONS),
    _left_out("recommendation.make", "PUT", "/v1/recommendation", need.MANAGEMENT, NO_RECOMMENDATIONS),
    _left_out("recommendation.read", "GET", "/v1/recommendation/{id}", need.MANAGEMENT, NO_RECOMMENDATIONS),
)
