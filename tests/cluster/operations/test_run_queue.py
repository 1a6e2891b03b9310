"""Runs of a flow with `Overlap` on a simulated cluster: they begin one after the other, and a new one may replace them."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.attempts import limited_cpu
from tests.builders import a_batch_job, a_group, a_parameterized_job
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SECOND_NS, SETTINGS
from wharf.cluster.operations.explanations.jobs import explain_job
from wharf.cluster.operations.jobs.dispatch import DispatchRequest, dispatch_job
from wharf.cluster.operations.jobs.overlap import RunQueues, require_no_other_run
from wharf.cluster.operations.jobs.purge import continue_purge, purge_job
from wharf.cluster.operations.jobs.registration import JobRegistration, deregister_job, register_job
from wharf.cluster.operations.jobs.run_queue import begin_next_run
from wharf.cluster.operations.jobs.runs import RunCancellation, cancel_run
from wharf.cluster.operations.jobs.stop_elements import StopElementsRequest, stop_elements
from wharf.cluster.operations.run_views import build_run_stub, build_run_view
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import ALLOCATIONS, ARRAY_ATTEMPTS, ATTEMPTS_OF_JOB, CLUSTER_FORMAT, JOB_PURGES, JOBS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.steps import Flow, Gate, Lock, Need
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import Refusal

NO_RETRY = ReschedulePolicy(unlimited=False)


class AFlow(SimulatedCluster):
    """A cluster with the flow `release`, whose runs are dispatched."""

    def __init__(self, overlap: str, *steps: TaskGroup, **fields: Any) -> None:
        super().__init__()
        self.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
        self.with_node("node-0", cpu=100_000, memory_mb=1_000_000)
        groups = steps or (a_group("build", reschedule_policy=NO_RETRY),)
        self.register(a_parameterized_job("release", *groups, flow=Flow(overlap=overlap), **fields))

    def launch(self) -> str:
        self.now_ns += SECOND_NS
        request = DispatchRequest(namespace="default", job_id="release")
        run_id = self.lead(dispatch_job(self.replica, request, self.moment, SETTINGS)).job_id
        self.settle_queue()
        return run_id

    def settle_queue(self) -> None:
        """Process evaluations, and begin runs as the duty of the leader does, until nothing changes."""
        self.process_pending()
        while (decision := begin_next_run(self.replica, ("default", "release"), self.moment)) is not None:
            self.lead(decision)
            self.process_pending()

    def running(self) -> list[str]:
        """The IDs of the runs with tasks."""
        alive = {each.job_id for each in self.replica.iter_all(ALLOCATIONS) if not each.is_client_terminal}
        return sorted(alive)

    def end(self, run_id: str, status: ClientStatus = ClientStatus.COMPLETE) -> None:
        for allocation in self.list_allocations(run_id):
            if not allocation.is_client_terminal:
                self.report(allocation, status)
        self.settle_queue()

    def cancel(self, run_id: str) -> None:
        request = RunCancellation(namespace="default", job_id=run_id, actor="ada")
        self.lead(cancel_run(self.replica, request, self.moment, SETTINGS))
        self.settle_queue()

    def text(self, run_id: str) -> str:
        return build_run_view(self.replica, self.job(run_id)).text


def test_a_queued_run_begins_when_the_run_before_it_has_ended() -> None:
    flow = AFlow("queue")
    first, second, third = flow.launch(), flow.launch(), flow.launch()

    assert flow.running() == [first]
    assert flow.text(third) == f"waits for the run {second} to end"
    flow.end(first)
    assert flow.running() == [second]
    flow.end(second)
    assert flow.running() == [third]


def test_a_failed_run_lets_the_next_one_begin_too() -> None:
    flow = AFlow("queue")
    first, second = flow.launch(), flow.launch()

    flow.end(first, ClientStatus.FAILED)

    assert flow.running() == [second]


def test_a_canceled_run_in_the_queue_lets_no_later_run_pass_the_one_that_runs() -> None:
    flow = AFlow("queue")
    first, second, third = flow.launch(), flow.launch(), flow.launch()

    flow.cancel(second)

    assert flow.job(second).status is JobStatus.DEAD
    assert flow.running() == [first]
    flow.end(first)
    assert flow.running() == [third]


def test_a_run_at_a_gate_keeps_the_next_run_waiting() -> None:
    flow = AFlow("queue", a_group("ship", gate=Gate()))
    first, second = flow.launch(), flow.launch()

    assert flow.text(first) == "ship waits for approval"
    assert flow.text(second) == f"waits for the run {first} to end"


def test_a_new_run_replaces_the_one_before_it_and_begins_after_its_tasks_have_stopped() -> None:
    flow = AFlow("replace")
    first = flow.launch()
    flow.run_nodes()

    second = flow.launch()

    assert flow.running() == [first]  # Its task is being stopped.
    flow.run_nodes()
    flow.settle_queue()
    assert flow.running() == [second]
    assert flow.text(first) == f"canceled, because the run {second} took its place"


def test_a_replaced_run_runs_its_final_steps_before_the_new_run_begins() -> None:
    flow = AFlow("replace", a_group("build"), a_group("tidy", final=True, depends=(Need(on="build"),)))
    first = flow.launch()
    flow.run_nodes()
    second = flow.launch()

    flow.run_nodes()
    flow.settle_queue()

    assert [each.task_group for each in flow.list_active(first)] == ["tidy"]
    flow.end(first)
    assert flow.running() == [second]


def test_a_run_that_was_replaced_already_is_not_replaced_again() -> None:
    flow = AFlow("replace")
    first = flow.launch()
    flow.run_nodes()
    second = flow.launch()

    third = flow.launch()
    flow.run_nodes()
    flow.settle_queue()

    assert flow.text(first) == f"canceled, because the run {second} took its place"
    assert flow.running() == [third]


def test_runs_of_a_flow_without_overlap_run_at_the_same_time() -> None:
    flow = AFlow("")

    assert sorted([flow.launch(), flow.launch()]) == flow.running()


def test_an_ended_run_is_not_retried_while_another_one_of_its_flow_runs() -> None:
    flow = AFlow("queue")
    first, second = flow.launch(), flow.launch()
    flow.end(first, ClientStatus.FAILED)

    with pytest.raises(Refusal, match=f'run "{second}" of the same flow has not ended'):
        require_no_other_run(flow.replica, "default", first)
    flow.end(second)
    require_no_other_run(flow.replica, "default", first)


def test_the_explanation_of_a_queued_run_names_the_run_before_it() -> None:
    flow = AFlow("queue")
    first, second = flow.launch(), flow.launch()

    assert explain_job(flow.replica, "default", second).text == (
        f"{second} waits: build waits for the end of {first}, which has 1 allocation placed but not started yet"
    )


def test_the_explanation_of_a_replaced_run_names_the_run_that_took_its_place() -> None:
    flow = AFlow("replace")
    first, second = flow.launch(), flow.launch()
    flow.run_nodes()

    (step,) = explain_job(flow.replica, "default", first).steps
    assert step.text.endswith(f"because the run {second} took its place")


def test_the_next_run_begins_after_the_tasks_of_a_purged_run_have_stopped() -> None:
    flow = AFlow("queue")
    first, second = flow.launch(), flow.launch()
    flow.run_nodes()

    flow.lead(purge_job(flow.replica, "default", first, flow.moment, max_changes=100))
    flow.settle_queue()
    assert flow.running() == [first]  # Its task is being stopped.
    assert flow.text(second) == f"waits for the run {first} to end"

    flow.run_nodes()
    (purge,) = flow.replica.iter_all(JOB_PURGES)
    flow.lead(continue_purge(flow.replica, purge, flow.moment, max_changes=100))
    flow.settle_queue()
    assert flow.running() == [second]


def test_a_flow_that_skips_does_not_launch_while_the_tasks_of_a_purged_run_stop() -> None:
    flow = AFlow("skip")
    first = flow.launch()
    flow.run_nodes()

    flow.lead(purge_job(flow.replica, "default", first, flow.moment, max_changes=100))

    with pytest.raises(Refusal, match=f'run "{first}" has not ended'):
        flow.launch()


def start_again(flow: AFlow, job: Job) -> None:
    """Submit an ended run again."""
    flow.now_ns += SECOND_NS
    flow.lead(register_job(flow.replica, JobRegistration(job=job), flow.moment, SETTINGS))
    flow.settle_queue()


def test_a_stopped_run_is_not_started_again_while_another_one_of_its_flow_runs() -> None:
    flow = AFlow("queue")
    first, second = flow.launch(), flow.launch()
    flow.lead(deregister_job(flow.replica, "default", first, flow.moment, settings=SETTINGS))
    flow.settle_queue()
    flow.run_nodes()
    flow.settle_queue()
    assert flow.running() == [second]

    with pytest.raises(Refusal, match=f'run "{second}" of the same flow has not ended'):
        start_again(flow, replace(flow.job(first), stop=False))

    flow.end(second)
    start_again(flow, replace(flow.job(first), stop=False))
    assert flow.running() == [first]


def test_a_changed_version_of_an_ended_run_is_refused_while_another_one_of_its_flow_runs() -> None:
    flow = AFlow("queue")
    first, second = flow.launch(), flow.launch()
    flow.end(first)

    with pytest.raises(Refusal, match=f'run "{second}" of the same flow has not ended'):
        start_again(flow, replace(flow.job(first), meta={"go": "yes"}))
    start_again(flow, replace(flow.job(first), priority=70))
    assert flow.running() == [second]


def test_a_launch_replaces_the_run_before_it_although_more_than_20_older_ones_still_clean_up() -> None:
    tidy = a_group("tidy", final=True, reschedule_policy=NO_RETRY, depends=(Need(on="build"),))
    flow = AFlow("replace", a_group("build", reschedule_policy=NO_RETRY), tidy)
    runs = []
    for _ in range(24):
        runs.append(flow.launch())
        flow.run_nodes()
        flow.settle_queue()

    newest = [flow.replica.list_by_index(ATTEMPTS_OF_JOB, "default", run)[0] for run in runs]

    assert [each.cancel_cause.step if each.cancel_cause else "" for each in newest] == [*runs[1:], ""]


def test_a_launch_replaces_only_as_many_large_runs_as_fit_in_its_write() -> None:
    steps = tuple(a_group(f"step-{number}", gate=Gate()) for number in range(300))
    flow = AFlow("queue", *steps)
    first, second = flow.launch(), flow.launch()
    flow.register(a_parameterized_job("release", *steps, flow=Flow(overlap="replace")))

    flow.launch()

    assert flow.text(first).startswith("canceled")
    assert not flow.text(second).startswith("canceled")


def test_a_job_that_waits_for_a_run_that_waits_for_it_through_the_queue_is_refused() -> None:
    flow = AFlow("queue")
    flow.register(canonicalize_job(a_batch_job("release-notes", a_group("write")), SETTINGS))
    flow.register(replace(flow.job("release"), depends=(Need(on="release-notes"),)))
    first = flow.launch()
    flow.register(replace(flow.job("release"), depends=None))
    second = flow.launch()

    circle = canonicalize_job(a_batch_job("release-notes", a_group("write"), depends=(Need(on=second),)), SETTINGS)
    with pytest.raises(Refusal, match=f"in a circle: release-notes -> {second} -> {first} -> release-notes"):
        flow.register(circle)


def test_listing_a_long_queue_reads_it_once() -> None:
    flow = AFlow("queue")
    flow.launch()
    second = flow.launch()
    (attempt,) = flow.replica.list_by_index(ATTEMPTS_OF_JOB, "default", second)
    ids = [f"release/dispatch-{number:04}" for number in range(1_000)]
    for start in range(0, len(ids), 50):
        part = ids[start : start + 50]
        flow.put(*(JOBS.build_put(replace(flow.job(second), id=each, name=each)) for each in part))
        flow.put(
            *(
                ARRAY_ATTEMPTS.build_put(replace(attempt, job_id=each, job_create_index=flow.job(each).create_index))
                for each in part
            )
        )
    runs = [flow.job(each) for each in ids]
    queues = RunQueues(flow.replica)

    with limited_cpu(1.0, "the list"):  # 0.1 s; 1.3 s if each run visits all others.
        stubs = [build_run_stub(flow.replica, run, queues) for run in runs]

    assert all(stub.text.startswith("waits for the run ") for stub in stubs)


# -- final steps in the queue ------------------------------------------------------------------------------------------

BUILD = a_group("build", reschedule_policy=NO_RETRY)
TIDY = a_group("tidy", final=True, reschedule_policy=NO_RETRY, depends=(Need(on="build"),))
PREPARE = a_group("prepare", final=True, reschedule_policy=NO_RETRY)


def test_a_run_canceled_in_the_queue_ends_without_its_final_steps() -> None:
    flow = AFlow("queue", BUILD, TIDY)
    first, second, third = flow.launch(), flow.launch(), flow.launch()
    flow.run_nodes()

    flow.cancel(second)

    assert flow.job(second).status is JobStatus.DEAD
    assert flow.text(second) == "canceled by ada"
    assert flow.running() == [first]
    flow.end(first)
    flow.end(first)
    assert flow.running() == [third]


def test_a_run_replaced_in_the_queue_ends_without_its_final_steps() -> None:
    flow = AFlow("replace", BUILD, TIDY)
    first = flow.launch()
    flow.run_nodes()

    second, third = flow.launch(), flow.launch()

    assert flow.job(second).status is JobStatus.DEAD
    assert flow.running() == [first]
    flow.run_nodes()
    flow.settle_queue()
    flow.end(first)
    assert flow.running() == [third]


@pytest.mark.parametrize(
    "steps",
    [(PREPARE,), (PREPARE, a_group("build", reschedule_policy=NO_RETRY, depends=(Need(on="prepare"),)))],
    ids=["only final steps", "a final step that others need"],
)
def test_final_steps_that_need_no_other_step_wait_in_the_queue_too(steps: tuple[TaskGroup, ...]) -> None:
    flow = AFlow("queue", *steps)
    first, second = flow.launch(), flow.launch()

    assert flow.running() == [first]
    assert flow.text(second) == f"waits for the run {first} to end"
    for _ in steps:
        flow.end(first)
    assert flow.running() == [second]


def test_final_steps_of_a_run_whose_other_steps_were_stopped_in_the_queue_begin_in_their_turn() -> None:
    flow = AFlow("queue", BUILD, TIDY)
    first, second, third = flow.launch(), flow.launch(), flow.launch()
    stop = StopElementsRequest(namespace="default", job_id=second, group="build", indexes="0")
    flow.lead(stop_elements(flow.replica, stop, flow.moment))
    flow.settle_queue()

    assert flow.running() == [first]
    flow.end(first)
    flow.end(first)
    assert [each.task_group for each in flow.list_active(second)] == ["tidy"]
    flow.end(second)
    assert flow.running() == [third]


# -- the limit of the queue --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lock", "expected"), [(None, ["node-1"]), (Lock(key="release"), [])])
def test_the_next_run_begins_after_the_node_of_a_replaced_run_is_lost_unless_its_step_has_a_lock(
    lock: Lock | None, expected: list[str]
) -> None:
    flow = AFlow("replace", a_group("build", reschedule_policy=NO_RETRY, lock=lock))
    first = flow.launch()
    flow.run_nodes()
    flow.with_node("node-1", cpu=100_000, memory_mb=1_000_000)
    flow.lose_node("node-0", NodeStatus.DOWN)  # Its task may still run, cut off from the servers.

    second = flow.launch()
    flow.settle_queue()

    assert flow.job(first).status is JobStatus.DEAD
    assert [each.node_id for each in flow.list_allocations(second)] == expected
