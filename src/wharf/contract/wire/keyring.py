"""Endpoints of the keys that secrets are sealed with."""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.cluster import KeyringKey
from wharf.contract.model.record import Record
from wharf.contract.wire.endpoint import Endpoint, ListFeatures, define_leader_write, define_read, define_write, text


class KeyView(Record):
    """A key of the ring, without the key itself."""

    key_id: str
    algorithm: str = ""
    create_time: int = 0
    create_index: int = 0
    modify_index: int = 0
    state: str = ""
    publish_time: int = 0


class KeyRotationReply(Record):
    key: KeyView
    index: int = 0


class KeyDeletionReply(Record):
    index: int = 0


KEY_LIST: Final = ListFeatures(
    record=KeyringKey, hidden_fields=frozenset({"Wrapped", "WrappedWith"}), can_filter=False, has_pages=False, can_reverse=False,
    has_prefix=False,
)  # fmt: skip

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "keyring.list", "/v1/operator/keyring/keys", need=permissions.READ_KEYRING, manner=permissions.DenialDetail.AGENT_SHORT,
        summary="List the keys of the ring, without the keys themselves.", list_features=KEY_LIST, reply_type=list[KeyView],
    ),
    define_leader_write(
        "keyring.rotate", "/v1/operator/keyring/rotate", need=permissions.ROTATE_KEYRING, manner=permissions.DenialDetail.AGENT_SHORT,
        summary="Put a new key in force.", reply_type=KeyRotationReply,
        parameters=(
            text("algo", "The algorithm; there is one, and others are passed over."),
            text("full", "Given: seal everything anew, and let the old keys go."),
            text("publish_time", "When the key is to be in force, in nanoseconds since 1970."),
        ),
    ),
    define_write(
        "keyring.delete", "/v1/operator/keyring/key/{key_id}", method="DELETE", need=permissions.DELETE_KEY,
        manner=permissions.DenialDetail.AGENT_SHORT, summary="Delete a key that is not in force.", reply_type=KeyDeletionReply,
        parameters=(text("force", "Though something is sealed with it, which nobody can read after that."),),
    ),
)  # fmt: skip
