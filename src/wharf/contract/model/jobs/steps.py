"""What makes a group of a batch job a step: what it waits for, and what happens when it ends.

A job with such a group is a run: all of its groups are steps. A step is an array, and a step without `Array` has one element.
What a step may do at a certain time is decided in `wharf.cluster.scheduling.steps`.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from wharf.contract.model.record import Record
from wharf.contract.model.times import DurationNs
from wharf.languages.suggestions import find_nearest_name

MAX_STEPS: Final = 500
"""Groups of a job with steps. The states of all steps lie in one record, which each change of a step writes."""
MAX_NEEDS: Final = 100
"""Needs of one step, and needs of all steps of a job together are at most ten times as many."""
MAX_ALL_NEEDS: Final = 1_000
MAX_OUTPUT_BYTES: Final = 64 * 1024
"""UTF-8 bytes of all text outputs of one step. They are stored in the log."""
MAX_NAMED_STEPS: Final = 10
"""Steps that an error text names."""


class NeedWhen(StrEnum):
    """How the step or the job that is needed must have ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"
    ANY = "any"


class Need(Record):
    """Something that must have ended before a step begins: another step of the job, or another job."""

    on: str = ""
    """The name of the group that is needed. In a need of a job, the ID of the other job.

    Default: none; required
    Limits: another group of the same job; in a need of a job, a job of the same namespace. Groups must not wait for
        each other in a circle
    Example: build
    """
    when: str = NeedWhen.SUCCEEDED
    """How the needed step must have ended. If it ended in another way, the step is skipped.

    Values:
        succeeded: it succeeded, or it failed and has `MayFail`
        failed: it failed, or was canceled while it ran
        ended: it ran and has ended, in whatever way
        any: it has ended, also if it never ran because it was skipped or canceled
    Default: `succeeded`
    Example: ended
    """
    each: bool = False
    """Whether each element waits only for the element with the same index of the needed step.

    Limits: only if both groups have an `Array` of the same size, and not with `AtLeast`
    """
    at_least: int = 0
    """How many elements of the needed array must have ended in this way.

    The step begins as soon as that many have.

    Unit: elements
    Default: 0, which means that the step as a whole counts: it succeeded if all elements did, and failed if one did
    Limits: 0 to the size of the needed array
    Example: 8
    """
    optional: bool = False
    """Whether the need also holds if the needed step was skipped because of its own condition `If`.

    It has no effect on a step that was skipped because its need failed. In a need of a job, it also allows another job that
    does not exist when the job is submitted, such as one that runs only in some namespaces.
    """


class Gate(Record):
    """A question to a person. The step begins after a person has approved it."""

    ask: str = ""
    """The question that the person sees.

    Default: `may GROUP begin?`
    Limits: at most 1,024 UTF-8 bytes
    Example: Release to production?
    """
    policy: str = ""
    """The ACL policy that a person must have to answer. A management token may always answer.

    Default: none; everybody may answer who may submit jobs in the namespace
    Example: deployers
    """
    timeout: DurationNs = 0
    """How long the gate waits for an answer. After that time the step fails.

    Default: 0s, which means 24h
    Limits: 0s to 720h
    Example: 4h
    """


class LockPolicy(StrEnum):
    """What happens to steps that hold a lock, or wait for it, when another one wants it."""

    QUEUE = "queue"
    REPLACE_WAITING = "replace-waiting"
    REPLACE_RUNNING = "replace-running"


class Lock(Record):
    """A name that limits how many steps run at the same time, in all jobs of a namespace."""

    key: str = ""
    """The name of the lock.

    Default: none; required
    Limits: 1 to 128 UTF-8 bytes
    Example: production
    """
    slots: int = 1
    """How many allocations with this lock may run at the same time.

    If steps name different numbers for one lock, each step obeys its own.

    Unit: allocations
    Limits: 1 to 10,000
    Example: 4
    """
    policy: str = LockPolicy.QUEUE
    """What happens when a step is ready and the lock is not free.

    Values:
        queue: it waits for its turn, in the order in which steps became ready
        replace-waiting: it waits too, and steps of other runs that wait for the lock are canceled
        replace-running: steps of other runs that wait for the lock or hold it are canceled
    Default: `queue`
    Example: replace-waiting
    """


