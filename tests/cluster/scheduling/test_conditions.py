"""Conditions of steps: what they read, what is stored about their values, and when they are errors."""

from typing import Any

import pytest

from tests.attempts import limited_cpu
from tests.builders import a_batch_job, a_group
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SETTINGS
from wharf.cluster.operations.nodes.reports import AllocationReport, apply_reports
from wharf.cluster.scheduling.steps.conditions import MAX_DETAIL_BYTES, evaluate_condition
from wharf.cluster.scheduling.steps.decider import ConditionResult
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import CLUSTER_FORMAT
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, Parameterized
from wharf.contract.model.jobs.step_outputs import ReportedOutputs
from wharf.contract.model.jobs.step_states import StepPhase, StepState
from wharf.contract.model.jobs.steps import Gate, Need, Outputs

TEXTS = {"build": {"version": "1.2"}, "lint-all": {"notes": "ok"}}


def a_step(name: str, *needs: str, text: tuple[str, ...] | None = None, **fields: Any) -> TaskGroup:
    outputs = Outputs(text=text) if text is not None else None
    return a_group(name, depends=tuple(Need(on=need) for need in needs) or None, outputs=outputs, **fields)


def a_run(condition: str, **fields: Any) -> Job:
    return a_batch_job(
        "shop",
        a_step("build", text=("version", "notes")),
        a_step("lint-all", "build", text=("notes",)),
        a_step("train", text=("score",), array=GroupArray(size=2)),
        a_step("other", text=("version",)),
        a_step("ship", "lint-all", "train", condition=condition),
        **{"meta": {"env": "prod", "Region": "north"}, **fields},
    )


def evaluate(condition: str, **fields: Any) -> ConditionResult:
    job = a_run(condition, **fields)
    return evaluate_condition(job, job.groups[-1], lambda step: TEXTS.get(step, {}))


