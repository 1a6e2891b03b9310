"""What `wharf alloc exec` prints while a node does not answer, and at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import click
import pytest

from tests.waiting import wait_on_loop_until
from wharf.cli.alloc.exec import run_interactive_command
from wharf.cli.common.errors import CliError
from wharf.cli.common.waiting_notices import NOTICE_DELAY_S
from wharf.contract.client import ClientSettings
from wharf.contract.client.exec import RunningCommand
from wharf.world import RealWorld

WORLD = RealWorld()
NOTICE = "waiting for node n7, which has not answered yet, to run the command; Ctrl-C ends the command"
LOST = "node n7 does not answer: its connection to the server was lost; retry"


class SlowSocket:
    """The websocket of a command: its messages, then silence for longer than a notice takes, then its end."""

    subprotocol: str | None = None
    close_code = 1011
    close_reason = LOST

    def __init__(self, *messages: str) -> None:
        self._messages = list(messages)
        self._ends_at_s = WORLD.monotonic_s() + NOTICE_DELAY_S * 1.5

    async def receive(self) -> str | None:
        if self._messages:
            return self._messages.pop(0)
        await wait_on_loop_until(lambda: WORLD.monotonic_s() >= self._ends_at_s, what="the time of a notice has passed")
        return None

    async def send(self, message: str | bytes) -> None:
        del message

    async def close(self, code: int) -> None:
        del code

    def abort(self) -> None:
        return


def run_command(socket: SlowSocket) -> None:
    @asynccontextmanager
    async def open_command() -> AsyncIterator[RunningCommand]:
        yield RunningCommand(socket)

    session: Any = SimpleNamespace(world=WORLD, settings=ClientSettings())
    run_interactive_command(session, open_command(), is_tty=False, should_forward_input=False, node_name="n7")


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
