"""Endpoints and messages of the keyring, whose keys encrypt secrets and sign identities."""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.cluster import KeyringKey
from wharf.contract.model.record import Record
from wharf.contract.wire.endpoint import Endpoint, ListFeatures, define_leader_write, define_read, define_write, text


class KeyView(Record):
    """A keyring key, without the secret key material."""

    key_id: str
    algorithm: str = ""
    create_time: int = 0  # In ns since 1970.
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.
    state: str = ""  # Such as `active` or `inactive`.
    publish_time: int = 0  # When a prepublished key becomes active, in ns since 1970; 0: not set.


class KeyRotationReply(Record):
    """The new key of the keyring."""

    key: KeyView
    index: int = 0  # Log index of the write.


class KeyDeletionReply(Record):
    """The reply to a deletion of a key."""

    index: int = 0  # Log index of the write.


KEY_LIST: Final = ListFeatures(
    record=KeyringKey, hidden_fields=frozenset({"Wrapped", "WrappedWith"}), can_filter=False, has_pages=False, can_reverse=False,
    has_prefix=False,
)  # fmt: skip

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "keyring.list", "/v1/operator/keyring/keys", need=permissions.READ_KEYRING, denial_detail=permissions.DenialDetail.AGENT_SHORT,
        summary="List the keys of the keyring, without the key material.", list_features=KEY_LIST, reply_type=list[KeyView],
    ),
    define_leader_write(
        "keyring.rotate", "/v1/operator/keyring/rotate", need=permissions.ROTATE_KEYRING, denial_detail=permissions.DenialDetail.AGENT_SHORT,
        summary="Create a new key and activate it.", reply_type=KeyRotationReply,
        parameters=(
            text("algo", "The algorithm; ignored, because only one is supported."),
            text("full", "If present, re-encrypt everything with the new key and retire the old keys."),
            text("publish_time", "When to activate the key, in nanoseconds since 1970."),
        ),
    ),
    define_write(
        "keyring.delete", "/v1/operator/keyring/key/{key_id}", method="DELETE", need=permissions.DELETE_KEY,
        denial_detail=permissions.DenialDetail.AGENT_SHORT, summary="Delete an inactive key.", reply_type=KeyDeletionReply,
        parameters=(text("force", "Delete the key even if data is encrypted with it; that data becomes unreadable."),),
    ),
)  # fmt: skip
