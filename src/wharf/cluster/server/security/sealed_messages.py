"""Letters from one region to another: read by whoever has the box, and by nothing on the way that keeps what passes.

For secrets that no reply may show. Who may ask for one is decided elsewhere.
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
"""Each letter has a key of its own, so a nonce need not differ."""


class SealedMessage(msgspec.Struct, frozen=True):
    """`sender`: the public half of a key that was made for this letter alone."""

    sender: bytes
    sealed: bytes


class MessageRecipient:
    """Made for one question. `address`: what letters to it are sealed for."""

    def __init__(self, world: World) -> None:
        self._key = X25519PrivateKey.from_private_bytes(world.token_bytes(KEY_BYTES))
        self.public_key = self._key.public_key().public_bytes_raw()

    def open(self, letter: SealedMessage, *, context: str) -> bytes:
        """Raises Refusal for a letter that is for somebody else, about something else, or was changed."""
        try:
            secret = self._key.exchange(X25519PublicKey.from_public_bytes(letter.sender))
            return _cipher(secret, self.public_key, letter.sender).decrypt(ZERO_NONCE, letter.sealed, context.encode())
        except (InvalidTag, ValueError):
            raise Refusal(RefusalCode.UNAVAILABLE, f"the letter about {context} cannot be opened") from None


def seal_message(world: World, address: bytes, plain: bytes, *, context: str) -> SealedMessage:
    """Raises Refusal where the address is none."""
    key = X25519PrivateKey.from_private_bytes(world.token_bytes(KEY_BYTES))
    sender = key.public_key().public_bytes_raw()
    try:
        secret = key.exchange(X25519PublicKey.from_public_bytes(address))
    except ValueError:
        raise invalid_request(f"expected an X25519 public key of {KEY_BYTES} bytes") from None
    return SealedMessage(sender, _cipher(secret, address, sender).encrypt(ZERO_NONCE, plain, context.encode()))


def _cipher(secret: bytes, address: bytes, sender: bytes) -> AESGCM:
    derived = HKDF(SHA256(), KEY_BYTES, salt=None, info=b"wharf letter" + address + sender)
    return AESGCM(derived.derive(secret))
