"""The outputs of steps: how they are stored, how long, and which of them later steps receive."""

from typing import Any

import pytest

from tests.builders import a_batch_job, a_group
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SETTINGS
from wharf.cluster.operations.jobs.purge import purge_job
from wharf.cluster.operations.jobs.run_retry import RunRetry, retry_run
from wharf.cluster.operations.nodes.reports import AllocationReport, apply_reports
from wharf.cluster.operations.operator.collection import CollectionKind, collect_garbage
from wharf.cluster.operations.step_outputs import collect_step_outputs, read_outputs
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import ALLOCATIONS, CLUSTER_FORMAT, JOBS, STEP_OUTPUTS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.step_outputs import MAX_SENT_OUTPUT_BYTES, ReportedOutputs
from wharf.contract.model.jobs.steps import MAX_OUTPUT_BYTES, Need, Outputs
from wharf.contract.model.times import to_datetime

ONE_RETRY = ReschedulePolicy(
    attempts=1, unlimited=False, interval=600_000_000_000, delay=5_000_000_000, delay_function="constant"
)


def a_step(name: str, *, size: int = 1, text: tuple[str, ...] = ("version",), **fields: Any) -> TaskGroup:
    defaults = {"reschedule_policy": ReschedulePolicy(unlimited=False), "outputs": Outputs(text=text)}
    return a_group(name, **{"array": GroupArray(size=size), **defaults, **fields})


class Flow(SimulatedCluster):
    """A cluster with a job `shop` whose groups have outputs. All of its steps begin at once."""

    def __init__(self, *groups: TaskGroup) -> None:
        super().__init__()
        self.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
        self.with_node("node-0", cpu=1_000_000, memory_mb=1_000_000)
        self.register(a_batch_job("shop", *groups))
        self.process_pending()

    def find(self, step: str, index: int = 0) -> Allocation:
        """Return the newest allocation of an element."""
        found = [
            each for each in self.list_allocations() if each.task_group == step and parse_index(each.name) == index
        ]
        return max(found, key=lambda each: each.create_index)

    def end(
        self, step: str, outputs: ReportedOutputs | None, index: int = 0, status: ClientStatus = ClientStatus.COMPLETE
    ) -> None:
        allocation = self.find(step, index)
        report = AllocationReport(id=allocation.id, client_status=status, outputs=outputs)
        self.lead(apply_reports(
            self.replica, allocation.node_id, [report], self.moment, is_complete=False, max_evaluations=10
        ))  # fmt: skip
        self.process_pending()

    def outputs(self, step: str) -> dict[int, dict[str, str]]:
        return {index: dict(each.texts) for index, each in read_outputs(self.replica, self.job(), step).items()}


def texts(**values: str) -> ReportedOutputs:
    return ReportedOutputs(texts=values)


def test_outputs_are_stored_in_the_write_with_the_result() -> None:
    flow = Flow(a_step("build"))

    flow.end("build", texts(version="1.2", other="x"))

    assert flow.outputs("build") == {0: {"version": "1.2"}}
    ended, record = flow.find("build"), flow.replica.get(STEP_OUTPUTS, "default", "shop", 1, "build")
    assert record is not None
    assert (ended.array_result, ended.output_texts, ended.modify_index) == ("succeeded", b"", record.modify_index)


def test_outputs_outlive_their_allocation() -> None:
    flow = Flow(a_step("build"), a_step("test"))
    flow.end("build", texts(version="1.2"))

    flow.put(ALLOCATIONS.build_delete(flow.find("build").id))

    assert flow.outputs("build") == {0: {"version": "1.2"}}


def test_each_element_of_an_array_has_its_outputs() -> None:
    flow = Flow(a_step("train", size=3))

    flow.end("train", texts(version="b"), index=1)
    flow.end("train", texts(version="a"), index=0)
    flow.end("train", texts(), index=2)

    assert flow.outputs("train") == {0: {"version": "a"}, 1: {"version": "b"}}


def test_a_late_report_changes_no_output() -> None:
    flow = Flow(a_step("build"))
    flow.end("build", texts(version="1"))

    flow.end("build", texts(version="2"))

    assert flow.outputs("build") == {0: {"version": "1"}}


def test_a_lost_allocation_whose_node_returns_leaves_its_outputs() -> None:
    flow = Flow(a_step("build"))
    lost = flow.find("build")
    flow.lose_node(lost.node_id)
    flow.process_pending()
    assert flow.allocation(lost.id).client_status is ClientStatus.LOST
    flow.reconnect_node(lost.node_id)
    clean = TaskState(state=TaskStatus.DEAD, started_at=to_datetime(flow.now_ns))
    report = AllocationReport(
        id=lost.id, client_status=ClientStatus.COMPLETE, task_states={"server": clean}, outputs=texts(version="1.2")
    )

    flow.lead(apply_reports(
        flow.replica, lost.node_id, [report], flow.moment, is_complete=False, max_evaluations=10
    ))  # fmt: skip

    assert flow.allocation(lost.id).array_result == "succeeded"
    assert flow.outputs("build") == {0: {"version": "1.2"}}


def test_a_failed_step_leaves_its_outputs() -> None:
    flow = Flow(a_step("build"))

    flow.end("build", texts(version="broken"), status=ClientStatus.FAILED)

    assert flow.outputs("build") == {0: {"version": "broken"}}


