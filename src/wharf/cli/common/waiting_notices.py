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

NOTICE_DELAY_S: Final = 1.0
"""A command that has waited for this long says what it waits for. Protects users from commands that seem to hang.

With `LEADER_QUERY_TIMEOUT_S` and the start of the command, the line appears within 2 s.
"""
REPEAT_AFTER_S: Final = 60.0
"""The same line is printed again only after this time. Keeps the output of a long outage short."""
LEADER_QUERY_TIMEOUT_S: Final = 0.5
"""Limit of the query for the leader that precedes a notice."""
RECHECK_INTERVAL_S: Final = 1.0
"""How often the cause is looked for again until it is known: a server notices after a few seconds that its store hangs."""
MAX_RECHECKS: Final = 10
"""Limit of these attempts. Protects the server from the questions of many waiting commands."""
SILENT_TEXT: Final = "it accepts connections, but does not answer other requests either"
"""The cause if the query for the leader has no reply: the server is frozen, or too busy for the moment."""
STALE_TEXT: Final = "--stale reads what the server knew last"
"""What a user can do while a read waits for a leader or for the store."""


class WaitingNotices:
    """Prints a line once a reply takes long, and one for each repeated attempt with its cause."""

    def __init__(self, world: "World", addresses: str) -> None:
        self._world = world
        self._addresses = addresses
        self._began_s = world.monotonic_s()
        self._printed_at_s: dict[str, float] = {}
        """When each line was last printed, in seconds of the monotonic clock."""

    @contextlib.contextmanager
    def watch_reply(self, request: "ClientRequest", server: "SyncTransport") -> Iterator[None]:
        """Return a context manager that prints a notice if it lasts longer than `NOTICE_DELAY_S`."""
        has_reply = threading.Event()
        timer = threading.Timer(NOTICE_DELAY_S, self._print_slow_reply, (request, server, has_reply))
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

    def _print_slow_reply(self, request: "ClientRequest", server: "SyncTransport", has_reply: threading.Event) -> None:
        """Print what the reply waits for, unless it has arrived; again when the cause is known. Runs on its own thread."""
        for attempt in range(MAX_RECHECKS):
            cause = _find_cause(server)
            if has_reply.is_set():
                return
            if cause or attempt == 0:
                self._print(self._format_notice(request, cause))
            is_certain = cause not in ("", SILENT_TEXT)
            if is_certain or has_reply.wait(RECHECK_INTERVAL_S):
                return

    def _format_notice(self, request: "ClientRequest", cause: str) -> str:
        """Return the line for a request that waits because of `cause`, which is empty if it is not known."""
        parts = [f"waiting for a reply from {self._addresses}" + (f": {cause}" if cause else "")]
        if cause not in ("", SILENT_TEXT) and request.method == "GET" and ("stale", "") not in request.query:
            parts.append(STALE_TEXT)
        return "; ".join([*parts, "Ctrl-C ends the command"])

    def _print(self, text: str) -> None:
        """Print a line to stderr, unless the same line was printed less than `REPEAT_AFTER_S` ago."""
        now_s = self._world.monotonic_s()
        if now_s - self._printed_at_s.get(text, -math.inf) >= REPEAT_AFTER_S:
            self._printed_at_s[text] = now_s
            click.echo(text, err=True)


@contextlib.contextmanager
def announce_wait(text: str) -> Iterator[None]:
    """Return a context manager that prints a line to stderr if it lasts longer than `NOTICE_DELAY_S`."""
    line = f"waiting for {text}; Ctrl-C ends the command"
    timer = threading.Timer(NOTICE_DELAY_S, click.echo, (line,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _find_cause(server: "SyncTransport") -> str:
    """Return why the server may not reply to a request; empty if it knows a leader, or accepts no connection."""
    from wharf.contract.client.transport import ClientRequest, Unreachable
    from wharf.contract.model.refusal import RefusalReason
    from wharf.contract.wire.errors import REASON_HEADER

    try:
        reply = server.send(ClientRequest("GET", "/v1/status/leader", timeout_s=LEADER_QUERY_TIMEOUT_S))
    except Unreachable as error:
        return SILENT_TEXT if error.is_silent else ""
    if reply.headers.get(REASON_HEADER) == RefusalReason.STORE_UNREACHABLE:
        return "the server cannot reach the store of the cluster's state"
    return "the server knows no leader of its cluster" if reply.status == 200 and reply.body.strip() == b'""' else ""
