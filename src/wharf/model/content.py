"""The digest of what somebody wrote into a record, for the wire's `Hash` and to tell a real change from none."""

import hashlib
from typing import Final

import msgspec

# What servers add to a record, and the digest itself: none of it is what somebody wrote.
_NOT_WRITTEN: Final = frozenset(
    {
        "hash",
        "create_index",
        "modify_index",
        "create_time",
        "modify_time",
        "secret_digest",
        "secret_sealed",
        "secrets_sealed",
        "sealed_with",
    }
)


def content_hash(record: msgspec.Struct) -> bytes:
    """The same for two records with the same content, whenever and wherever they were written."""
    written = {name: getattr(record, name) for name in record.__struct_fields__ if name not in _NOT_WRITTEN}
    return hashlib.sha256(msgspec.json.encode(written, order="deterministic")).digest()
