"""Transcripts of deployments, drains and disconnected nodes, compared with the text files in this folder."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from tests.golden.transcript import Transcript, assert_golden
from tests.kit.cluster import ACluster
from tests.kit.settings import USUAL_HEARTBEATS
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.state.tables import DEPLOYMENTS
from wharf.contract.model.jobs.group_policies import DisconnectPolicy, ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.times import SECOND
from wharf.contract.wire.nodes.messages import DrainSpec


@pytest.fixture
def is_rewritten(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite-golden"))


def web(value: int, *, count: int = 3, fails: bool = False, update: UpdatePolicy | None = None, **group: Any) -> Job:
    config: dict[str, Any] = {"run_for": "1s", "exit_code": 1} if fails else {"run_for": "24h"}
    task = a_task(driver="mock", env={"V": str(value)}, config=config)
    return a_job("web", a_group("web", task, count=count, update=update, **group))


ROLLING = UpdatePolicy(max_parallel=1, min_healthy_time=5 * SECOND)
CANARY = UpdatePolicy(max_parallel=1, canary=1, min_healthy_time=5 * SECOND)
REVERTING = UpdatePolicy(
    max_parallel=1, canary=1, auto_revert=True, min_healthy_time=5 * SECOND, healthy_deadline=20 * SECOND,
    progress_deadline=40 * SECOND,
)  # fmt: skip


@in_virtual_time
async def test_a_rolling_update_replaces_one_allocation_at_a_time(is_rewritten: bool) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 3)
        transcript, jobs = Transcript(server), server.client.jobs
        await transcript.run("wharf job run web.hcl", jobs.register(web(0, update=ROLLING)))
        await transcript.run("wharf job run web-2.hcl", jobs.register(web(1, update=ROLLING)))

        assert_golden("rolling-update", transcript.text(), rewrite=is_rewritten)


@in_virtual_time
async def test_a_canary_waits_until_it_is_promoted(is_rewritten: bool) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 3)
        transcript, client = Transcript(server), server.client
        await transcript.run("wharf job run web.hcl", client.jobs.register(web(0, update=CANARY)))
        await transcript.run("wharf job run web-2.hcl", client.jobs.register(web(1, update=CANARY)))
        latest = max(server.replica.iter_all(DEPLOYMENTS), key=lambda each: each.create_index)
        await transcript.run("wharf deployment promote", client.deployments.promote(latest.id))

        assert_golden("canary-promoted", transcript.text(), rewrite=is_rewritten)


@in_virtual_time
async def test_a_failed_canary_reverts_the_job_to_its_stable_version(is_rewritten: bool) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 3)
        transcript, jobs = Transcript(server), server.client.jobs
        retry = ReschedulePolicy(delay=5 * SECOND, delay_function="constant", unlimited=True)
        good = web(0, update=REVERTING, reschedule_policy=retry)
        bad = web(1, update=REVERTING, reschedule_policy=retry, fails=True)
        await transcript.run("wharf job run web.hcl", jobs.register(good))
        await transcript.run("wharf job run web-2.hcl", jobs.register(bad), wait_s=180.0)

        assert_golden("canary-failing", transcript.text(), rewrite=is_rewritten)


@in_virtual_time
async def test_a_drain_moves_allocations_within_the_migrate_limits(is_rewritten: bool) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        first, *_ = await cluster.ready_nodes(server, 2)
        transcript, client = Transcript(server), server.client
        await transcript.run("wharf job run web.hcl", client.jobs.register(web(0, count=4)))
        await transcript.run("wharf node drain -enable node-1", client.nodes.drain(first.id, DrainSpec()), wait_s=180.0)

        assert_golden("drain", transcript.text(), rewrite=is_rewritten)


@in_virtual_time
async def test_a_disconnected_allocation_is_replaced_and_kept_when_its_node_returns(
    is_rewritten: bool,
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(heartbeats=replace(USUAL_HEARTBEATS, min_ttl_s=5.0, grace_s=5.0))
        nodes = await cluster.ready_nodes(server, 2)
        transcript, client = Transcript(server), server.client
        job = web(0, count=2, disconnect=DisconnectPolicy(lost_after=600 * SECOND, reconcile="keep_original"))
        await transcript.run("wharf job run web.hcl", client.jobs.register(job))
        await transcript.run("(node-1 is cut off)", nodes[0].die())
        await transcript.run("(node-1 is back)", nodes[0].restart(cluster))

        assert_golden("disconnect-keep-original", transcript.text(), rewrite=is_rewritten)
