"""The file with the key that wraps the keyring: read, or made at the first start of a cluster, for its owner only.

The first line is the key that wraps; more lines are keys that may have wrapped before, or will: so the key can be changed.

It is never in the log, a snapshot or an archive. Where it is missing or another than the log's, a person must be told:
a new one would not help, because what is sealed would stay closed.
"""

import base64
import binascii
import os
import stat
from pathlib import Path
from typing import Final

from wharf.agent.errors import StartupError
from wharf.cluster.server.security.keyring import KEY_BYTES, Keyring, WrappingKey, WrongWrappingKey
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import KEYRING

MAX_KEYRING_FILE_BYTES: Final = 1_000
OTHER_USERS_MODE: Final = stat.S_IRWXG | stat.S_IRWXO


def load_keyring(server: Server, file: Path) -> None:
    """Give the server its wrapping key. Call when the replica is loaded. Raises StartupError."""
    if not file.exists():
        _make_first(server, file)
    ring = Keyring(server.world, None)
    keys = [WrappingKey(secret, origin=str(file)) for secret in _read(file)]
    ring.set_wrapping_keys(*keys)
    try:
        ring.check_wrapping_keys(server.replica)
    except WrongWrappingKey as wrong:
        raise StartupError(str(wrong)) from wrong
    server.access.keyring.set_wrapping_keys(*keys)


def _make_first(server: Server, file: Path) -> None:
    """Of several processes that start at once, one makes it; the others read what it made."""
    known = next(server.replica.iter_all(KEYRING), None)
    if known is not None:
        raise StartupError(
            f"the key of the keyring, {file}, is missing, and the log holds keys that it wraps ({known.wrapped_with}): "
            "copy it from another server or from where it was saved, or set keyring.file; without it nothing that is "
            "sealed can be read"
        )
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    text = base64.b64encode(server.world.token_bytes(KEY_BYTES)) + b"\n"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as writing:
            writing.write(text)
            writing.flush()
            os.fsync(writing.fileno())
        try:
            os.link(draft, file)  # Only where there is none yet.
        except FileExistsError:
            return
        finally:
            draft.unlink()
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StartupError(f"the key of the keyring cannot be written to {file}: {error.strerror}") from error


def _read(file: Path) -> list[bytes]:
    try:
        with open(file, "rb") as reading:
            mode = stat.S_IMODE(os.fstat(reading.fileno()).st_mode)
            text = reading.read(MAX_KEYRING_FILE_BYTES)
    except OSError as error:
        raise StartupError(f"the key of the keyring, {file}, cannot be read: {error.strerror}") from error
    if mode & OTHER_USERS_MODE:
        raise StartupError(f"the key of the keyring, {file}, is open to others (mode {mode:04o}): chmod 600 {file}")
    secrets = [_decoded(line) for line in text.splitlines() if line.strip()] or [b""]
    if any(len(secret) != KEY_BYTES for secret in secrets):
        raise StartupError(
            f"the key of the keyring, {file}, is none: it holds {KEY_BYTES} bytes as base64 text, one key a line; put the "
            "right file back, or set keyring.file"
        )
    return secrets


def _decoded(line: bytes) -> bytes:
    try:
        return base64.b64decode(line.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""
