"""A run or an array with the ID of a purged job goes on by itself: tasks of the purged one may still be stopping."""

from tests.builders import a_batch_job, a_group, a_task
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.cluster.scheduling.test_runs import NO_RETRY, Run, a_step
from tests.kit.api_client import ApiClient
from tests.kit.cluster import ACluster
from tests.kit.state import SECOND_NS, SETTINGS
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.operations.jobs.purge import purge_job
from wharf.cluster.operations.jobs.runs import RunCancellation, cancel_run
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import ALLOCATIONS, CLUSTER_FORMAT, JOBS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_states import StepPhase
from wharf.contract.model.jobs.steps import Need


def a_run_with_the_id_of_a_purged_one(*steps: TaskGroup) -> tuple[Run, Allocation, Allocation]:
    """Return a run whose first step runs, the allocation of the purged run, which is stopping, and that of the new one."""
    run = Run(*steps)
    run.run_nodes()
    (old,) = run.list_allocations()
    run.lead(purge_job(run.replica, "default", "shop", run.moment, max_changes=100))
    run.process_pending()
    run.now_ns += SECOND_NS
    run.submit(*steps)
    (new,) = [each for each in run.list_allocations() if each.id != old.id]
    return run, old, new


def kill(run: SimulatedCluster, allocation: Allocation) -> None:
    run.report(run.allocation(allocation.id), ClientStatus.COMPLETE, successful=False)
    run.process_pending()


def test_a_run_goes_on_while_a_task_of_the_purged_run_stops() -> None:
    run, old, new = a_run_with_the_id_of_a_purged_one(a_step("a"), a_step("b", "a"))

    run.report(new, ClientStatus.COMPLETE)
    run.process_pending()

    assert run.phases["b"] == "ready"
    kill(run, old)
    assert run.phases["b"] == "ready"


def test_a_final_step_of_a_canceled_run_begins_while_a_task_of_the_purged_run_stops() -> None:
    run, _, new = a_run_with_the_id_of_a_purged_one(a_step("a"), a_step("tidy", final=True))
    run.lead(cancel_run(run.replica, RunCancellation(namespace="default", job_id="shop"), run.moment, SETTINGS))
    run.process_pending()

    kill(run, new)

    assert run.phases["tidy"] == "ready"


def test_an_array_goes_on_while_a_task_of_the_purged_array_stops() -> None:
    sweep = SimulatedCluster()
    sweep.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
    sweep.with_node("node-0", cpu=100_000, memory_mb=1_000_000)
    work = a_group("work", array=GroupArray(size=2, max_running=1), reschedule_policy=NO_RETRY)
    job = canonicalize_job(a_batch_job("sweep", work), SETTINGS)
    sweep.register(job)
    sweep.process_pending()
    sweep.run_nodes()
    (old,) = sweep.list_allocations("sweep")
    sweep.lead(purge_job(sweep.replica, "default", "sweep", sweep.moment, max_changes=100))
    sweep.process_pending()
    sweep.now_ns += SECOND_NS
    sweep.register(job)
    sweep.process_pending()
    (new,) = [each for each in sweep.list_allocations("sweep") if each.id != old.id]

    sweep.report(new, ClientStatus.COMPLETE)
    sweep.process_pending()

    assert any(each.name == "sweep.work[1]" for each in sweep.list_allocations("sweep"))


@in_virtual_time
async def test_a_run_goes_on_on_a_server_although_the_node_of_the_purged_run_stops_its_task_late() -> None:
    def a_job(run_for: str, **silence: str) -> Job:
        first = a_group("a", a_task("main", driver="mock", config={"run_for": run_for, **silence}))
        second = a_group("b", a_task("main", driver="mock", config={"run_for": "1s"}), depends=(Need(on="a"),))
        return a_batch_job("shop", first, second)

    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 2)
        client = ApiClient(server)
        await client.put("/v1/jobs", {"Job": a_job("24h", go_silent="12s", go_silent_after="3s")})
        await pass_time(5)
        (old,) = server.replica.iter_all(ALLOCATIONS)
        await client.put(f"/v1/node/{old.node_id}/eligibility", {"Eligibility": "ineligible"})
        await server.client.jobs.deregister("shop", purge=True)

        await client.put("/v1/jobs", {"Job": a_job("5s")})
        await pass_time(3_600)

        job = server.replica.get(JOBS, "default", "shop")
        assert job is not None
        assert read_snapshot_run(server.replica, job).steps["b"].facts.state.phase is StepPhase.READY
