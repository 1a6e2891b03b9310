"""Lines on stderr that show the user of a command what it waits for."""

import asyncio
import contextlib
import math
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.sentences import print_notice

if TYPE_CHECKING:
    from wharf.contract.client import RunningCommand
    from wharf.contract.client.transport import ClientReply, ClientRequest, SyncTransport
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
SILENT_TEXT: Final = "it accepts connections, but answers no request"
"""The cause if the query for the leader has no reply: the server is frozen, or too busy for the moment."""
STORE_TEXT: Final = "the server cannot reach the store of the cluster's state"
NO_LEADER_TEXT: Final = "the server knows no leader of its cluster"
_NODE_REQUEST: Final = re.compile(r"/v1/client/(?:fs/\w+|allocation)/([0-9a-f-]{36})")
"""The path of a request that a server passes to the node of an allocation, with the id of the allocation."""
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
            cause = _find_cause(server, request)
            if has_reply.is_set():
                return
            if cause or attempt == 0:
                self._print(self._format_notice(request, cause, self._name_server(server)))
            is_certain = cause not in ("", SILENT_TEXT)
            if is_certain or has_reply.wait(RECHECK_INTERVAL_S):
                return

    def _name_server(self, server: "SyncTransport") -> str:
        """Return the address of a server, or those of all if the transport has no address of its own."""
        from wharf.contract.client.http_transport import SyncHttpTransport

        return server.address if isinstance(server, SyncHttpTransport) else self._addresses

    def _format_notice(self, request: "ClientRequest", cause: str, address: str) -> str:
        """Return the line for a request that waits because of `cause`, which is empty if it is not known."""
        parts = [f"waiting for a reply from {address}" + (f": {cause}" if cause else "")]
        has_lost_store = cause in (STORE_TEXT, NO_LEADER_TEXT)
        if has_lost_store and request.method == "GET" and ("stale", "") not in request.query:
            parts.append(STALE_TEXT)
        return "; ".join([*parts, "Ctrl-C ends the command"])

    def _print(self, text: str) -> None:
        """Print a line to stderr, unless the same line was printed less than `REPEAT_AFTER_S` ago."""
        now_s = self._world.monotonic_s()
        if now_s - self._printed_at_s.get(text, -math.inf) >= REPEAT_AFTER_S:
            self._printed_at_s[text] = now_s
            print_notice(text)


@contextlib.contextmanager
def announce_wait(text: str) -> Iterator[None]:
    """Return a context manager that prints a line to stderr if it lasts longer than `NOTICE_DELAY_S`."""
    line = f"waiting for {text}; Ctrl-C ends the command"
    timer = threading.Timer(NOTICE_DELAY_S, print_notice, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _find_cause(server: "SyncTransport", request: "ClientRequest") -> str:
    """Return why the server may not reply to a request; empty if nothing shows it.

    The server answers these questions itself: who leads, and on which node an allocation is.
    """
    from wharf.contract.client.transport import Unreachable
    from wharf.contract.model.refusal import RefusalReason
    from wharf.contract.wire.errors import REASON_HEADER

    try:
        reply = _ask(server, "/v1/status/leader")
        if reply.headers.get(REASON_HEADER) == RefusalReason.STORE_UNREACHABLE:
            return STORE_TEXT
        if reply.status == 200 and reply.body.strip() == b'""':
            return NO_LEADER_TEXT
        found = _NODE_REQUEST.match(request.path)
        return _describe_node(_ask(server, f"/v1/allocation/{found[1]}", ("stale", ""))) if found else ""
    except Unreachable as error:
        return SILENT_TEXT if error.is_silent else ""


def _ask(server: "SyncTransport", path: str, *query: tuple[str, str]) -> "ClientReply":
    """Return the reply of a server to a small read. Raises `Unreachable`."""
    from wharf.contract.client.transport import ClientRequest

    return server.send(ClientRequest("GET", path, query, timeout_s=LEADER_QUERY_TIMEOUT_S))


def _describe_node(reply: "ClientReply") -> str:
    """Return that a node does not answer, from the reply with an allocation of the node; empty for another reply."""
    import msgspec

    class NodeName(msgspec.Struct):
        """The part of an allocation that names its node."""

        NodeName: str

    try:
        return f"node {msgspec.json.decode(reply.body, type=NodeName).NodeName} has not answered the server yet"
    except msgspec.MsgspecError:
        return ""


async def announce_slow_begin(running: "RunningCommand", node: str, *, is_tty: bool) -> None:
    """Print a line to stderr if the node has not begun to run a command within `NOTICE_DELAY_S`. `node` is its name or empty.

    `is_tty`: the terminal is in raw mode, in which a new line does not begin at the left by itself.
    """
    try:
        async with asyncio.timeout(NOTICE_DELAY_S):
            await running.begun_event.wait()
    except TimeoutError:
        text = f"waiting for {f'node {node}' if node else 'the node'}, which has not answered yet, to run the command"
        click.echo(f"{text}; Ctrl-C ends the command" + "\r" * is_tty, err=True)


class NodeNotices:
    """Prints a line for each node that a command waits for, on the event loop. Each node is named once."""

    def __init__(self) -> None:
        self.allocations: dict[str, tuple[str, str]] = {}
        """By allocation id: its name and the name of its node."""
        self._named_nodes: set[str] = set()

    @contextlib.contextmanager
    def watch_stream(self, request: "ClientRequest") -> Iterator[None]:
        """Return a context manager that prints a line if a node has not begun to send within `NOTICE_DELAY_S`."""
        timer = asyncio.get_running_loop().call_later(NOTICE_DELAY_S, self._print, request)
        try:
            yield
        finally:
            timer.cancel()

    def _print(self, request: "ClientRequest") -> None:
        found = _NODE_REQUEST.match(request.path)
        allocation, node = self.allocations.get(found[1] if found else "", ("", ""))
        if node and node not in self._named_nodes:
            self._named_nodes.add(node)
            text = f"waiting for node {node}, which has not answered yet, for the log of {allocation}"
            print_notice(f"{text}; Ctrl-C ends the command")
