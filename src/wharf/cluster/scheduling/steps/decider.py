"""Decides the phases of all steps of a run together, until nothing changes any more.

A decision depends only on facts that are stored: phases, results of elements, outcomes of other jobs, and the time. So it is the
same after a restart, and in whatever order nodes report. A step whose needs can never hold ends at once, and with it those that
wait for it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from wharf.cluster.scheduling.steps.needs import (
    ELEMENT_GO,
    ELEMENT_SKIPPED,
    ELEMENT_WAITS,
    NeededStep,
    StepVerdict,
    count_elements,
    judge_elements,
    judge_needs,
)
from wharf.contract.model.jobs.array_attempts import ABSENT, CANCELED, FAILED, OPEN, SKIPPED, exclude_elements
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepOutcome, StepPhase, StepState
from wharf.contract.model.jobs.steps import Need, NeedWhen
from wharf.contract.model.times import SECOND

DEFAULT_GATE_TIMEOUT_NS: Final = 24 * 3_600 * SECOND
UNDECIDED_PHASES: Final = frozenset({StepPhase.WAITING, StepPhase.GATED})
NEVER_BEGAN_PHASES: Final = frozenset({StepPhase.SKIPPED, StepPhase.CANCELED, StepPhase.FAILED})
_ALL_STOPPED: Final = StepCause(kind=StepCauseKind.CANCEL, detail="all of its elements were stopped")
"""The cause of a step that had not begun when users stopped each of its elements alone."""
_SELECT_SKIPPED: Final = bytes(OPEN[0] if code == ELEMENT_SKIPPED[0] else ABSENT[0] for code in range(256))
_SELECT_STARTABLE: Final = bytes(OPEN[0] if code == ELEMENT_GO[0] else ABSENT[0] for code in range(256))
_MARK_SKIPPED: Final = bytes.maketrans(ABSENT, SKIPPED)


class StepFacts(NamedTuple):
    """What is stored about a step."""

    group: TaskGroup
    state: StepState
    elements: bytes
    """The state of each of its elements, such as `OPEN`."""
    alive: int = 0
    """How many of its allocations have not ended. A canceled step ends after its tasks have."""
    stopping: int = 0
    """How many of them belong to canceled elements. Each of these may still succeed."""


class ConditionResult(NamedTuple):
    """The result of evaluating `If`."""

    is_true: bool
    detail: str
    """The values that decided, or why the condition cannot be evaluated."""
    is_error: bool = False


ConditionEvaluator = Callable[[TaskGroup], ConditionResult]
"""Evaluates the condition `If` of a step. It is called only after all needs of the step say go."""


class StepChange(NamedTuple):
    """A new state of a step."""

    name: str
    state: StepState
    elements: bytes = b""
    """The states of its elements with those that a need with `Each` skips now; empty if none is."""

    @property
    def never_begins(self) -> bool:
        """Whether the open elements of the step never run."""
        return self.state.phase in NEVER_BEGAN_PHASES


def judge_step(facts: StepFacts) -> StepOutcome:
    """Return how a step ended, or that it has not."""
    phase, cause = facts.state.phase, facts.state.cause
    if phase in UNDECIDED_PHASES or facts.alive:
        return StepOutcome.OPEN
    if phase is StepPhase.SKIPPED:
        is_own = cause is not None and cause.kind == StepCauseKind.CONDITION
        return StepOutcome.SKIPPED_BY_CONDITION if is_own else StepOutcome.SKIPPED_BY_NEED
    if phase is StepPhase.CANCELED:
        return StepOutcome.CANCELED_WHILE_RUNNING if facts.state.began_at else StepOutcome.CANCELED_BEFORE_BEGIN
    if phase is StepPhase.FAILED or (FAILED in facts.elements and OPEN not in facts.elements):
        return StepOutcome.SUCCEEDED if facts.group.may_fail else StepOutcome.FAILED
    if OPEN in facts.elements:
        return StepOutcome.OPEN
    if CANCELED in facts.elements or not facts.elements:
        return StepOutcome.CANCELED_WHILE_RUNNING if facts.state.began_at else StepOutcome.CANCELED_BEFORE_BEGIN
    # Skipped elements never count as passed.
    return StepOutcome.SKIPPED_BY_NEED if SKIPPED in facts.elements else StepOutcome.SUCCEEDED


def describe_needed(facts: StepFacts) -> NeededStep:
    """Return what needs see of a step."""
    outcome = judge_step(facts)
    never_begins = outcome if facts.state.phase in NEVER_BEGAN_PHASES else StepOutcome.OPEN
    is_certain = facts.state.phase in (StepPhase.SKIPPED, StepPhase.FAILED)
    return NeededStep(
        outcome,
        facts.elements,
        never_begins,
        may_fail=facts.group.may_fail,
        is_canceled=facts.state.phase is StepPhase.CANCELED,
        certain=judge_step(facts._replace(alive=0)) if is_certain else StepOutcome.OPEN,
        stopping=facts.stopping,
    )


class _Run:
    """The working state while the steps of a run are decided."""

    def __init__(
        self,
        job: Job,
        facts: Mapping[str, StepFacts],
        other_jobs: Mapping[str, NeededStep],
        now_ns: int,
        evaluate_condition: ConditionEvaluator,
        *,
        is_queued: bool,
    ) -> None:
        self.job = job
        self.facts = dict(facts)
        self.needed = {name: describe_needed(each) for name, each in facts.items()}
        self.other_jobs = other_jobs
        self.now_ns = now_ns
        self.evaluate_condition = evaluate_condition
        self.is_queued = is_queued
        self.needs = list_all_needs(job)
        self.final_steps = [name for name, each in facts.items() if each.group.final]
        self.has_only_final_steps = len(self.final_steps) == len(facts)
        self.undecided_count = sum(
            not each.group.final and each.state.phase in UNDECIDED_PHASES for each in facts.values()
        )
        """Steps that are not final and wait or have an open gate."""
        self.stopping_count = sum(_is_stopping(each) for each in facts.values())
        """Canceled steps whose tasks still run."""
        self.ended_need_counts: dict[int, int] = {}
        """For the tuples of needs of final steps, how many of the first needs have ended. There may be 500 for each of 500 final
        steps, but those without needs of their own share one tuple."""
        self.dependents: dict[str, dict[str, None]] = {}
        """The steps that are decided again after a step has changed. A final step is among those of its first need that has not
        ended."""

    def decide(self) -> list[StepChange]:
        """Return the final new state of each step that changes.

        A step is decided again only after one that it needs has changed, so the time grows with the number of needs.
        """
        for name, needs in self.needs.items():
            for need in needs if not self.facts[name].group.final else ():
                self._add_dependent(need.on, name)
        queue = deque(self.facts)
        queued = set(queue)
        changed: dict[str, bytes] = {}
        while queue:
            name = queue.popleft()
            queued.discard(name)
            facts = self.facts[name]
            if facts.state.phase in UNDECIDED_PHASES:
                state = self._decide_step(facts)
                if state is facts.state:
                    continue
                changed.setdefault(name, b"")
                self._replace_state(name, state)
                following = [name, *self.dependents.get(name, ())]  # A step that is ready may have elements to skip.
                if self.job.depends and not self.undecided_count:
                    following += self.final_steps  # They do not wait for other jobs any more.
            elif facts.state.phase is StepPhase.READY and OPEN in facts.elements:
                elements = self._skip_elements(name, facts)
                if elements is facts.elements:
                    continue
                changed[name] = elements
                self._replace_facts(name, facts._replace(elements=elements))
                following = list(self.dependents.get(name, ()))
            else:
                continue
            queue.extend(each for each in dict.fromkeys(following) if each not in queued)
            queued.update(following)
        return [StepChange(name, self.facts[name].state, elements) for name, elements in changed.items()]

    def _add_dependent(self, needed: str, name: str) -> None:
        self.dependents.setdefault(needed, {})[name] = None

    def _skip_elements(self, name: str, facts: StepFacts) -> bytes:
        """Return the elements of a step with those marked that a need with `Each` skips; the same object if none is."""
        pairs = self._list_each_pairs(name)
        return skip_elements(facts.elements, pairs) if pairs else facts.elements

    def _list_each_pairs(self, name: str) -> list[tuple[Need, NeededStep]]:
        return [(need, self.needed[need.on]) for need in self.needs[name] if need.each]

    def _replace_state(self, name: str, state: StepState) -> None:
        facts = self.facts[name]
        elements, stopping = facts.elements, facts.stopping
        self.stopping_count += bool(facts.alive) and state.phase is StepPhase.CANCELED
        if not facts.group.final and state.phase not in UNDECIDED_PHASES:
            self.undecided_count -= 1
        if state.phase in NEVER_BEGAN_PHASES:
            elements, stopping = elements.replace(OPEN, CANCELED), facts.alive
        self._replace_facts(name, facts._replace(state=state, elements=elements, stopping=stopping))

    def _replace_facts(self, name: str, facts: StepFacts) -> None:
        self.facts[name] = facts
        self.needed[name] = describe_needed(facts)

    def _decide_step(self, facts: StepFacts) -> StepState:
        """Return the state of a step that waits or has an open gate; the same object if it does not change."""
        group, state = facts.group, facts.state
        if CANCELED in facts.elements and OPEN not in facts.elements:
            return self._enter(state, StepPhase.CANCELED, _ALL_STOPPED)
        if state.phase is StepPhase.GATED:
            if self.now_ns < state.gate_deadline:
                return state
            return self._enter(
                state, StepPhase.FAILED, StepCause(kind=StepCauseKind.GATE, detail="nobody answered in time")
            )
        if group.final and (self.is_queued or self.stopping_count or not self._have_needs_ended(group.name)):
            # Final steps clean up after the tasks of canceled steps have stopped.
            return state
        job_needs = self.job.depends or ()
        found = judge_needs((need, self._find_job(need)) for need in job_needs)
        if found.verdict is StepVerdict.SKIP and (not group.final or self.has_only_final_steps):
            return self._skip(state, StepCauseKind.JOB, job_needs[found.decisive])
        if found.verdict is StepVerdict.WAIT and not self._is_past_job_needs(group):
            return state
        if group.final:
            return self._begin(group, state)
        needs = self.needs[group.name]
        found = judge_needs((need, self.needed[need.on]) for need in needs)
        if found.verdict is StepVerdict.SKIP:
            return self._skip(state, StepCauseKind.NEED, needs[found.decisive])
        verdict = found.verdict
        if pairs := self._list_each_pairs(group.name):
            of_elements = self._judge_elements(facts, pairs)
            if of_elements is StepVerdict.SKIP:
                decisive = next(need for need, needed in pairs if _skips_element(facts.elements, need, needed))
                return self._skip(state, StepCauseKind.NEED, decisive)
            verdict = StepVerdict.WAIT if of_elements is StepVerdict.WAIT else verdict
        return state if verdict is StepVerdict.WAIT else self._begin(group, state)

    def _judge_elements(self, facts: StepFacts, pairs: Sequence[tuple[Need, NeededStep]]) -> StepVerdict:
        """Return whether a step begins as far as its needs with `Each` decide: with its first element that may begin.

        A condition and a gate decide about the whole step, so they wait for all elements.
        """
        verdicts = judge_elements(facts.elements, pairs)
        waits_for_all = bool(facts.group.condition) or facts.group.gate is not None
        if ELEMENT_WAITS in verdicts and (waits_for_all or ELEMENT_GO not in verdicts):
            return StepVerdict.WAIT
        return StepVerdict.SKIP if ELEMENT_SKIPPED in verdicts and ELEMENT_GO not in verdicts else StepVerdict.GO

    def _have_needs_ended(self, name: str) -> bool:
        """Return whether all steps that a final step needs have ended: each of its needs holds then, and none before.

        A step that has ended does not begin again during a decision, so each need is visited once.
        """
        needs = self.needs[name]
        count = self.ended_need_counts.get(id(needs), 0)
        while count < len(needs) and self.needed[needs[count].on].outcome is not StepOutcome.OPEN:
            count += 1
        self.ended_need_counts[id(needs)] = count
        if count == len(needs):
            return True
        self._add_dependent(needs[count].on, name)
        return False

    def _is_past_job_needs(self, group: TaskGroup) -> bool:
        """Return whether a step begins although the job still waits for others: a final one, after the other steps of its
        run were canceled or ran in an earlier attempt."""
        return group.final and not self.has_only_final_steps and not self.undecided_count

    def _find_job(self, need: Need) -> NeededStep:
        return self.other_jobs.get(need.on) or NeededStep(StepOutcome.CANCELED_BEFORE_BEGIN)

    def _begin(self, group: TaskGroup, state: StepState) -> StepState:
        """Return the state of a step whose needs all say go: its condition and its gate decide next."""
        cause = None
        if group.condition:
            result = self.evaluate_condition(group)
            cause = StepCause(kind=StepCauseKind.CONDITION, detail=result.detail)
            if result.is_error:
                return self._enter(state, StepPhase.FAILED, cause)
            if not result.is_true:
                return self._enter(state, StepPhase.SKIPPED, cause)
        if group.gate is None:
            return self._enter(state, StepPhase.READY, cause)
        timeout_ns = group.gate.timeout or DEFAULT_GATE_TIMEOUT_NS
        return replace(self._enter(state, StepPhase.GATED, cause), gate_deadline=self.now_ns + timeout_ns)

    def _skip(self, state: StepState, kind: StepCauseKind, need: Need) -> StepState:
        needed = self.needed[need.on] if kind is StepCauseKind.NEED else self._find_job(need)
        outcome, detail = needed.outcome, ""
        if need.at_least and needed.elements:
            possible = count_elements(need, needed).possible
            detail = (
                f"{possible} of {len(needed.elements)} elements can count as {need.when}; {need.at_least} are needed"
            )
        elif outcome is StepOutcome.OPEN:
            outcome = _describe_decided(needed)
        cause = StepCause(kind=kind, step=need.on, outcome=outcome.value, detail=detail)
        return self._enter(state, StepPhase.SKIPPED, cause)

    def _enter(self, state: StepState, phase: StepPhase, cause: StepCause | None) -> StepState:
        return replace(state, phase=phase, cause=cause, since=self.now_ns)


def _is_stopping(facts: StepFacts) -> bool:
    """Return whether tasks of a canceled step still run."""
    return bool(facts.alive) and facts.state.phase is StepPhase.CANCELED


def _skips_element(elements: bytes, need: Need, needed: NeededStep) -> bool:
    return ELEMENT_SKIPPED in judge_elements(elements, [(need, needed)])


def _describe_decided(needed: NeededStep) -> StepOutcome:
    """Return why a need of a step that has not ended can no longer hold: it was skipped, one of its elements failed, or it was
    canceled."""
    if needed.certain is not StepOutcome.OPEN:
        return needed.certain
    if FAILED in needed.elements and not needed.is_canceled:
        return StepOutcome.FAILED
    is_skipped = SKIPPED in needed.elements and CANCELED not in needed.elements and not needed.is_canceled
    return StepOutcome.SKIPPED_BY_NEED if is_skipped else StepOutcome.CANCELED_WHILE_RUNNING


def list_all_needs(job: Job) -> dict[str, tuple[Need, ...]]:
    """Return the needs of each step. A final step without needs waits for all steps that are not final.

    It does not wait for a step that needs it, directly or through others.
    """
    needs = {group.name: list_needs(group) for group in job.groups}
    waiting = [group.name for group in job.groups if group.final and not group.depends]
    if not waiting:
        return needs
    followers = _FollowerSets(needs)
    main_steps = [group.name for group in job.groups if not group.final]
    shared: dict[tuple[str, ...], tuple[Need, ...]] = {}
    for name in waiting:
        reached = followers.find_followers(name)
        own = tuple(other for other in main_steps if not reached & followers.bits[other])
        if own not in shared:
            shared[own] = tuple(Need(on=other, when=NeedWhen.ANY.value) for other in own)
        needs[name] = shared[own]
        followers.add_needs(name, own)
    return needs


class _FollowerSets:
    """The steps that need each step, as sets of bits: the steps that follow one of 500 are found in a tenth of a millisecond."""

    def __init__(self, needs: Mapping[str, Sequence[Need]]) -> None:
        self._names = list(needs)
        self.bits = {name: 1 << position for position, name in enumerate(needs)}
        self._direct = dict.fromkeys(needs, 0)
        """The bits of the steps that need a step directly."""
        for name, own in needs.items():
            self.add_needs(name, [need.on for need in own])

    def add_needs(self, name: str, needed: Iterable[str]) -> None:
        """Add that a step needs these steps."""
        for each in needed:
            if each in self._direct:
                self._direct[each] |= self.bits[name]

    def find_followers(self, name: str) -> int:
        """Return the bits of the steps that need a step, directly or through others."""
        found, pending = 0, self._direct[name]
        while pending:
            lowest = pending & -pending
            found |= lowest
            pending = (pending | self._direct[self._names[lowest.bit_length() - 1]]) & ~found
        return found


def list_needs(group: TaskGroup) -> tuple[Need, ...]:
    """Return the needs of a step that its job file names. Those of a final step hold however the needed step ended."""
    needs = group.depends or ()
    if not group.final:
        return needs
    return tuple(replace(need, when=NeedWhen.ANY.value, each=False, at_least=0) for need in needs)


def decide_steps(
    job: Job,
    facts: Mapping[str, StepFacts],
    other_jobs: Mapping[str, NeededStep],
    now_ns: int,
    evaluate_condition: ConditionEvaluator,
    *,
    is_queued: bool = False,
) -> list[StepChange]:
    """Return the new states of all steps that change now.

    `facts` has each step of the job, in the order of the file. `other_jobs` has the outcomes of the jobs that the job needs; a
    missing one never ran. `is_queued`: the run waits for an earlier run of its flow, so its final steps wait too. A changed step
    does not change again until a fact does.
    """
    return _Run(job, facts, other_jobs, now_ns, evaluate_condition, is_queued=is_queued).decide()


def skip_elements(elements: bytes, needs: Sequence[tuple[Need, NeededStep]]) -> bytes:
    """Return the elements of a step with those marked as skipped that never begin because of a need with `Each`.

    Return the same object if nothing changes.
    """
    verdicts = judge_elements(elements, needs)
    if ELEMENT_SKIPPED not in verdicts:
        return elements
    others = exclude_elements(elements, verdicts.translate(_SELECT_SKIPPED))
    return others.translate(_MARK_SKIPPED)


def select_startable(group: TaskGroup, elements: bytes, needed: Mapping[str, NeededStep]) -> bytes:
    """Return the elements of a step with `OPEN` only for those that may begin now. `needed` has the steps that it needs."""
    pairs = [(need, needed[need.on]) for need in list_needs(group) if need.each]
    if not pairs:
        return elements
    return judge_elements(elements, pairs).translate(_SELECT_STARTABLE)


class RunOutcome(NamedTuple):
    """How a run ended as a whole."""

    outcome: str
    """succeeded, failed, canceled, skipped; empty while a step has not ended."""
    has_failures: bool = False
    """Whether a step failed that may fail."""


def judge_run(facts: Iterable[StepFacts]) -> RunOutcome:
    """Return how a run ended. A skipped step alone makes no run fail: what it waited for does.

    A run was skipped if none of its steps ran, apart from final ones: it never counts as succeeded. If all are final, they count.
    """
    outcomes, main_outcomes, has_failures = set(), set(), False
    for each in facts:
        outcome = judge_step(each)
        outcomes.add(outcome)
        if not each.group.final:
            main_outcomes.add(outcome)
        has_failed = each.state.phase is StepPhase.FAILED or FAILED in each.elements
        has_failures |= has_failed and each.group.may_fail
    if StepOutcome.OPEN in outcomes:
        return RunOutcome("", has_failures)
    if StepOutcome.FAILED in outcomes:
        return RunOutcome("failed", has_failures)
    if outcomes & {StepOutcome.CANCELED_BEFORE_BEGIN, StepOutcome.CANCELED_WHILE_RUNNING}:
        return RunOutcome("canceled", has_failures)
    if outcomes and StepOutcome.SUCCEEDED not in (main_outcomes or outcomes):
        return RunOutcome("skipped", has_failures)
    return RunOutcome("succeeded", has_failures)
