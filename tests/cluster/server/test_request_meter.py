"""Request metrics: totals since the start, and by intervals."""

import asyncio

from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.server.metrics import BUCKET_LIMITS_MS, RequestMeter, RequestSeries
from wharf.world import SimulatedWorld

JOBS = RequestSeries("job", "read", "2xx")


def make_meter() -> RequestMeter:
    return RequestMeter(SimulatedWorld(1, asyncio.get_running_loop().time), interval_s=10.0)


async def record_reply(meter: RequestMeter, took_s: float) -> None:
    began_s = meter.now_s()
    await pass_time(took_s)
    meter.record_request(JOBS, began_s=began_s)


@in_virtual_time
async def test_the_reported_interval_is_the_last_finished_one() -> None:
    meter = make_meter()
    await record_reply(meter, 0.002)
    await record_reply(meter, 0.004)
    await pass_time(10)
    await record_reply(meter, 0.1)

    (summed,) = meter.last_interval().summaries.values()

    assert (summed.count, round(summed.mean_ms, 6), round(summed.deviation_ms, 6)) == (2, 3.0, 1.414214)
    assert (round(summed.min_ms, 6), round(summed.max_ms, 6)) == (2.0, 4.0)


@in_virtual_time
async def test_an_interval_without_requests_is_empty() -> None:
    meter = make_meter()
    await record_reply(meter, 0.002)
    await pass_time(35)

    assert meter.last_interval().summaries == {}


@in_virtual_time
async def test_the_current_interval_is_reported_until_one_is_finished() -> None:
    meter = make_meter()
    await record_reply(meter, 0.002)

    assert meter.last_interval().summaries[JOBS].count == 1


@in_virtual_time
async def test_a_histogram_counts_each_reply_in_one_bucket() -> None:
    meter = make_meter()
    for took_s in (0.0005, 0.003, 0.003, 60.0):
        await record_reply(meter, took_s)

    ((series, histogram),) = meter.list_totals()

    assert (series, histogram.count, sum(histogram.buckets)) == (JOBS, 4, 4)
    assert (histogram.buckets[0], histogram.buckets[BUCKET_LIMITS_MS.index(5.0)], histogram.buckets[-1]) == (1, 2, 1)
