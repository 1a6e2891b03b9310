"""The invariants of text outputs and of conditions: each detects its violation."""

from typing import Any

import pytest

from simulation.output_invariants import OutputInvariants
from simulation.run_invariants import RunInvariants
from simulation.step_texts import TEXT_NAMES, is_condition_true, write_texts
from simulation.task_runs import TaskRun, TaskRunLog
from simulation.timeline import Timeline
from tests.builders import a_batch_job, a_group, a_task
from tests.simulation.small_log import SmallLog
from wharf.cluster.state.tables import ALLOCATIONS, ARRAY_ATTEMPTS, ARRAY_RESULTS, JOBS, STEP_OUTPUTS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.array_attempts import ArrayAttempt, ArrayResults, GroupAttempt
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.step_outputs import ElementOutputs, StepOutputs
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepPhase, StepState
from wharf.contract.model.jobs.steps import Need, Outputs

WRITER, READER = "00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000001"
BUILD = a_group("build", a_task("task"), array=GroupArray(size=1), outputs=Outputs(text=TEXT_NAMES))
CONDITION = 'steps["build"].pick == "odd"'
SHIP = a_group("ship", a_task("task"), array=GroupArray(size=1), depends=(Need(on="build"),), condition=CONDITION)
JOB = a_batch_job("shop", BUILD, SHIP, create_index=1, meta={"mode": "fast"})
WAITING, READY = StepState(), StepState(phase=StepPhase.READY)
TEXTS = write_texts(WRITER)


def an_allocation(id: str, group: str, status: ClientStatus, **fields: Any) -> Allocation:
    return Allocation(
        id=id, namespace="default", name=f"shop.{group}[0]", job_id="shop", task_group=group, node_id="n1",
        job_create_index=1, array_attempt=1, desired_status=DesiredStatus.RUN, client_status=status, **fields,
    )  # fmt: skip


def an_attempt(ship: StepState) -> ArrayAttempt:
    parts = {
        "build": GroupAttempt(size=1, element_count=1, step=READY),
        "ship": GroupAttempt(size=1, element_count=1, step=ship),
    }
    return ArrayAttempt(namespace="default", job_id="shop", attempt=1, job_create_index=1, groups=parts)


def some_outputs(**texts: str) -> StepOutputs:
    element = ElementOutputs(index=0, texts=texts)
    return StepOutputs(namespace="default", job_id="shop", attempt=1, group="build", elements=(element,))


BUILT = ArrayResults(namespace="default", job_id="shop", attempt=1, group="build", chunk=0, results=b"s")
ENDED = an_allocation(WRITER, "build", ClientStatus.COMPLETE, array_result="succeeded")


class OutputScenario:
    """A run whose first step leaves texts, and the violations that the checks found."""

    def __init__(self) -> None:
        self.log = SmallLog()
        self.violations = self.log.failures
        self.task_runs = TaskRunLog(
            self.log.history, Timeline(self.log.loop), lambda error: self.violations.append(str(error))
        )
        OutputInvariants(self.log.history, self.task_runs)
        self.log.put((JOBS, JOB), (ARRAY_ATTEMPTS, an_attempt(WAITING)))
        self.log.put((ALLOCATIONS, an_allocation(WRITER, "build", ClientStatus.RUNNING)))
        self.run(WRITER)

    def run(self, id: str, **texts: dict[str, str]) -> None:
        """Start the program of an allocation, with the texts that it receives."""
        self.task_runs.record_start(
            TaskRun(f"run-{id}", id, "task", SHIP, {}, started_s=1.0, ended_s=2.0, step_texts=texts)
        )


@pytest.fixture
def scenario() -> OutputScenario:
    return OutputScenario()


def test_texts_that_are_stored_and_received_are_no_violation(scenario: OutputScenario) -> None:
    scenario.log.put((ALLOCATIONS, ENDED), (ARRAY_RESULTS, BUILT), (STEP_OUTPUTS, some_outputs(**TEXTS)))
    scenario.log.put((ALLOCATIONS, an_allocation(READER, "ship", ClientStatus.PENDING)))
    scenario.run(READER, build=TEXTS)

    assert scenario.violations == []


