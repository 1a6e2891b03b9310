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

from wharf.model.refusal import Code, Refusal, invalid
from wharf.world import World

KEY_BYTES: Final = 32
NONCE: Final = bytes(12)
"""Each letter has a key of its own, so a nonce need not differ."""


class Letter(msgspec.Struct, frozen=True):
    """`sender`: the public half of a key that was made for this letter alone."""

    sender: bytes
    sealed: bytes


class LetterBox:
    """Made for one question. `address`: what letters to it are sealed for."""

    def __init__(self, world: World) -> None:
        self._key = X25519PrivateKey.from_private_bytes(world.token_bytes(KEY_BYTES))
        self.address = self._key.public_key().public_bytes_raw()

    def open(self, letter: Letter, *, about: str) -> bytes:
        """Raises Refusal for a letter that is for somebody else, about something else, or was changed."""
        try:
            secret = self._key.exchange(X25519PublicKey.from_public_bytes(letter.sender))
            return _cipher(secret, self.address, letter.sender).decrypt(NONCE, letter.sealed, about.encode())
        except (InvalidTag, ValueError):
            raise Refusal(Code.UNAVAILABLE, f"the letter about {about} cannot be opened") from None


def write_letter(world: World, address: bytes, plain: bytes, *, about: str) -> Letter:
    """Raises Refusal where the address is none."""
    key = X25519PrivateKey.from_private_bytes(world.token_bytes(KEY_BYTES))
    sender = key.public_key().public_bytes_raw()
    try:
        secret = key.exchange(X25519PublicKey.from_public_bytes(address))
    except ValueError:
        raise invalid(f"expected an X25519 public key of {KEY_BYTES} bytes") from None
    return Letter(sender, _cipher(secret, address, sender).encrypt(NONCE, plain, about.encode()))


def _cipher(secret: bytes, address: bytes, sender: bytes) -> AESGCM:
    derived = HKDF(SHA256(), KEY_BYTES, salt=None, info=b"wharf letter" + address + sender)
    return AESGCM(derived.derive(secret))
