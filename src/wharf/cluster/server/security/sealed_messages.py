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
    """An encrypted message. `sender`: the public half of a key that was created for this message."""

    sender: bytes
    sealed: bytes


class MessageRecipient:
    """The recipient of one sealed message. `public_key`: what to seal the message for."""

    def __init__(self, world: World) -> None:
        self._key = X25519PrivateKey.from_private_bytes(world.token_bytes(KEY_BYTES))
        self.public_key = self._key.public_key().public_bytes_raw()

    def open(self, message: SealedMessage, *, context: str) -> bytes:
        """Decrypt a message. Raises `Refusal` if it is for another recipient or context, or was changed."""
        try:
            secret = self._key.exchange(X25519PublicKey.from_public_bytes(message.sender))
            return _cipher(secret, self.public_key, message.sender).decrypt(
                ZERO_NONCE, message.sealed, context.encode()
            )
        except (InvalidTag, ValueError):
            raise Refusal(RefusalCode.UNAVAILABLE, f"cannot open the sealed message for {context}") from None


def seal_message(world: World, address: bytes, plain: bytes, *, context: str) -> SealedMessage:
    """Encrypt a message for the public key `address`. Raises `Refusal` if that is not a valid key."""
    key = X25519PrivateKey.from_private_bytes(world.token_bytes(KEY_BYTES))
    sender = key.public_key().public_bytes_raw()
    try:
        secret = key.exchange(X25519PublicKey.from_public_bytes(address))
    except ValueError:
        raise invalid_request(f"expected an X25519 public key of {KEY_BYTES} bytes") from None
    return SealedMessage(sender, _cipher(secret, address, sender).encrypt(ZERO_NONCE, plain, context.encode()))


def _cipher(secret: bytes, address: bytes, sender: bytes) -> AESGCM:
    """Derive the key of one message."""
    derived = HKDF(SHA256(), KEY_BYTES, salt=None, info=b"wharf letter" + address + sender)
    return AESGCM(derived.derive(secret))
