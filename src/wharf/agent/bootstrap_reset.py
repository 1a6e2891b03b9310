"""The file with which an operator permits a second ACL bootstrap. A user who can write it can become management."""

import logging
import os
import stat
from pathlib import Path
from typing import Final

from wharf.agent.folder_access import ROOT_ID, find_other_writers

log = logging.getLogger(__name__)

ACL_RESET_FILE: Final = "acl-bootstrap-reset"
MAX_ACL_RESET_BYTES: Final = 100
"""The file holds one index number. The limit protects against reading a large file."""


class BootstrapResetFile:
    """Reads the file, if only the user of this agent and root can write it."""

    def __init__(self, data_folder: Path) -> None:
        self._file = data_folder / ACL_RESET_FILE
        self._logged: object = None
        """The refusal that was logged last. Everyone can request a bootstrap, so one refusal is logged once."""

    def read(self) -> str | None:
        """Return the content of the file, or `None` if there is none or it is refused."""
        try:
            # Without waiting for a writer, if it is a pipe.
            descriptor = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            is_link = self._file.is_symlink()
            self._refuse("it is a link: replace it by a plain file" if is_link else error.strerror or str(error))
            return None
        with os.fdopen(descriptor, "rb") as opened:
            status = os.fstat(descriptor)
            if why := _find_refusal(status):
                self._refuse(why, status.st_ino, status.st_ctime_ns)
                return None
            return opened.read(MAX_ACL_RESET_BYTES).decode("ascii", "replace")

    def _refuse(self, why: str, *version: int) -> None:
        """Log why the file is not used, unless this is the refusal that was logged last."""
        if self._logged == (refusal := (why, *version)):
            return
        self._logged = refusal
        log.warning("the file for a second ACL bootstrap is not used", extra={"file": str(self._file), "why": why})


def _find_refusal(status: os.stat_result) -> str:
    """Return why a file with this status is not used, or an empty text."""
    if not stat.S_ISREG(status.st_mode):
        return "it is not a plain file: replace it by one"
    if status.st_uid not in (os.geteuid(), ROOT_ID):
        return f"it belongs to the user with the id {status.st_uid}, who is not the user of the agent: delete it"
    if writers := find_other_writers(status, os.geteuid()):
        return f"{writers[0]} can write to it (mode {stat.S_IMODE(status.st_mode):04o}): chmod {writers[1]}"
    return ""
