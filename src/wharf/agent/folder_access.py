"""Checks that no other user can write to the folders and files of an agent.

Who can write to the data folder can become management, and who can write to a node's folders can run commands as its user.
"""

import contextlib
import grp
import os
import pwd
import stat
from pathlib import Path
from typing import Final

from wharf.agent.errors import CommandError

ROOT_ID: Final = 0
"""The ids of the user root and of its group. Root can write everywhere, so it needs no permission."""


def check_access(folder: Path, *, noun: str, setting: str, user_id: int, accepts_root: bool) -> None:
    """Raise `CommandError` if the folder exists, and belongs to another user or others can write to it.

    `setting` selects the folder. `accepts_root`: it may belong to root.
    """
    status = _read_status(folder)
    if status is not None and status.st_uid != user_id and not (accepts_root and status.st_uid == ROOT_ID):
        name = _name_user(status.st_uid)
        raise CommandError(
            f"the {noun} {folder} belongs to the user {name}: run as {name}, or choose another folder with {setting}"
        )
    check_writers(folder, noun=noun, setting=setting, user_id=user_id)


def check_writers(folder: Path, *, noun: str, setting: str, user_id: int, accepts_sticky: bool = False) -> None:
    """Raise `CommandError` if the folder exists and other users can write to it.

    `accepts_sticky`: others may create files, as in /tmp, but not replace the files of this user.
    """
    status = _read_status(folder)
    if status is None or (accepts_sticky and status.st_mode & stat.S_ISVTX):
        return
    if writers := find_other_writers(status, user_id):
        name, remedy = writers
        raise CommandError(
            f"{name} can write to the {noun} {folder} (mode {stat.S_IMODE(status.st_mode):04o}): check that every file in "
            f"it is yours, and run `chmod {remedy} {folder}`; or choose another folder with {setting}"
        )


def find_other_writers(status: os.stat_result, user_id: int) -> tuple[str, str] | None:
    """Return who besides the user and root can write to a file or folder, and the mode for `chmod` that ends this."""
    if status.st_mode & stat.S_IWOTH:
        return "every user", "go-w"
    if status.st_mode & stat.S_IWGRP and status.st_gid not in _list_own_groups(user_id):
        return f"the group {_name_group(status.st_gid)}", "g-w"
    return None


def find_agent_user(data_folder: Path) -> int:
    """Return the id of the user that will run the agent, for a check before its start.

    Root may check the files of an agent that runs as another user, who then owns the data folder.
    """
    status = _read_status(data_folder)
    return status.st_uid if status is not None and os.geteuid() == ROOT_ID else os.geteuid()


def _list_own_groups(user_id: int) -> set[int]:
    """Return the groups that may write: that of root, and the user's own, which is the group of its new folders."""
    groups = {ROOT_ID}
    if user_id == os.geteuid():
        groups.add(os.getegid())
    with contextlib.suppress(KeyError):
        groups.add(pwd.getpwuid(user_id).pw_gid)
    return groups


def _read_status(path: Path) -> os.stat_result | None:
    """Return the status of the folder, or `None` if there is none or it cannot be read; its use then fails."""
    try:
        return path.stat()
    except OSError:
        return None


def _name_user(user_id: int) -> str:
    """Return the name of the user, or its number if it has none."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(user_id).pw_name
    return str(user_id)


def _name_group(group_id: int) -> str:
    """Return the name of the group, or its number if it has none."""
    with contextlib.suppress(KeyError):
        return grp.getgrgid(group_id).gr_name
    return str(group_id)
