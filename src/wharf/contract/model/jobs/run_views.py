"""What the API shows of a run: a job with steps. The steps in layers, how each stands and why, and how the run ended.

A list of runs shows a `RunStub` of each.
"""

import re
from collections.abc import Collection
from enum import StrEnum
from typing import Final

from wharf.contract.model.jobs.array_attempts import AttemptReason
from wharf.contract.model.jobs.array_views import ArrayCounts
from wharf.contract.model.jobs.step_states import UNSUCCESSFUL_OUTCOMES, StepCause, StepCauseKind, StepOutcome
from wharf.contract.model.record import Record
from wharf.contract.model.times import SECOND

_SLOT: Final = re.compile(r"/periodic-([0-9]{1,12})(?:-.*)?")
"""The end of the ID of a scheduled run, with the seconds of its slot."""


class StepStatus(StrEnum):
    """The state of a step in one word."""

    WAITING = "waiting"  # Its needs decide.
    GATED = "gated"  # A person decides.
    READY = "ready"  # Its elements may begin, and none has an allocation now.
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"  # It was canceled, and its tasks still run.
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # Also if the step may fail.
    SKIPPED = "skipped"
    CANCELED = "canceled"


BUSY_STATUSES: Final = frozenset({StepStatus.READY, StepStatus.STARTING, StepStatus.RUNNING, StepStatus.STOPPING})
"""The states of steps that go on without a person."""


def waits_for_approval(statuses: Collection[StepStatus]) -> bool:
    """Return whether a run with steps in these states waits for the approval of a person, and no other step is busy."""
    return StepStatus.GATED in statuses and BUSY_STATUSES.isdisjoint(statuses)


class RunStatus(StrEnum):
    """The state of a run in one word."""

    WAITING = "waiting"  # No step has begun.
    RUNNING = "running"
    CANCELING = "canceling"  # It was canceled, and tasks still stop, or final steps run.
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    SKIPPED = "skipped"  # It has ended, and none of its steps ran, apart from final ones.

    @property
    def has_ended(self) -> bool:
        return self in (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELED, RunStatus.SKIPPED)


class GateView(Record):
    """The question that a step asks before it begins."""

    ask: str = ""
    policy: str = ""  # The ACL policy that a person needs to answer.
    deadline: int = 0  # ns since the epoch; 0 while the gate is not open.
    is_open: bool = False  # It waits for an answer.
    answer: str = ""  # approved, rejected; empty: nobody has answered.
    answered_by: str = ""
    answer_text: str = ""


class StepView(Record):
    """One step of a run."""

    name: str
    layer: int = 0  # A step lies one layer after the last step that it needs; 0 is the first layer.
    status: StepStatus = StepStatus.WAITING
    outcome: StepOutcome = StepOutcome.OPEN  # How steps that need it see it.
    text: str = ""  # Why it waits, was skipped, failed or was canceled; what it does otherwise.
    cause: StepCause | None = None
    needs: tuple[str, ...] = ()  # The names of the steps that it needs, in the order of the file.
    may_fail: bool = False
    final: bool = False
    size: int = 0  # Elements.
    is_array: bool = False  # Whether the job file has an array of more than one element.
    counts: ArrayCounts = ArrayCounts()
    attempt: int = 0  # The newest attempt of the run that has this step. A retry keeps the steps of earlier attempts.
    attempt_count: int = 0  # How many attempts of the run have this step.
    since: int = 0  # ns since the epoch: when the step entered its phase.
    began_at: int = 0  # ns since the epoch; 0: it has not begun.
    ended_at: int = 0  # ns since the epoch; 0: it has not ended.
    gate: GateView | None = None
    is_critical: bool = False  # It lies on the critical path.


class AttemptStepView(Record):
    """How one step stands after one attempt, or stood when the next attempt began."""

    name: str
    status: StepStatus = StepStatus.WAITING
    outcome: StepOutcome = StepOutcome.OPEN
    text: str = ""  # Why it was skipped, failed or was canceled; what it does otherwise.
    cause: StepCause | None = None  # With who decided, and what that person wrote.
    counts: ArrayCounts = ArrayCounts()
    began_at: int = 0  # ns since the epoch; 0: it has not begun.
    ended_at: int = 0  # ns since the epoch; 0: it has not ended.


class RunAttemptView(Record):
    """One attempt of a run: all steps, or those that ran again."""

    attempt: int
    reason: AttemptReason = AttemptReason.REGISTERED
    create_time: int = 0  # ns since the epoch
    steps: tuple[str, ...] = ()
    partial_steps: tuple[str, ...] = ()  # The steps of which it runs only some elements.
    cancel_cause: StepCause | None = None  # Who or what canceled the run in this attempt; `None`: nothing did.
    stop_cause: StepCause | None = None  # Who stopped it with its final steps; `None`: nobody, or it is not known.
    results: tuple[AttemptStepView, ...] = ()  # Of its steps, in the order of the file; of very old attempts none.


