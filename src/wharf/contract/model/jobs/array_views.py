"""What the API shows of the arrays of a job: the state of each element, counts, and the attempts."""

from wharf.contract.model.jobs.array_attempts import AttemptReason, CancelCause
from wharf.contract.model.record import Record


class ArrayCounts(Record):
    """How many elements have each state."""

    waiting: int = 0  # They have not begun, or wait for their retry.
    starting: int = 0
    running: int = 0  # Also those that are being stopped.
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    skipped: int = 0  # They never begin, because a need with `Each` does not hold for them.


class ArrayAttemptView(Record):
    """One attempt of an array: a run of all elements, or of those that a user selected."""

    attempt: int
    reason: AttemptReason = AttemptReason.REGISTERED
    job_version: int = 0
    element_count: int = 0
    create_time: int = 0  # ns since the epoch
    counts: ArrayCounts = ArrayCounts()  # In this attempt. Elements that have not ended count as waiting.
    states: str = ""
    """The states of its elements in short form; `-` is an element that is not in the attempt. Only shown on request."""


class ArrayView(Record):
    """The array of one group."""

    group: str
    size: int = 0
    max_running: int = 0  # 0: as many as fit into the cluster.
    fail_fast: bool = False
    counts: ArrayCounts = ArrayCounts()
    states: str = ""
    """The state of each element in short form: a count and a letter for each run of equal states, such as `3s1f6r490.`.

    `.` is waiting, `p` starting, `r` running, `s` succeeded, `f` failed, `c` canceled, `x` skipped.
    """
    cancel_cause: CancelCause = CancelCause.NONE  # Why elements were canceled.
    failed_element: int = -1  # The element whose failure canceled the others; -1: none.
    attempts: tuple[ArrayAttemptView, ...] = ()  # Oldest first.


class JobArrays(Record):
    """The arrays of a job."""

    arrays: tuple[ArrayView, ...] = ()
