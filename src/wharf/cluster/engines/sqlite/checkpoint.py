"""Checkpoints: copies the write-ahead log into the database file, on its own thread and connection, while commits
continue.

Commits only append to the write-ahead log. SQLite restarts it when a commit finds everything copied, which never
happens under a steady stream of commits. So when the thread has copied all but a few pages, it sets `is_nearly_done`,
and the store copies the last pages between two groups.
"""

import logging
import threading
from typing import Final

import apsw

from wharf.cluster.engines.sqlite.database import LogDatabase

MIN_CHECKPOINT_PAGES: Final = 1_000
"""A shorter write-ahead log is not copied."""

MAX_FINAL_PAGES: Final = 400
"""Limits the pause between two groups: the store copies at most this many pages there."""

_log = logging.getLogger(__name__)


class Checkpointer:
    """The thread that copies the write-ahead log."""

    def __init__(self, file: LogDatabase, *, min_pages: int = MIN_CHECKPOINT_PAGES) -> None:
        self.is_nearly_done = False  # Set by the thread, cleared by the store when it copies the rest.
        self.failure_reason = ""
        self._file = file
        self._min_pages = min_pages
        self._requested = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="log-checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def request_checkpoint(self) -> None:
        self._requested.set()

    def stop(self) -> None:
        """End the thread; returns when its connection is closed."""
        self._is_stopping = True
        self._requested.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        """Wait for requests and copy pages, until stopped."""
        try:
            connection = self._file.open_checkpointer()
        except apsw.Error as error:
            self.failure_reason = self._file.describe_error(error)
            return
        try:
            while True:
                self._requested.wait()
                self._requested.clear()
                if self._is_stopping:
                    return
                self._copy_pages(connection)
        finally:
            connection.close()

    def _copy_pages(self, connection: apsw.Connection) -> None:
        """Copy pages into the database file, and set `is_nearly_done` when few are left."""
        try:
            pages, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            return  # The store is copying the last pages.
        except apsw.Error as error:
            # Nothing is lost: the data is still in the write-ahead log. The next request tries again.
            if not self.failure_reason:
                _log.error("checkpoint failed error=%s", self._file.describe_error(error))
            self.failure_reason = self._file.describe_error(error)
            return
        self.failure_reason = ""
        if pages >= self._min_pages and pages - copied <= MAX_FINAL_PAGES:
            self.is_nearly_done = True