def test_a_success_without_its_texts_is_a_violation(scenario: OutputScenario) -> None:
    scenario.log.put((ALLOCATIONS, ENDED), (ARRAY_RESULTS, BUILT))

    assert scenario.violations == ["shop.build[0] succeeded at 3, and its texts are not stored"]


def test_texts_that_no_program_wrote_are_a_violation(scenario: OutputScenario) -> None:
    scenario.log.put((ALLOCATIONS, ENDED), (ARRAY_RESULTS, BUILT), (STEP_OUTPUTS, some_outputs(pick="odd", origin="?")))

    assert len(scenario.violations) == 1
    assert "and no allocation that ends then wrote them" in scenario.violations[0]


def test_texts_that_change_later_are_a_violation(scenario: OutputScenario) -> None:
    scenario.log.put((ALLOCATIONS, ENDED), (ARRAY_RESULTS, BUILT), (STEP_OUTPUTS, some_outputs(**TEXTS)))

    scenario.log.put((STEP_OUTPUTS, some_outputs(pick="late")))

    assert len(scenario.violations) == 1
    assert "the texts of step build of shop changed at 4" in scenario.violations[0]


def test_a_program_that_receives_other_texts_is_a_violation(scenario: OutputScenario) -> None:
    scenario.log.put((ALLOCATIONS, ENDED), (ARRAY_RESULTS, BUILT), (STEP_OUTPUTS, some_outputs(**TEXTS)))
    scenario.log.put((ALLOCATIONS, an_allocation(READER, "ship", ClientStatus.PENDING)))

    scenario.run(READER, build={"pick": "odd", "origin": ""})

    assert len(scenario.violations) == 1
    assert "from step build; stored are" in scenario.violations[0]


# -- conditions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "is_true"),
    [
        ('steps["build"].pick == "odd"', True),
        ('steps["build"].pick != "odd"', False),
        ('steps["build"].pick == "even"', False),
        ('meta.mode == "fast"', True),
        ('meta.mode != "fast"', False),
    ],
)
def test_a_condition_compares_stored_texts(scenario: OutputScenario, condition: str, is_true: bool) -> None:
    scenario.log.put((ALLOCATIONS, ENDED), (ARRAY_RESULTS, BUILT), (STEP_OUTPUTS, some_outputs(**TEXTS)))

    assert is_condition_true(scenario.log.history.replica, JOB, condition) is is_true


@pytest.mark.parametrize(
    ("pick", "ship", "violation"),
    [
        ("odd", READY, ""),
        ("even", READY, "step ship of shop began, but its If is false"),
        ("odd", StepState(phase=StepPhase.SKIPPED, cause=StepCause(kind=StepCauseKind.CONDITION)), "step ship of shop was skipped, but its If is true"),
        ("even", StepState(phase=StepPhase.SKIPPED, cause=StepCause(kind=StepCauseKind.CONDITION)), ""),
        ("odd", StepState(phase=StepPhase.FAILED, cause=StepCause(kind=StepCauseKind.CONDITION)), "step ship of shop failed because of its If"),
    ],
)  # fmt: skip
def test_a_step_that_begins_or_is_skipped_against_its_condition_is_a_violation(
    pick: str, ship: StepState, violation: str
) -> None:
    log = SmallLog()
    RunInvariants(log.history)
    log.put((JOBS, JOB), (ARRAY_ATTEMPTS, an_attempt(WAITING)))

    log.put(
        (ALLOCATIONS, ENDED), (ARRAY_RESULTS, BUILT), (STEP_OUTPUTS, some_outputs(pick=pick)),
        (ARRAY_ATTEMPTS, an_attempt(ship)),
    )  # fmt: skip

    assert [each.partition(":")[0] for each in log.failures] == ([violation] if violation else [])
