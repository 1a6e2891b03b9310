"""Connections that follow the agent's log over the control socket, with a bounded send buffer for each."""

import contextlib
import selectors
import socket
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from wharf.agent.logs.forwarding import ForwardedLine
from wharf.world.framing import encode_frame

MAX_UNSENT_BYTES: Final = 1_000_000
"""Limits the buffer of one follower. If it reads too slowly, further lines are skipped and counted."""


class FollowedLogLines(msgspec.Struct, frozen=True, tag="LogLines"):
    """Log lines as JSON objects. `missed` counts the lines that were skipped before them because the reader was slow."""

    lines: list[str]
    missed: int = 0


class _Follower:
    """One connection that receives log lines: its lowest level number, the bytes still to send, and the count of
    skipped lines.
    """

    def __init__(self, connection: socket.socket, level: int) -> None:
        self.connection = connection
        self.level = level
        self.unsent = bytearray()
        self.missed = 0


class LogFollowers:
    """Sends log lines to all followers. Calls `on_level` with the lowest level that a follower reads, or 0 without any."""

    def __init__(self, selector: selectors.BaseSelector, on_level: Callable[[int], None]) -> None:
        self._selector = selector
        self._on_level = on_level
        self._followers: list[_Follower] = []
        self.level = 0

    def add(self, connection: socket.socket, level: int) -> None:
        """Send a message without lines to the connection, and from now on the log lines of this level and above."""
        connection.setblocking(False)
        follower = _Follower(connection, level)
        self._followers.append(follower)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._on_ready(follower))
        self._update_level()
        follower.unsent += encode_frame(FollowedLogLines([]))
        self._send(follower)

    def send_lines(self, lines: Sequence[ForwardedLine], missed: int = 0) -> None:
        """Send these lines to the followers of their level. `missed` lines were skipped before them."""
        for follower in list(self._followers):
            selected = [entry.line for entry in lines if entry.level >= follower.level]
            if len(follower.unsent) > MAX_UNSENT_BYTES:
                follower.missed += len(selected) + missed
                continue
            if selected or missed:
                follower.unsent += encode_frame(FollowedLogLines(selected, missed + follower.missed))
                follower.missed = 0
                self._send(follower)

    def close(self) -> None:
        """Close the connections of all followers."""
        for follower in list(self._followers):
            self._drop(follower)

    def _on_ready(self, follower: _Follower) -> None:
        """Handle a ready connection: drop it if the follower closed it, otherwise send buffered lines."""
        try:
            if not follower.connection.recv(1_024):
                self._drop(follower)
                return
        except BlockingIOError:
            pass
        except OSError:
            self._drop(follower)
            return
        self._send(follower)

    def _send(self, follower: _Follower) -> None:
        """Send as much of the follower's buffer as the socket accepts."""
        try:
            while follower.unsent:
                sent = follower.connection.send(follower.unsent[:65_536])
                del follower.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(follower)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if follower.unsent else 0)
        self._selector.modify(follower.connection, events, lambda: self._on_ready(follower))

    def _drop(self, follower: _Follower) -> None:
        """Close the connection of a follower, and remove it from the followers."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(follower.connection)
        follower.connection.close()
        if follower in self._followers:
            self._followers.remove(follower)
        self._update_level()

    def _update_level(self) -> None:
        """Pass the lowest level that a follower reads to `on_level` if it changed."""
        level = min((follower.level for follower in self._followers), default=0)
        if level != self.level:
            self.level = level
            self._on_level(level)
