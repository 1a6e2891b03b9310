"""The rooms of the API and the endpoint table are about the same nouns, in the same order, and leave nothing without an answer."""

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from wharf.api.handlers import ROOMS, acts_of, reads_of
from wharf.wire.endpoints import ENDPOINTS, NOUNS, Kind, left_out


def test_every_noun_of_the_table_has_its_room_in_the_same_order() -> None:
    nouns = [noun.__name__.rpartition(".")[2] for noun in NOUNS if noun is not left_out]

    assert nouns == [room.__name__.rpartition(".")[2] for room in ROOMS]


@in_virtual_time
async def test_every_endpoint_that_is_not_left_out_has_one_handler_and_there_are_no_others() -> None:
    async with ACluster() as cluster:
        server = (await cluster.a_server()).server
        answered = [endpoint for endpoint in ENDPOINTS if not endpoint.left_out]

        assert set(reads_of(server)) == {endpoint.name for endpoint in answered if endpoint.kind is Kind.READ}
        assert set(acts_of(server)) == {endpoint.name for endpoint in answered if endpoint.kind is not Kind.READ}
