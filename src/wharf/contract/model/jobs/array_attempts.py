"""What servers store about the elements of arrays: the attempts of a job, and one byte for the result of each element.

An attempt runs all elements of a group, or those that a user selected for another run. Attempts lie on each other like
layers: the newest attempt with an element decides its state, and the layers below remain readable. Which element begins
when is not decided here.
"""

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

from wharf.contract.model.jobs.step_states import StepCause, StepState
from wharf.contract.model.record import Record

CHUNK_ELEMENTS: Final = 4_096
"""Elements of one record of results. A write repeats the whole record, and neighboring elements end at about the same time."""

ABSENT: Final = b"-"
OPEN: Final = b"."
SUCCEEDED: Final = b"s"
FAILED: Final = b"f"
SKIPPED: Final = b"x"
CANCELED: Final = b"c"
"""The result of an element: not in this attempt, not ended, succeeded, failed, skipped because of a need with `Each`,
canceled.

`CANCELED` is stored only for elements that a user stopped alone. The open elements of a canceled attempt are canceled too.
"""
STARTING: Final = b"p"
RUNNING: Final = b"r"
"""States that only the API shows: an element whose allocation is pending, or has not ended."""
_CANCEL_OPEN: Final = bytes.maketrans(OPEN, CANCELED)
_PRESENCE_MASK: Final = bytes(0 if code == ABSENT[0] else 255 for code in range(256))


