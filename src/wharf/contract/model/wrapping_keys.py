"""The text form of wrapping keys: 32 random bytes as base64, one key a line or separated by spaces or commas.

The file of the keyring and the setting `keyring.secret` have the same form, so the content of one can be used as the other.
"""

import base64
import binascii
import re
from typing import Final

KEY_BYTES: Final = 32
MAX_WRAPPING_KEYS: Final = 16
"""Limits the work of each unwrapping. A rotation needs two."""
_SEPARATOR: Final = re.compile(r"[\s,]+")


def encode_wrapping_key(secret: bytes) -> str:
    """Return the text of a key."""
    return base64.b64encode(secret).decode()


def decode_wrapping_keys(text: str) -> list[bytes]:
    """Return the keys of a text, which has at least one. Raises `ValueError` if it has none, too many or an invalid one."""
    words = [word for word in _SEPARATOR.split(text) if word]
    try:
        keys = [base64.b64decode(word, validate=True) for word in words]
    except (binascii.Error, ValueError):
        keys = []  # The error of the decoder says nothing that helps, and must not quote the text.
    if not 1 <= len(keys) <= MAX_WRAPPING_KEYS or any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"expected 1 to {MAX_WRAPPING_KEYS} keys of {KEY_BYTES} bytes as base64 text")
    return keys
