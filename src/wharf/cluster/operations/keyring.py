"""Encryption keys of the keyring: rotate, activate, delete and collect them, and re-encrypt data (reference 4.3).

New keys arrive wrapped and data arrives encrypted: this module can read neither. One key is active at any time. A
write that contains data encrypted with it has the key's record as a condition, so that the key cannot be deleted
meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, set_written_index
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
from wharf.contract.model.times import DecisionContext, has_passed


class KeyringWriteResult(msgspec.Struct, frozen=True):
    """The result of a request that changes the keyring."""

    index: int  # The log index of the write.
    key: KeyringKey | None = None  # The key that became active or was added, if any.


class KeyRotationRequest(msgspec.Struct, frozen=True):
    """A request to add a new key to the keyring."""

    key: KeyringKey  # The new key, wrapped (encrypted with a key of the servers).
    full: bool = False  # Re-encrypt all data that is encrypted with older keys.
    publish_time_ns: int = 0  # If above 0, the key becomes active at this time, in Unix nanoseconds.
    only_first: bool = False  # Change nothing if a key is already active.


def rotate_key(snapshot: Replica, request: KeyRotationRequest) -> Decision[KeyringWriteResult]:
    """Return the decision that makes the new key active, or stores it as prepublished if it has a publish time.

    With `full`, older keys get a state in which all data encrypted with them is re-encrypted later. Raises if a request
    has both.
    """
    if request.full and request.publish_time_ns:
        raise invalid_request("keyring cannot be prepublished and full rotated at the same time")
    active = snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.ACTIVE)
    if request.only_first and active:
        return Decision(None, lambda index: KeyringWriteResult(index, active[0]))
    if request.publish_time_ns:
        prepublished = replace(
            request.key, state=KeyState.PREPUBLISHED, publish_time=request.publish_time_ns, create_index=WRITE_INDEX
        )
        return _build_key_decision(snapshot, "key-prepublished", [prepublished], prepublished)
    new_active = replace(request.key, state=KeyState.ACTIVE, create_index=WRITE_INDEX)
    return _build_key_decision(
        snapshot, "keyring-rotated", [new_active, *_retire_keys(snapshot, full=request.full)], new_active
    )


def activate_prepublished_key(snapshot: Replica, context: DecisionContext) -> Decision[KeyringWriteResult] | None:
    """Return the decision that makes the prepublished key active whose publish time has come, or `None`.

    If several are due, the one with the latest publish time becomes active, and the others become inactive.
    """
    prepublished = snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.PREPUBLISHED)
    due = [key for key in prepublished if key.publish_time <= context.now_ns]
    if not due:
        return None
    chosen = max(due, key=lambda key: (key.publish_time, key.key_id))
    new_active = replace(chosen, state=KeyState.ACTIVE)
    superseded = [replace(key, state=KeyState.INACTIVE) for key in due if key is not chosen]
    return _build_key_decision(
        snapshot, "keyring-rotated", [new_active, *superseded, *_retire_keys(snapshot, full=False)], new_active
    )


def is_rotation_due(snapshot: Replica, context: DecisionContext, *, threshold_ns: int) -> bool:
    """Return whether the active key is older than `threshold_ns`."""
    active = snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.ACTIVE)
    return any(
        has_passed(max(key.create_time, key.publish_time) + threshold_ns, threshold_ns, context.now_ns)
        for key in active
    )


def delete_key(snapshot: Replica, key_id: str, *, should_force: bool = False) -> Decision[KeyringWriteResult]:
    """Return the decision that deletes a key.

    Raises if the key is active, or if data is encrypted with it, unless `should_force`.

    Data encrypted with a key that was deleted by `should_force` can no longer be read.
    """
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
    """Return the decision that deletes keys that were replaced more than `threshold_ns` ago and are not in use, or
    `None`.

    The time of replacement is not stored: it is the creation time of the next key. Which identities a key signed is not
    stored either, and most identities live as long as their allocation; so a key stays while an older allocation is
    active.
    """
    keys = sorted(snapshot.iter_all(KEYRING), key=lambda key: max(key.create_time, key.publish_time))
    unused = []
    for key, successor in pairwise(keys):
        replaced_at_ns = max(successor.create_time, successor.publish_time)
        if key.state not in (KeyState.INACTIVE, KeyState.DEPRECATED) or context.now_ns - replaced_at_ns <= threshold_ns:
            continue
        if not is_key_in_use(snapshot, key.key_id) and not _has_older_allocation(snapshot, replaced_at_ns):
            unused.append(key)
    if not unused:
        return None
    conditions = [snapshot.build_record_condition(KEYRING, key) for key in unused]
    deletions: Sequence[DeleteRecord] = [KEYRING.build_delete(key.key_id) for key in unused]
    return Decision(
        Write("keys-collected", Cause(CauseKind.TIMER, "keyring"), deletions, conditions), KeyringWriteResult
    )


def rewrap_keys(snapshot: Replica, keys: Sequence[KeyringKey]) -> Decision[KeyringWriteResult] | None:
    """Return the decision that stores these keys, which the caller has wrapped with another wrapping key, or `None`
    without keys.
    """
    return _build_key_decision(snapshot, "keys-wrapped-anew", keys) if keys else None


def is_key_in_use(snapshot: Replica, key_id: str) -> bool:
    """Return whether any stored data is encrypted with this key."""
    return any(snapshot.count_by_index(sealed_field.key_index, key_id) for sealed_field in SEALED_FIELDS)


def _has_older_allocation(snapshot: Replica, signed_before_ns: int) -> bool:
    """Return whether an active allocation was created before this time, so that it may hold an identity signed before
    it.
    """
    return any(
        allocation.create_time < signed_before_ns and not allocation.is_terminal
        for allocation in snapshot.iter_all(ALLOCATIONS)
    )


# -- re-encryption ----------------------------------------------------------------------------------------------------


class SealedField(NamedTuple):
    """An encrypted field of a table: how to find its records, read it and replace it."""

    table: Table[Any]  # The table whose records have the field.
    key_index: Index[Any]  # Finds the records that are encrypted with a given key of the keyring.
    make_context: Callable[[Any], str]  # Returns the text that binds the encrypted data to its record.
    get_sealed_data: Callable[[Any], SealedData]  # Returns the encrypted data of a record.
    set_sealed_data: Callable[[Any, SealedData], Any]  # Returns the record with other encrypted data.


def make_variable_context(namespace: str, path: str) -> str:
    """Return the encryption context of a variable. It binds the encrypted data to its record."""
    return f"variable {namespace}\0{path}"


def make_token_context(accessor_id: str) -> str:
    """Return the encryption context of a token's secret, which binds the encrypted secret to its record."""
    return f"token {accessor_id}"


