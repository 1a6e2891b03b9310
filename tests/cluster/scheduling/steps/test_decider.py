"""Decisions about steps: chains, arrays, gates, conditions, needs of other jobs, cancels, and how a run ended."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.attempts import limited_cpu
from tests.cluster.scheduling.steps.cases import NOW_NS, a_run, a_step, decide, facts_of
from wharf.cluster.scheduling.steps.decider import (
    DEFAULT_GATE_TIMEOUT_NS,
    ConditionResult,
    StepChange,
    StepFacts,
    decide_steps,
    describe_needed,
    judge_run,
    judge_step,
    select_startable,
)
from wharf.cluster.scheduling.steps.needs import NeededStep
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepOutcome, StepPhase
from wharf.contract.model.jobs.steps import Gate, Need
from wharf.contract.model.times import SECOND

READY, WAITING, GATED, SKIPPED = StepPhase.READY, StepPhase.WAITING, StepPhase.GATED, StepPhase.SKIPPED


def decide_all(facts: Sequence[StepFacts]) -> list[StepChange]:
    job = a_run(*(each.group for each in facts))
    return decide_steps(job, {each.group.name: each for each in facts}, {}, NOW_NS, lambda _: ConditionResult(True, ""))


def read_phases(facts: Sequence[StepFacts], **options: Any) -> dict[str, StepPhase]:
    """Return the new phase of each step that changes."""
    by_name = {each.group.name: each for each in facts}
    changed = decide(a_run(*(each.group for each in facts)), by_name, **options)
    return {name: state.phase for name, state in changed.items()}


# -- chains ------------------------------------------------------------------------------------------------------------


def test_a_step_without_needs_begins_at_once() -> None:
    assert read_phases([facts_of(a_step("build")), facts_of(a_step("test", "build"))]) == {"build": READY}


def test_a_failure_skips_the_whole_chain_in_one_decision_in_whatever_order_the_file_has_it() -> None:
    build = facts_of(a_step("build"), b"f", phase=READY)
    chain = [facts_of(a_step("ship", "test")), facts_of(a_step("test", "build")), build]

    assert read_phases(chain) == read_phases(chain[::-1]) == {"test": SKIPPED, "ship": SKIPPED}


def test_each_step_of_a_skipped_chain_names_the_need_that_skipped_it() -> None:
    build, test, ship = a_step("build"), a_step("test", "build"), a_step("ship", "test")
    facts = {"build": facts_of(build, b"f", phase=READY), "test": facts_of(test), "ship": facts_of(ship)}

    causes = {name: state.cause for name, state in decide(a_run(build, test, ship), facts).items()}

    assert {name: (cause.step, cause.outcome) for name, cause in causes.items() if cause is not None} == {
        "test": ("build", "failed"),
        "ship": ("test", "skipped-by-need"),
    }


def test_a_decided_step_does_not_change_again() -> None:
    done = facts_of(a_step("test", "build"), b".", phase=READY)

    assert read_phases([facts_of(a_step("build"), b"f", phase=READY), done]) == {}


@pytest.mark.parametrize("is_reversed", [False, True])
def test_500_steps_in_a_chain_are_decided_in_a_few_milliseconds(is_reversed: bool) -> None:
    chain = [a_step(f"s{number}", *([f"s{number - 1}"] if number else [])) for number in range(500)]
    chain = chain[::-1] if is_reversed else chain
    facts = {each.name: facts_of(each) for each in chain}
    facts["s0"] = facts_of(chain[-1 if is_reversed else 0], b"f", phase=READY)

    with limited_cpu(0.05, "the decision"):  # About 6 ms.
        changes = decide(a_run(*chain), facts)

    assert len(changes) == 499


def test_500_independent_steps_are_decided_in_a_few_milliseconds() -> None:
    steps = [a_step(f"s{number}") for number in range(500)]
    facts = {each.name: facts_of(each) for each in steps}

    with limited_cpu(0.05, "the decision"):  # About 4 ms.
        changes = decide(a_run(*steps), facts)

    assert len(changes) == 500


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("needs_final_steps", [False, True])
def test_250_final_steps_without_needs_and_a_chain_are_decided_in_a_short_time(
    is_reversed: bool, needs_final_steps: bool
) -> None:
    chain = []
    for at in range(250):
        finals = [f"f{number}" for number in range(at * 90, min(at * 90 + 90, 250))] if needs_final_steps and at else []
        chain.append(a_step(f"s{at}", *([f"s{at - 1}"] if at else []), *finals))
    steps = [a_step(f"f{number}", final=True) for number in range(250)] + (chain[::-1] if is_reversed else chain)
    facts = {each.name: facts_of(each) for each in steps}
    facts["s0"] = facts_of(chain[0], b"f", phase=READY)

    with limited_cpu(0.1, "the decision"):  # About 30 ms; 200 ms if each change decides all final steps again.
        changes = decide(a_run(*steps), facts)

    assert len(changes) == 499  # All but the step that has failed.


# -- arrays ------------------------------------------------------------------------------------------------------------

TRAIN = a_step("train", size=4)


def test_the_first_failed_element_of_an_array_skips_a_step_that_needs_its_success() -> None:
    train, ship = facts_of(TRAIN, b"s.f.", phase=READY), facts_of(a_step("ship", "train"))

    assert read_phases([train, ship]) == {"ship": SKIPPED}


def test_a_step_that_needs_a_failure_waits_for_the_end_of_the_array() -> None:
    rescue = facts_of(a_step("rescue", Need(on="train", when="failed")))

    assert read_phases([facts_of(TRAIN, b"s.fs", phase=READY), rescue]) == {}
    assert read_phases([facts_of(TRAIN, b"ssfs", phase=READY), rescue]) == {"rescue": READY}


def test_a_step_that_needs_an_array_that_may_fail_waits_for_its_end() -> None:
    train = a_step("train", size=2, may_fail=True)
    ship = facts_of(a_step("ship", "train"))

    assert read_phases([facts_of(train, b"f.", phase=READY), ship]) == {}
    assert read_phases([facts_of(train, b"fs", phase=READY), ship]) == {"ship": READY}


def test_an_array_that_may_fail_and_was_canceled_skips_a_step_before_its_tasks_have_stopped() -> None:
    train = facts_of(a_step("train", size=2, may_fail=True), b"sc", phase=StepPhase.CANCELED)._replace(alive=1)

    assert read_phases([train, facts_of(a_step("ship", "train"))]) == {"ship": SKIPPED}


@pytest.mark.parametrize(
    ("elements", "expected"), [(b"ss..", {"ship": READY}), (b"s...", {}), (b"sff.", {}), (b"sfff", {"ship": SKIPPED})]
)
def test_at_least_two_elements_decide_as_soon_as_they_have_ended_or_never_can(
    elements: bytes, expected: dict[str, StepPhase]
) -> None:
    ship = facts_of(a_step("ship", Need(on="train", at_least=2)))

    assert read_phases([facts_of(TRAIN, elements, phase=READY), ship]) == expected


def test_too_few_possible_elements_are_the_cause_of_a_skip() -> None:
    ship = a_step("ship", Need(on="train", at_least=3))
    facts = {"train": facts_of(TRAIN, b"sff.", phase=READY), "ship": facts_of(ship)}

    cause = decide(a_run(TRAIN, ship), facts)["ship"].cause

    assert cause is not None
    assert cause.detail == "2 of 4 elements can count as succeeded; 3 are needed"
    assert cause.outcome == StepOutcome.OPEN


def test_at_least_waits_for_canceled_elements_whose_tasks_may_still_end_with_success() -> None:
    ship = facts_of(a_step("ship", Need(on="train", at_least=2)))
    stopping = facts_of(TRAIN, b"sfcc", phase=READY)._replace(alive=1, stopping=1)

    assert read_phases([stopping, ship]) == {}
    assert read_phases([stopping._replace(alive=0, stopping=0), ship]) == {"ship": SKIPPED}
    assert read_phases([stopping._replace(elements=b"sfsc", alive=0, stopping=0), ship]) == {"ship": READY}


@pytest.mark.parametrize(
    ("need", "expected"),
    [
        (Need(on="train"), {"ship": SKIPPED}),
        (Need(on="train", when="failed"), {"ship": SKIPPED}),
        (Need(on="train", when="any"), {}),
        (Need(on="train", optional=True), {}),
    ],
)
def test_a_skipped_step_skips_others_at_once_and_begins_none_while_tasks_of_an_earlier_attempt_stop(
    need: Need, expected: dict[str, StepPhase]
) -> None:
    cause = StepCause(kind=StepCauseKind.CONDITION)
    skipped = facts_of(TRAIN, b"cccc", phase=SKIPPED, cause=cause)._replace(alive=1, stopping=1)
    ship = a_step("ship", need)

    changes = decide(a_run(TRAIN, ship), {"train": skipped, "ship": facts_of(ship)})

    assert {name: state.phase for name, state in changes.items()} == expected
    causes = [state.cause.outcome for state in changes.values() if state.cause is not None]
    assert causes == [StepOutcome.SKIPPED_BY_CONDITION] * len(expected)


def test_at_least_does_not_wait_for_other_elements_when_a_stopped_one_has_ended() -> None:
    ship = facts_of(a_step("ship", Need(on="train", at_least=4)))
    running = facts_of(TRAIN, b"sc..", phase=READY)._replace(alive=2)

    assert read_phases([running, ship]) == {"ship": SKIPPED}


@pytest.mark.parametrize("alive", [0, 1])
def test_at_least_on_a_canceled_array_decides_after_its_tasks_have_stopped(alive: int) -> None:
    ship = facts_of(a_step("ship", Need(on="train", when="ended", at_least=4)))
    canceled = facts_of(TRAIN, b"sfcc", phase=StepPhase.CANCELED, began_at=1)._replace(alive=alive, stopping=alive)

    assert read_phases([canceled, ship]) == ({} if alive else {"ship": READY})


def test_an_array_without_elements_never_holds() -> None:
    empty = facts_of(TRAIN, phase=READY)._replace(elements=b"")

    assert read_phases([empty, facts_of(a_step("ship", "train"))]) == {"ship": SKIPPED}


# -- each element ------------------------------------------------------------------------------------------------------

CHECK = a_step("check", Need(on="train", each=True), size=4)


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        (b"....", {}),
        (b"f...", {}),
        (b"..s.", {"check": READY}),
        (b"fs..", {"check": READY}),
        (b"ffff", {"check": SKIPPED}),
    ],
)
def test_a_step_with_each_begins_with_its_first_element_and_is_skipped_if_none_can_begin(
    elements: bytes, expected: dict[str, StepPhase]
) -> None:
    assert read_phases([facts_of(TRAIN, elements, phase=READY), facts_of(CHECK)]) == expected


def test_a_step_with_each_is_skipped_together_with_the_step_that_it_needs() -> None:
    train = a_step("train", "fetch", size=4)
    fetch = facts_of(a_step("fetch"), b"f", phase=READY)

    assert read_phases([fetch, facts_of(train), facts_of(CHECK)]) == {"train": SKIPPED, "check": SKIPPED}


@pytest.mark.parametrize("fields", [{"gate": Gate()}, {"condition": "1 == 1"}], ids=["gate", "condition"])
def test_a_gate_and_a_condition_wait_for_all_elements_of_a_need_with_each(fields: dict[str, Any]) -> None:
    check = facts_of(a_step("check", Need(on="train", each=True), size=4, **fields))
    is_true = ConditionResult(True, "")

    assert read_phases([facts_of(TRAIN, b"ss.s", phase=READY), check], condition=is_true) == {}
    assert set(read_phases([facts_of(TRAIN, b"ssfs", phase=READY), check], condition=is_true)) == {"check"}


def test_elements_with_each_begin_wait_or_are_skipped() -> None:
    train, check = facts_of(TRAIN, b"s.f.", phase=READY), facts_of(CHECK, phase=READY)
    (change,) = decide_all([train, check])

    assert change.elements == b"..x."
    assert select_startable(CHECK, change.elements, {"train": describe_needed(train)})[:1] == b"."
    assert select_startable(CHECK, change.elements, {"train": describe_needed(train)}).count(b".") == 1


def test_elements_that_need_two_arrays_wait_for_both() -> None:
    both = a_step("check", Need(on="train", each=True), Need(on="load", each=True), size=4)
    load = a_step("load", size=4)
    needed = {
        "train": describe_needed(facts_of(TRAIN, b"s.fs", phase=READY)),
        "load": describe_needed(facts_of(load, b"ssff", phase=READY)),
    }

    assert select_startable(both, b"....", needed) == b".---"


def test_the_elements_of_a_large_array_are_selected_in_a_few_milliseconds() -> None:
    size = 100_000
    train, check = a_step("train", size=size), a_step("check", Need(on="train", each=True), size=size)
    needed = {"train": describe_needed(facts_of(train, b"s." * (size // 2), phase=READY))}

    with limited_cpu(0.1, "the selection"):  # About 10 ms.
        startable = select_startable(check, b"." * size, needed)

    assert startable.count(b".") == size // 2


# -- conditions and gates ----------------------------------------------------------------------------------------------


def test_a_false_condition_skips_a_step_with_the_values_that_decided() -> None:
    step = a_step("ship", condition="branch == main")

    state = decide(a_run(step), {"ship": facts_of(step)}, condition=ConditionResult(False, "branch = fix"))["ship"]

    assert state.cause is not None
    assert (state.phase, state.cause.kind, state.cause.detail) == (SKIPPED, "condition", "branch = fix")


def test_a_condition_that_cannot_be_evaluated_fails_its_step() -> None:
    step = a_step("ship", condition="branch ==")
    error = ConditionResult(False, "no value", is_error=True)

    assert decide(a_run(step), {"ship": facts_of(step)}, condition=error)["ship"].phase is StepPhase.FAILED


def test_a_condition_is_evaluated_only_after_all_needs_allow_the_step() -> None:
    ship = facts_of(a_step("ship", "build", condition="branch == main"))

    assert read_phases([facts_of(a_step("build"), b".", phase=READY), ship], condition=None) == {}


@pytest.mark.parametrize(("timeout", "expected"), [(0, DEFAULT_GATE_TIMEOUT_NS), (7 * SECOND, 7 * SECOND)])
def test_a_gate_opens_when_the_needs_allow_with_a_deadline(timeout: int, expected: int) -> None:
    step = a_step("ship", "build", gate=Gate(timeout=timeout))
    facts = {"build": facts_of(a_step("build"), b"s", phase=READY), "ship": facts_of(step)}

    state = decide(a_run(facts["build"].group, step), facts)["ship"]

    assert (state.phase, state.gate_deadline) == (GATED, NOW_NS + expected)


def test_an_expired_gate_fails_its_step_and_skips_what_waits_for_it() -> None:
    gated = facts_of(a_step("ship", gate=Gate()), phase=GATED, gate_deadline=NOW_NS)
    waiting = facts_of(a_step("tell", "ship"))

    assert read_phases([gated, waiting], now_ns=NOW_NS - 1) == {}
    assert read_phases([gated, waiting]) == {"ship": StepPhase.FAILED, "tell": SKIPPED}


def test_an_expired_gate_of_a_step_that_may_fail_lets_the_next_one_begin() -> None:
    gated = facts_of(a_step("ship", gate=Gate(), may_fail=True), phase=GATED, gate_deadline=NOW_NS)

    assert read_phases([gated, facts_of(a_step("tell", "ship"))])["tell"] is READY


# -- other jobs --------------------------------------------------------------------------------------------------------


def a_run_after_import(*facts: StepFacts, **need: Any) -> tuple[Job, dict[str, StepFacts]]:
    job = a_run(*(each.group for each in facts), depends=(Need(on="import", **need),))
    return job, {each.group.name: each for each in facts}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (StepOutcome.OPEN, {}),
        (StepOutcome.SUCCEEDED, {"build": READY}),
        (StepOutcome.FAILED, {"build": SKIPPED, "tidy": READY}),
    ],
)
def test_all_steps_wait_for_another_job_and_only_final_ones_begin_if_it_fails(
    other: StepOutcome, expected: dict[str, StepPhase]
) -> None:
    job, facts = a_run_after_import(facts_of(a_step("build")), facts_of(a_step("tidy", final=True)))

    changed = decide(job, facts, {"import": NeededStep(other)})

    assert {name: state.phase for name, state in changed.items()} == expected


def test_a_job_that_never_ran_counts_as_canceled_before_it_began() -> None:
    job, facts = a_run_after_import(facts_of(a_step("build")))

    cause = decide(job, facts)["build"].cause

    assert cause is not None
    assert (cause.kind, cause.step, cause.outcome) == ("job", "import", StepOutcome.CANCELED_BEFORE_BEGIN)


def test_final_steps_begin_after_a_cancel_although_the_other_job_has_not_ended() -> None:
    canceled = facts_of(a_step("build"), b"c", phase=StepPhase.CANCELED)
    job, facts = a_run_after_import(canceled, facts_of(a_step("tidy", "build", final=True)))

    changed = decide(job, facts, {"import": NeededStep(StepOutcome.OPEN)})

    assert changed["tidy"].phase is READY


# -- how steps and runs end --------------------------------------------------------------------------------------------


def test_a_canceled_step_has_ended_only_after_its_tasks() -> None:
    stopping = facts_of(a_step("build"), b"c", phase=StepPhase.CANCELED, began_at=1)._replace(alive=1)

    assert judge_step(stopping) is StepOutcome.OPEN
    assert judge_step(stopping._replace(alive=0)) is StepOutcome.CANCELED_WHILE_RUNNING


def test_a_final_step_waits_until_the_tasks_of_a_canceled_step_have_stopped() -> None:
    stopping = facts_of(a_step("build"), b"c", phase=StepPhase.CANCELED, began_at=1)._replace(alive=1)
    tidy = facts_of(a_step("tidy", "build", final=True))

    assert read_phases([stopping, tidy]) == {}
    assert read_phases([stopping._replace(alive=0), tidy]) == {"tidy": READY}


SUCCESS = facts_of(a_step("build"), b"s", phase=READY)
FAILURE = facts_of(a_step("test"), b"f", phase=READY)
CANCEL = facts_of(a_step("ship"), b"c", phase=StepPhase.CANCELED)
TOLERATED = facts_of(a_step("lint", may_fail=True), b"f", phase=READY)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([SUCCESS], ("succeeded", False)),
        ([SUCCESS, TOLERATED], ("succeeded", True)),
        ([SUCCESS, FAILURE, CANCEL], ("failed", False)),
        ([SUCCESS, CANCEL], ("canceled", False)),
        ([SUCCESS, FAILURE, facts_of(a_step("tidy"), b".", phase=READY)], ("", False)),
    ],
    ids=["success", "tolerated failure", "failure before cancel", "cancel", "not ended"],
)
def test_how_a_run_ended(facts: list[StepFacts], expected: tuple[str, bool]) -> None:
    assert judge_run(facts) == expected


def test_a_run_that_another_job_keeps_from_beginning_has_not_succeeded() -> None:
    job, facts = a_run_after_import(facts_of(a_step("build")))
    state = decide(job, facts, {"import": NeededStep(StepOutcome.FAILED)})["build"]

    assert judge_run([facts["build"]._replace(state=state, elements=b"c")]).outcome == "skipped"
