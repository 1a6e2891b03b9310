"""Log lines that could repeat with every request."""

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.world.log_limit import LOG_INTERVAL_S, MAX_CAUSES, LogLimit


@in_virtual_time
async def test_a_cause_is_logged_once_a_minute_with_the_number_of_events_before() -> None:
    async with ACluster() as cluster:
        limit = LogLimit(cluster.world("server"))

        first = [limit.count_event("full disk") for _ in range(4)]
        await pass_time(LOG_INTERVAL_S)

        assert [*first, limit.count_event("full disk")] == [0, None, None, None, 3]


@in_virtual_time
async def test_the_causes_in_memory_are_limited() -> None:
    async with ACluster() as cluster:
        limit = LogLimit(cluster.world("server"))

        counts = [limit.count_event(number) for number in (*range(MAX_CAUSES), 0, MAX_CAUSES, 0)]

        assert counts == [*[0] * MAX_CAUSES, None, 0, 0]
