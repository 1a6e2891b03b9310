"""Hashes and encrypted forms of secrets, and migration tokens. The keyring that encrypts and decrypts is elsewhere."""

import hashlib
import hmac

import msgspec


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret in hex.

    The result for an empty secret is empty, so that it matches no stored secret.
    """
    return hashlib.sha256(secret.encode()).hexdigest() if secret else ""


def make_migrate_token(allocation_id: str, node_secret_digest: str) -> str:
    """Return the token with which another node may read the data of an allocation on its node.

    The token is empty if the node has no secret. `node_secret_digest` is that of the node with the data.
    """
    if not node_secret_digest:
        return ""
    return hmac.new(node_secret_digest.encode(), f"migrate {allocation_id}".encode(), hashlib.sha256).hexdigest()


class SealedData(msgspec.Struct, frozen=True):
    """Encrypted data with the ID of its key."""

    data: bytes
    key_id: str  # The keyring key that decrypts it.


class NewSecret(msgspec.Struct, frozen=True):
    """The secret of a token that is about to be stored, in the two forms in which it is stored."""

    digest: str  # SHA-256 in hex, to find the token.
    sealed: SealedData  # The encrypted secret.
