"""Dry runs: computed on a state that is new enough, without changes."""

import json

import msgspec
import pytest

from tests.builders import a_group, a_job, a_task, some_job_settings
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, now_s
from tests.spec.server_requests import register
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation
from wharf.cluster.server.rpc.handlers.dry_runs import DRY_RUN_JOB, DryRunJobRequest
from wharf.cluster.server.worker_process import WorkerFunction
from wharf.cluster.state.tables import JOBS
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import Refusal, RefusalCode


class CountingWorker:
    """A worker that runs computations in place and counts them."""

    def __init__(self) -> None:
        self.works = 0

    async def run(self, work: WorkerFunction) -> bytes:
        self.works += 1
        return work()


def a_dry_run(job: Job, index: int) -> DryRunJobRequest:
    """Return a request for the plan of a job, computed from the state of this index or a newer one."""
    encoded = msgspec.Raw(msgspec.msgpack.encode(job))
    return DryRunJobRequest(index=index, job=encoded, settings=some_job_settings(), with_diff=True)


@in_virtual_time
async def test_a_follower_computes_a_dry_run_once_its_replica_is_new_enough() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        second.faults.choose_fault = lambda operation: (
            DelayFault(reply_s=2.0) if operation is EngineOperation.FEED else None
        )
        await register(first, a_job())
        began_s = now_s()

        result = await second.server.leader.call_member("m2", DRY_RUN_JOB, a_dry_run(a_job(), first.replica.index))

        stored = first.replica.get(JOBS, "default", "shop")
        assert stored is not None
        assert result.plan.job_modify_index == stored.job_modify_index
        assert now_s() - began_s >= 1.0


@in_virtual_time
async def test_a_dry_run_changes_nothing_and_names_no_id_that_will_be_used() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        before = server.replica.index
        job = a_job("huge", a_group("web", a_task(driver="mock"), count=3), namespace="default")

        result = await server.server.leader.call_member("m1", DRY_RUN_JOB, a_dry_run(job, before))

        assert result.plan.annotations is not None
        assert (result.plan.annotations.desired_tg_updates or {})["web"].place == 3
        assert (json.loads(result.diff)["Type"], server.replica.index) == ("Added", before)


@in_virtual_time
async def test_a_refusal_in_the_worker_process_is_returned_to_the_caller() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        with pytest.raises(Refusal, match="priority") as caught:
            await server.server.leader.call_member("m1", DRY_RUN_JOB, a_dry_run(a_job(priority=1_000), 0))

        assert caught.value.code is RefusalCode.INVALID
