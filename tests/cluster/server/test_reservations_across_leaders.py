"""Reservations after a change of the leader: they are those of the evaluations that still wait."""

from tests.builders import a_batch_job, a_group, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, EVALUATIONS
from wharf.contract.model.jobs.job import Job


def make_job(job_id: str, memory_mb: int) -> Job:
    task = a_task(driver="mock", config={"run_for": "1h"}, resources=some_resources(memory_mb=memory_mb))
    return a_batch_job(job_id, a_group("web", task))


def list_reserved_jobs(server: OneServer) -> list[str]:
    evaluations = server.replica.iter_all(EVALUATIONS)
    return [e.job_id for e in evaluations if e.reserved_node_id and not e.status.is_terminal]


def has_allocation(server: OneServer, job_id: str) -> bool:
    return bool(server.replica.list_by_index(ALLOCATIONS_OF_JOB, "default", job_id))


@in_virtual_time
async def test_a_new_leader_uses_a_node_whose_reservation_ended_while_another_server_led() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        await cluster.ready_nodes(first, 1, memory_mb=1_000)
        await first.client.jobs.register(make_job("small", 900))
        await until(lambda: has_allocation(first, "small"), what="the small job is placed")
        await first.client.jobs.register(make_job("big", 1_000))
        await until(lambda: list_reserved_jobs(first) == ["big"], what="the node is reserved", within_s=200.0)
        second = await cluster.a_server("m2", leads=False)  # It loads the state with the reservation.
        await first.client.jobs.deregister("big")
        await until(lambda: not list_reserved_jobs(second), what="the reservation ends")
        assert first.election.term is not None
        first.election.term.lose()
        await second.lead()

        await second.client.jobs.register(make_job("next", 100))

        await until(lambda: has_allocation(second, "next"), what="the next job is placed")


@in_virtual_time
async def test_a_new_leader_keeps_the_reservation_that_the_leader_before_it_made() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        await cluster.ready_nodes(first, 1, memory_mb=1_000)
        await first.client.jobs.register(make_job("small", 900))
        await until(lambda: has_allocation(first, "small"), what="the small job is placed")
        await first.client.jobs.register(make_job("big", 1_000))
        await until(lambda: list_reserved_jobs(second) == ["big"], what="the node is reserved", within_s=200.0)
        assert first.election.term is not None
        first.election.term.lose()
        await second.lead()

        await second.client.jobs.register(make_job("next", 100))

        await until(
            lambda: any(e.job_id == "next" and e.failed_tg_allocs for e in second.replica.iter_all(EVALUATIONS)),
            what="the next job waits",
        )
        assert not has_allocation(second, "next")