def make_auth_method_context(name: str) -> str:
    """Return the encryption context of an auth method's secrets, which binds them to their record."""
    return f"auth method {name}"


def make_response_context(scope: str, key: str) -> str:
    """Return the encryption context of the recorded response to a request with an idempotency key.

    It binds the encrypted response to its record.
    """
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
        lambda record: make_response_context(record.scope, record.key),
        lambda record: SealedData(record.answer_sealed, record.sealed_with),
        lambda record, sealed: replace(record, answer_sealed=sealed.data, sealed_with=sealed.key_id),
    ),
)
"""All encrypted fields of the stored tables."""


class ReencryptionItem(NamedTuple):
    """One encrypted field of one record that must be re-encrypted with another key."""

    field: SealedField
    record: Any

    @property
    def context(self) -> str:
        """The text that binds the encrypted data to its record."""
        return self.field.make_context(self.record)

    @property
    def sealed_data(self) -> SealedData:
        """The encrypted data as stored."""
        return self.field.get_sealed_data(self.record)


def list_records_to_reencrypt(snapshot: Replica, *, max_records: int) -> list[ReencryptionItem]:
    """Return up to `max_records` encrypted fields of records whose key was replaced by a full rotation.

    The list is derived from the stored records, so a step can be repeated after a failure.
    """
    return list(islice(_iter_fields_to_reencrypt(snapshot), max_records))


def _iter_fields_to_reencrypt(snapshot: Replica) -> Iterator[ReencryptionItem]:
    """Yield all encrypted fields of records whose key was replaced by a full rotation."""
    for key in snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.REKEYING):
        for sealed_field in SEALED_FIELDS:
            for record in snapshot.list_by_index(sealed_field.key_index, key.key_id):
                yield ReencryptionItem(sealed_field, record)


def reencrypt_records(
    snapshot: Replica, step: Sequence[tuple[ReencryptionItem, SealedData]]
) -> Decision[KeyringWriteResult]:
    """Return the decision that stores new encrypted data in these records: one step of a full rotation.

    It conflicts if one of the records changed meanwhile. `step` has pairs of a field and its new data.
    """
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
    """Return the decision that marks keys as inactive after a full rotation, or `None`.

    It marks the keys in the state rekeying with which no data is encrypted any more.
    """
    done = [
        key
        for key in snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.REKEYING)
        if not is_key_in_use(snapshot, key.key_id)
    ]
    if not done:
        return None
    return _build_key_decision(snapshot, "sealed-anew", [replace(key, state=KeyState.INACTIVE) for key in done])


def _retire_keys(snapshot: Replica, *, full: bool) -> list[KeyringKey]:
    """Return the older keys in the state that they have after a rotation.

    After a full rotation all older keys are in the state rekeying, which means that their data must still be
    re-encrypted. Otherwise the active key becomes inactive.
    """
    if not full:
        return [
            replace(key, state=KeyState.INACTIVE)
            for key in snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.ACTIVE)
        ]
    old = (KeyState.ACTIVE, KeyState.INACTIVE, KeyState.DEPRECATED)
    return [replace(key, state=KeyState.REKEYING) for key in snapshot.iter_all(KEYRING) if key.state in old]


def _build_key_decision(
    snapshot: Replica, write_kind: str, keys: Sequence[KeyringKey], reply_key: KeyringKey | None = None
) -> Decision[KeyringWriteResult]:
    """Return the decision that stores these keys. The reply contains `reply_key`, if given."""
    changes = [KEYRING.build_put(key) for key in keys]
    conditions = [snapshot.build_key_condition(KEYRING, key.key_id) for key in keys]

    def reply(index: int) -> KeyringWriteResult:
        """Return the reply for the log index of the write."""
        if reply_key is None:
            return KeyringWriteResult(index)
        return KeyringWriteResult(index, set_written_index(reply_key, index))

    return Decision(Write(write_kind, Cause(CauseKind.OPERATOR), changes, conditions), reply)