class Outputs(Record):
    """What a step leaves for the steps after it."""

    text: tuple[str, ...] | None = None
    """The names of short texts that the step writes, as lines `name=value`, to the file named by `WHARF_OUTPUTS`.

    A text of several lines begins with a line `name<<END` and ends with a line `END`. A step that needs this one finds the text
    in `WHARF_STEP_GROUP_NAME`, by `${steps.GROUP.NAME}` in its environment and configuration, and as `steps.GROUP.NAME` in `If`.
    A text that the program did not write is empty. The elements of an array have texts of their own; only elements with the
    same index of a step with `Each` receive them.

    Default: none
    Limits: at most 100 names of letters, digits and `_`; 65,536 UTF-8 bytes for all texts of the step together, which the
        elements of an array share equally; at most 1,000 elements
    Example: ["version"]
    """
    keep: tuple[str, ...] | None = None
    """Files and folders that are kept when the step has ended, as paths below the folder `alloc/`.

    A node that needs disk space deletes them last: after the other files of the step and the results of other jobs. After 7 days
    they are deleted like other old files, and with the job. `wharf job fetch` reads them.

    Default: none
    Limits: at most 100 paths inside of `alloc/`
    Example: ["data/"]
    """


class StepRetry(Record):
    """Which failures of the program are tried again, and how often.

    A lost node, a drain or a preemption does not count: the step runs again. A failure before the program runs, such as one of
    the driver, does not count either, but the fifth one is final. Nodes restart no task of the step.
    """

    attempts: int = 0
    """How often an element of the step is run again after a failure of its program.

    The first time 5 seconds after the failure, and each time twice as long after it, up to 5 minutes.

    Unit: attempts
    Limits: 0 to 100
    Example: 2
    """
    on_exit: tuple[int, ...] | None = None
    """The exit codes that are tried again. A program that ends with another code, or takes longer than `MaxRunDuration`,
    fails at once.

    Default: none, which means all codes
    Limits: at most 100 codes from 1 to 255; not together with `NotOnExit`
    Example: [75]
    """
    not_on_exit: tuple[int, ...] | None = None
    """The exit codes that are not tried again.

    Default: none
    Limits: at most 100 codes from 1 to 255; not together with `OnExit`
    Example: [2]
    """


class FlowOverlap(StrEnum):
    """What happens when a run of a flow is due and an earlier one has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"


class Flow(Record):
    """The settings of the runs of a job with steps."""

    deadline: DurationNs = 0
    """How long a run may take. A run that has not ended then is canceled.

    Default: 0s, which means no limit
    Limits: 0s to 8760h
    Example: 6h
    """
    final_timeout: DurationNs = 0
    """How long the steps with `Final` may take after a run was canceled. After that time they are stopped.

    Default: 0s, which means 5m
    Limits: 0s to 24h
    Example: 10m
    """
    overlap: str = ""
    """What happens when a run is due and an earlier run of the same parent has not ended.

    Values:
        skip: the new run does not begin
        queue: the new run waits until the earlier ones have ended
        replace: the earlier runs are canceled
    Default: none; runs do not wait for each other, and `Periodic.ProhibitOverlap` decides about scheduled ones
    Example: queue
    """


def suggest_step(names: Sequence[str], unknown: str) -> str:
    """Return which step of a run may be meant by an unknown name, or the names of its first steps."""
    nearest = find_nearest_name(unknown, names)
    if nearest is not None:
        return f'did you mean "{nearest}"?'
    more = ", …" if len(names) > MAX_NAMED_STEPS else ""
    return f"its steps are {', '.join(names[:MAX_NAMED_STEPS])}{more}"