class RunView(Record):
    """A run, with all its steps."""

    job_id: str
    namespace: str
    flow: str = ""  # The periodic or parameterized job of which this is a run; empty: it has none.
    status: RunStatus = RunStatus.WAITING
    has_failures: bool = False  # A step failed that may fail.
    text: str = ""  # The state as a sentence.
    created_at: int = 0  # ns since the epoch: when it was launched.
    began_at: int = 0  # ns since the epoch: when its first step began; 0: none has. It may wait in a queue before.
    ended_at: int = 0  # ns since the epoch; 0: it has not ended.
    deadline: int = 0  # ns since the epoch: when it is canceled, or its final steps are stopped; 0: never.
    waits_for_run: str = ""  # The run of the same flow that must end before this one begins.
    layer_count: int = 0
    steps: tuple[StepView, ...] = ()  # By layer, then in the order of the file.
    critical_path: tuple[str, ...] = ()  # The steps that took the time of the run up to now, first to last.
    attempts: tuple[RunAttemptView, ...] = ()  # Oldest first.

    @property
    def is_success(self) -> bool:
        """Whether the run has ended with success."""
        return self.status is RunStatus.SUCCEEDED

    @property
    def first_failed_step(self) -> StepView | None:
        """The step whose failure made the run fail, or the first of them; `None` if none did."""
        failed = [
            each for each in self.steps if each.status is StepStatus.FAILED and each.outcome is StepOutcome.FAILED
        ]
        return min(failed, key=lambda step: step.ended_at, default=None)

    @property
    def has_unsuccessful_steps(self) -> bool:
        """Whether a retry runs steps again that failed or were canceled."""
        return any(each.outcome in UNSUCCESSFUL_OUTCOMES for each in self.steps)

    @property
    def unmet_jobs(self) -> tuple[str, ...]:
        """The jobs whose end skipped steps of the run, sorted. Until they end otherwise, a retry is skipped again."""
        causes = [each.cause for each in self.steps if each.cause is not None]
        return tuple(sorted({each.step for each in causes if each.kind is StepCauseKind.JOB}))

    def list_path_times(self, now_ns: int) -> list[tuple[str, int]]:
        """Return the steps of the critical path, each with the time that it took, in ns; 0: it has not begun.

        The time of a step with a gate includes the wait for the answer: it counts from the end of the step before it.
        """
        by_name = {each.name: each for each in self.steps}
        begins = {each.attempt: each.create_time for each in self.attempts}
        found, former_end = [], 0
        for step in map(by_name.__getitem__, self.critical_path):
            begin = step.began_at
            if step.gate is not None:
                begin = max(former_end, begins.get(step.attempt, self.created_at))
            former_end = step.ended_at
            found.append((step.name, max(0, (step.ended_at or now_ns) - begin) if begin else 0))
        return found


class StepCounts(Record):
    """How many steps of a run have each state."""

    waiting: int = 0
    gated: int = 0
    running: int = 0  # Also those that are ready, starting or stopping.
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    canceled: int = 0


class RunStub(Record):
    """A run as lists show it."""

    job_id: str
    namespace: str
    flow: str = ""
    status: RunStatus = RunStatus.WAITING
    has_failures: bool = False
    text: str = ""
    step_count: int = 0
    counts: StepCounts = StepCounts()
    created_at: int = 0  # ns since the epoch: when it was launched.
    began_at: int = 0  # ns since the epoch: when its first step began; 0: none has.
    ended_at: int = 0  # ns since the epoch
    create_index: int = 0
    modify_index: int = 0

    @property
    def due_at(self) -> int:
        """When it was due, in ns since the epoch: the slot that its ID names, else its creation."""
        slot = _SLOT.fullmatch(self.job_id.removeprefix(self.flow)) if self.flow else None
        return int(slot[1]) * SECOND if slot is not None else self.created_at


class ElementProgress(Record):
    """How far a run or a job with arrays is. A `JobSummary` also counts allocations whose elements ran again since."""

    run_status: str = ""  # A `RunStatus`; empty for a job without steps.
    is_gated: bool = False  # Steps of the run wait for the approval of a person, and no other step is busy.
    elements: ArrayCounts = ArrayCounts()
    """The elements of steps and arrays as they are now. Groups without an array count their allocations."""


class FlowStub(Record):
    """A flow as lists show it."""

    job_id: str
    namespace: str
    is_periodic: bool = False  # It launches runs at certain times; otherwise a dispatch does.
    stop: bool = False  # It launches no more runs.
    overlap: str = ""
    step_count: int = 0
    waiting: int = 0  # Runs that have not begun.
    running: int = 0
    ended: int = 0
    latest: RunStub | None = None  # The newest run.
    create_index: int = 0
    modify_index: int = 0
