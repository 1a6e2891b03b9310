"""The wrapping keys, which encrypt the keyring: a file, created at the first start of a cluster, or a setting.

The first line is the key that encrypts. Further lines are keys that only decrypt, so that the key can be rotated. The
file is never part of the log, a snapshot or an archive. If it is missing or does not match the log, the server does not
start: a new key could not decrypt the existing keyring. With `keyring.secret`, no file is read or created.
"""

import os
import stat
from pathlib import Path
from typing import Final

from wharf.agent.errors import CommandError, StartupError
from wharf.agent.folder_access import ROOT_ID, check_writers
from wharf.cluster.server.security.keyring import Keyring, WrappingKey, WrongWrappingKey
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import KEYRING
from wharf.contract.model.settings import SecretText
from wharf.contract.model.wrapping_keys import KEY_BYTES, decode_wrapping_keys, encode_wrapping_key
from wharf.world.durable_file import create_file_once

MAX_KEYRING_FILE_BYTES: Final = 1_000
"""Protects against reading a wrong, large file."""
NO_SECRET: Final = SecretText()
OTHER_USERS_MODE: Final = stat.S_IRWXG | stat.S_IRWXO


def load_keyring(server: Server, file: Path, secret: SecretText = NO_SECRET) -> None:
    """Read the wrapping keys, check them against the replica, and set them on the server.

    If `secret` is not empty, it is the text of the keys, and the file is not used. Call once the replica is loaded. Raises
    `StartupError`.
    """
    if secret:
        keys = [WrappingKey(key, origin="keyring.secret") for key in decode_wrapping_keys(secret.reveal())]
    else:
        if not os.path.lexists(file):
            _create_keyring_file(server, file)
        keys = [WrappingKey(key, origin=str(file)) for key in read_wrapping_keys(file)]
    ring = Keyring(server.world, None)
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
            "file from another server or from a backup, or set keyring.file or keyring.secret; without the key encrypted data "
            "cannot be read"
        )
    text = encode_wrapping_key(server.world.token_bytes(KEY_BYTES)).encode() + b"\n"
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
    try:
        return decode_wrapping_keys(text.decode("utf-8", "replace"))
    except ValueError as error:
        raise StartupError(f"keyring file {file} is invalid: {error}; restore the file, or set keyring.file") from None


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
