"""The file with the wrapping keys, which encrypt the keyring. It is created at the first start of a cluster.

The first line is the key that encrypts. Further lines are keys that only decrypt, so that the key can be rotated. The
file is never part of the log, a snapshot or an archive. If it is missing or does not match the log, the server does not
start: a new key could not decrypt the existing keyring.
"""

import base64
import binascii
import os
import stat
from pathlib import Path
from typing import Final

from wharf.agent.errors import CommandError, StartupError
from wharf.agent.folder_access import ROOT_ID, check_writers
from wharf.cluster.server.security.keyring import KEY_BYTES, Keyring, WrappingKey, WrongWrappingKey
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import KEYRING
from wharf.world.durable_file import create_file_once

MAX_KEYRING_FILE_BYTES: Final = 1_000
"""Protects against reading a wrong, large file."""
OTHER_USERS_MODE: Final = stat.S_IRWXG | stat.S_IRWXO


def load_keyring(server: Server, file: Path) -> None:
    """Read the wrapping keys, check them against the replica, and set them on the server.

    Call once the replica is loaded. Raises `StartupError`.
    """
    if not os.path.lexists(file):
        _create_keyring_file(server, file)
    ring = Keyring(server.world, None)
    keys = [WrappingKey(secret, origin=str(file)) for secret in read_wrapping_keys(file)]
    ring.set_wrapping_keys(*keys)
    try:
        ring.check_wrapping_keys(server.replica)
    except WrongWrappingKey as wrong:
        raise StartupError(str(wrong)) from wrong
    server.access.keyring.set_wrapping_keys(*keys)


def _create_keyring_file(server: Server, file: Path) -> None:
    """Create the keyring file. If several processes start at once, one creates it and the others read it.

    Raises `StartupError` if the replica holds keys already, because a new wrapping key could not decrypt them.
    """
    existing_key = next(server.replica.iter_all(KEYRING), None)
    if existing_key is not None:
        raise StartupError(
            f"keyring file {file} is missing, and the log holds keys that it wraps ({existing_key.wrapped_with}): copy the "
            "file from another server or from a backup, or set keyring.file; without it encrypted data cannot be read"
        )
    text = base64.b64encode(server.world.token_bytes(KEY_BYTES)) + b"\n"
    _check_folder(file, user_id=os.geteuid(), accepts_sticky=False)
    try:
        create_file_once(file, text)
    except OSError as error:
        raise StartupError(f"keyring file {file} cannot be written: {error.strerror}") from error


def read_wrapping_keys(file: Path, *, user_id: int | None = None) -> list[bytes]:
    """Return the keys of the file. Raises `StartupError` if it is unreadable or invalid, or others can read or replace it.

    `user_id` is the user of the agent if that is not the user of this process.
    """
    user_id = os.geteuid() if user_id is None else user_id
    # In a sticky folder, others cannot replace the file. Orchestrators of containers mount secrets in such folders.
    _check_folder(file, user_id=user_id, accepts_sticky=True)
    try:
        with open(file, "rb") as reading:
            status = os.fstat(reading.fileno())
            text = reading.read(MAX_KEYRING_FILE_BYTES)
    except OSError as error:
        raise StartupError(f"keyring file {file} cannot be read: {error.strerror}") from error
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (user_id, ROOT_ID):
        raise StartupError(
            f"keyring file {file} belongs to another user (id {status.st_uid}): check its content, and chown {user_id} {file}"
        )
    if mode & OTHER_USERS_MODE:
        raise StartupError(f"keyring file {file} is open to others (mode {mode:04o}): chmod 600 {file}")
    secrets = [_decode_key(line) for line in text.splitlines() if line.strip()] or [b""]
    if any(len(secret) != KEY_BYTES for secret in secrets):
        raise StartupError(
            f"keyring file {file} is invalid: expected keys of {KEY_BYTES} bytes as base64 text, one a line; restore the file, or "
            "set keyring.file"
        )
    return secrets


def _check_folder(file: Path, *, user_id: int, accepts_sticky: bool) -> None:
    """Raise `StartupError` if others can write to the folder of the file."""
    try:
        check_writers(
            file.parent,
            noun="folder of the keyring file",
            setting="keyring.file",
            user_id=user_id,
            accepts_sticky=accepts_sticky,
        )
    except CommandError as error:
        raise StartupError(str(error)) from error


def _decode_key(line: bytes) -> bytes:
    """Return the decoded line, or an empty value if it is not base64."""
    try:
        return base64.b64decode(line.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""
