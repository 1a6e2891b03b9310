"""Endpoints of the keys that secrets are sealed with."""

from typing import Final

from wharf.model import need
from wharf.model.cluster import KeyringKey
from wharf.wire import access as shapes
from wharf.wire.endpoints.endpoint import Endpoint, Lists, asks, reads, text, writes

KEYS: Final = Lists(
    record=KeyringKey, hidden=frozenset({"Wrapped", "WrappedWith"}), filters=False, pages=False, reverses=False,
    prefix=False,
)  # fmt: skip

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "keyring.list", "/v1/operator/keyring/keys", need=need.READ_KEYRING, manner=need.Manner.AGENT_SHORT,
        summary="List the keys of the ring, without the keys themselves.", lists=KEYS, returns=list[shapes.KeyShown],
    ),
    asks(
        "keyring.rotate", "/v1/operator/keyring/rotate", need=need.ROTATE_KEYRING, manner=need.Manner.AGENT_SHORT,
        summary="Put a new key in force.", returns=shapes.KeyRotated,
        parameters=(
            text("algo", "The algorithm; there is one, and others are passed over."),
            text("full", "Given: seal everything anew, and let the old keys go."),
            text("publish_time", "When the key is to be in force, in nanoseconds since 1970."),
        ),
    ),
    writes(
        "keyring.delete", "/v1/operator/keyring/key/{key_id}", method="DELETE", need=need.DELETE_KEY,
        manner=need.Manner.AGENT_SHORT, summary="Delete a key that is not in force.", returns=shapes.KeyDeleted,
        parameters=(text("force", "Though something is sealed with it, which nobody can read after that."),),
    ),
)  # fmt: skip
