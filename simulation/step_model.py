"""A small model of a run, written from the text about batch work and not from the code: what becomes of each step.

`predict` needs no time: without a cancel, the outcomes follow from the results of programs, gates and conditions alone.
`can_begin` and `never_begins` judge a moment of a run, also after a cancel.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

SUCCEEDED, FAILED, OWN_SKIP, NEED_SKIP, CANCELED_EARLY, CANCELED_LATE = ENDS = (
    "succeeded",
    "failed",
    "skipped-by-condition",
    "skipped-by-need",
    "canceled-before-begin",
    "canceled-while-running",
)
RULES = {
    "succeeded": "go   skip skip* skip skip skip",
    "failed":    "skip go   skip  skip skip go  ",
    "ended":     "go   go   skip* skip skip go  ",
    "any":       "go   go   go    go   go   go  ",
}  # fmt: skip
"""The table of the text, in the order of `ENDS`. A star: go with `Optional`."""


@dataclass(frozen=True)
class ModelNeed:
    on: str
    when: str = "succeeded"
    each: bool = False
    at_least: int = 0
    optional: bool = False

    def allows(self, end: str) -> bool:
        """Return whether the need holds if what it names ended like this."""
        rule = RULES[self.when].split()[ENDS.index(end)]
        return rule == "go" or (rule == "skip*" and self.optional)


@dataclass(frozen=True)
class ModelStep:
    name: str
    needs: tuple[ModelNeed, ...] = ()
    results: str = "s"  # For each element whether its program succeeds (s) or fails (f).
    may_fail: bool = False
    final: bool = False
    condition: str = ""  # "", true, false, error
    gate: str = ""  # "", approve, reject, expire

    @property
    def real_needs(self) -> tuple[ModelNeed, ...]:
        """The needs that count: those of a final step hold however the step ended."""
        return tuple(ModelNeed(need.on, "any") for need in self.needs) if self.final else self.needs


@dataclass
class Ending:
    """How a step ended: as a whole, and each element. `c` is an element that was canceled, `x` one that its need skipped."""

    end: str
    elements: str
    may_fail: bool
    never_ran: bool = False  # The step never began, so its elements ended as it did.

    @property
    def seen(self) -> str:
        """The end as needs see it."""
        return SUCCEEDED if self.may_fail and self.end == FAILED else self.end

    def see_element(self, index: int) -> str:
        """Return the end of an element as needs see it."""
        element = self.elements[index]
        if element == "s" or (element == "f" and self.may_fail):
            return SUCCEEDED
        if element == "f":
            return FAILED
        if element == "x":
            return NEED_SKIP
        return self.seen if self.never_ran else CANCELED_EARLY


def add_implied_needs(steps: Sequence[ModelStep]) -> list[ModelStep]:
    """Return the steps with the needs of final steps that name none: all steps that are not final, in the order of the file.

    Such a step does not wait for one that waits for it, also if that one waits because of this rule.
    """
    found = {step.name: step for step in steps}
    for step in steps:
        if step.final and not step.needs:
            followers = {step.name}
            while more := {
                other.name
                for other in found.values()
                if other.name not in followers and any(need.on in followers for need in other.needs)
            }:
                followers |= more
            others = [other.name for other in steps if not other.final and other.name not in followers]
            found[step.name] = replace(step, needs=tuple(ModelNeed(name, "any") for name in others))
    return list(found.values())


def obeys_job_need(step: ModelStep, steps: Iterable[ModelStep]) -> bool:
    """Return whether a step never begins without what its job waits for. A final step begins, if it cleans up after others."""
    return not step.final or all(other.final for other in steps)


def predict(steps: Sequence[ModelStep], job_need_holds: bool = True) -> dict[str, Ending]:
    """Return how each step of a run ends that nobody cancels."""
    ended: dict[str, Ending] = {}
    waiting = add_implied_needs(steps)
    while waiting:
        decided = [step for step in waiting if all(need.on in ended for need in step.needs)]
        assert decided, "the steps do not wait for each other in a circle"
        for step in decided:
            ended[step.name] = _predict_step(step, ended, job_need_holds or not obeys_job_need(step, steps))
        waiting = [step for step in waiting if step.name not in ended]
    return ended


def _predict_step(step: ModelStep, ended: Mapping[str, Ending], job_need_holds: bool) -> Ending:
    never = "c" * len(step.results)
    whole = [need for need in step.real_needs if not need.each]
    elementwise = [need for need in step.real_needs if need.each]
    chosen = [
        all(need.allows(ended[need.on].see_element(index)) for need in elementwise)
        for index in range(len(step.results))
    ]
    if not job_need_holds:
        return Ending(NEED_SKIP, never, step.may_fail, never_ran=True)
    if not all(_holds(need, ended[need.on]) for need in whole) or not any(chosen):
        return Ending(NEED_SKIP, never, step.may_fail, never_ran=True)
    if step.condition == "false":
        return Ending(OWN_SKIP, never, step.may_fail, never_ran=True)
    if step.condition == "error" or step.gate in ("reject", "expire"):
        return Ending(FAILED, never, step.may_fail, never_ran=True)
    elements = "".join(result if runs else "x" for result, runs in zip(step.results, chosen, strict=True))
    end = FAILED if "f" in elements else NEED_SKIP if "x" in elements else SUCCEEDED
    return Ending(end, elements, step.may_fail)


def _holds(need: ModelNeed, needed: Ending) -> bool:
    if need.at_least:
        good = [index for index in range(len(needed.elements)) if need.allows(needed.see_element(index))]
        return len(good) >= need.at_least
    return need.allows(needed.seen)


def predict_run(steps: Sequence[ModelStep], endings: Mapping[str, Ending]) -> str:
    """Return how a run ends. If nothing but final steps ran, it did not succeed, unless it has no others."""
    seen = {each.seen for each in endings.values()}
    if FAILED in seen:
        return "failed"
    if seen & {CANCELED_EARLY, CANCELED_LATE}:
        return "canceled"
    counted = [step for step in steps if not step.final] or steps
    return "succeeded" if any(endings[step.name].seen == SUCCEEDED for step in counted) else "skipped"


# -- a moment of a run -------------------------------------------------------------------------------------------------


@dataclass
class Moment:
    """What is known of a step at a certain time."""

    step: ModelStep
    elements: str  # As in `Ending`; `.` has not ended, `?` was canceled and its task may still run.
    is_decided: bool = False  # It began, or never will.
    end: str = ""  # How it never began: skipped, failed at its gate, canceled.
    has_begun: bool = False
    is_alive: bool = False  # A task of it may still run.
    is_gated: bool = False
    possible_ends: set[str] = field(init=False)

    def __post_init__(self) -> None:
        if "?" in self.elements:  # Which of the canceled elements still run is not known.
            self.elements = self.elements.replace("c", "?")
        self.possible_ends = self._list_ends()

    @property
    def is_over(self) -> bool:
        return self.is_decided and not self.is_alive and not set(self.elements) & {".", "?"}

    def _list_ends(self) -> set[str]:
        """Return every end, as needs see it, that is still possible."""
        if self.end == "canceled":
            if self.is_over:
                return {CANCELED_LATE if self.has_begun else CANCELED_EARLY}
            return {CANCELED_LATE, CANCELED_EARLY}
        if self.end:
            return {SUCCEEDED if self.step.may_fail and self.end == FAILED else self.end}
        if self.is_over:
            if "f" in self.elements:
                return {SUCCEEDED if self.step.may_fail else FAILED}
            if "c" in self.elements:
                return {CANCELED_LATE if self.has_begun else CANCELED_EARLY}
            return {NEED_SKIP if "x" in self.elements else SUCCEEDED}
        if not self.step.may_fail and set(self.elements) & {"f", "c", "?", "x"}:
            return {FAILED, NEED_SKIP, CANCELED_LATE, CANCELED_EARLY}
        return set(ENDS)

    def list_element_ends(self, index: int) -> set[str]:
        """Return every end of an element, as needs see it, that is still possible."""
        element = self.elements[index]
        if element == "s":
            return {SUCCEEDED}
        if element == "f":
            return {SUCCEEDED if self.step.may_fail else FAILED}
        if element == "x":
            return {NEED_SKIP}
        if element in ".?":
            return set(ENDS)
        if self.end == "canceled" or (self.end and self.is_decided):
            return self.possible_ends
        return {CANCELED_EARLY}


def can_begin(step: ModelStep, others: Mapping[str, Moment], index: int | None = None) -> bool:
    """Return whether all needs of a step hold for certain; of one element if `index` is given."""
    return all(_must_hold(need, others[need.on], index) for need in step.real_needs)


def _must_hold(need: ModelNeed, other: Moment, index: int | None) -> bool:
    if need.each:
        indexes = range(len(other.elements)) if index is None else [index]
        return any(other.elements[i] not in ".?" and _is_sure(need, other.list_element_ends(i)) for i in indexes)
    if need.at_least:
        return _count(need, other, is_sure=True) >= need.at_least
    return other.is_over and _is_sure(need, other.possible_ends)


def was_stopped(moment: Moment) -> bool:
    """Return whether users stopped each element of a step that had not begun, or all that would run again: it is canceled."""
    return not moment.is_decided and "." not in moment.elements and bool(set(moment.elements) & {"c", "?"})


def never_begins(step: ModelStep, others: Mapping[str, Moment]) -> bool:
    """Return whether a need of a step can no longer hold."""
    for need in step.real_needs:
        other = others[need.on]
        if need.each:
            continue
        if need.at_least:
            if _count(need, other, is_sure=False) < need.at_least:
                return True
        elif not any(map(need.allows, other.possible_ends)):
            return True
    each = [need for need in step.real_needs if need.each]
    return bool(each) and not any(
        all(any(map(need.allows, others[need.on].list_element_ends(index))) for need in each)
        for index in range(len(step.results))
    )


def _is_sure(need: ModelNeed, ends: set[str]) -> bool:
    return all(map(need.allows, ends))


def _count(need: ModelNeed, other: Moment, *, is_sure: bool) -> int:
    """Return how many elements hold for certain, or how many may."""
    count = 0
    for index, element in enumerate(other.elements):
        ends = other.list_element_ends(index)
        count += (element not in ".?" and _is_sure(need, ends)) if is_sure else any(map(need.allows, ends))
    return count
