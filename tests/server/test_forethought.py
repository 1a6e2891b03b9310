"""What is asked to be thought through is thought through on a state as new as whoever asks has seen, and changes nothing."""

import pytest

from tests.builders import a_group, a_job, a_task
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, now_s
from tests.spec.words import register
from wharf.engines.faults import Delay, Operation
from wharf.model.job_settings import JobSettings
from wharf.model.refusal import Code, Refusal
from wharf.server.answering.forethought import EXPLAIN_JOB, TRY_JOB, JobToExplain, JobToTry
from wharf.server.sideline import Work


class Counting:
    """A sideline that counts what was thought through, in place."""

    def __init__(self) -> None:
        self.works = 0

    async def run(self, work: Work) -> bytes:
        self.works += 1
        return work()


@in_virtual_time
async def test_a_server_that_does_not_lead_answers_from_its_own_replica_once_that_is_new_enough() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        second.faults.decide = lambda asked: Delay(reply_s=2.0) if asked is Operation.FEED else None
        await register(first, a_job())
        began_s = now_s()

        asked = JobToExplain(index=first.replica.index, namespace="default", job_id="shop")
        told = await second.server.leader.ask_member("m2", EXPLAIN_JOB, asked)

        assert (told.job_id, told.status) == ("shop", "pending")
        assert now_s() - began_s >= 1.0


@in_virtual_time
async def test_a_dry_run_changes_nothing_and_names_no_id_that_will_be_used() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        before = server.replica.index
        job = a_job("huge", a_group("web", a_task(driver="mock"), count=3), namespace="default")
        asked = JobToTry(index=before, job=job, settings=JobSettings(), with_diff=True)

        told = await server.server.leader.ask_member("m1", TRY_JOB, asked)

        assert told.annotations is not None
        assert (told.annotations.desired_tg_updates or {})["web"].place == 3
        assert (told.diff is None, server.replica.index) == (False, before)


@in_virtual_time
async def test_what_is_refused_on_the_sideline_is_refused_to_whoever_asks() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        with pytest.raises(Refusal, match="job not found") as refused:
            await server.server.leader.ask_member(
                "m1", EXPLAIN_JOB, JobToExplain(index=0, namespace="default", job_id="nobody")
            )

        assert refused.value.code is Code.UNKNOWN
