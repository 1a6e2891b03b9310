"""Those who follow the log of this agent over its control socket: what each still has to be sent, within a bound."""

import contextlib
import selectors
import socket
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from wharf.agent.logs.forwarding import ForwardedLine
from wharf.agent.supervision.channel import frame_message

MAX_UNSENT_BYTES: Final = 1_000_000


class FollowedLogLines(msgspec.Struct, frozen=True, tag="LogLines"):
    """Lines as JSON objects. `missed`: how many were left out before them, because the reader was slow."""

    lines: list[str]
    missed: int = 0


class _Follower:
    def __init__(self, connection: socket.socket, level: int) -> None:
        self.connection = connection
        self.level = level
        self.unsent = bytearray()
        self.missed = 0


class LogFollowers:
    """`on_level`: told the least level that anybody follows, and 0 when nobody does any more."""

    def __init__(self, selector: selectors.BaseSelector, on_level: Callable[[int], None]) -> None:
        self._selector = selector
        self._on_level = on_level
        self._followers: list[_Follower] = []
        self.level = 0

    def add(self, connection: socket.socket, level: int) -> None:
        connection.setblocking(False)
        follower = _Follower(connection, level)
        self._followers.append(follower)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._on_ready(follower))
        self._look_at_levels()

    def send_lines(self, lines: Sequence[ForwardedLine], missed: int = 0) -> None:
        for follower in list(self._followers):
            wanted = [told.line for told in lines if told.level >= follower.level]
            if len(follower.unsent) > MAX_UNSENT_BYTES:
                follower.missed += len(wanted) + missed
                continue
            if wanted or missed:
                follower.unsent += frame_message(FollowedLogLines(wanted, missed + follower.missed))
                follower.missed = 0
                self._send(follower)

    def close(self) -> None:
        for follower in list(self._followers):
            self._drop(follower)

    def _on_ready(self, follower: _Follower) -> None:
        """Something is to be read, which is only that it has gone; or there is room to send."""
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
        try:
            while follower.unsent:
                sent = follower.connection.send(follower.unsent[:65_536])
                del follower.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(follower)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if follower.unsent else 0)
        self._selector.modify(follower.connection, wanted, lambda: self._on_ready(follower))

    def _drop(self, follower: _Follower) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(follower.connection)
        follower.connection.close()
        if follower in self._followers:
            self._followers.remove(follower)
        self._look_at_levels()

    def _look_at_levels(self) -> None:
        level = min((follower.level for follower in self._followers), default=0)
        if level != self.level:
            self.level = level
            self._on_level(level)
