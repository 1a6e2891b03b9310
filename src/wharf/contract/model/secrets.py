"""How a secret is told apart without being kept, and the form in which it is kept where it must be."""

import hashlib
import hmac

import msgspec


def hash_secret(secret: str) -> str:
    """SHA-256 in hex; nothing for no secret, which matches nothing."""
    return hashlib.sha256(secret.encode()).hexdigest() if secret else ""


def make_migrate_token(allocation_id: str, node_secret_digest: str) -> str:
    """Shows that its bearer may read what this allocation has left on its node; nothing where the node has no secret."""
    if not node_secret_digest:
        return ""
    return hmac.new(node_secret_digest.encode(), f"migrate {allocation_id}".encode(), hashlib.sha256).hexdigest()


class SealedData(msgspec.Struct, frozen=True):
    """A text that only the keyring can read, and the key of the ring that it needs for that."""

    data: bytes
    key_id: str


class NewSecret(msgspec.Struct, frozen=True):
    """The secret of a token that is about to be written: how it is found, and how it is kept."""

    digest: str
    sealed: SealedData
