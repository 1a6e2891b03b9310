"""What `wharf alloc exec` prints while a node does not answer, and at the end."""

import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import click
import pytest

from tests.http_servers import QuietHandler, serving
from tests.waiting import wait_on_loop_until
from wharf.cli.alloc.exec import PERMISSION_DENIED_TEXT, run_interactive_command
from wharf.cli.common.errors import CliError
from wharf.cli.common.options import INTERRUPTED_EXIT_CODE
from wharf.cli.common.waiting_notices import NOTICE_DELAY_S
from wharf.contract.client import ClientSettings, SyncClient, connect
from wharf.contract.client.exec import RunningCommand
from wharf.contract.client.relay.websockets import CLOSE_POLICY_VIOLATION
from wharf.contract.wire.allocations.exec import encode_input
from wharf.world import RealWorld

WORLD = RealWorld()
NOTICE = "waiting for node n7, which has not answered yet, to run the command; Ctrl-C ends the command"
CTRL_C = encode_input(b"\x03").decode()
LOST = "node n7 does not answer: its connection to the server was lost; retry"


class SlowSocket:
    """The websocket of a command: its messages, then silence for longer than a notice takes, then its end."""

    subprotocol: str | None = None
    close_code = 1011
    close_reason = LOST

    def __init__(self, *messages: str) -> None:
        self._messages = list(messages)

    async def receive(self) -> str | None:
        if self._messages:
            return self._messages.pop(0)
        ends_at_s = WORLD.monotonic_s() + NOTICE_DELAY_S * 1.5
        await wait_on_loop_until(lambda: WORLD.monotonic_s() >= ends_at_s, what="the time of a notice has passed")
        return None

    async def send(self, message: str | bytes) -> None:
        del message

    async def close(self, code: int) -> None:
        del code

    def abort(self) -> None:
        return


class DeniedSocket(SlowSocket):
    """A websocket that the server closes, because the token lacks a permission."""

    close_code = CLOSE_POLICY_VIOLATION
    close_reason = PERMISSION_DENIED_TEXT

    async def receive(self) -> str | None:
        return None


def run_command(
    socket: SlowSocket,
    *,
    is_tty: bool = False,
    settings: ClientSettings | None = None,
    client: SyncClient | None = None,
) -> None:
    @asynccontextmanager
    async def open_command() -> AsyncIterator[RunningCommand]:
        yield RunningCommand(socket)

    session: Any = SimpleNamespace(world=WORLD, settings=settings or ClientSettings(), client=client)
    run_interactive_command(
        session, open_command(), is_tty=is_tty, should_forward_input=False, node_name="n7", namespace="web"
    )


def test_a_command_at_a_frozen_node_says_what_it_waits_for_and_ends_with_the_name_of_the_node(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(CliError) as caught:
        run_command(SlowSocket())

    assert (capsys.readouterr().err, str(caught.value.message)) == (f"{NOTICE}\n", LOST)


def test_a_command_that_the_node_has_begun_may_be_silent_without_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.ClickException):
        run_command(SlowSocket("{}"))

    assert capsys.readouterr().err == ""


class TokenHandler(QuietHandler):
    """Replies with the token of the caller."""

    def do_GET(self) -> None:
        assert self.path.startswith("/v1/acl/token/self"), self.path
        self.reply(200, b'{"AccessorID": "a1", "Name": "reader"}')


def test_a_denial_names_the_token_the_namespace_and_the_capabilities() -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), TokenHandler)) as server:
        settings = ClientSettings(addresses=(f"http://127.0.0.1:{server.server_port}",), token="some-secret")
        with connect(settings) as client, pytest.raises(CliError) as caught:
            run_command(DeniedSocket(), settings=settings, client=client)

    assert str(caught.value.message) == (
        'Permission denied: token "reader" lacks the capability alloc-exec in namespace "web", or alloc-node-exec there, '
        "which is also needed if the task can access the files of its node, as with raw_exec; "
        "`wharf acl token self` shows the token"
    )


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of a terminal that is the standard input of this process: what is written there is typed."""
    master, slave = os.openpty()
    with os.fdopen(slave, "r") as terminal:
        with os.fdopen(master, "wb", buffering=0) as keys:
            monkeypatch.setattr(sys, "stdin", terminal)
            yield keys.fileno()
        for thread in threading.enumerate():
            if (
                thread.name == "standard input"
            ):  # It reads until the other end is closed, and must not read that of the next test.
                thread.join(timeout=30)


class TypingSocket(SlowSocket):
    """A websocket whose user types Ctrl-C when its messages have been read. It ends once Ctrl-C has been sent to the command."""

    def __init__(self, keyboard: int, *messages: str) -> None:
        super().__init__(*messages)
        self._keyboard = keyboard
        self.sent: list[str | bytes] = []

    async def receive(self) -> str | None:
        if self._messages:
            return self._messages.pop(0)
        os.write(self._keyboard, b"\x03")
        await wait_on_loop_until(lambda: CTRL_C in self.sent, what="Ctrl-C has been sent")
        return None

    async def send(self, message: str | bytes) -> None:
        self.sent.append(message)


def test_ctrl_c_on_a_terminal_ends_a_command_that_the_node_has_not_begun(
    keyboard: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(click.exceptions.Exit) as caught:
        run_command(TypingSocket(keyboard), is_tty=True)

    assert caught.value.exit_code == INTERRUPTED_EXIT_CODE
    assert capsys.readouterr().err.endswith("stopped; the command in the task is stopped too\n")


def test_ctrl_c_on_a_terminal_is_input_of_a_command_that_the_node_has_begun(keyboard: int) -> None:
    socket = TypingSocket(keyboard, "{}")

    with pytest.raises(CliError):
        run_command(socket, is_tty=True)

    assert CTRL_C in socket.sent
