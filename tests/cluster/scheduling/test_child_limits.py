"""Child limits: how many children of one job run at the same time."""

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import a_batch_job
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SETTINGS
from wharf.cluster.operations.jobs import purge
from wharf.cluster.operations.jobs.dispatch import DispatchRequest, dispatch_job
from wharf.cluster.state.tables import JOBS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.job import ChildrenSummary, Job, JobStatus, Parameterized


class ParentCluster(SimulatedCluster):
    """A cluster with unlimited capacity, and a parent job with a limit on running children."""

    def __init__(self, max_running: int) -> None:
        super().__init__()
        self.with_node(cpu=100_000, memory_mb=100_000)
        self.register(a_batch_job("convert", parameterized_job=Parameterized(max_running=max_running)))

    def dispatch(self) -> str:
        request = DispatchRequest(namespace="default", job_id="convert")
        dispatched = self.lead(dispatch_job(self.replica, request, self.moment, SETTINGS))
        self.process_pending()
        return dispatched.job_id

    def list_children(self) -> list[Job]:
        return sorted((job for job in self.replica.iter_all(JOBS) if job.parent_id), key=lambda job: job.create_index)

    def list_running(self) -> list[str]:
        return [job.id for job in self.list_children() if self.list_active(job.id)]

    def end_child(self, job_id: str) -> None:
        self.report(self.list_active(job_id)[0], ClientStatus.COMPLETE)
        self.retry_blocked()
        self.process_pending()


@given(st.integers(1, 4), st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=1, max_size=20))
def test_no_more_children_run_than_max_running_and_a_free_slot_is_used(
    max_running: int, steps: list[int | None]
) -> None:
    parent = ParentCluster(max_running)
    for step in steps:
        running = parent.list_running()
        if step is None or step >= len(running):
            parent.dispatch()
        else:
            parent.end_child(running[step])
        active = [job.id for job in parent.list_children() if job.status is not JobStatus.DEAD]
        assert len(parent.list_running()) == min(max_running, len(active))


def test_a_child_that_waits_for_a_slot_names_its_parent() -> None:
    parent = ParentCluster(1)
    parent.dispatch()
    child = parent.dispatch()
    (blocked,) = parent.list_blocked()
    (metric,) = (blocked.failed_tg_allocs or {}).values()

    assert (blocked.job_id, blocked.waits_behind, metric.quota_exhausted) == (
        child,
        "convert",
        ("max_running of convert exhausted (1 running, limit 1)",),
    )


def test_without_a_limit_all_children_run() -> None:
    parent = ParentCluster(0)
    for _ in range(5):
        parent.dispatch()

    assert len(parent.list_running()) == 5


def test_children_of_a_purged_parent_run_beside_the_children_of_a_new_one() -> None:
    parent = ParentCluster(2)
    first, second = parent.dispatch(), parent.dispatch()
    parent.lead(purge.purge_job(parent.replica, "default", "convert", parent.moment, max_changes=40))
    parent.register(a_batch_job("convert", parameterized_job=Parameterized(max_running=2)))
    third = parent.dispatch()
    before = parent.list_running()
    parent.end_child(first)

    assert (before, parent.list_running()) == ([first, second], [second, third])
    assert parent.summary("convert").children == ChildrenSummary(pending=0, running=2, dead=1)
