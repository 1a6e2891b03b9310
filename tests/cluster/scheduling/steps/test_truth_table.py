"""Each cell of the truth table of needs, through the decider, and the page that prints the table."""

import pytest
from msgspec.structs import replace

from tests.cluster.scheduling.steps.cases import a_run, a_step, decide, facts_of
from tests.docs.walking import PAGES
from wharf.cluster.scheduling.steps.decider import StepFacts, describe_needed, judge_step
from wharf.cluster.scheduling.steps.needs import TRUTH_TABLE
from wharf.cluster.scheduling.steps.reference import PAGE, render_page
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepOutcome, StepPhase, StepState
from wharf.contract.model.jobs.steps import Need, NeedWhen

GO, SKIP, IF_OPTIONAL = "begins", "is skipped", "begins only with Optional"

SUCCEEDED = StepFacts(a_step("build"), StepState(phase=StepPhase.READY, began_at=1), b"s")
OWN_CONDITION = StepState(phase=StepPhase.SKIPPED, cause=StepCause(kind=StepCauseKind.CONDITION))
ITS_NEED = StepState(phase=StepPhase.SKIPPED, cause=StepCause(kind=StepCauseKind.NEED, step="fetch", outcome="failed"))
ENDS = {
    "succeeded": SUCCEEDED,
    "failed": SUCCEEDED._replace(elements=b"f"),
    "was skipped by its own condition": SUCCEEDED._replace(state=OWN_CONDITION, elements=b"c"),
    "was skipped because of its need": SUCCEEDED._replace(state=ITS_NEED, elements=b"c"),
    "was canceled before it began": SUCCEEDED._replace(state=StepState(phase=StepPhase.CANCELED), elements=b"c"),
    "was canceled while it ran": SUCCEEDED._replace(
        state=StepState(phase=StepPhase.CANCELED, began_at=1), elements=b"c"
    ),
}
CELLS = [
    ("succeeded", "succeeded", GO),
    ("succeeded", "failed", SKIP),
    ("succeeded", "was skipped by its own condition", IF_OPTIONAL),
    ("succeeded", "was skipped because of its need", SKIP),
    ("succeeded", "was canceled before it began", SKIP),
    ("succeeded", "was canceled while it ran", SKIP),
    ("failed", "succeeded", SKIP),
    ("failed", "failed", GO),
    ("failed", "was skipped by its own condition", SKIP),
    ("failed", "was skipped because of its need", SKIP),
    ("failed", "was canceled before it began", SKIP),
    ("failed", "was canceled while it ran", GO),
    ("ended", "succeeded", GO),
    ("ended", "failed", GO),
    ("ended", "was skipped by its own condition", IF_OPTIONAL),
    ("ended", "was skipped because of its need", SKIP),
    ("ended", "was canceled before it began", SKIP),
    ("ended", "was canceled while it ran", GO),
    ("any", "succeeded", GO),
    ("any", "failed", GO),
    ("any", "was skipped by its own condition", GO),
    ("any", "was skipped because of its need", GO),
    ("any", "was canceled before it began", GO),
    ("any", "was canceled while it ran", GO),
]
FORMS = {
    "of the step": Need(on="build"),
    "of one of its elements": Need(on="build", at_least=1),
    "of the same element": Need(on="build", each=True),
}


@pytest.mark.parametrize("is_optional", [False, True], ids=["", "optional"])
@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize(
    ("when", "end", "expected"), CELLS, ids=[f"a step that needs {cell[0]} {cell[2]} if it {cell[1]}" for cell in CELLS]
)
def test_what_a_need_says_about_a_step_that(when: str, end: str, expected: str, form: str, is_optional: bool) -> None:
    needed = ENDS[end]
    waiting = a_step("test", replace(FORMS[form], when=when, optional=is_optional))
    facts = {"build": needed, "test": facts_of(waiting)}

    state = decide(a_run(needed.group, waiting), facts)["test"]

    does_begin = expected == GO or (expected == IF_OPTIONAL and is_optional)
    assert state.phase is (StepPhase.READY if does_begin else StepPhase.SKIPPED)
    if not does_begin:
        assert state.cause is not None
        assert (state.cause.kind, state.cause.step, state.cause.outcome) == ("need", "build", judge_step(needed))


def test_the_cells_of_these_tests_are_all_cells_of_the_table() -> None:
    outcomes = [describe_needed(end).outcome for end in ENDS.values()]

    assert outcomes == [outcome for outcome in StepOutcome if outcome is not StepOutcome.OPEN]
    assert len(CELLS) == sum(len(row) for row in TRUTH_TABLE.values()) == len(NeedWhen) * len(ENDS)


@pytest.mark.parametrize("when", list(NeedWhen))
@pytest.mark.parametrize("end", list(ENDS))
def test_a_final_step_begins_however_the_needed_step_ended(when: str, end: str) -> None:
    final = a_step("tidy", Need(on="build", when=when, at_least=1), final=True)

    state = decide(a_run(ENDS[end].group, final), {"build": ENDS[end], "tidy": facts_of(final)})["tidy"]

    assert state.phase is StepPhase.READY


@pytest.mark.parametrize("when", list(NeedWhen))
def test_a_step_waits_while_the_needed_step_runs(when: str) -> None:
    waiting = a_step("test", Need(on="build", when=when))
    running = SUCCEEDED._replace(elements=b".")

    assert decide(a_run(running.group, waiting), {"build": running, "test": facts_of(waiting)}) == {}


def test_the_page_prints_the_table_of_the_code() -> None:
    page = (PAGES / PAGE).read_text()

    assert page == render_page(page), "run `python -m wharf.cluster.scheduling.steps.reference`"
