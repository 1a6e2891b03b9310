"""Every endpoint of the table has exactly one handler."""

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.api.handler_table import build_action_handlers, build_read_handlers
from wharf.contract.wire.endpoint_table import ENDPOINTS, EndpointKind


@in_virtual_time
async def test_every_supported_endpoint_has_one_handler_and_there_are_no_others() -> None:
    async with ACluster() as cluster:
        server = (await cluster.a_server()).server
        supported = [endpoint for endpoint in ENDPOINTS if not endpoint.unsupported_reason]

        assert set(build_read_handlers(server)) == {
            endpoint.name for endpoint in supported if endpoint.kind is EndpointKind.READ
        }
        assert set(build_action_handlers(server)) == {
            endpoint.name for endpoint in supported if endpoint.kind is not EndpointKind.READ
        }
