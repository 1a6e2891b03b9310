"""Lines on stderr that show the user of a command what it waits for."""

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from wharf.contract.client.transport import ClientRequest, SyncTransport
    from wharf.world import World

NOTICE_DELAY_S: Final = 2.0
"""A command that has waited for this long says what it waits for. Protects users from commands that seem to hang."""
REPEAT_AFTER_S: Final = 60.0
"""The same line is printed again only after this time. Keeps the output of a long outage short."""
LEADER_QUERY_TIMEOUT_S: Final = 1.0
"""Limit of the query for the leader that precedes a notice."""


class WaitingNotices:
    """Prints a line once a reply takes long, and one for each repeated attempt with its cause."""

    def __init__(self, world: "World", addresses: str) -> None:
        self._world = world
        self._addresses = addresses
        self._began_s = world.monotonic_s()
        self._printed_at_s: dict[str, float] = {}
        """When each line was last printed, in seconds of the monotonic clock."""

    @contextlib.contextmanager
    def watch_reply(self, _request: "ClientRequest", server: "SyncTransport") -> Iterator[None]:
        """Return a context manager that prints a notice if it lasts longer than `NOTICE_DELAY_S`."""
        has_reply = threading.Event()
        timer = threading.Timer(NOTICE_DELAY_S, self._print_slow_reply, (server, has_reply))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            has_reply.set()
            timer.cancel()

    def on_pause(self, _seconds: float, cause: Exception | None) -> None:
        """Print why the call is attempted again, unless the command has only just begun."""
        if cause is not None and self._world.monotonic_s() - self._began_s >= NOTICE_DELAY_S:
            self._print(f"{cause}; trying again")

    def _print_slow_reply(self, server: "SyncTransport", has_reply: threading.Event) -> None:
        """Print what the reply waits for, unless it has arrived. Runs on a thread of its own."""
        text = f"waiting for a reply from {self._addresses}"
        if not _knows_leader(server):
            text += ": the server knows no leader of its cluster"
        if not has_reply.is_set():
            self._print(f"{text}; Ctrl-C ends the command")

    def _print(self, text: str) -> None:
        """Print a line to stderr, unless the same line was printed less than `REPEAT_AFTER_S` ago."""
        now_s = self._world.monotonic_s()
        if now_s - self._printed_at_s.get(text, -math.inf) >= REPEAT_AFTER_S:
            self._printed_at_s[text] = now_s
            click.echo(text, err=True)


def _knows_leader(server: "SyncTransport") -> bool:
    """Return whether the server knows a leader; true also if it does not reply to the question."""
    from wharf.contract.client.transport import ClientRequest, Unreachable

    try:
        reply = server.send(ClientRequest("GET", "/v1/status/leader", timeout_s=LEADER_QUERY_TIMEOUT_S))
    except Unreachable:
        return True
    return reply.status != 200 or reply.body.strip() != b'""'
