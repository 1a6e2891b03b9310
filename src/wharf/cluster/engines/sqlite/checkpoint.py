"""Moves what is in the write-ahead log into the file, on a thread and a connection of its own, while commits go on.

Commits only append to the write-ahead log. It begins anew from its start when everything in it has been moved at the
moment of a commit; under a steady stream of commits that moment never comes by itself. So when the thread has moved all
but a little, it says that the log may be `nearly_moved`, and whoever commits moves the last little between two groups.
"""

import logging
import threading
from typing import Final

import apsw

from wharf.cluster.engines.sqlite.database import LogDatabase

MIN_CHECKPOINT_PAGES: Final = 1_000
"""A shorter write-ahead log is left alone."""

MAX_FINAL_PAGES: Final = 400
"""So few pages may be moved between two groups."""

_log = logging.getLogger(__name__)


class Checkpointer:
    def __init__(self, file: LogDatabase, *, min_pages: int = MIN_CHECKPOINT_PAGES) -> None:
        self.is_nearly_done = False  # Set here, cleared by whoever moves the rest.
        self.failure_reason = ""
        self._file = file
        self._begin_pages = min_pages
        self._wanted = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="log-checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def request_checkpoint(self) -> None:
        self._wanted.set()

    def stop(self) -> None:
        """Returns when the thread has ended and its connection is closed."""
        self._ended = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            connection = self._file.open_checkpointer()
        except apsw.Error as error:
            self.failure_reason = self._file.describe_error(error)
            return
        try:
            while True:
                self._wanted.wait()
                self._wanted.clear()
                if self._ended:
                    return
                self._move(connection)
        finally:
            connection.close()

    def _move(self, connection: apsw.Connection) -> None:
        try:
            pages, moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            return  # Whoever commits is moving the rest just now.
        except apsw.Error as error:
            # Nothing is lost: all of it still is in the write-ahead log. The next want tries again.
            if not self.failure_reason:
                _log.error("checkpoint: %s", self._file.describe_error(error))
            self.failure_reason = self._file.describe_error(error)
            return
        self.failure_reason = ""
        if pages >= self._begin_pages and pages - moved <= MAX_FINAL_PAGES:
            self.is_nearly_done = True
