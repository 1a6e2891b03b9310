"""What servers store about a step in an attempt of its job, and the outcomes that its successors see."""

from enum import StrEnum
from typing import Final

from wharf.contract.model.record import Record, SparseRecord


class StepPhase(StrEnum):
    """Where a step is before its elements may begin, or why they never will."""

    WAITING = "waiting"  # Its needs decide.
    GATED = "gated"  # A person decides, until `gate_deadline`.
    READY = "ready"  # Its elements may begin. What has become of them is in the results of the array.
    SKIPPED = "skipped"  # It never begins, because of a need or of its own condition.
    CANCELED = "canceled"  # A person, a deadline or another run ended it.
    FAILED = "failed"  # It never began: its gate was rejected or expired, or its condition cannot be evaluated.


class StepOutcome(StrEnum):
    """How a step ended, as its successors see it."""

    OPEN = "open"
    SUCCEEDED = "succeeded"  # Also a failed step with `MayFail`.
    FAILED = "failed"
    SKIPPED_BY_CONDITION = "skipped-by-condition"  # Its own `If` was false.
    SKIPPED_BY_NEED = "skipped-by-need"
    CANCELED_BEFORE_BEGIN = "canceled-before-begin"
    CANCELED_WHILE_RUNNING = "canceled-while-running"


UNSUCCESSFUL_OUTCOMES: Final = frozenset({
    StepOutcome.FAILED, StepOutcome.CANCELED_BEFORE_BEGIN, StepOutcome.CANCELED_WHILE_RUNNING,
})  # fmt: skip
"""The outcomes after which a retry runs a step again because of itself, wherever the step lies in its run."""


class StepCauseKind(StrEnum):
    """What decided about a step."""

    NEED = "need"  # `step` ended with `outcome`.
    JOB = "job"  # The job `step` ended with `outcome`, or was deleted without a result.
    CONDITION = "condition"  # `If` was false; `detail` has the values.
    GATE = "gate"  # `actor` approved or rejected it, or nobody answered in time; `detail` has the text.
    CANCEL = "cancel"  # `actor` canceled the run.
    DEADLINE = "deadline"  # The run took too long.
    LOCK = "lock"  # The run `step` took the lock.
    STOP = "stop"  # The job was stopped.
    REPLACED = "replaced"  # The run `step` of the same flow took its place.


class StepCause(SparseRecord):
    """Why a step is in its phase."""

    kind: StepCauseKind
    step: str = ""
    outcome: str = ""  # A `StepOutcome`.
    actor: str = ""
    detail: str = ""


class StepState(Record):
    """The state of one step in one attempt. It changes in the same write as its cause."""

    phase: StepPhase = StepPhase.WAITING
    cause: StepCause | None = None
    since: int = 0  # ns since the epoch: when the phase began.
    began_at: int = 0  # ns since the epoch: when the first allocation of the attempt ran; 0: none did.
    ended_at: int = 0  # ns since the epoch: when its last element ended and its last task stopped; 0: it has not ended.
    gate_deadline: int = 0  # ns since the epoch


MAX_ALL_DETAIL_BYTES: Final = 128 * 1024
"""UTF-8 bytes of the texts of all steps of an attempt together, which are one record: the values of conditions and the answers at
gates. A write that ends all steps of a run has the attempt and the job, and at most 1.4 MB.
"""


def limit_detail_bytes(max_bytes: int, step_count: int) -> int:
    """Return how many bytes the text of one step may have in a run with this number of steps: `max_bytes`, or its share."""
    return min(max_bytes, MAX_ALL_DETAIL_BYTES // max(1, step_count))