class ElementResult(enum.StrEnum):
    """How an element of an array ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


RESULT_CODES: Final = {ElementResult.SUCCEEDED: SUCCEEDED, ElementResult.FAILED: FAILED}
"""The stored byte of each result that a node reports."""


class CancelCause(enum.StrEnum):
    """Why the remaining elements of an attempt never run."""

    NONE = ""
    STOPPED = "stopped"  # The job was stopped.
    FAILED_ELEMENT = "failed-element"  # An element failed, and the array has `FailFast`.
    STEP = "step"  # The step never begins, or its run was canceled; `GroupAttempt.step` has the cause.


class AttemptReason(enum.StrEnum):
    """Why an attempt was made."""

    REGISTERED = "registered"  # The job is new, or its group changed.
    RERUN = "rerun"  # A user ran some elements again.
    RETRY = "retry"  # A user ran steps again.


class GroupAttempt(Record):
    """The part of an attempt that concerns one group."""

    size: int  # The elements of the array.
    element_count: int  # The elements that this attempt runs.
    is_full: bool = True  # It runs all elements, so earlier attempts of the group no longer count.
    cancel_cause: CancelCause = CancelCause.NONE  # Open elements of this attempt and of earlier ones never run.
    failed_element: int = -1  # The element whose failure canceled the attempt.
    canceled_at: int = 0  # ns since the epoch
    step: StepState | None = None  # The state of the step that the group is; `None`: its elements may begin at once.


class ArrayAttempt(Record):
    """One run of elements of the arrays of a job."""

    namespace: str
    job_id: str
    attempt: int  # Numbers count from 1 over the life of the job.
    job_create_index: int = 0  # Distinguishes it from attempts of an earlier job with the same ID.
    job_version: int = 0
    reason: AttemptReason = AttemptReason.REGISTERED
    groups: dict[str, GroupAttempt] = {}
    cancel_cause: StepCause | None = None  # Why the run was canceled in this attempt; `None`: it was not.
    stop_cause: StepCause | None = None
    """Who stopped the run with its final steps, such as by a second cancellation; `None`: nobody, or it is not known."""
    stopped_at: int = 0  # ns since the epoch: when that was. The steps that it ended entered their phase then.
    deadline: int = 0  # ns since the epoch: when the run is canceled, or its final steps after that; 0: never.
    create_time: int = 0  # ns since the epoch
    create_index: int = 0
    modify_index: int = 0


class ArrayResults(Record):
    """The results of up to `CHUNK_ELEMENTS` elements in one attempt. A record without results is not stored."""

    namespace: str
    job_id: str
    attempt: int
    group: str
    chunk: int  # The elements from `chunk * CHUNK_ELEMENTS` on.
    results: bytes  # One byte an element, such as `OPEN`.
    create_index: int = 0
    modify_index: int = 0


FindResults = Callable[[int, str, int], ArrayResults | None]
"""Returns the stored results of an attempt, a group and a chunk."""


def count_chunks(size: int) -> int:
    """Return how many records the results of an array with this size have."""
    return -(-size // CHUNK_ELEMENTS)


def build_chunk(attempt: GroupAttempt, chunk: int) -> bytes:
    """Return the results of a chunk of which nothing is stored yet."""
    length = min(CHUNK_ELEMENTS, attempt.size - chunk * CHUNK_ELEMENTS)
    return (OPEN if attempt.is_full else ABSENT) * length


def select_attempts(attempts: Iterable[ArrayAttempt], job_create_index: int, group: str) -> list[ArrayAttempt]:
    """Return the attempts of a group that decide the states of its elements, oldest first.

    The first one is the newest that runs all elements.
    """
    own = sorted(
        (each for each in attempts if each.job_create_index == job_create_index and group in each.groups),
        key=lambda each: each.attempt,
    )
    start = max((at for at, each in enumerate(own) if each.groups[group].is_full), default=len(own))
    return own[start:]


class ElementStates:
    """The states of the elements of one group, from the attempts that decide them and their stored results."""

    def __init__(self, group: str, attempts: Sequence[ArrayAttempt], find_results: FindResults) -> None:
        """`attempts` are those of `select_attempts`."""
        self.group = group
        self.attempts = attempts
        self._find_results = find_results

    @property
    def size(self) -> int:
        """How many elements the array has; 0 if no attempt exists."""
        return self.attempts[0].groups[self.group].size if self.attempts else 0

    @property
    def first_attempt(self) -> int:
        """The number of the attempt that runs all elements. Allocations of earlier attempts are outdated."""
        return self.attempts[0].attempt if self.attempts else 0

    @property
    def step(self) -> StepState | None:
        """The state of the step that the group is; `None` if it is not a step, or if no attempt exists."""
        return self.attempts[-1].groups[self.group].step if self.attempts else None

    @cached_property
    def canceled_until(self) -> int:
        """The number of the newest canceled attempt. Its open elements, and those of earlier attempts, are canceled."""
        return max((each.attempt for each in self.attempts if each.groups[self.group].cancel_cause), default=0)

    @property
    def states(self) -> bytes:
        """The state of each element as one byte. Open elements of a canceled attempt count as canceled."""
        return self._merged[0]

    @property
    def owners(self) -> bytes:
        """For each element the position in `attempts` of the one that decides its state."""
        return self._merged[1]

    @cached_property
    def _merged(self) -> tuple[bytes, bytes]:
        """The state of each element, and the position of the attempt that decides it, each as one byte."""
        size = self.size
        if len(self.attempts) == 1 and size <= CHUNK_ELEMENTS:  # Nearly every step of a run.
            return self._read_only_chunk(self.attempts[0]), bytes(size)
        states, owners = bytearray(size), bytearray(size)
        for position, attempt in enumerate(self.attempts):
            group = attempt.groups[self.group]
            for chunk in range(count_chunks(size)):
                results = self._read_chunk(attempt, chunk)
                if results is None:
                    continue
                part = slice(chunk * CHUNK_ELEMENTS, chunk * CHUNK_ELEMENTS + len(results))
                if group.is_full:
                    states[part] = results
                    continue
                mask = results.translate(_PRESENCE_MASK)
                states[part] = _overlay(states[part], results, mask)
                owners[part] = _overlay(owners[part], bytes((position,)) * len(results), mask)
        return bytes(states), bytes(owners)

    def _read_only_chunk(self, attempt: ArrayAttempt) -> bytes:
        """Return the states of an array that has one chunk and one attempt, without the reads that others need."""
        group = attempt.groups[self.group]
        stored = self._find_results(attempt.attempt, self.group, 0)
        if stored is None and not group.is_full:
            return b""
        results = stored.results if stored is not None else build_chunk(group, 0)
        return results.translate(_CANCEL_OPEN) if group.cancel_cause else results

    def _read_chunk(self, attempt: ArrayAttempt, chunk: int) -> bytes | None:
        """Return the states of a chunk in an attempt, or `None` if the attempt runs none of its elements."""
        group = attempt.groups[self.group]
        stored = self._find_results(attempt.attempt, self.group, chunk)
        if stored is None and not group.is_full:
            return None
        results = stored.results if stored is not None else build_chunk(group, chunk)
        return results.translate(_CANCEL_OPEN) if attempt.attempt <= self.canceled_until else results

    def is_open(self, index: int) -> bool:
        """Return whether the element exists, has not ended and is not canceled."""
        return 0 <= index < self.size and self.states[index : index + 1] == OPEN

    def iter_open(self) -> Iterator[int]:
        """Yield the indexes of the open elements, lowest first."""
        return iter_elements(self.states, OPEN)

    def count_open(self) -> int:
        """Return how many elements are open."""
        return self.states.count(OPEN)

    def find_owner(self, index: int) -> ArrayAttempt | None:
        """Return the attempt that decides the state of an element, or `None` if the element does not exist."""
        if not 0 <= index < self.size:
            return None
        return self.attempts[0] if len(self.attempts) == 1 else self.attempts[self.owners[index]]

    def is_current(self, index: int, attempt: int) -> bool:
        """Return whether an allocation of this element and attempt decides the state of the element."""
        owner = self.find_owner(index)
        return owner is not None and owner.attempt == attempt


def iter_elements(states: bytes, state: bytes) -> Iterator[int]:
    """Yield the indexes of the elements in this state, lowest first."""
    at = -1
    while (at := states.find(state, at + 1)) >= 0:
        yield at


def _overlay(below: bytes | bytearray, above: bytes, mask: bytes) -> bytes:
    """Return the bytes of `above` where the mask is 255, and those of `below` where it is 0.

    Numbers of thousands of bits are combined at once, because a loop over 20 attempts of 100,000 elements takes a second.
    """
    bits = int.from_bytes(mask, "big")
    merged = (int.from_bytes(below, "big") & ~bits) | (int.from_bytes(above, "big") & bits)
    return merged.to_bytes(len(mask), "big")


def exclude_elements(selection: bytes | bytearray, excluded: bytes | bytearray) -> bytes:
    """Return a selection, which has `OPEN` for each selected element and `ABSENT` for others, without `excluded` ones."""
    return _overlay(selection, ABSENT * len(selection), bytes(excluded.translate(_PRESENCE_MASK)))


def encode_runs(states: bytes) -> str:
    """Return states in short form: each run of equal states as its length and its letter, such as `498s1f1s`."""
    return "".join(f"{len(run[0])}{run[0][:1].decode()}" for run in re.finditer(rb"(.)\1*", states, re.DOTALL))


def decode_runs(text: str) -> bytes:
    """Return the states of `encode_runs`."""
    return b"".join(letter.encode() * int(count) for count, letter in re.findall(r"([0-9]+)([^0-9])", text))


class IndexesError(ValueError):
    """The error for a text that does not name indexes, with what is wrong and how to write it."""


MAX_INDEXES_CHARS: Final = 65_536
"""Characters of a text that names indexes; limits the time to parse it."""
_RANGE: Final = re.compile(r"\s*([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?\s*\Z")


def parse_indexes(text: str, size: int) -> list[tuple[int, int]]:
    """Return the ranges of indexes in a text such as `3,7-9`: the first and the last index of each, lowest first.

    Ranges that overlap are joined. Raises `IndexesError` if the text is not a list of indexes of an array with this size.
    """
    if len(text) > MAX_INDEXES_CHARS:
        raise IndexesError(f"the list of indexes is {len(text)} characters long; the limit is {MAX_INDEXES_CHARS}")
    ranges = []
    for part in text.split(","):
        found = _RANGE.match(part)
        if found is None:
            raise IndexesError(f'"{part[:40].strip()}" is not an index: write indexes and ranges, such as 3,7-9')
        first = int(found[1])
        last = int(found[2]) if found[2] is not None else first
        if last < first:
            raise IndexesError(f'the range "{part[:40].strip()}" ends before it begins')
        if last >= size:
            raise IndexesError(f"the array has no element {last}: its indexes are 0 to {size - 1}")
        ranges.append((first, last))
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def format_indexes(indexes: Iterable[int]) -> str:
    """Return indexes in ascending order as a text, such as `3,7-9`."""
    parts: list[list[int]] = []
    for index in indexes:
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
