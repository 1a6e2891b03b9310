"""Hashes and encrypted forms of secrets, and migration tokens. The keyring that encrypts and decrypts is elsewhere."""

import hashlib
import hmac

import msgspec


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of the secret in hex. An empty secret has an empty hash, which matches nothing."""
    return hashlib.sha256(secret.encode()).hexdigest() if secret else ""


def make_migrate_token(allocation_id: str, node_secret_digest: str) -> str:
    """Return the token that grants read access to the allocation's data on its node; empty if the node has no secret."""
    if not node_secret_digest:
        return ""
    return hmac.new(node_secret_digest.encode(), f"migrate {allocation_id}".encode(), hashlib.sha256).hexdigest()


class SealedData(msgspec.Struct, frozen=True):
    """Encrypted data, and the ID of the keyring key that decrypts it."""

    data: bytes
    key_id: str


class NewSecret(msgspec.Struct, frozen=True):
    """The secret of a token that is about to be written: its digest for lookups, and its encrypted form."""

    digest: str
    sealed: SealedData
