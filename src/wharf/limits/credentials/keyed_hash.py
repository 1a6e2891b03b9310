"""The keyed hash of credentials, and the file with its secret key."""

import hashlib
import hmac
import os
from pathlib import Path
from typing import Final

from wharf.world import World
from wharf.world.durable_file import create_file_once

KEY_FILE: Final = "credential.key"
KEY_BYTES: Final = 32
MIN_KEY_BYTES: Final = 32
"""Shorter keys could be guessed, and with them the passwords behind stored hashes."""
MAX_KEY_BYTES: Final = 4_096
"""The longest key file that is read; limits memory."""
HASH_BYTES: Final = 16
"""Two of a billion credentials have the same hash of this length with a probability of 10^-21."""


class UnusableKey(Exception):
    """The key file cannot be used. The text gives the reason and what to do."""


class KeyedHash:
    """Hashes credentials with a secret key, so that stored hashes reveal neither tokens nor passwords."""

    def __init__(self, key: bytes) -> None:
        self._start = hmac.new(key, digestmod=hashlib.sha256)

    def hash(self, secret: str) -> str:
        """Return the hash of a credential, as 32 hexadecimal digits."""
        state = self._start.copy()
        state.update(secret.encode("utf-8", "surrogateescape"))
        return state.digest()[:HASH_BYTES].hex()


def read_key(path: Path) -> bytes:
    """Return the key in a file. Raises `UnusableKey` if it cannot be read, is too short, or others can access it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(MAX_KEY_BYTES).strip()
    except OSError as problem:
        raise UnusableKey(f"{path} cannot be read: {problem.strerror}") from None
    if mode & 0o077:
        raise UnusableKey(f"other users can access {path}: run chmod 600 {path}")
    if len(key) < MIN_KEY_BYTES:
        raise UnusableKey(
            f"{path} has {len(key)} bytes: write at least {MIN_KEY_BYTES}, such as with openssl rand -hex 32 > {path}"
        )
    return key


def load_key(path: Path | None, folder: Path, world: World) -> bytes:
    """Return the configured key; without `path`, that in the data folder, which is created if it does not exist.

    Raises `UnusableKey`.
    """
    if path is not None:
        return read_key(path)
    file = folder / KEY_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            create_file_once(file, world.token_bytes(KEY_BYTES).hex().encode() + b"\n")
    except OSError as problem:
        raise UnusableKey(f"{file} cannot be written: {problem.strerror}") from None
    return read_key(file)
