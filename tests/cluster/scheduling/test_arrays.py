"""Arrays: which elements begin, how they end, and what stops, reruns, new versions and lost nodes do to them."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_task
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SETTINGS
from wharf.cluster.engines.port import WriteConflict
from wharf.cluster.operations.array_results import LARGE_ARRAY_ALLOCATIONS, decide_result
from wharf.cluster.operations.explanations.jobs import explain_job
from wharf.cluster.operations.jobs.dispatch import DispatchRequest, dispatch_job
from wharf.cluster.operations.jobs.plan import dry_run_job
from wharf.cluster.operations.jobs.purge import purge_job
from wharf.cluster.operations.jobs.registration import deregister_job
from wharf.cluster.operations.jobs.rerun import RerunRequest, RerunResult, rerun_elements
from wharf.cluster.operations.jobs.scaling import GroupScaling, scale_group
from wharf.cluster.operations.jobs.stop_elements import StopElementsRequest, StopElementsResult, stop_elements
from wharf.cluster.operations.nodes.reports import AllocationReport, apply_reports
from wharf.cluster.operations.operator.collection import CollectionKind, collect_garbage
from wharf.cluster.scheduling.reconcile.array_group import (
    GIVEN_UP_TEXT,
    MAX_STARTED_ELEMENTS,
    MIN_STARTED_ELEMENTS,
    limit_started_elements,
)
from wharf.cluster.scheduling.reconcile.rescheduling import has_succeeded
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.lookups import list_attempts, read_element_states
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ARRAY_ATTEMPTS,
    ARRAY_RESULTS,
    CLUSTER_FORMAT,
    EVALUATIONS,
    JOB_SUMMARIES,
    JOBS,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.allocations.task_states import TaskEvent, TaskEventType, TaskState, TaskStatus
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.evaluations import EvaluationStatus, EvaluationTrigger
from wharf.contract.model.explanations import WaitReason
from wharf.contract.model.jobs.array_attempts import ElementResult
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.jobs.groups import Lifecycle, TaskGroup
from wharf.contract.model.jobs.job import JobStatus, JobType, Parameterized
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import to_datetime

NO_RETRY = ReschedulePolicy(unlimited=False)
ONE_RETRY = ReschedulePolicy(
    attempts=1, unlimited=False, interval=600_000_000_000, delay=5_000_000_000, delay_function="constant"
)


def an_array_group(array: GroupArray, **fields: Any) -> TaskGroup:
    tasks = fields.pop("tasks", ())
    return a_group("train", *tasks, **{"array": array, "reschedule_policy": NO_RETRY, **fields})


class Sweep(SimulatedCluster):
    """A cluster with a job `shop` that has an array."""

    def __init__(self, array: GroupArray, *, nodes: int = 1, cpu: int = 100_000, **group_fields: Any) -> None:
        super().__init__()
        self.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
        for number in range(nodes):
            self.with_node(f"node-{number}", cpu=cpu, memory_mb=1_000_000)
        self.submit(array, **group_fields)

    def submit(self, array: GroupArray, **group_fields: Any) -> None:
        self.register(a_batch_job("shop", an_array_group(array, **group_fields)))
        self.process_pending()

    @property
    def states(self) -> str:
        return read_element_states(self.replica, self.job(), "train").states.decode()

    @property
    def outcome(self) -> str:
        """How the job ended, as lists of jobs show it."""
        summary = self.replica.get(JOB_SUMMARIES, "default", "shop")
        assert summary is not None
        return summary.outcome

    @property
    def alive(self) -> dict[int, Allocation]:
        """The allocations that have not ended, by index. No index has two."""
        found = [each for each in self.list_allocations() if not each.is_client_terminal]
        by_index = {parse_index(each.name): each for each in found}
        assert len(by_index) == len(found)
        return by_index

    def end(self, *indexes: int, status: ClientStatus = ClientStatus.COMPLETE) -> None:
        """Let the allocations of these elements end, and process what follows."""
        alive = self.alive
        for index in indexes:
            self.report(alive[index], status)
        self.process_pending()

    def fail(self, *indexes: int) -> None:
        self.end(*indexes, status=ClientStatus.FAILED)

    def stop(self) -> None:
        self.do(deregister_job(self.replica, "default", "shop", self.moment, settings=SETTINGS))
        self.process_pending()

    def stop_elements(self, indexes: str, **fields: Any) -> StopElementsResult:
        request = StopElementsRequest(namespace="default", job_id="shop", indexes=indexes, **fields)
        result = self.do(stop_elements(self.replica, request, self.moment))
        self.process_pending()
        return result

    def rerun(self, **fields: Any) -> RerunResult:
        request = RerunRequest(namespace="default", job_id="shop", **fields)
        result = self.do(rerun_elements(self.replica, request, self.moment, SETTINGS))
        self.process_pending()
        return result


# -- which elements begin


def test_no_more_elements_run_than_the_array_allows() -> None:
    sweep = Sweep(GroupArray(size=10, max_running=3))

    assert sorted(sweep.alive) == [0, 1, 2]
    assert sweep.alive[2].name == "shop.train[2]"


def test_the_next_element_begins_when_one_has_ended() -> None:
    sweep = Sweep(GroupArray(size=5, max_running=2))

    sweep.end(1)

    assert sorted(sweep.alive) == [0, 2]
    assert sweep.states == ".s..."


def test_one_evaluation_follows_from_all_elements_that_end_in_one_write() -> None:
    sweep = Sweep(GroupArray(size=100, max_running=10))
    ended = [replace(each, client_status=ClientStatus.COMPLETE) for each in sweep.alive.values()]

    sweep.put_led(*map(ALLOCATIONS.build_put, ended))

    assert [each.triggered_by for each in sweep.list_due()] == [EvaluationTrigger.ARRAY_ELEMENT]
    sweep.process_pending()
    assert sorted(sweep.alive) == [*range(10, 20)]


def test_at_most_two_evaluations_wait_for_elements_that_ended() -> None:
    sweep = Sweep(GroupArray(size=100, max_running=10))

    for allocation in sweep.alive.values():
        sweep.report(allocation, ClientStatus.COMPLETE)

    assert len(sweep.list_due()) == 2
    sweep.process_pending()
    assert sorted(sweep.alive) == [*range(10, 20)]


def test_a_large_array_begins_in_several_plans() -> None:
    sweep = Sweep(GroupArray(size=MIN_STARTED_ELEMENTS + 5), nodes=4)

    assert len(sweep.alive) == MIN_STARTED_ELEMENTS + 5
    assert not sweep.list_blocked()


@pytest.mark.parametrize(
    ("alive", "started"),
    [(0, MIN_STARTED_ELEMENTS), (4_400, 1_100), (100_000, MAX_STARTED_ELEMENTS)],
)
def test_the_more_elements_run_the_more_does_one_evaluation_begin(alive: int, started: int) -> None:
    assert limit_started_elements(alive) == started


def test_elements_wait_for_free_resources() -> None:
    sweep = Sweep(GroupArray(size=10), cpu=250)
    fitting = len(sweep.alive)

    assert 0 < fitting < 10
    assert len(sweep.list_blocked()) == 1
    sweep.end(0)
    assert len(sweep.alive) == fitting


def test_an_element_knows_its_item() -> None:
    sweep = Sweep(GroupArray(items=("north", "south")))

    assert {index: each.array_item for index, each in sweep.alive.items()} == {0: "north", 1: "south"}


# -- how elements end


def a_reported(status: ClientStatus, desired: DesiredStatus = DesiredStatus.RUN, **fields: Any) -> Allocation:
    return Allocation(id="a", client_status=status, desired_status=desired, array_attempt=1, **fields)


STARTED = to_datetime(1_000)
CLEAN = {"server": TaskState(state=TaskStatus.DEAD, started_at=STARTED)}
BROKEN = {"server": TaskState(state=TaskStatus.DEAD, started_at=STARTED, failed=True)}
NEVER_STARTED = {"server": TaskState(state=TaskStatus.DEAD)}
KILLED = {
    "server": TaskState(state=TaskStatus.DEAD, started_at=STARTED, events=(TaskEvent(type=TaskEventType.KILLED),))
}
KILLED_SIDECAR = {**CLEAN, "sidecar": KILLED["server"]}
KILLED_BEFORE_START = {**NEVER_STARTED, "sidecar": KILLED["server"]}


@pytest.mark.parametrize(
    ("allocation", "policy", "result"),
    [
        (a_reported(ClientStatus.PENDING), NO_RETRY, None),
        (a_reported(ClientStatus.RUNNING), NO_RETRY, None),
        (a_reported(ClientStatus.UNKNOWN), NO_RETRY, None),
        (a_reported(ClientStatus.LOST, DesiredStatus.STOP), NO_RETRY, None),
        (a_reported(ClientStatus.COMPLETE), NO_RETRY, ElementResult.SUCCEEDED),
        (a_reported(ClientStatus.COMPLETE, task_states=CLEAN), NO_RETRY, ElementResult.SUCCEEDED),
        (a_reported(ClientStatus.COMPLETE, task_states=KILLED), NO_RETRY, None),
        (a_reported(ClientStatus.COMPLETE, task_states=KILLED_SIDECAR), NO_RETRY, ElementResult.SUCCEEDED),
        (a_reported(ClientStatus.COMPLETE, task_states=KILLED_BEFORE_START), NO_RETRY, None),
        (a_reported(ClientStatus.COMPLETE, DesiredStatus.STOP, task_states=CLEAN), NO_RETRY, ElementResult.SUCCEEDED),
        (a_reported(ClientStatus.COMPLETE, DesiredStatus.EVICT, task_states=CLEAN), NO_RETRY, ElementResult.SUCCEEDED),
        (a_reported(ClientStatus.COMPLETE, DesiredStatus.STOP, task_states=KILLED), NO_RETRY, None),
        (a_reported(ClientStatus.COMPLETE, DesiredStatus.STOP, task_states=BROKEN), NO_RETRY, None),
        (a_reported(ClientStatus.COMPLETE, DesiredStatus.STOP, task_states=NEVER_STARTED), NO_RETRY, None),
        (a_reported(ClientStatus.COMPLETE, DesiredStatus.STOP, task_states=KILLED_SIDECAR), NO_RETRY, ElementResult.SUCCEEDED),
        (a_reported(ClientStatus.COMPLETE, DesiredStatus.STOP), NO_RETRY, None),
        (a_reported(ClientStatus.FAILED), ONE_RETRY, None),
        (a_reported(ClientStatus.FAILED), NO_RETRY, ElementResult.FAILED),
        (a_reported(ClientStatus.FAILED), ReschedulePolicy(), None),
        (a_reported(ClientStatus.FAILED, DesiredStatus.STOP), NO_RETRY, None),
        (a_reported(ClientStatus.FAILED, DesiredStatus.EVICT), NO_RETRY, None),
        (a_reported(ClientStatus.FAILED, DesiredStatus.STOP, next_allocation="b"), NO_RETRY, None),
        (a_reported(ClientStatus.FAILED, DesiredStatus.STOP, desired_description=GIVEN_UP_TEXT), ONE_RETRY, ElementResult.FAILED),
    ],
)  # fmt: skip
def test_how_an_allocation_ends_its_element(
    allocation: Allocation, policy: ReschedulePolicy, result: ElementResult | None
) -> None:
    sidecar = a_task("sidecar", lifecycle=Lifecycle(hook="prestart", sidecar=True))
    group = an_array_group(GroupArray(size=1), reschedule_policy=policy, tasks=(a_task("server"), sidecar))

    assert decide_result(allocation, group) is result


def report_killed_tasks(cluster: SimulatedCluster) -> None:
    """Let the node report that it has stopped all tasks, as an agent does at its end, and process what follows."""
    cluster.lead(
        apply_reports(
            cluster.replica,
            "node-0",
            [
                AllocationReport(each.id, ClientStatus.COMPLETE, task_states=KILLED)
                for each in cluster.list_allocations()
                if not each.is_client_terminal
            ],
            cluster.moment,
            is_complete=False,
            max_evaluations=100,
        )
    )
    cluster.process_pending()


def test_elements_that_the_agent_stopped_at_its_end_run_again() -> None:
    sweep = Sweep(GroupArray(size=3))
    stopped = {each.id for each in sweep.alive.values()}

    report_killed_tasks(sweep)

    assert sorted(sweep.alive) == [0, 1, 2]
    assert not stopped & {each.id for each in sweep.alive.values()}
    sweep.end(0, 1, 2)
    assert sweep.job().status is JobStatus.DEAD


def test_a_batch_job_that_the_agent_stopped_at_its_end_runs_again() -> None:
    cluster = SimulatedCluster()
    cluster.with_node("node-0")
    cluster.register(a_batch_job("shop", a_group("train", count=1)))
    cluster.process_pending()
    (stopped,) = cluster.list_allocations()

    report_killed_tasks(cluster)

    (again,) = [each for each in cluster.list_allocations() if not each.is_terminal]
    assert again.id != stopped.id
    assert cluster.allocation(stopped.id).desired_status is DesiredStatus.STOP
    summary = cluster.replica.get(JOB_SUMMARIES, "default", "shop")
    assert summary is not None
    assert (summary.summary["train"].complete, summary.summary["train"].lost) == (0, 1)
    cluster.report(again, ClientStatus.COMPLETE)
    cluster.process_pending()
    assert len(cluster.list_allocations()) == 2
    assert cluster.job().status is JobStatus.DEAD
    explanation = explain_job(cluster.replica, "default", "shop")
    assert explanation.text == "shop is done: 1 allocation completed"


def test_a_sysbatch_job_that_the_agent_stopped_at_its_end_runs_again_on_that_node() -> None:
    cluster = SimulatedCluster()
    cluster.with_node("node-0")
    cluster.register(replace(a_batch_job("shop", a_group("train")), type=JobType.SYSBATCH))
    cluster.process_pending()

    report_killed_tasks(cluster)

    assert [each.node_id for each in cluster.list_allocations() if not each.is_terminal] == ["node-0"]


def test_a_stopped_batch_allocation_has_succeeded_only_if_its_tasks_were_not_killed() -> None:
    sidecar = a_task("sidecar", lifecycle=Lifecycle(hook="prestart", sidecar=True))
    group = a_group("train", a_task("server"), sidecar)

    assert [
        has_succeeded(a_reported(ClientStatus.COMPLETE, DesiredStatus.STOP, task_states=states), group)
        for states in (CLEAN, KILLED_SIDECAR, KILLED, KILLED_BEFORE_START, BROKEN)
    ] == [True, True, False, False, False]


def test_a_job_is_dead_when_all_elements_have_ended() -> None:
    sweep = Sweep(GroupArray(size=3, max_running=1))

    for index, status in enumerate((JobStatus.RUNNING, JobStatus.RUNNING, JobStatus.DEAD)):
        sweep.end(index)
        assert sweep.job().status is status
    assert sweep.states == "sss"
    assert not sweep.list_due()


def test_a_failed_element_does_not_stop_the_others() -> None:
    sweep = Sweep(GroupArray(size=3, max_running=1))

    sweep.fail(0)

    assert (sweep.states, sorted(sweep.alive)) == ("f..", [1])
    failed = next(each for each in sweep.list_allocations() if each.name == "shop.train[0]")
    assert failed.array_result == "failed"


def test_a_failed_element_is_retried_before_it_counts_as_failed() -> None:
    sweep = Sweep(GroupArray(size=2, max_running=1), reschedule_policy=ONE_RETRY)

    sweep.fail(0)
    assert (sweep.states, sorted(sweep.alive)) == ("..", [1])  # The next one runs while it waits.
    sweep.pass_time(6)
    sweep.end(1)
    assert (sweep.states, sorted(sweep.alive)) == (".s", [0])
    assert len(sweep.alive[0].reschedule_tracker.events) == 1  # type: ignore[union-attr, arg-type]
    sweep.fail(0)

    assert (sweep.states, sorted(sweep.alive)) == ("fs", [])
    assert sweep.job().status is JobStatus.DEAD


def test_a_retry_begins_after_its_delay() -> None:
    sweep = Sweep(GroupArray(size=1), reschedule_policy=ONE_RETRY)

    sweep.fail(0)
    assert (sweep.alive, sweep.job().status) == ({}, JobStatus.PENDING)
    sweep.pass_time(6)
    sweep.process_pending()
    sweep.end(0)

    assert sweep.states == "s"


def test_an_element_is_given_up_if_a_new_version_allows_no_retry() -> None:
    sweep = Sweep(GroupArray(size=1), reschedule_policy=ONE_RETRY)

    sweep.fail(0)
    sweep.submit(GroupArray(size=1), reschedule_policy=NO_RETRY)
    sweep.pass_time(6)
    sweep.process_pending()

    assert (sweep.states, sweep.job().status) == ("f", JobStatus.DEAD)


def test_results_outlive_their_allocations() -> None:
    sweep = Sweep(GroupArray(size=3, max_running=1))

    sweep.end(0)
    ended = next(each for each in sweep.list_allocations() if each.is_client_terminal)
    sweep.put_led(ALLOCATIONS.build_delete(ended.id))
    sweep.end(1)

    assert (sweep.states, sorted(sweep.alive)) == ("ss.", [2])


def test_a_late_report_of_a_lost_allocation_ends_its_element() -> None:
    sweep = Sweep(GroupArray(size=1), nodes=2)
    lost = sweep.alive[0]

    sweep.lose_node(lost.node_id)
    sweep.process_pending()
    assert sweep.alive[0].node_id != lost.node_id
    sweep.report(sweep.allocation(lost.id), ClientStatus.COMPLETE)
    assert sweep.states == "s"
    sweep.evaluate_job()
    sweep.run_nodes()

    assert (sweep.states, sweep.alive) == ("s", {})


# -- fail fast


def test_the_first_failed_element_cancels_the_others() -> None:
    sweep = Sweep(GroupArray(size=6, max_running=3, fail_fast=True))

    sweep.end(0)
    sweep.fail(1)
    assert sweep.states == "sfcccc"
    sweep.run_nodes()
    sweep.process_pending()

    assert (sweep.alive, sweep.job().status) == ({}, JobStatus.DEAD)
    group = list_attempts(sweep.replica, sweep.job())[0].groups["train"]
    assert (group.cancel_cause, group.failed_element) == ("failed-element", 1)


def test_a_failed_element_with_retries_left_cancels_nothing() -> None:
    sweep = Sweep(GroupArray(size=3, max_running=1, fail_fast=True), reschedule_policy=ONE_RETRY)

    sweep.fail(0)

    assert (sweep.states, sorted(sweep.alive)) == ("...", [1])


def test_an_element_that_succeeds_while_it_is_canceled_has_succeeded() -> None:
    sweep = Sweep(GroupArray(size=3, max_running=2, fail_fast=True))
    other = sweep.alive[1]

    sweep.fail(0)
    sweep.report(sweep.allocation(other.id), ClientStatus.COMPLETE)

    assert sweep.states == "fsc"


# -- stop, new versions, lost and drained nodes


def test_a_stopped_job_cancels_the_elements_that_have_not_ended() -> None:
    sweep = Sweep(GroupArray(size=4, max_running=2))

    sweep.end(0)
    sweep.stop()
    sweep.run_nodes()

    assert (sweep.states, sweep.alive, sweep.job().status) == ("sccc", {}, JobStatus.DEAD)


def test_a_job_that_is_submitted_again_after_a_stop_runs_all_elements() -> None:
    sweep = Sweep(GroupArray(size=2, max_running=1))

    sweep.end(0)
    sweep.stop()
    sweep.run_nodes()
    sweep.submit(GroupArray(size=2, max_running=1))

    assert (sweep.states, sorted(sweep.alive)) == ("..", [0])
    assert [each.attempt for each in list_attempts(sweep.replica, sweep.job())] == [1, 2]


def test_a_new_limit_keeps_results_and_running_elements() -> None:
    sweep = Sweep(GroupArray(size=6, max_running=2))

    sweep.end(0)
    sweep.submit(GroupArray(size=6, max_running=4))

    assert (sweep.states, sorted(sweep.alive)) == ("s.....", [1, 2, 3, 4])
    assert {each.job_version for each in sweep.alive.values()} == {1}


@pytest.mark.parametrize(
    ("array", "tasks"),
    [
        (GroupArray(size=4, max_running=2), (a_task(config={"command": "/bin/true"}),)),
        (GroupArray(size=5, max_running=2), (a_task(),)),
        (GroupArray(items=("a", "b", "c", "d"), max_running=2), (a_task(),)),
    ],
)
def test_new_tasks_or_elements_run_all_elements_again(array: GroupArray, tasks: tuple[Any, ...]) -> None:
    sweep = Sweep(GroupArray(size=4, max_running=2))

    sweep.end(0)
    outdated = {each.id for each in sweep.alive.values()}
    sweep.submit(array, tasks=tasks)
    assert {each.id for each in sweep.alive.values()} == outdated  # Nothing begins before they have ended.
    sweep.run_nodes()
    sweep.process_pending()

    assert (sweep.states, sorted(sweep.alive)) == ("." * array.element_count, [0, 1])


def test_an_element_of_a_lost_node_begins_again_elsewhere() -> None:
    sweep = Sweep(GroupArray(size=2, max_running=1), nodes=2)
    lost = sweep.alive[0]

    sweep.lose_node(lost.node_id)
    sweep.process_pending()

    assert sweep.allocation(lost.id).client_status is ClientStatus.LOST
    assert sorted(sweep.alive) == [0]
    assert sweep.alive[0].node_id != lost.node_id


def test_a_preempted_element_begins_again_after_its_end() -> None:
    sweep = Sweep(GroupArray(size=1))
    evicted = replace(sweep.alive[0], desired_status=DesiredStatus.EVICT)

    sweep.put_led(ALLOCATIONS.build_put(evicted))
    sweep.evaluate_job()
    assert sweep.alive[0].id == evicted.id
    sweep.fail(0)

    assert (sweep.states, sorted(sweep.alive)) == (".", [0])
    assert sweep.alive[0].id != evicted.id


def test_a_group_without_array_runs_beside_an_array() -> None:
    sweep = Sweep(GroupArray(size=3, max_running=1))
    group, plain = an_array_group(GroupArray(size=3, max_running=1)), a_group("plain", count=2)

    sweep.register(a_batch_job("shop", group, plain))
    sweep.process_pending()

    assert sorted(each.name for each in sweep.list_active()) == ["shop.plain[0]", "shop.plain[1]", "shop.train[0]"]


def test_allocations_of_a_group_that_becomes_an_array_are_stopped() -> None:
    sweep = SimulatedCluster()
    sweep.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
    sweep.with_node(cpu=100_000)
    sweep.register(a_batch_job("shop", a_group("train", count=2)))
    sweep.process_pending()
    sweep.register(a_batch_job("shop", an_array_group(GroupArray(size=3, max_running=1))))
    sweep.process_pending()
    sweep.run_nodes()
    sweep.process_pending()

    assert [each.name for each in sweep.list_active()] == ["shop.train[0]"]
    assert sweep.list_active()[0].array_attempt == 1


# -- reruns


def test_failed_elements_run_again_in_a_new_attempt() -> None:
    sweep = Sweep(GroupArray(size=4))
    sweep.fail(1, 3)
    sweep.end(0, 2)
    assert (sweep.states, sweep.job().status) == ("sfsf", JobStatus.DEAD)

    result = sweep.rerun(failed=True)

    assert (result.attempt, result.element_count) == (2, 2)
    assert (sweep.states, sorted(sweep.alive), sweep.job().status) == ("s.s.", [1, 3], JobStatus.RUNNING)
    sweep.end(1)
    sweep.fail(3)
    assert (sweep.states, sweep.job().status) == ("sssf", JobStatus.DEAD)
    first, second = list_attempts(sweep.replica, sweep.job())
    states = [read_attempt(sweep, each.attempt) for each in (first, second)]
    assert states == [b"sfsf", b"-s-f"]


def read_attempt(sweep: Sweep, attempt: int) -> bytes:
    record = sweep.replica.get(ARRAY_RESULTS, "default", "shop", attempt, "train", 0)
    assert record is not None
    return record.results


def test_elements_run_again_by_their_indexes_while_others_run() -> None:
    sweep = Sweep(GroupArray(size=4, max_running=2))
    sweep.end(0)

    sweep.rerun(indexes="0")

    assert (sweep.states, sorted(sweep.alive)) == ("....", [1, 2])
    sweep.end(1)
    assert sorted(sweep.alive) == [0, 2]


def test_a_rerun_does_not_exceed_the_limit() -> None:
    sweep = Sweep(GroupArray(size=4, max_running=1))
    for index in range(4):
        sweep.fail(index)

    sweep.rerun(failed=True)

    assert sorted(sweep.alive) == [0]


def test_canceled_elements_run_again_with_the_failed_ones() -> None:
    sweep = Sweep(GroupArray(size=4, max_running=1, fail_fast=True))
    sweep.end(0)
    sweep.fail(1)
    assert sweep.states == "sfcc"

    sweep.rerun(failed=True)

    assert (sweep.states, sorted(sweep.alive)) == ("s...", [1])


def test_a_rerun_starts_a_stopped_job_with_the_selected_elements_only() -> None:
    sweep = Sweep(GroupArray(size=4, max_running=1))
    sweep.fail(0)
    sweep.stop()
    sweep.run_nodes()

    sweep.rerun(indexes="0")

    assert (sweep.states, sorted(sweep.alive), sweep.job().stop) == (".ccc", [0], False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"indexes": "0,2"}, "1 of the elements has not ended: 2"),
        ({"indexes": "9"}, "no element 9: its indexes are 0 to 3"),
        ({"indexes": "x"}, '"x" is not an index'),
        ({"indexes": "2-1"}, "ends before it begins"),
        ({"indexes": "0", "group": "web"}, 'no group "web" with Array'),
        ({}, "either by Failed or by Indexes"),
        ({"indexes": "0", "failed": True}, "either by Failed or by Indexes"),
    ],
)
def test_a_rerun_is_refused(fields: dict[str, Any], message: str) -> None:
    sweep = Sweep(GroupArray(size=4, max_running=2))
    sweep.end(0)

    with pytest.raises(Refusal, match=message.replace("(", "\\(")):
        sweep.rerun(**fields)


def test_a_rerun_without_matching_elements_changes_nothing() -> None:
    sweep = Sweep(GroupArray(size=1))
    sweep.end(0)
    index = sweep.replica.index

    assert sweep.rerun(failed=True).attempt == 0
    assert sweep.replica.index == index


def test_a_late_report_of_an_earlier_attempt_does_not_end_the_element() -> None:
    sweep = Sweep(GroupArray(size=1), nodes=2)
    lost = sweep.alive[0]
    sweep.lose_node(lost.node_id)
    sweep.process_pending()
    sweep.fail(0)
    sweep.rerun(failed=True)

    sweep.report(sweep.allocation(lost.id), ClientStatus.COMPLETE)

    assert (sweep.states, sorted(sweep.alive)) == (".", [0])


# -- explanations


def explain(sweep: Sweep) -> str:
    return explain_job(sweep.replica, "default", "shop").text


# -- elements that are stopped alone


def test_elements_that_have_not_begun_are_stopped_alone() -> None:
    sweep = Sweep(GroupArray(size=6, max_running=2))

    result = sweep.stop_elements("2,4-5")

    assert result.element_count == 3
    assert sweep.states == "..c.cc"
    sweep.end(0, 1)
    assert sorted(sweep.alive) == [3]
    sweep.end(3)
    assert (sweep.states, sweep.job().status) == ("sscscc", JobStatus.DEAD)


def test_a_running_element_is_stopped_alone_and_frees_its_slot_when_it_has_ended() -> None:
    sweep = Sweep(GroupArray(size=4, max_running=2))

    sweep.stop_elements("0")

    assert sweep.alive[0].desired_status is DesiredStatus.STOP
    assert sorted(sweep.alive) == [0, 1]
    sweep.end(0)
    assert (sweep.states, sorted(sweep.alive)) == ("c...", [1, 2])


def test_an_element_that_ends_with_success_after_it_was_stopped_stays_canceled() -> None:
    sweep = Sweep(GroupArray(size=2))
    running = sweep.alive[0]

    sweep.stop_elements("0")
    sweep.report(running, ClientStatus.COMPLETE)

    assert sweep.states == "c."


def test_a_failed_element_that_waits_for_its_retry_is_stopped_alone() -> None:
    sweep = Sweep(GroupArray(size=1), reschedule_policy=ONE_RETRY)
    sweep.fail(0)

    sweep.stop_elements("0")
    sweep.pass_time(10)
    sweep.process_pending()

    assert (sweep.states, sweep.alive, sweep.job().status) == ("c", {}, JobStatus.DEAD)


def test_elements_that_have_ended_keep_their_results() -> None:
    sweep = Sweep(GroupArray(size=3))
    sweep.end(0)
    sweep.fail(1)

    assert sweep.stop_elements("0-1").element_count == 0
    assert sweep.stop_elements("0-2").element_count == 1
    assert sweep.states == "sfc"


def test_elements_of_a_rerun_are_stopped_and_run_again() -> None:
    sweep = Sweep(GroupArray(size=3, max_running=1))
    sweep.fail(0)
    sweep.rerun(indexes="0")

    sweep.stop_elements("0,2")
    assert sweep.states == "c.c"
    sweep.end(*sweep.alive)
    assert sweep.rerun(failed=True).element_count == 2


def test_a_result_that_a_node_reports_meanwhile_is_not_overwritten() -> None:
    sweep = Sweep(GroupArray(size=3))
    request = StopElementsRequest(namespace="default", job_id="shop", indexes="0,2")
    decision = stop_elements(sweep.replica, request, sweep.moment)

    sweep.end(0)

    assert decision.write is not None
    assert isinstance(sweep.try_commit(decision.write), WriteConflict)
    assert sweep.states == "s.."


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"indexes": ""}, "select elements by Indexes"),
        ({"indexes": "7"}, "the array has no element 7"),
        ({"indexes": "0", "group": "web"}, 'no group "web" with Array'),
    ],
)
def test_a_stop_of_elements_is_refused(fields: dict[str, Any], message: str) -> None:
    sweep = Sweep(GroupArray(size=3))

    with pytest.raises(Refusal, match=message):
        sweep.stop_elements(**fields)


def test_an_explanation_names_the_element_that_waits_for_the_limit() -> None:
    sweep = Sweep(GroupArray(size=30, max_running=8))
    sweep.run_nodes()

    explanation = explain_job(sweep.replica, "default", "shop")

    assert explanation.waits[0].waits_for is WaitReason.ARRAY
    assert explanation.text == ("shop runs 8 elements of train: element 8 waits for MaxRunning 8, and 21 more after it")


def test_an_explanation_says_how_the_elements_of_an_array_ended() -> None:
    sweep = Sweep(GroupArray(size=3))
    sweep.end(0, 1)
    sweep.fail(2)

    assert explain(sweep) == (
        "shop has ended: 2 of 3 elements of train succeeded, 1 failed; `wharf job rerun shop --failed` runs these again"
    )


def test_an_explanation_says_which_element_canceled_the_others() -> None:
    sweep = Sweep(GroupArray(size=5, max_running=1, fail_fast=True))
    sweep.end(0)
    sweep.fail(1)

    assert "1 of 5 elements of train succeeded, 1 failed, 3 were canceled because element 1 failed" in explain(sweep)


def test_an_explanation_of_an_array_without_failures_says_so() -> None:
    sweep = Sweep(GroupArray(size=2))
    sweep.end(0, 1)

    assert explain(sweep) == "shop is done: 2 of 2 elements of train succeeded"


def test_an_explanation_of_an_array_without_room_names_what_is_missing() -> None:
    sweep = Sweep(GroupArray(size=10), cpu=250)
    sweep.run_nodes()

    assert "waits for resources" in explain(sweep)


# -- the end of a job, and children


def count_array_records(sweep: Sweep) -> int:
    return len([*sweep.replica.iter_all(ARRAY_ATTEMPTS)]) + len([*sweep.replica.iter_all(ARRAY_RESULTS)])


def test_a_purge_deletes_attempts_and_results() -> None:
    sweep = Sweep(GroupArray(size=3))
    sweep.fail(1)
    sweep.end(0, 2)
    sweep.rerun(failed=True)
    sweep.end(1)
    assert count_array_records(sweep) == 4

    sweep.lead(purge_job(sweep.replica, "default", "shop", sweep.moment, max_changes=100))

    assert count_array_records(sweep) == 0


@pytest.mark.parametrize("max_changes", [100, 9])
def test_garbage_collection_deletes_attempts_and_results_with_their_job(max_changes: int) -> None:
    sweep = Sweep(GroupArray(size=3))
    sweep.fail(0, 1, 2)
    sweep.rerun(failed=True)
    sweep.end(0, 1, 2)
    sweep.pass_time(60)

    while True:
        decision = collect_garbage(
            sweep.replica, CollectionKind.JOBS, sweep.moment, retention_ns=0, max_changes=max_changes
        )
        if not sweep.lead(decision).deleted_count:
            break
        job = sweep.replica.get(JOBS, "default", "shop")
        assert job is None or job.status is JobStatus.DEAD  # No element seems to be open meanwhile.

    assert sweep.replica.get(JOBS, "default", "shop") is None
    assert count_array_records(sweep) == 0


def test_a_job_with_the_name_of_a_purged_one_has_its_own_attempts() -> None:
    sweep = Sweep(GroupArray(size=2, max_running=1))
    sweep.end(0)
    sweep.lead(purge_job(sweep.replica, "default", "shop", sweep.moment, max_changes=4))
    assert count_array_records(sweep) > 0  # The rest of the purge follows.

    sweep.submit(GroupArray(size=2, max_running=1))

    assert sweep.states == ".."


def test_a_child_of_a_parameterized_job_runs_the_array() -> None:
    sweep = SimulatedCluster()
    sweep.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
    sweep.with_node(cpu=100_000)
    group = an_array_group(GroupArray(size=3, max_running=2))
    sweep.register(a_batch_job("shop", group, parameterized_job=Parameterized()))
    request = DispatchRequest(namespace="default", job_id="shop")

    child_id = sweep.lead(dispatch_job(sweep.replica, request, sweep.moment, SETTINGS)).job_id
    sweep.process_pending()

    assert [each.name for each in sweep.list_active(child_id)] == [f"{child_id}.train[0]", f"{child_id}.train[1]"]
    assert not list_attempts(sweep.replica, sweep.job())


def test_a_dry_run_places_the_elements_that_would_begin() -> None:
    sweep = Sweep(GroupArray(size=2))
    new = a_batch_job("new", an_array_group(GroupArray(size=9, max_running=4)))

    dry_run = dry_run_job(sweep.replica, new, sweep.moment, SETTINGS, should_include_diff=False, max_launches=0)

    assert dry_run.annotations is not None
    assert dry_run.annotations.desired_tg_updates["train"].place == 4  # type: ignore[index]


def test_an_array_cannot_be_scaled() -> None:
    sweep = Sweep(GroupArray(size=2))
    request = GroupScaling(namespace="default", job_id="shop", group="train", count=5)

    with pytest.raises(Refusal, match="change its MaxRunning instead"):
        scale_group(sweep.replica, request, sweep.moment, SETTINGS)


def test_the_evaluations_of_a_large_array_have_a_distance() -> None:
    sweep = Sweep(GroupArray(size=2 * LARGE_ARRAY_ALLOCATIONS), nodes=4)
    alive = [*sweep.alive.values()]
    for allocation in alive[:3]:
        sweep.report(allocation, ClientStatus.COMPLETE)

    assert not sweep.list_due()
    sweep.pass_time(0.3)
    assert len(sweep.list_due()) == 2


# -- what does not fit


def test_an_array_is_refused_while_older_servers_would_ignore_it() -> None:
    sweep = SimulatedCluster()
    sweep.put(CLUSTER_FORMAT.build_put(RecordFormat(version=3)))

    with pytest.raises(Refusal, match="upgrade all servers"):
        sweep.register(a_batch_job("shop", an_array_group(GroupArray(size=3))))


def test_no_evaluation_of_an_ended_element_is_canceled_by_an_earlier_plan() -> None:
    sweep = Sweep(GroupArray(size=4, max_running=1))
    sweep.report(sweep.alive[0], ClientStatus.COMPLETE)
    pending = sweep.list_due()[0]

    sweep.evaluate_job()

    stored = sweep.replica.get(EVALUATIONS, pending.id)
    assert stored is not None
    assert stored.status is EvaluationStatus.PENDING


def test_a_node_that_returns_keeps_the_array_within_its_limit() -> None:
    sweep = Sweep(GroupArray(size=4, max_running=2), nodes=2)

    for node_id in ("node-0", "node-1"):
        sweep.lose_node(node_id, NodeStatus.DOWN)
        sweep.process_pending()
        assert len(sweep.alive) <= 2
        sweep.reconnect_node(node_id)
        sweep.settle()
        assert len(sweep.alive) == 2


def test_an_element_that_succeeded_and_failed_in_its_rerun_fails_the_job() -> None:
    sweep = Sweep(GroupArray(size=2))
    sweep.end(0, 1)
    assert sweep.outcome == "succeeded"

    sweep.rerun(indexes="1")
    assert sweep.outcome == ""
    sweep.fail(1)

    assert sweep.outcome == "failed"
    sweep.rerun(failed=True)
    sweep.end(1)
    assert sweep.outcome == "succeeded"
