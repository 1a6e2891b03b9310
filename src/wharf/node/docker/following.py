"""A container's output, from the engine's log into the task's files: each byte once, whoever of us ended in between.

How far one came is kept beside the files: the moment of the last whole entry, and where it ended in them. What the files
hold beyond that was written just before an end that nobody foresaw; so much is left out of what the engine tells again.
"""

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from wharf.node.docker.engine import Engine
from wharf.node.docker.errors import EngineAway, EngineRefused
from wharf.node.docker.log_files import LogFiles, Spot
from wharf.node.docker.stamped import SECOND_NS, Piece, Stamped

log = logging.getLogger(__name__)

AGAIN_S: Final = 0.5
STREAMS: Final = ("stdout", "stderr")
BEFORE_S: Final = 1
"""Engines disagree whether `since` is meant with its moment or after it: it is asked for more, and that is left out."""


class Reached(msgspec.Struct, frozen=True):
    """`count`: how many entries of the same moment there were."""

    at_ns: int = 0
    count: int = 0
    spots: dict[str, Spot] = {}


class LogFollower:
    def __init__(self, engine: Engine, container: str, *, is_tty: bool, files: dict[str, LogFiles], kept: Path) -> None:
        """`kept`: the file that says how far one came."""
        self._engine = engine
        self._container = container
        self._is_tty = is_tty
        self._files = files
        self._kept = kept
        self._reached = Reached()
        self._entry_ns = 0
        self._count = 0
        self._skips: dict[str, int] = {}
        self._told_before: Reached | None = None
        """Until the first entry that is new: the engine tells what was heard already."""
        self._heard_again = 0
        self._is_old = False
        self._is_whole = True

    async def follow(self) -> None:
        """Until cancelled, or until the log ends."""
        told = ""
        while True:
            try:
                await self._read(follow=True)
                return
            except EngineRefused as error:
                log.warning("the output of a container cannot be read: %s", error, extra={"container": self._container})
                return
            except (EngineAway, OSError) as error:
                if str(error) != told:  # Once, however long it lasts.
                    told = str(error)
                    log.warning("the output of a container waits: %s", error, extra={"container": self._container})
                await asyncio.sleep(AGAIN_S)

    async def catch_up(self) -> None:
        """To its end, of a container that does not run any more. Raises EngineAway, EngineRefused, OSError."""
        await self._read(follow=False)

    def close(self) -> None:
        for files in self._files.values():
            files.close()

    async def _read(self, *, follow: bool) -> None:
        self._resume()
        reached, stamped = self._reached, Stamped(is_tty=self._is_tty)
        since = str(max(0, reached.at_ns // SECOND_NS - BEFORE_S)) if reached.at_ns else ""
        try:
            async with contextlib.aclosing(
                self._engine.logs(self._container, is_tty=self._is_tty, follow=follow, since=since, timestamps=True)
            ) as chunks:
                async for chunk in chunks:
                    for piece in stamped.feed(chunk):
                        self._take(piece)
                    self._keep(self._reached)
        finally:
            self.close()

    def _resume(self) -> None:
        """Raises OSError."""
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            self._reached = msgspec.json.decode(self._kept.read_bytes(), type=Reached)
        if not self._reached.spots:
            self._reached = Reached(spots={name: files.open() for name, files in self._files.items()})
            self._keep(self._reached)
        spots = self._reached.spots
        self._skips = {name: files.beyond(spots.get(name, Spot())) for name, files in self._files.items()}
        self._told_before, self._heard_again, self._is_old = self._reached, 0, False
        self._entry_ns, self._count = self._reached.at_ns, self._reached.count
        self._is_whole = True

    def _take(self, piece: Piece) -> None:
        if piece.at_ns is not None:
            self._is_old = self._was_heard(piece.at_ns)
            if not self._is_old:
                self._end_entry()
                self._count = self._count + 1 if piece.at_ns == self._entry_ns else 1
                self._entry_ns, self._is_whole = piece.at_ns, False
        if self._is_old:
            return
        skip = min(self._skips[piece.stream], len(piece.data))
        self._skips[piece.stream] -= skip
        self._files[piece.stream].write(piece.data[skip:])

    def _was_heard(self, at_ns: int) -> bool:
        before = self._told_before
        if before is None:
            return False
        if at_ns < before.at_ns:
            return True
        if at_ns == before.at_ns and self._heard_again < before.count:
            self._heard_again += 1
            return True
        self._told_before = None
        return False

    def _end_entry(self) -> None:
        """The entry before this one is whole."""
        # While what was written before is left out, the files are ahead of what is told.
        if self._is_whole or any(self._skips.values()):
            return
        self._is_whole = True
        self._reached = Reached(
            self._entry_ns, self._count, {name: files.open() for name, files in self._files.items()}
        )

    def _keep(self, reached: Reached) -> None:
        draft = self._kept.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(reached))
        os.replace(draft, self._kept)
