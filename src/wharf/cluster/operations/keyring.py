"""What becomes of the keys of the ring: rotated, sealed anew with, deleted (reference 4.3).

New keys come in wrapped and sealed texts come in sealed: nothing here can read either. One key is active at any time;
whoever seals with it makes its record a condition, so that no key can go while something is being sealed with it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Index, Replica, Table
from wharf.cluster.state.tables import (
    ACL_AUTH_METHODS,
    ACL_TOKENS,
    ALLOCATIONS,
    AUTH_METHODS_BY_SEALING_KEY,
    IDEMPOTENCY_KEYS,
    IDEMPOTENCY_KEYS_BY_SEALING_KEY,
    KEYRING,
    KEYRING_KEYS_BY_STATE,
    TOKENS_BY_SEALING_KEY,
    VARIABLES,
    VARIABLES_BY_SEALING_KEY,
)
from wharf.contract.model.cluster import KeyringKey, KeyState
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import DecisionContext

replace = msgspec.structs.replace


class KeyringWriteResult(msgspec.Struct, frozen=True):
    index: int
    key: KeyringKey | None = None


class KeyRotationRequest(msgspec.Struct, frozen=True):
    """`key`: the new one, wrapped. `only_first`: for a ring that has none yet."""

    key: KeyringKey
    full: bool = False
    publish_time_ns: int = 0
    only_first: bool = False


def rotate_key(snapshot: Replica, request: KeyRotationRequest) -> Decision[KeyringWriteResult]:
    """The new key takes over, or stands by until its time; with `full`, all that older keys sealed is sealed anew."""
    if request.full and request.publish_time_ns:
        raise invalid_request("keyring cannot be prepublished and full rotated at the same time")
    active = snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.ACTIVE)
    if request.only_first and active:
        return Decision(None, lambda index: KeyringWriteResult(index, active[0]))
    if request.publish_time_ns:
        waiting = replace(
            request.key, state=KeyState.PREPUBLISHED, publish_time=request.publish_time_ns, create_index=WRITE_INDEX
        )
        return _written(snapshot, "key-prepublished", [waiting], waiting)
    fresh = replace(request.key, state=KeyState.ACTIVE, create_index=WRITE_INDEX)
    return _written(snapshot, "keyring-rotated", [fresh, *_stepping_down(snapshot, full=request.full)], fresh)


def activate_prepublished_key(snapshot: Replica, context: DecisionContext) -> Decision[KeyringWriteResult] | None:
    """A key that was published before its time takes over when that has come; None: none is due."""
    waiting = snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.PREPUBLISHED)
    due = [key for key in waiting if key.publish_time <= context.now_ns]
    if not due:
        return None
    chosen = max(due, key=lambda key: (key.publish_time, key.key_id))
    fresh = replace(chosen, state=KeyState.ACTIVE)
    late = [replace(key, state=KeyState.INACTIVE) for key in due if key is not chosen]
    return _written(snapshot, "keyring-rotated", [fresh, *late, *_stepping_down(snapshot, full=False)], fresh)


def is_rotation_due(snapshot: Replica, context: DecisionContext, *, threshold_ns: int) -> bool:
    """Whether the active key is older than a key may become."""
    active = snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.ACTIVE)
    return any(context.now_ns - max(key.create_time, key.publish_time) > threshold_ns for key in active)


def delete_key(snapshot: Replica, key_id: str, *, should_force: bool = False) -> Decision[KeyringWriteResult]:
    """`force`: though something is sealed with it, which nobody can read after that."""
    key = snapshot.get(KEYRING, key_id)
    if key is None:
        raise not_found("root key not found")
    if key.state is KeyState.ACTIVE:
        raise invalid_request("active root key cannot be deleted - call rotate first")
    if not should_force and is_key_in_use(snapshot, key_id):
        raise invalid_request("root key in use, cannot delete")
    write = Write(
        "key-deleted",
        Cause(CauseKind.OPERATOR),
        [KEYRING.build_delete(key_id)],
        [snapshot.build_record_condition(KEYRING, key)],
    )
    return Decision(write, KeyringWriteResult)


def collect_unused_keys(
    snapshot: Replica, context: DecisionContext, *, threshold_ns: int
) -> Decision[KeyringWriteResult] | None:
    """Keys that have not been active for so long and that nothing needs; None: there are none.

    How long ago a key stepped down is not kept; it was in force until its successor was made. Which identities it signed
    is not kept either: most hold as long as their allocations, so it stays while one that is older goes on.
    """
    keys = sorted(snapshot.iter_all(KEYRING), key=lambda key: max(key.create_time, key.publish_time))
    gone = []
    for key, successor in pairwise(keys):
        until_ns = max(successor.create_time, successor.publish_time)
        if key.state not in (KeyState.INACTIVE, KeyState.DEPRECATED) or context.now_ns - until_ns <= threshold_ns:
            continue
        if not is_key_in_use(snapshot, key.key_id) and not _may_have_signed(snapshot, until_ns):
            gone.append(key)
    if not gone:
        return None
    conditions = [snapshot.build_record_condition(KEYRING, key) for key in gone]
    drops: Sequence[DeleteRecord] = [KEYRING.build_delete(key.key_id) for key in gone]
    return Decision(Write("keys-collected", Cause(CauseKind.TIMER, "keyring"), drops, conditions), KeyringWriteResult)


def rewrap_keys(snapshot: Replica, keys: Sequence[KeyringKey]) -> Decision[KeyringWriteResult] | None:
    """The same keys, wrapped by another wrapping key; None: there are none."""
    return _written(snapshot, "keys-wrapped-anew", keys) if keys else None


def is_key_in_use(snapshot: Replica, key_id: str) -> bool:
    return any(snapshot.count_by_index(place.key_index, key_id) for place in SEALED_FIELDS)


def _may_have_signed(snapshot: Replica, until_ns: int) -> bool:
    """Whether somebody lives who may hold an identity that was signed before. Most often the first ones tell."""
    return any(each.create_time < until_ns and not each.is_terminal for each in snapshot.iter_all(ALLOCATIONS))


# -- sealing anew ----------------------------------------------------------------------------------------------------


class SealedField(NamedTuple):
    """A table that holds sealed texts: how one is read from a record, and how another takes its place."""

    table: Table[Any]
    key_index: Index[Any]
    make_context: Callable[[Any], str]
    get_sealed_data: Callable[[Any], SealedData]
    set_sealed_data: Callable[[Any, SealedData], Any]


def make_variable_context(namespace: str, path: str) -> str:
    return f"variable {namespace}\0{path}"


def make_token_context(accessor_id: str) -> str:
    return f"token {accessor_id}"


def make_auth_method_context(name: str) -> str:
    return f"auth method {name}"


def make_response_context(scope: str, key: str) -> str:
    return f"answer {scope}\0{key}"


SEALED_FIELDS: Final = (
    SealedField(
        VARIABLES,
        VARIABLES_BY_SEALING_KEY,
        lambda variable: make_variable_context(variable.namespace, variable.path),
        lambda variable: SealedData(variable.data, variable.key_id),
        lambda variable, sealed: replace(variable, data=sealed.data, key_id=sealed.key_id),
    ),
    SealedField(
        ACL_TOKENS,
        TOKENS_BY_SEALING_KEY,
        lambda token: make_token_context(token.accessor_id),
        lambda token: SealedData(token.secret_sealed, token.sealed_with),
        lambda token, sealed: replace(token, secret_sealed=sealed.data, sealed_with=sealed.key_id),
    ),
    SealedField(
        ACL_AUTH_METHODS,
        AUTH_METHODS_BY_SEALING_KEY,
        lambda method: make_auth_method_context(method.name),
        lambda method: SealedData(method.secrets_sealed, method.sealed_with),
        lambda method, sealed: replace(method, secrets_sealed=sealed.data, sealed_with=sealed.key_id),
    ),
    SealedField(
        IDEMPOTENCY_KEYS,
        IDEMPOTENCY_KEYS_BY_SEALING_KEY,
        lambda kept: make_response_context(kept.scope, kept.key),
        lambda kept: SealedData(kept.answer_sealed, kept.sealed_with),
        lambda kept, sealed: replace(kept, answer_sealed=sealed.data, sealed_with=sealed.key_id),
    ),
)


class ReencryptionItem(NamedTuple):
    """One sealed text that is to be sealed with another key."""

    field: SealedField
    record: Any

    @property
    def context(self) -> str:
        return self.field.make_context(self.record)

    @property
    def sealed_data(self) -> SealedData:
        return self.field.get_sealed_data(self.record)


def list_records_to_reencrypt(snapshot: Replica, *, max_records: int) -> list[ReencryptionItem]:
    """What a key under full rotation still seals. Where a step begins is told by the state: it can be done again."""
    return list(islice(_all_to_seal(snapshot), max_records))


def _all_to_seal(snapshot: Replica) -> Iterator[ReencryptionItem]:
    for key in snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.REKEYING):
        for place in SEALED_FIELDS:
            for record in snapshot.list_by_index(place.key_index, key.key_id):
                yield ReencryptionItem(place, record)


def reencrypt_records(
    snapshot: Replica, step: Sequence[tuple[ReencryptionItem, SealedData]]
) -> Decision[KeyringWriteResult]:
    """One step of a full rotation: these records, each if it is still what it was, with their new sealed texts."""
    if not step:
        return Decision(None, KeyringWriteResult)
    changes: list[PutRecord] = []
    conditions: dict[str, Condition] = {}
    for item, sealed in step:
        changes.append(item.field.table.build_put(item.field.set_sealed_data(item.record, sealed)))
        conditions[f"{item.field.table.name}\0{changes[-1].key}"] = snapshot.build_record_condition(
            item.field.table, item.record
        )
        conditions[sealed.key_id] = snapshot.build_key_condition(KEYRING, sealed.key_id)
    write = Write("sealed-anew", Cause(CauseKind.TIMER, "keyring"), changes, list(conditions.values()))
    return Decision(write, KeyringWriteResult)


def finish_reencryption(snapshot: Replica) -> Decision[KeyringWriteResult] | None:
    """Keys that nothing is sealed with any more are through with their full rotation; None: there are none."""
    done = [
        key
        for key in snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.REKEYING)
        if not is_key_in_use(snapshot, key.key_id)
    ]
    if not done:
        return None
    return _written(snapshot, "sealed-anew", [replace(key, state=KeyState.INACTIVE) for key in done])


def _stepping_down(snapshot: Replica, *, full: bool) -> list[KeyringKey]:
    if not full:
        return [
            replace(key, state=KeyState.INACTIVE)
            for key in snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.ACTIVE)
        ]
    old = (KeyState.ACTIVE, KeyState.INACTIVE, KeyState.DEPRECATED)
    return [replace(key, state=KeyState.REKEYING) for key in snapshot.iter_all(KEYRING) if key.state in old]


def _written(
    snapshot: Replica, kind: str, keys: Sequence[KeyringKey], shown: KeyringKey | None = None
) -> Decision[KeyringWriteResult]:
    changes = [KEYRING.build_put(key) for key in keys]
    conditions = [snapshot.build_key_condition(KEYRING, key.key_id) for key in keys]

    def reply(index: int) -> KeyringWriteResult:
        if shown is None:
            return KeyringWriteResult(index)
        created = index if shown.create_index == WRITE_INDEX else shown.create_index
        return KeyringWriteResult(index, replace(shown, create_index=created, modify_index=index))

    return Decision(Write(kind, Cause(CauseKind.OPERATOR), changes, conditions), reply)