def test_outputs_of_an_attempt_that_is_retried_do_not_count() -> None:
    flow = Flow(a_step("build", reschedule_policy=ONE_RETRY))

    flow.end("build", texts(version="1"), status=ClientStatus.FAILED)
    assert flow.outputs("build") == {}
    flow.pass_time(6)
    flow.process_pending()
    flow.end("build", texts())

    assert flow.outputs("build") == {}


def test_a_retry_hides_the_outputs_of_the_steps_that_run_again() -> None:
    flow = Flow(a_step("build"), a_step("test", depends=(Need(on="build"),)))
    flow.end("build", texts(version="a"))
    flow.end("test", texts(version="b"))

    request = RunRetry(namespace="default", job_id="shop", steps=("test",))
    flow.do(retry_run(flow.replica, request, flow.moment, SETTINGS))
    flow.process_pending()
    assert (flow.outputs("build"), flow.outputs("test")) == ({0: {"version": "a"}}, {})
    assert collect_step_outputs(flow.replica, flow.job(), flow.job().groups[1], 0) == {"build": {"version": "a"}}
    flow.end("test", texts(version="c"))

    assert flow.outputs("test") == {0: {"version": "c"}}


@pytest.mark.parametrize(("size", "length"), [(1, MAX_OUTPUT_BYTES), (4, MAX_OUTPUT_BYTES // 4)])
def test_outputs_above_the_limit_are_not_stored(size: int, length: int) -> None:
    flow = Flow(a_step("build", size=size, text=("v",)))

    flow.end("build", texts(v="x" * length))

    (stored,) = read_outputs(flow.replica, flow.job(), "build").values()
    assert stored.texts == {}
    assert stored.problem.startswith(f"the outputs have {length + 1:,} bytes together")


def test_a_step_receives_the_outputs_of_the_steps_that_it_needs() -> None:
    last = a_step("last", depends=(Need(on="test"),))
    flow = Flow(
        a_step("build", text=("version", "notes")), a_step("test", depends=(Need(on="build"),)), last, a_step("other")
    )
    for name in ("build", "other"):
        flow.end(name, texts(version=name))

    received = collect_step_outputs(flow.replica, flow.job(), last, 0)

    assert received == {"test": {"version": ""}, "build": {"version": "build", "notes": ""}}


def test_an_element_receives_the_outputs_of_the_element_that_it_needs() -> None:
    score = a_step("score", size=2, depends=(Need(on="train", each=True),))
    flow = Flow(a_step("train", size=2), score)
    flow.end("train", texts(version="b"), index=1)

    job = flow.job()
    assert [collect_step_outputs(flow.replica, job, score, index) for index in (0, 1)] == [
        {"train": {"version": ""}},
        {"train": {"version": "b"}},
    ]


def test_a_step_that_needs_an_array_as_a_whole_receives_none_of_its_outputs() -> None:
    report = a_step("report", depends=(Need(on="train"),))
    flow = Flow(a_step("train", size=2), report)
    flow.end("train", texts(version="b"), index=1)

    assert collect_step_outputs(flow.replica, flow.job(), report, 0) == {}


def test_outputs_to_which_a_step_refers_are_sent_first() -> None:
    large = MAX_OUTPUT_BYTES - 1
    count = MAX_SENT_OUTPUT_BYTES // large + 2
    names = [f"s{number}" for number in range(count)]
    last = a_step("last", depends=tuple(Need(on=name) for name in names), meta={"x": f"${{steps.{names[-1]}.v}}"})
    flow = Flow(*(a_step(name, text=("v",)) for name in names), last)
    for name in names:
        flow.end(name, texts(v="x" * large))

    received = collect_step_outputs(flow.replica, flow.job(), last, 0)

    assert [*received] == [names[-1], *names[: count - 3]]


def test_a_purge_deletes_outputs() -> None:
    flow = Flow(a_step("build"))
    flow.end("build", texts(version="1"))

    flow.lead(purge_job(flow.replica, "default", "shop", flow.moment, max_changes=100))

    assert [*flow.replica.iter_all(STEP_OUTPUTS)] == []


def test_garbage_collection_deletes_outputs_with_their_job() -> None:
    flow = Flow(a_step("build"))
    flow.end("build", texts(version="1"))
    flow.pass_time(60)

    while flow.lead(
        collect_garbage(flow.replica, CollectionKind.JOBS, flow.moment, retention_ns=0, max_changes=20)
    ).deleted_count:
        pass

    assert flow.replica.get(JOBS, "default", "shop") is None
    assert [*flow.replica.iter_all(STEP_OUTPUTS)] == []


def test_the_problems_of_an_array_share_a_limit_because_each_end_of_an_element_writes_all_of_them() -> None:
    flow = Flow(a_step("train", size=200))
    problem = ReportedOutputs(problem="\U0001f600" * 500)
    for index in range(200):
        flow.end("train", problem, index=index)

    record = flow.replica.get(STEP_OUTPUTS, "default", "shop", 1, "train")

    assert record is not None
    assert len(record.elements) == 200
    assert all(each.problem.endswith("…") for each in record.elements)
    assert sum(len(each.problem.encode()) for each in record.elements) <= MAX_OUTPUT_BYTES


def test_the_problem_of_a_step_with_one_element_is_stored_whole() -> None:
    flow = Flow(a_step("build"))
    flow.end("build", ReportedOutputs(problem="x" * 500))

    record = flow.replica.get(STEP_OUTPUTS, "default", "shop", 1, "build")

    assert record is not None
    assert record.elements[0].problem == "x" * 500
