"""The truth table of needs: whether a step may begin, never begins, or waits, from how the needed step ended.

`TRUTH_TABLE` is the only place with these rules. The documentation prints it, and a test visits each of its cells.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from wharf.contract.model.jobs.array_attempts import CANCELED, FAILED, OPEN, SKIPPED, SUCCEEDED
from wharf.contract.model.jobs.step_states import StepOutcome
from wharf.contract.model.jobs.steps import Need, NeedWhen


class StepVerdict(StrEnum):
    """What a need says about the step that has it."""

    WAIT = "wait"
    GO = "go"
    SKIP = "skip"
    GO_IF_OPTIONAL = "go if Optional"  # Otherwise skip. Only in the table.


_GO, _SKIP, _IF_OPTIONAL = StepVerdict.GO, StepVerdict.SKIP, StepVerdict.GO_IF_OPTIONAL

ENDED_OUTCOMES: Final = (
    StepOutcome.SUCCEEDED,
    StepOutcome.FAILED,
    StepOutcome.SKIPPED_BY_CONDITION,
    StepOutcome.SKIPPED_BY_NEED,
    StepOutcome.CANCELED_BEFORE_BEGIN,
    StepOutcome.CANCELED_WHILE_RUNNING,
)
"""The columns of the table."""

TRUTH_TABLE: Final[Mapping[NeedWhen, tuple[StepVerdict, ...]]] = {
    # The needed step:   succeeded failed  own condition  its need  canceled before  canceled while it ran
    NeedWhen.SUCCEEDED: (_GO, _SKIP, _IF_OPTIONAL, _SKIP, _SKIP, _SKIP),
    NeedWhen.FAILED: (_SKIP, _GO, _SKIP, _SKIP, _SKIP, _GO),
    NeedWhen.ENDED: (_GO, _GO, _IF_OPTIONAL, _SKIP, _SKIP, _GO),
    NeedWhen.ANY: (_GO, _GO, _GO, _GO, _GO, _GO),
}
"""What a need says, by its `When` and by how the needed step ended."""


def judge_outcome(when: NeedWhen, outcome: StepOutcome, *, optional: bool = False) -> StepVerdict:
    """Return what a need says about a step that ended with this outcome, or `WAIT` for one that has not ended."""
    if outcome is StepOutcome.OPEN:
        return StepVerdict.WAIT
    verdict = TRUTH_TABLE[when][ENDED_OUTCOMES.index(outcome)]
    if verdict is StepVerdict.GO_IF_OPTIONAL:
        return StepVerdict.GO if optional else StepVerdict.SKIP
    return verdict


class NeededStep(NamedTuple):
    """What a need knows of the step, or of the other job, that it names."""

    outcome: StepOutcome
    """How it ended as a whole. `FAILED` only once all of its elements have ended."""
    elements: bytes = b""
    """The state of each element, such as `OPEN`. Empty for another job, and for an array whose size is not known yet."""
    never_begins: StepOutcome = StepOutcome.OPEN
    """How elements that were canceled count: they were skipped or canceled with their step."""
    may_fail: bool = False
    is_canceled: bool = False
    """Whether it was canceled, so that it cannot succeed. Its tasks may still be stopping."""
    certain: StepOutcome = StepOutcome.OPEN
    """How it will have ended once its tasks have: it was skipped, or refused at its gate, while tasks of an earlier attempt stop."""
    stopping: int = 0
    """How many of its canceled elements have an allocation that has not ended. As long as there is one, any may succeed."""


def judge_need(need: Need, needed: NeededStep) -> StepVerdict:
    """Return what a need says now.

    It says skip as soon as it can never hold, so also before all elements of an array have ended. No element counts as
    succeeded because it is missing: a need of an array without elements is skipped.
    """
    if need.at_least:
        return _judge_count(need, needed)
    when = NeedWhen(need.when)
    if needed.outcome is not StepOutcome.OPEN:
        return judge_outcome(when, needed.outcome, optional=need.optional)
    if needed.certain is not StepOutcome.OPEN:
        is_refused = judge_outcome(when, needed.certain, optional=need.optional) is StepVerdict.SKIP
    else:
        is_failed = not needed.may_fail and any(code in needed.elements for code in (FAILED, CANCELED, SKIPPED))
        is_refused = when is NeedWhen.SUCCEEDED and (is_failed or needed.is_canceled)
    return StepVerdict.SKIP if is_refused else StepVerdict.WAIT


class ElementCounts(NamedTuple):
    """How many elements of a needed array a need with `AtLeast` counts."""

    good: int
    """Those that have ended as the need wants."""
    possible: int
    """Those that have, or still can."""


def count_elements(need: Need, needed: NeededStep) -> ElementCounts:
    """Return how many elements have ended as a need wants, and how many still can."""
    verdicts = _judge_codes(need, needed)
    good = sum(needed.elements.count(code) for code, verdict in verdicts.items() if verdict is StepVerdict.GO)
    waiting = sum(needed.elements.count(code) for code, verdict in verdicts.items() if verdict is StepVerdict.WAIT)
    return ElementCounts(good, good + waiting)


def _judge_count(need: Need, needed: NeededStep) -> StepVerdict:
    """Return what a need with `AtLeast` says: enough elements ended as it wants, or too many did not."""
    if not needed.elements:
        # The size of the array is not known yet.
        return StepVerdict.WAIT if needed.outcome is StepOutcome.OPEN else StepVerdict.SKIP
    counts = count_elements(need, needed)
    if counts.good >= need.at_least:
        return StepVerdict.GO
    return StepVerdict.WAIT if counts.possible >= need.at_least else StepVerdict.SKIP


def _judge_codes(need: Need, needed: NeededStep) -> dict[bytes, StepVerdict]:
    """Return what a need says about an element in each state."""
    when = NeedWhen(need.when)
    return {
        # Nothing is left to wait for after the end of the array, so an element without a result does not count.
        code: StepVerdict.SKIP
        if outcome is StepOutcome.OPEN and needed.outcome is not StepOutcome.OPEN
        else judge_outcome(when, outcome, optional=need.optional)
        for code, outcome in _list_element_outcomes(needed)
    }


def _list_element_outcomes(needed: NeededStep) -> Iterable[tuple[bytes, StepOutcome]]:
    """Return how an element in each state counts."""
    never_begins = needed.never_begins
    if needed.stopping:
        never_begins = StepOutcome.OPEN  # The task of a canceled element may still end with success.
    elif never_begins is StepOutcome.OPEN:
        never_begins = StepOutcome.CANCELED_BEFORE_BEGIN
    return (
        (OPEN, StepOutcome.OPEN),
        (SUCCEEDED, StepOutcome.SUCCEEDED),
        (FAILED, StepOutcome.SUCCEEDED if needed.may_fail else StepOutcome.FAILED),
        (SKIPPED, StepOutcome.SKIPPED_BY_NEED),
        (CANCELED, never_begins),
    )


ELEMENT_GO: Final = b"\0"
ELEMENT_WAITS: Final = b"\1"
ELEMENT_SKIPPED: Final = b"\3"
"""What all needs with `Each` say about an open element. Combined with `or`, skip decides, and go needs all of them."""
_CLOSED: Final = 4
"""The bit of an element that is not open, so its needs no longer matter."""
_ELEMENT_CODES: Final = {StepVerdict.GO: ELEMENT_GO, StepVerdict.WAIT: ELEMENT_WAITS, StepVerdict.SKIP: ELEMENT_SKIPPED}
_MARK_CLOSED: Final = bytes(0 if code == OPEN[0] else _CLOSED for code in range(256))


def judge_elements(elements: bytes, needs: Sequence[tuple[Need, NeededStep]]) -> bytes:
    """Return what the needs with `Each` say about each element of a step: `ELEMENT_GO`, `ELEMENT_WAITS` or
    `ELEMENT_SKIPPED`, and another byte for an element that is not open.

    Works on all elements at once, because an array has up to 100,000.
    """
    size = len(elements)
    combined = int.from_bytes(elements.translate(_MARK_CLOSED))
    for need, needed in needs:
        table = bytearray(256)
        for code, verdict in _judge_codes(need, needed).items():
            table[code[0]] = _ELEMENT_CODES[verdict][0]
        # An element that the needed array does not have yet is open as long as that array is.
        row = needed.elements[:size].ljust(size, OPEN).translate(table)
        combined |= int.from_bytes(row)
    return combined.to_bytes(size)


class NeedVerdict(NamedTuple):
    """The decision about all needs of a step."""

    verdict: StepVerdict
    decisive: int = -1
    """The position of the need that says skip; -1: none."""


def judge_needs(needs: Iterable[tuple[Need, NeededStep]]) -> NeedVerdict:
    """Return what all needs of a step say together: skip if one says so, go if all do, and wait otherwise."""
    verdict = StepVerdict.GO
    for position, (need, needed) in enumerate(needs):
        if need.each:
            continue  # Each element decides for itself, in `judge_elements`.
        found = judge_need(need, needed)
        if found is StepVerdict.SKIP:
            return NeedVerdict(StepVerdict.SKIP, position)
        if found is StepVerdict.WAIT:
            verdict = StepVerdict.WAIT
    return NeedVerdict(verdict)
