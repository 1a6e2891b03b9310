"""The objects that histories are checked against: a register, and a record with versions as the API tells them."""

from collections.abc import Hashable
from typing import Final

import msgspec

UNKNOWN_VERSION: Final = -1
"""The version that a write of unknown outcome gave; the first answer that shows it tells which it is."""


class ReadRecord(msgspec.Struct, frozen=True):
    """Answered with `Seen`."""


class PutRecordValue(msgspec.Struct, frozen=True):
    """Answered with `Seen`: what stands there now."""

    value: Hashable


class StopJob(msgspec.Struct, frozen=True):
    """Of a job: its value becomes `(value, True)`. Answered with the version, or with version 0 where nothing is."""


class PurgeJob(msgspec.Struct, frozen=True):
    """Of a job: nothing is left. Answered as `Stop` is."""


class PutIfVersion(msgspec.Struct, frozen=True):
    """Puts if the version is this one (0: nothing is there). Answered with `Seen`, or with `Refused`."""

    version: int
    value: Hashable


class RestoreRecord(msgspec.Struct, frozen=True):
    """An older state was put in place of all. Answered with `Seen`: what stands there from then on."""


class RecordState(msgspec.Struct, frozen=True):
    """A value and its version; a version of 0 and no value where nothing is."""

    value: Hashable
    version: int


class UnchangedRecord(msgspec.Struct, frozen=True):
    """The value stood there already, and nothing was changed."""

    value: Hashable


class VersionConflict(msgspec.Struct, frozen=True):
    """The version was another one."""


RecordRequest = ReadRecord | PutRecordValue | PutIfVersion | StopJob | PurgeJob | RestoreRecord
RecordResponse = RecordState | UnchangedRecord | VersionConflict

NO_RECORD: Final = RecordState(None, 0)


class VersionedRecordModel:
    """One record. A put of the value that stands there may leave the version as it is, as registering a job does."""

    initial = NO_RECORD

    def apply(self, state: RecordState, request: RecordRequest, response: RecordResponse | None) -> RecordState | None:
        match request:
            case ReadRecord():
                return _agreed(state, response)
            case PutRecordValue(value):
                return self._put(state, value, response)
            case PutIfVersion(version, value):
                return self._put_if(state, version, value, response)
            case StopJob():
                return self._stop(state, response)
            case PurgeJob():
                return NO_RECORD if response is None or (response == NO_RECORD) == (state == NO_RECORD) else None
            case RestoreRecord():
                assert isinstance(response, RecordState), "who restores knows what stands there then"
                return response

    def is_read_only(self, request: RecordRequest, response: RecordResponse | None) -> bool:
        return isinstance(request, ReadRecord) or isinstance(response, VersionConflict)

    def _put(self, state: RecordState, value: Hashable, answer: RecordResponse | None) -> RecordState | None:
        if answer is None:
            return RecordState(value, UNKNOWN_VERSION)
        if isinstance(answer, UnchangedRecord):
            return state if state.value == value == answer.value else None
        if not isinstance(answer, RecordState) or answer.value != value:
            return None
        if state.value == value and _agreed(state, answer) is not None:
            return answer
        return answer if answer.version > state.version else None

    def _stop(self, state: RecordState, answer: RecordResponse | None) -> RecordState | None:
        if state == NO_RECORD:
            return state if answer in (None, NO_RECORD) else None
        assert isinstance(state.value, tuple), "only jobs are stopped, and their values are pairs"
        stopped = (state.value[0], True)
        if answer is None:
            return RecordState(stopped, UNKNOWN_VERSION)
        if not isinstance(answer, RecordState) or answer.version <= state.version:
            return None
        return RecordState(stopped, answer.version)

    def _put_if(
        self, state: RecordState, version: int, value: Hashable, answer: RecordResponse | None
    ) -> RecordState | None:
        could_match = state.version in (version, UNKNOWN_VERSION)
        if answer is None:
            return RecordState(value, UNKNOWN_VERSION) if could_match else None
        if isinstance(answer, VersionConflict):
            return state if state.version != version else None
        return self._put(state, value, answer) if could_match else None


class RegisterModel:
    """A value that is read and put, and nothing else: `Seen` and `Kept` tell the value, versions do not count."""

    def __init__(self, initial: Hashable) -> None:
        self.initial = RecordState(initial, 0)

    def apply(self, state: RecordState, request: RecordRequest, response: RecordResponse | None) -> RecordState | None:
        if isinstance(request, RestoreRecord):
            assert isinstance(response, RecordState), "who restores knows what stands there then"
            return response
        if isinstance(request, PutRecordValue):
            return (
                RecordState(request.value, 0)
                if not isinstance(response, UnchangedRecord) or state.value == request.value
                else None
            )
        if response is None:
            return state
        return state if isinstance(response, RecordState) and response.value == state.value else None

    def is_read_only(self, request: RecordRequest, response: RecordResponse | None) -> bool:
        return isinstance(request, ReadRecord) or isinstance(response, UnchangedRecord)


def _agreed(state: RecordState, answer: RecordResponse | None) -> RecordState | None:
    """The state, its version learnt from the answer where it was unknown; None where they contradict each other."""
    if answer is None:
        return state
    if not isinstance(answer, RecordState) or answer.value != state.value:
        return None
    return answer if state.version in (answer.version, UNKNOWN_VERSION) else None
