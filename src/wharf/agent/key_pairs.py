"""Makes RSA keys for the keyring: on a thread, since it takes a tenth of a second and the library lets others run meanwhile."""

import asyncio
from typing import Final

from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

BITS: Final = 2_048
EXPONENT: Final = 65_537


async def make_rsa() -> bytes:
    """A new key, as PKCS #8 without a password: whoever asks wraps it."""
    return await asyncio.to_thread(new_rsa_key)


def new_rsa_key() -> bytes:
    key = generate_private_key(EXPONENT, BITS)
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
