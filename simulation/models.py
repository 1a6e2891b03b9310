"""The models that histories are checked against: a register, and a record with versions as in the API."""

from collections.abc import Hashable
from typing import Final

import msgspec

UNKNOWN_VERSION: Final = -1
"""The version after a write without a reply. The first reply that shows the record sets it."""


class ReadRecord(msgspec.Struct, frozen=True):
    """A read. The response is a `RecordState`."""


class PutRecordValue(msgspec.Struct, frozen=True):
    """A write of a value. The response is the new `RecordState`, or `UnchangedRecord`."""

    value: Hashable


class StopJob(msgspec.Struct, frozen=True):
    """A stop of a job: its value becomes `(value, True)`. The response has its version; 0 if there is no job."""


class RerunElements(msgspec.Struct, frozen=True):
    """A run of elements of an array again. A stopped job starts again: its value becomes `(value, False)`, in a new version.

    The response has the version of the job, which does not change if the job was not stopped. It is `UnchangedRecord` if
    no element was selected.
    """


class PurgeJob(msgspec.Struct, frozen=True):
    """A deletion of a job. The response is that of `StopJob`."""


class PutIfVersion(msgspec.Struct, frozen=True):
    """A write on the condition that the record has this version (0: does not exist). It may fail with `VersionConflict`."""

    version: int
    value: Hashable


class RestoreRecord(msgspec.Struct, frozen=True):
    """A restore of the whole log. The response is the state of the record after it."""


class RecordState(msgspec.Struct, frozen=True):
    """A value and its version. A missing record has no value and version 0."""

    value: Hashable
    version: int


class UnchangedRecord(msgspec.Struct, frozen=True):
    """The response of a write that changed nothing, because the record had this value already."""

    value: Hashable


class VersionConflict(msgspec.Struct, frozen=True):
    """The response of a conditional write if the record has another version."""


RecordRequest = ReadRecord | PutRecordValue | PutIfVersion | StopJob | RerunElements | PurgeJob | RestoreRecord
RecordResponse = RecordState | UnchangedRecord | VersionConflict

NO_RECORD: Final = RecordState(None, 0)


class VersionedRecordModel:
    """A record with versions. A write of the current value may keep the version, as the registration of a job does."""

    initial = NO_RECORD

    def apply(self, state: RecordState, request: RecordRequest, response: RecordResponse | None) -> RecordState | None:
        match request:
            case ReadRecord():
                return _match_state(state, response)
            case PutRecordValue(value):
                return self._put(state, value, response)
            case PutIfVersion(version, value):
                return self._put_if(state, version, value, response)
            case StopJob():
                return self._stop(state, response)
            case RerunElements():
                return self._rerun(state, response)
            case PurgeJob():
                return NO_RECORD if response is None or (response == NO_RECORD) == (state == NO_RECORD) else None
            case RestoreRecord():
                assert isinstance(response, RecordState), "a restore has the state after it as its response"
                return response

    def is_read_only(self, request: RecordRequest, response: RecordResponse | None) -> bool:
        return isinstance(request, ReadRecord) or isinstance(response, VersionConflict)

    def _put(self, state: RecordState, value: Hashable, response: RecordResponse | None) -> RecordState | None:
        """Return the state after a write with this response, or `None` if it cannot have this response."""
        if response is None:
            return RecordState(value, UNKNOWN_VERSION)
        if isinstance(response, UnchangedRecord):
            return state if state.value == value == response.value else None
        if not isinstance(response, RecordState) or response.value != value:
            return None
        if state.value == value and _match_state(state, response) is not None:
            return response
        return response if response.version > state.version else None

    def _stop(self, state: RecordState, response: RecordResponse | None) -> RecordState | None:
        """Return the state after a stop with this response, or `None` if it cannot have this response."""
        if state == NO_RECORD:
            return state if response in (None, NO_RECORD) else None
        assert isinstance(state.value, tuple), "only jobs are stopped, and their values are pairs"
        stopped = (state.value[0], True)
        if response is None:
            return RecordState(stopped, UNKNOWN_VERSION)
        if not isinstance(response, RecordState) or response.version <= state.version:
            return None
        return RecordState(stopped, response.version)

    def _rerun(self, state: RecordState, response: RecordResponse | None) -> RecordState | None:
        """Return the state after a rerun with this response, or `None` if it cannot have this response."""
        if state == NO_RECORD:
            return None  # A rerun of a missing job is refused.
        assert isinstance(state.value, tuple), "only jobs have elements, and their values are pairs"
        value, is_stopped = state.value
        if isinstance(response, UnchangedRecord):
            return state
        if response is None:
            return RecordState((value, False), UNKNOWN_VERSION) if is_stopped else state
        if not isinstance(response, RecordState):
            return None
        if is_stopped:
            return RecordState((value, False), response.version) if response.version > state.version else None
        return (
            RecordState(state.value, response.version) if state.version in (response.version, UNKNOWN_VERSION) else None
        )

    def _put_if(
        self, state: RecordState, version: int, value: Hashable, response: RecordResponse | None
    ) -> RecordState | None:
        """Return the state after a conditional write with this response, or `None` if it cannot have this response."""
        could_match = state.version in (version, UNKNOWN_VERSION)
        if response is None:
            return RecordState(value, UNKNOWN_VERSION) if could_match else None
        if isinstance(response, VersionConflict):
            return state if state.version != version else None
        return self._put(state, value, response) if could_match else None


class RegisterModel:
    """A value that is only read and written. Versions are ignored."""

    def __init__(self, initial: Hashable) -> None:
        self.initial = RecordState(initial, 0)

    def apply(self, state: RecordState, request: RecordRequest, response: RecordResponse | None) -> RecordState | None:
        if isinstance(request, RestoreRecord):
            assert isinstance(response, RecordState), "a restore has the state after it as its response"
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


def _match_state(state: RecordState, response: RecordResponse | None) -> RecordState | None:
    """Return the state with its version from the response, or `None` if the response contradicts the state."""
    if response is None:
        return state
    if not isinstance(response, RecordState) or response.value != state.value:
        return None
    return response if state.version in (response.version, UNKNOWN_VERSION) else None
