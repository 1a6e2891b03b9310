"""Explain a run: what each step waits for, joined to a chain, and why steps did not run. Decides nothing."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from graphlib import TopologicalSorter
from typing import Final

from wharf.cluster.operations.explanations.text import format_time
from wharf.cluster.scheduling.steps.decider import StepFacts, describe_needed, judge_run, judge_step, list_all_needs
from wharf.cluster.scheduling.steps.facts import RunFacts
from wharf.cluster.scheduling.steps.needs import StepVerdict, judge_need
from wharf.contract.model.explanations import StepExplanation, WaitCondition, WaitReason
from wharf.contract.model.jobs.array_attempts import FAILED
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_states import (
    UNSUCCESSFUL_OUTCOMES,
    StepCause,
    StepCauseKind,
    StepOutcome,
    StepPhase,
)
from wharf.contract.model.times import to_datetime

MAX_CHAINS: Final = 3
"""Chains of waiting steps that an explanation has, the longest first. Others share their end with them, or are short."""
MAX_CHAIN_STEPS: Final = 4
"""Steps of a chain that a text names. Limits the texts of a chain of 500 steps, each of which has one."""
MAX_NAMED_STEPS: Final = 3
"""Steps with the same outcome that the text of an ended run names."""


class RunExplainer:
    """Explains the steps of one run."""

    def __init__(
        self, job: Job, run: RunFacts, describe_ready: Callable[[str], str], describe_other_jobs: Callable[[], str]
    ) -> None:
        """`describe_ready` returns what an open step does that may begin, such as "runs". `describe_other_jobs` returns
        for which other jobs the run waits, such as "waits for the end of import", or an empty text if it needs none.
        """
        self._job = job
        self._run = run
        self._describe_ready = describe_ready
        self._describe_other_jobs = functools.cache(describe_other_jobs)
        self._facts = run.get_facts()
        self._outcomes = {name: judge_step(facts) for name, facts in self._facts.items()}
        self._blockers = self._find_blockers()
        self._next: dict[str, str] = {}
        """For each waiting step the one that it waits for longest."""
        self._last: dict[str, str] = {}
        """For each step the one that waits for no other, at the end of its chain."""
        self._depth: dict[str, int] = {}
        """How many steps the chain of a step has."""
        self._follow_blockers()

    def list_steps(self) -> tuple[StepExplanation, ...]:
        """Return the explanation of each step, in the order of the file."""
        return tuple(
            StepExplanation(
                step=name,
                phase=facts.state.phase.value,
                outcome=self._outcomes[name].value,
                text=self._describe(name),
            )
            for name, facts in self._facts.items()
        )

    def iter_waits(self) -> Iterator[WaitCondition]:
        """Yield the open gates, then the longest chains of steps that wait for each other."""
        for name, facts in self._facts.items():
            if facts.state.phase is StepPhase.GATED:
                yield WaitCondition(waits_for=WaitReason.GATE, text=f"waits: {name} {self._describe_gate(facts)}")
        blocking = {on for blockers in self._blockers.values() for on in blockers}
        ends = [name for name in self._blockers if name not in blocking and self._depth[name]]
        for name in sorted(ends, key=lambda each: -self._depth[each])[:MAX_CHAINS]:
            yield WaitCondition(waits_for=WaitReason.STEP, text=f"waits: {name} {self._describe(name)}")
        for name, facts in self._facts.items():
            if facts.state.phase is StepPhase.WAITING and not self._blockers[name] and self._job.depends:
                yield WaitCondition(waits_for=WaitReason.STEP, text=f"waits: {name} {self._describe(name)}")
                return

    def describe_limit(self) -> str:
        """Return until when the run may take, as the end of a sentence; empty if it has no limit."""
        newest = self._run.newest_attempt
        if newest is None or StepOutcome.OPEN not in self._outcomes.values():
            return ""
        time = format_time(to_datetime(newest.deadline)) if newest.deadline else ""
        if newest.stop_cause is not None:
            return f"; it was stopped with its final steps by {newest.stop_cause.actor}"
        if newest.cancel_cause is not None:
            limit = f"; its final steps may run until {time}" if time else ""
            return f"; it was canceled{describe_cause(newest.cancel_cause)}{limit}"
        return f"; it is canceled at {time} if it has not ended then" if time else ""

    def _find_blockers(self) -> dict[str, list[str]]:
        """Return for each step that has not ended the steps for which it waits."""
        needed = {name: describe_needed(facts) for name, facts in self._facts.items()}
        needs = list_all_needs(self._job)
        stopping = [
            name for name, facts in self._facts.items() if facts.state.phase is StepPhase.CANCELED and facts.alive
        ]
        blockers: dict[str, list[str]] = {}
        for name, facts in self._facts.items():
            if self._outcomes[name] is not StepOutcome.OPEN:
                continue
            waits_for = []
            if facts.state.phase is StepPhase.WAITING:
                waits_for = [
                    need.on
                    for need in needs[name]
                    if self._outcomes[need.on] is StepOutcome.OPEN
                    and (need.each or judge_need(need, needed[need.on]) is StepVerdict.WAIT)
                ]
                waits_for = waits_for or (stopping if facts.group.final else [])
            blockers[name] = waits_for
        return blockers

    def _follow_blockers(self) -> None:
        """Find the chain of each step that has not ended."""
        for name in TopologicalSorter(self._blockers).static_order():
            blockers = self._blockers.get(name)
            if blockers:
                following = max(blockers, key=lambda each: self._depth[each])
                self._next[name], self._last[name] = following, self._last[following]
                self._depth[name] = self._depth[following] + 1
            else:
                self._last[name], self._depth[name] = name, 0

    def _describe(self, name: str) -> str:
        """Return what a step does or waits for, or how it ended, as the end of a sentence that begins with its name."""
        if self._outcomes[name] is not StepOutcome.OPEN:
            return describe_end(self._facts[name], self._outcomes[name])
        if name not in self._next:
            return self._describe_open(name)
        last, count = self._last[name], self._depth[name]
        if count < MAX_CHAIN_STEPS:
            chain = [self._next[name]]
            while chain[-1] != last:
                chain.append(self._next[chain[-1]])
            links = ", which waits for ".join(chain)
        else:
            first = self._next[name]
            links = f"{first}, which waits for {self._next[first]} and {count - 3} more steps up to {last}"
        return f"waits for {links}, which {self._describe_open(last)}"

    def _describe_open(self, name: str) -> str:
        """Return what a step does that waits for no other one."""
        facts = self._facts[name]
        match facts.state.phase:
            case StepPhase.GATED:
                return self._describe_gate(facts)
            case StepPhase.CANCELED:
                return f"is being stopped: it was canceled{describe_cause(facts.state.cause)}"
            case StepPhase.WAITING:
                return self._describe_other_jobs() or "waits for the end of other steps"
        return self._describe_ready(name)

    def _describe_gate(self, facts: StepFacts) -> str:
        gate, name = facts.group.gate, facts.group.name
        question = (gate.ask if gate is not None else "") or f"may {name} begin?"
        until = format_time(to_datetime(facts.state.gate_deadline))
        return (
            f'waits for an answer until {until}: "{question}"; `wharf flow approve {self._job.id} {name}` approves it'
        )


def describe_end(facts: StepFacts, outcome: StepOutcome) -> str:
    """Return how a step ended and why, as the end of a sentence that begins with its name."""
    state, cause = facts.state, describe_cause(facts.state.cause)
    match outcome:
        case StepOutcome.SUCCEEDED if not facts.group.may_fail or not _has_failed(facts):
            return "succeeded"
        case StepOutcome.SUCCEEDED:
            return f"failed, and may fail{cause if state.phase is StepPhase.FAILED else ''}"
        case StepOutcome.FAILED:
            return f"failed{cause if state.phase is StepPhase.FAILED else ''}"
        case StepOutcome.SKIPPED_BY_CONDITION | StepOutcome.SKIPPED_BY_NEED if state.phase is StepPhase.SKIPPED:
            return f"was skipped{cause}"
        case StepOutcome.SKIPPED_BY_NEED:
            return "ended, but some of its elements were skipped because of those that they need"
        case StepOutcome.CANCELED_BEFORE_BEGIN:
            return f"was canceled before it began{cause}"
    return f"was canceled while it ran{cause}"


def _has_failed(facts: StepFacts) -> bool:
    return facts.state.phase is StepPhase.FAILED or FAILED in facts.elements


def describe_cause(cause: StepCause | None) -> str:
    """Return why a step is in its phase, as the end of a sentence; empty if nothing is known."""
    if cause is None:
        return ""
    detail = f": {cause.detail}" if cause.detail else ""
    actor = f" by {cause.actor}" if cause.actor else ""
    match cause.kind:
        case StepCauseKind.NEED:
            return f" because {cause.step} {OUTCOME_WORDS.get(cause.outcome, 'ended')}"
        case StepCauseKind.JOB:
            return f" because the job {cause.step} {OUTCOME_WORDS.get(cause.outcome, 'ended')}"
        case StepCauseKind.CONDITION:
            return f" by its condition{detail}"
        case StepCauseKind.GATE:
            return f" at its gate{actor}{detail}"
        case StepCauseKind.REPLACED:
            return f" because the run {cause.step} took its place"
        case StepCauseKind.LOCK:
            return f" because the run {cause.step} took its lock"
        case StepCauseKind.DEADLINE:
            return f" because its time was over{detail}"
        case StepCauseKind.STOP if cause.actor:
            return f" because {cause.actor} stopped the run{detail}"
        case StepCauseKind.STOP:
            return f" because the job was stopped{detail}"
    return f"{actor}{detail}"


OUTCOME_WORDS: Final = {
    StepOutcome.SUCCEEDED.value: "succeeded",
    StepOutcome.FAILED.value: "failed",
    StepOutcome.SKIPPED_BY_CONDITION.value: "was skipped by its condition",
    StepOutcome.SKIPPED_BY_NEED.value: "was skipped",
    StepOutcome.CANCELED_BEFORE_BEGIN.value: "was canceled before it began",
    StepOutcome.CANCELED_WHILE_RUNNING.value: "was canceled",
}
"""How a step ended, as a part of a sentence."""


def describe_ended_run(job: Job, run: RunFacts) -> WaitCondition:
    """Return how a run ended, and what runs again what did not succeed."""
    facts = run.get_facts()
    by_text: dict[str, list[str]] = {}
    for name, each in facts.items():
        by_text.setdefault(_summarize_end(each), []).append(name)
    succeeded = len(by_text.pop("succeeded", ()))
    parts = [f"{succeeded} of {len(facts)} steps succeeded"]
    parts += [
        f"{_join_names(names)} {f'were {text[4:]}' if len(names) > 1 and text.startswith('was ') else text}"
        for text, names in by_text.items()
    ]
    outcome = judge_run(facts.values()).outcome
    if outcome == "succeeded":
        return WaitCondition(waits_for=WaitReason.NOTHING, text=f"is done: {'; '.join(parts)}")
    state = (
        "is stopped" if job.stop else {"failed": "has failed", "skipped": "was skipped"}.get(outcome, "was canceled")
    )
    return WaitCondition(
        waits_for=WaitReason.CHANGE,
        text=f"{state}: {'; '.join(parts)}{_advise_retry(job, facts.values())}",
    )


def _advise_retry(job: Job, steps: Iterable[StepFacts]) -> str:
    """Return what runs a run again, as the end of a sentence; empty if a retry would run nothing."""
    steps = list(steps)
    if any(judge_step(each) in UNSUCCESSFUL_OUTCOMES for each in steps):
        return f"; `wharf flow retry {job.id}` runs again what did not succeed"
    causes = [each.state.cause for each in steps if each.state.cause is not None]
    jobs = sorted({each.step for each in causes if each.kind is StepCauseKind.JOB})
    if not jobs:
        return ""
    return (
        f"; a retry is skipped again until {_join_names(jobs)} ended as Depends requires: run that first, "
        f"then `wharf flow retry {job.id}`"
    )


def _summarize_end(facts: StepFacts) -> str:
    """Return how a step ended, in a text that steps with the same cause share."""
    return describe_end(facts, judge_step(facts))


def _join_names(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED_STEPS
    if more > 0:
        return f"{', '.join(names[:MAX_NAMED_STEPS])} and {more} more steps"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
