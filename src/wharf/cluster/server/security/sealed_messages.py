"""Sealed messages between regions: encrypted for one recipient, so that no server or proxy in between can read them.

Used for secrets that no normal reply may contain. Callers decide who may request one.
"""

from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.world import World

KEY_BYTES: Final = 32
ZERO_NONCE: Final = bytes(12)
"""Each message has its own key, so the nonce need not differ."""


class SealedMessage(msgspec.Struct, frozen=True):
    """A message that is encrypted for one recipient."""

    sender: bytes
    """The public half of a key that was created for this message."""
    sealed: bytes
    """The encrypted content."""


class MessageRecipient:
    """Receives one sealed message. `public_key`: the key for which the sender must encrypt it."""

    def __init__(self, world: World) -> None:
        self._key = X25519PrivateKey.from_private_bytes(world.token_bytes(KEY_BYTES))
        self.public_key = self._key.public_key().public_bytes_raw()

    def open(self, message: SealedMessage, *, context: str) -> bytes:
        """Return the content of a message.

        Raises `Refusal` if it is for another recipient or context, or was changed.
        """
        try:
            secret = self._key.exchange(X25519PublicKey.from_public_bytes(message.sender))
            return _cipher(secret, self.public_key, message.sender).decrypt(
                ZERO_NONCE, message.sealed, context.encode()
            )
        except (InvalidTag, ValueError):
            raise Refusal(RefusalCode.UNAVAILABLE, f"cannot open the sealed message for {context}") from None


def seal_message(world: World, recipient_key: bytes, plain: bytes, *, context: str) -> SealedMessage:
    """Return `plain` encrypted for the public key `recipient_key`. Raises `Refusal` if that is not a valid key.

    The recipient can decrypt it only with the same `context`.
    """
    key = X25519PrivateKey.from_private_bytes(world.token_bytes(KEY_BYTES))
    sender = key.public_key().public_bytes_raw()
    try:
        secret = key.exchange(X25519PublicKey.from_public_bytes(recipient_key))
    except ValueError:
        raise invalid_request(f"expected an X25519 public key of {KEY_BYTES} bytes") from None
    return SealedMessage(sender, _cipher(secret, recipient_key, sender).encrypt(ZERO_NONCE, plain, context.encode()))


def _cipher(secret: bytes, recipient_key: bytes, sender: bytes) -> AESGCM:
    """Return the cipher of one message, derived from the shared secret and both public keys."""
    derived = HKDF(SHA256(), KEY_BYTES, salt=None, info=b"wharf letter" + recipient_key + sender)
    return AESGCM(derived.derive(secret))
