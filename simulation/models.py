"""The objects that histories are checked against: a register, and a record with versions as the API tells them."""

from collections.abc import Hashable
from typing import Final

import msgspec

UNKNOWN_VERSION: Final = -1
"""The version that a write of unknown outcome gave; the first answer that shows it tells which it is."""


class Read(msgspec.Struct, frozen=True):
    """Answered with `Seen`."""


class Put(msgspec.Struct, frozen=True):
    """Answered with `Seen`: what stands there now."""

    value: Hashable


class Stop(msgspec.Struct, frozen=True):
    """Of a job: its value becomes `(value, True)`. Answered with the version, or with version 0 where nothing is."""


class Purge(msgspec.Struct, frozen=True):
    """Of a job: nothing is left. Answered as `Stop` is."""


class PutIf(msgspec.Struct, frozen=True):
    """Puts if the version is this one (0: nothing is there). Answered with `Seen`, or with `Refused`."""

    version: int
    value: Hashable


class Restored(msgspec.Struct, frozen=True):
    """An older state was put in place of all. Answered with `Seen`: what stands there from then on."""


class Seen(msgspec.Struct, frozen=True):
    """A value and its version; a version of 0 and no value where nothing is."""

    value: Hashable
    version: int


class Kept(msgspec.Struct, frozen=True):
    """The value stood there already, and nothing was changed."""

    value: Hashable


class Refused(msgspec.Struct, frozen=True):
    """The version was another one."""


Asked = Read | Put | PutIf | Stop | Purge | Restored
Answer = Seen | Kept | Refused

NOTHING: Final = Seen(None, 0)


class VersionedRecord:
    """One record. A put of the value that stands there may leave the version as it is, as registering a job does."""

    initial = NOTHING

    def after(self, state: Seen, asked: Asked, answer: Answer | None) -> Seen | None:
        match asked:
            case Read():
                return _agreed(state, answer)
            case Put(value):
                return self._put(state, value, answer)
            case PutIf(version, value):
                return self._put_if(state, version, value, answer)
            case Stop():
                return self._stop(state, answer)
            case Purge():
                return NOTHING if answer is None or (answer == NOTHING) == (state == NOTHING) else None
            case Restored():
                assert isinstance(answer, Seen), "who restores knows what stands there then"
                return answer

    def only_looks(self, asked: Asked, answer: Answer | None) -> bool:
        return isinstance(asked, Read) or isinstance(answer, Refused)

    def _put(self, state: Seen, value: Hashable, answer: Answer | None) -> Seen | None:
        if answer is None:
            return Seen(value, UNKNOWN_VERSION)
        if isinstance(answer, Kept):
            return state if state.value == value == answer.value else None
        if not isinstance(answer, Seen) or answer.value != value:
            return None
        if state.value == value and _agreed(state, answer) is not None:
            return answer
        return answer if answer.version > state.version else None

    def _stop(self, state: Seen, answer: Answer | None) -> Seen | None:
        if state == NOTHING:
            return state if answer in (None, NOTHING) else None
        assert isinstance(state.value, tuple), "only jobs are stopped, and their values are pairs"
        stopped = (state.value[0], True)
        if answer is None:
            return Seen(stopped, UNKNOWN_VERSION)
        if not isinstance(answer, Seen) or answer.version <= state.version:
            return None
        return Seen(stopped, answer.version)

    def _put_if(self, state: Seen, version: int, value: Hashable, answer: Answer | None) -> Seen | None:
        could_match = state.version in (version, UNKNOWN_VERSION)
        if answer is None:
            return Seen(value, UNKNOWN_VERSION) if could_match else None
        if isinstance(answer, Refused):
            return state if state.version != version else None
        return self._put(state, value, answer) if could_match else None


class Register:
    """A value that is read and put, and nothing else: `Seen` and `Kept` tell the value, versions do not count."""

    def __init__(self, initial: Hashable) -> None:
        self.initial = Seen(initial, 0)

    def after(self, state: Seen, asked: Asked, answer: Answer | None) -> Seen | None:
        if isinstance(asked, Restored):
            assert isinstance(answer, Seen), "who restores knows what stands there then"
            return answer
        if isinstance(asked, Put):
            return Seen(asked.value, 0) if not isinstance(answer, Kept) or state.value == asked.value else None
        if answer is None:
            return state
        return state if isinstance(answer, Seen) and answer.value == state.value else None

    def only_looks(self, asked: Asked, answer: Answer | None) -> bool:
        return isinstance(asked, Read) or isinstance(answer, Kept)


def _agreed(state: Seen, answer: Answer | None) -> Seen | None:
    """The state, its version learnt from the answer where it was unknown; None where they contradict each other."""
    if answer is None:
        return state
    if not isinstance(answer, Seen) or answer.value != state.value:
        return None
    return answer if state.version in (answer.version, UNKNOWN_VERSION) else None
