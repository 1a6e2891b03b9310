"""What becomes of the keys of the ring: rotated, sealed anew with, deleted (reference 4.3).

New keys come in wrapped and sealed texts come in sealed: nothing here can read either. One key is active at any time;
whoever seals with it makes its record a condition, so that no key can go while something is being sealed with it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import msgspec

from wharf.model.changes import THIS, Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.cluster import KeyringKey, KeyState
from wharf.model.moment import Moment
from wharf.model.refusal import invalid, unknown
from wharf.model.secret import Sealed
from wharf.operations.decision import Decision
from wharf.state import Index, Replica, Table
from wharf.state.tables import (
    ACL_AUTH_METHODS,
    ACL_TOKENS,
    ALLOCATIONS,
    IDEMPOTENCY_KEYS,
    IDEMPOTENCY_KEYS_SEALED_WITH,
    KEYRING,
    KEYS_BY_STATE,
    METHODS_SEALED_WITH,
    TOKENS_SEALED_WITH,
    VARIABLES,
    VARIABLES_SEALED_WITH,
)

replace = msgspec.structs.replace


class KeyWritten(msgspec.Struct, frozen=True):
    index: int
    key: KeyringKey | None = None


class RotationRequest(msgspec.Struct, frozen=True):
    """`key`: the new one, wrapped. `only_first`: for a ring that has none yet."""

    key: KeyringKey
    full: bool = False
    publish_time_ns: int = 0
    only_first: bool = False


def rotate(snapshot: Replica, asked: RotationRequest) -> Decision[KeyWritten]:
    """The new key takes over, or stands by until its time; with `full`, all that older keys sealed is sealed anew."""
    if asked.full and asked.publish_time_ns:
        raise invalid("keyring cannot be prepublished and full rotated at the same time")
    active = snapshot.those_by_key(KEYS_BY_STATE, KeyState.ACTIVE)
    if asked.only_first and active:
        return Decision(None, lambda index: KeyWritten(index, active[0]))
    if asked.publish_time_ns:
        waiting = replace(asked.key, state=KeyState.PREPUBLISHED, publish_time=asked.publish_time_ns, create_index=THIS)
        return _written(snapshot, "key-prepublished", [waiting], waiting)
    fresh = replace(asked.key, state=KeyState.ACTIVE, create_index=THIS)
    return _written(snapshot, "keyring-rotated", [fresh, *_stepping_down(snapshot, full=asked.full)], fresh)


def publish_due(snapshot: Replica, moment: Moment) -> Decision[KeyWritten] | None:
    """A key that was published before its time takes over when that has come; None: none is due."""
    waiting = snapshot.those_by_key(KEYS_BY_STATE, KeyState.PREPUBLISHED)
    due = [key for key in waiting if key.publish_time <= moment.now_ns]
    if not due:
        return None
    chosen = max(due, key=lambda key: (key.publish_time, key.key_id))
    fresh = replace(chosen, state=KeyState.ACTIVE)
    late = [replace(key, state=KeyState.INACTIVE) for key in due if key is not chosen]
    return _written(snapshot, "keyring-rotated", [fresh, *late, *_stepping_down(snapshot, full=False)], fresh)


def is_rotation_due(snapshot: Replica, moment: Moment, *, threshold_ns: int) -> bool:
    """Whether the active key is older than a key may become."""
    active = snapshot.those_by_key(KEYS_BY_STATE, KeyState.ACTIVE)
    return any(moment.now_ns - max(key.create_time, key.publish_time) > threshold_ns for key in active)


def delete_key(snapshot: Replica, key_id: str, *, force: bool = False) -> Decision[KeyWritten]:
    """`force`: though something is sealed with it, which nobody can read after that."""
    key = snapshot.get(KEYRING, key_id)
    if key is None:
        raise unknown("root key not found")
    if key.state is KeyState.ACTIVE:
        raise invalid("active root key cannot be deleted - call rotate first")
    if not force and is_in_use(snapshot, key_id):
        raise invalid("root key in use, cannot delete")
    write = Write("key-deleted", Cause(CauseKind.OPERATOR), [KEYRING.drop(key_id)], [snapshot.unchanged(KEYRING, key)])
    return Decision(write, KeyWritten)


def collect_keys(snapshot: Replica, moment: Moment, *, threshold_ns: int) -> Decision[KeyWritten] | None:
    """Keys that have not been active for so long and that nothing needs; None: there are none.

    How long ago a key stepped down is not kept; it was in force until its successor was made. Which identities it signed
    is not kept either: most hold as long as their allocations, so it stays while one that is older goes on.
    """
    keys = sorted(snapshot.all(KEYRING), key=lambda key: max(key.create_time, key.publish_time))
    gone = []
    for key, successor in pairwise(keys):
        until_ns = max(successor.create_time, successor.publish_time)
        if key.state not in (KeyState.INACTIVE, KeyState.DEPRECATED) or moment.now_ns - until_ns <= threshold_ns:
            continue
        if not is_in_use(snapshot, key.key_id) and not _may_have_signed(snapshot, until_ns):
            gone.append(key)
    if not gone:
        return None
    conditions = [snapshot.unchanged(KEYRING, key) for key in gone]
    drops: Sequence[Drop] = [KEYRING.drop(key.key_id) for key in gone]
    return Decision(Write("keys-collected", Cause(CauseKind.TIMER, "keyring"), drops, conditions), KeyWritten)


def wrap_anew(snapshot: Replica, keys: Sequence[KeyringKey]) -> Decision[KeyWritten] | None:
    """The same keys, wrapped by another wrapping key; None: there are none."""
    return _written(snapshot, "keys-wrapped-anew", keys) if keys else None


def is_in_use(snapshot: Replica, key_id: str) -> bool:
    return any(snapshot.count_those(place.sealed_with, key_id) for place in SEALED_PLACES)


def _may_have_signed(snapshot: Replica, until_ns: int) -> bool:
    """Whether somebody lives who may hold an identity that was signed before. Most often the first ones tell."""
    return any(each.create_time < until_ns and not each.is_terminal for each in snapshot.all(ALLOCATIONS))


# -- sealing anew ----------------------------------------------------------------------------------------------------


class SealedPlace(NamedTuple):
    """A table that holds sealed texts: how one is read from a record, and how another takes its place."""

    table: Table[Any]
    sealed_with: Index[Any]
    about: Callable[[Any], str]
    sealed: Callable[[Any], Sealed]
    with_sealed: Callable[[Any, Sealed], Any]


def about_variable(namespace: str, path: str) -> str:
    return f"variable {namespace}\0{path}"


def about_token(accessor_id: str) -> str:
    return f"token {accessor_id}"


def about_method(name: str) -> str:
    return f"auth method {name}"


def about_answer(scope: str, key: str) -> str:
    return f"answer {scope}\0{key}"


SEALED_PLACES: Final = (
    SealedPlace(
        VARIABLES,
        VARIABLES_SEALED_WITH,
        lambda variable: about_variable(variable.namespace, variable.path),
        lambda variable: Sealed(variable.data, variable.key_id),
        lambda variable, sealed: replace(variable, data=sealed.data, key_id=sealed.key_id),
    ),
    SealedPlace(
        ACL_TOKENS,
        TOKENS_SEALED_WITH,
        lambda token: about_token(token.accessor_id),
        lambda token: Sealed(token.secret_sealed, token.sealed_with),
        lambda token, sealed: replace(token, secret_sealed=sealed.data, sealed_with=sealed.key_id),
    ),
    SealedPlace(
        ACL_AUTH_METHODS,
        METHODS_SEALED_WITH,
        lambda method: about_method(method.name),
        lambda method: Sealed(method.secrets_sealed, method.sealed_with),
        lambda method, sealed: replace(method, secrets_sealed=sealed.data, sealed_with=sealed.key_id),
    ),
    SealedPlace(
        IDEMPOTENCY_KEYS,
        IDEMPOTENCY_KEYS_SEALED_WITH,
        lambda kept: about_answer(kept.scope, kept.key),
        lambda kept: Sealed(kept.answer_sealed, kept.sealed_with),
        lambda kept, sealed: replace(kept, answer_sealed=sealed.data, sealed_with=sealed.key_id),
    ),
)


class ToSeal(NamedTuple):
    """One sealed text that is to be sealed with another key."""

    place: SealedPlace
    record: Any

    @property
    def about(self) -> str:
        return self.place.about(self.record)

    @property
    def sealed(self) -> Sealed:
        return self.place.sealed(self.record)


def next_to_seal(snapshot: Replica, *, most: int) -> list[ToSeal]:
    """What a key under full rotation still seals. Where a step begins is told by the state: it can be done again."""
    return list(islice(_all_to_seal(snapshot), most))


def _all_to_seal(snapshot: Replica) -> Iterator[ToSeal]:
    for key in snapshot.those_by_key(KEYS_BY_STATE, KeyState.REKEYING):
        for place in SEALED_PLACES:
            for record in snapshot.those(place.sealed_with, key.key_id):
                yield ToSeal(place, record)


def seal_anew(snapshot: Replica, step: Sequence[tuple[ToSeal, Sealed]]) -> Decision[KeyWritten]:
    """One step of a full rotation: these records, each if it is still what it was, with their new sealed texts."""
    if not step:
        return Decision(None, KeyWritten)
    changes: list[Put] = []
    conditions: dict[str, Condition] = {}
    for item, sealed in step:
        changes.append(item.place.table.put(item.place.with_sealed(item.record, sealed)))
        conditions[f"{item.place.table.name}\0{changes[-1].key}"] = snapshot.unchanged(item.place.table, item.record)
        conditions[sealed.key_id] = snapshot.as_seen(KEYRING, sealed.key_id)
    write = Write("sealed-anew", Cause(CauseKind.TIMER, "keyring"), changes, list(conditions.values()))
    return Decision(write, KeyWritten)


def finish_sealing(snapshot: Replica) -> Decision[KeyWritten] | None:
    """Keys that nothing is sealed with any more are through with their full rotation; None: there are none."""
    done = [
        key for key in snapshot.those_by_key(KEYS_BY_STATE, KeyState.REKEYING) if not is_in_use(snapshot, key.key_id)
    ]
    if not done:
        return None
    return _written(snapshot, "sealed-anew", [replace(key, state=KeyState.INACTIVE) for key in done])


def _stepping_down(snapshot: Replica, *, full: bool) -> list[KeyringKey]:
    if not full:
        return [replace(key, state=KeyState.INACTIVE) for key in snapshot.those_by_key(KEYS_BY_STATE, KeyState.ACTIVE)]
    old = (KeyState.ACTIVE, KeyState.INACTIVE, KeyState.DEPRECATED)
    return [replace(key, state=KeyState.REKEYING) for key in snapshot.all(KEYRING) if key.state in old]


def _written(
    snapshot: Replica, kind: str, keys: Sequence[KeyringKey], shown: KeyringKey | None = None
) -> Decision[KeyWritten]:
    changes = [KEYRING.put(key) for key in keys]
    conditions = [snapshot.as_seen(KEYRING, key.key_id) for key in keys]

    def reply(index: int) -> KeyWritten:
        if shown is None:
            return KeyWritten(index)
        created = index if shown.create_index == THIS else shown.create_index
        return KeyWritten(index, replace(shown, create_index=created, modify_index=index))

    return Decision(Write(kind, Cause(CauseKind.OPERATOR), changes, conditions), reply)
