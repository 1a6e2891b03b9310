"""What is asked to be thought through is thought through on a state as new as whoever asks has seen, and changes nothing."""

import pytest

from tests.builders import a_group, a_job, a_task
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, now_s
from tests.spec.words import register
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation
from wharf.cluster.server.rpc.handlers.dry_runs import DRY_RUN_JOB, EXPLAIN_JOB, DryRunJobRequest, ExplainJobRequest
from wharf.cluster.server.worker_process import WorkerFunction
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.refusal import Refusal, RefusalCode


class Counting:
    """A sideline that counts what was thought through, in place."""

    def __init__(self) -> None:
        self.works = 0

    async def run(self, work: WorkerFunction) -> bytes:
        self.works += 1
        return work()


@in_virtual_time
async def test_a_server_that_does_not_lead_answers_from_its_own_replica_once_that_is_new_enough() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        second.faults.choose_fault = lambda asked: DelayFault(reply_s=2.0) if asked is EngineOperation.FEED else None
        await register(first, a_job())
        began_s = now_s()

        asked = ExplainJobRequest(index=first.replica.index, namespace="default", job_id="shop")
        told = await second.server.leader.call_member("m2", EXPLAIN_JOB, asked)

        assert (told.job_id, told.status) == ("shop", "pending")
        assert now_s() - began_s >= 1.0


@in_virtual_time
async def test_a_dry_run_changes_nothing_and_names_no_id_that_will_be_used() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        before = server.replica.index
        job = a_job("huge", a_group("web", a_task(driver="mock"), count=3), namespace="default")
        asked = DryRunJobRequest(index=before, job=job, settings=JobSettings(), with_diff=True)

        told = await server.server.leader.call_member("m1", DRY_RUN_JOB, asked)

        assert told.annotations is not None
        assert (told.annotations.desired_tg_updates or {})["web"].place == 3
        assert (told.diff is None, server.replica.index) == (False, before)


@in_virtual_time
async def test_what_is_refused_on_the_sideline_is_refused_to_whoever_asks() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        with pytest.raises(Refusal, match="job not found") as refused:
            await server.server.leader.call_member(
                "m1", EXPLAIN_JOB, ExplainJobRequest(index=0, namespace="default", job_id="nobody")
            )

        assert refused.value.code is RefusalCode.NOT_FOUND