@pytest.mark.parametrize(
    ("condition", "is_true", "detail"),
    [
        ("meta.env == prod", True, 'meta.env = "prod"'),
        ("meta.env != prod", False, 'meta.env = "prod"'),
        ('meta.env == prod and meta.Region == "south"', False, 'meta.env = "prod", meta.Region = "north"'),
        ('steps.build.version == "1.2"', True, 'steps.build.version = "1.2"'),
        ('steps["lint-all"].notes == ok', True, 'steps.lint-all.notes = "ok"'),
        ("steps.build.notes is empty", True, 'steps.build.notes = ""'),
        ('steps.build.version matches "^1[.]"', True, 'steps.build.version = "1.2"'),
        ("prod in meta.env", True, 'meta.env = "prod"'),
        ("env in meta", True, "meta has 2 entries"),
        ("any steps as name, texts { texts.notes == ok }", True, "steps has 2 entries"),
    ],
)
def test_a_condition_reads_metadata_and_outputs(condition: str, is_true: bool, detail: str) -> None:
    assert evaluate(condition) == ConditionResult(is_true, detail)


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("meta.environment == prod", 'the job has no metadata "environment"'),
        ("meta.env == prod or meta.x == y", 'the job has no metadata "x"'),
        ("not steps.build.sha == x", 'Outputs.Text of the step "build" does not name "sha"'),
        ("steps.bild.version == x", 'no step has the name "bild"; did you mean "build"?'),
        ("steps.other.version == x", 'the step does not need "other": add it to Depends'),
        ("steps.train.score == x", '"train" is an array, whose elements have outputs of their own'),
        ("status == x", 'struct field with name "status"'),
        ("meta.env ==", "1:12 (11)"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_an_error_and_never_true(condition: str, problem: str) -> None:
    result = evaluate(condition)

    assert (result.is_true, result.is_error) == (False, True)
    assert result.detail.startswith("If cannot be evaluated: ")
    assert problem in result.detail


def test_metadata_that_a_dispatch_left_out_is_empty() -> None:
    parameterized = Parameterized(meta_required=("env",), meta_optional=("note",))

    result = evaluate("meta.note is empty and meta.env == prod", parameterized_job=parameterized, dispatched=True)

    assert result == ConditionResult(True, 'meta.note = "", meta.env = "prod"')


def test_the_stored_values_are_cut() -> None:
    meta = {f"k{number}": "x" * 1_000 for number in range(20)}
    condition = " and ".join(f"{name} in meta.{name} or meta.{name} is not empty" for name in meta)

    result = evaluate(condition, meta=meta)

    assert result.is_true
    assert len(result.detail.encode()) <= MAX_DETAIL_BYTES
    assert result.detail.startswith(f'meta.k0 = "{"x" * 97}…", meta.k1')


def test_a_condition_that_takes_too_long_is_an_error() -> None:
    meta = {f"k{number}": "x" for number in range(200)}
    condition = "any meta as a, b { any meta as c, d { a == y } }"

    assert evaluate(condition, meta=meta).is_error


# -- in a run


class ConditionRun(SimulatedCluster):
    """A run in which `ship` needs `build` and has a condition."""

    def __init__(self, condition: str, **fields: Any) -> None:
        super().__init__()
        self.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
        self.with_node("node-1", cpu=100_000, memory_mb=1_000_000)
        self.register(
            canonicalize_job(
                a_batch_job(
                    "shop",
                    a_step("build", text=("version",)),
                    a_step("ship", "build", condition=condition, **fields),
                    meta={"env": "prod", **{f"k{number}": "x" for number in range(100)}},
                ),
                SETTINGS,
            )
        )
        self.process_pending()

    def end(self, step: str, **texts: str) -> None:
        (allocation,) = [each for each in self.list_allocations() if each.task_group == step]
        report = AllocationReport(
            id=allocation.id, client_status=ClientStatus.COMPLETE, outputs=ReportedOutputs(texts=texts)
        )
        self.lead(apply_reports(self.replica, "node-1", [report], self.moment, is_complete=False, max_evaluations=10))
        self.process_pending()

    def state(self, step: str) -> StepState:
        return read_snapshot_run(self.replica, self.job()).steps[step].facts.state


def test_a_true_condition_over_an_output_begins_the_step_in_the_write_of_its_need() -> None:
    run = ConditionRun('steps.build.version == "2"')

    run.end("build", version="2")

    state = run.state("ship")
    assert (state.phase, state.cause and state.cause.detail) == (StepPhase.READY, 'steps.build.version = "2"')


def test_a_false_condition_skips_the_step_with_its_values() -> None:
    run = ConditionRun('steps.build.version == "2" and meta.env == prod')

    run.end("build", version="1")

    state = run.state("ship")
    assert state.phase is StepPhase.SKIPPED
    assert state.cause is not None
    assert state.cause.detail == 'steps.build.version = "1", meta.env = "prod"'


def test_an_output_that_the_program_did_not_write_is_empty() -> None:
    run = ConditionRun("steps.build.version is empty")

    run.end("build")

    assert run.state("ship").phase is StepPhase.READY


def test_a_condition_that_cannot_be_evaluated_fails_the_step() -> None:
    run = ConditionRun("not (any meta as a, b { any meta as c, d { a == y } })")

    run.end("build", version="1")

    state = run.state("ship")
    assert state.phase is StepPhase.FAILED
    assert state.cause is not None
    assert "cannot be evaluated" in state.cause.detail


def test_a_gate_opens_only_if_the_condition_is_true() -> None:
    run = ConditionRun('steps.build.version == "2"', gate=Gate())

    run.end("build", version="2")

    assert run.state("ship").phase is StepPhase.GATED


def test_499_conditions_that_read_the_nearest_step_are_evaluated_within_20_milliseconds() -> None:
    readers = [a_step(f"s{number}", "build", condition='steps.build.version == "1.2"') for number in range(499)]
    job = a_batch_job("shop", a_step("build", text=("version",)), *readers)

    with limited_cpu(0.02, "the conditions"):  # About 7 ms; 40 ms if each condition lists all steps.
        results = {evaluate_condition(job, group, lambda step: TEXTS[step]).is_true for group in readers}

    assert results == {True}
