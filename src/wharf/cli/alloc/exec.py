"""`wharf alloc exec`: a command beside a task, with this terminal or without."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.lookup import require_task
from wharf.cli.common.server_commands import QuietServerCommand, Session
from wharf.cli.completion import complete_allocations

if TYPE_CHECKING:
    from wharf.contract.client import RunningCommand

HEARTBEAT_INTERVAL_S: Final = 10.0
READ_CHUNK_BYTES: Final = 2048
INTERRUPTED_EXIT_CODE: Final = 130


class ExecCommand(QuietServerCommand):
    """What stands behind ALLOC is the command's, whatever it looks like."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        at = self._allocation_at(arguments)
        if at is None:
            return super().parse_args(context, arguments)
        command = arguments[at + 1 :]
        command = command[1:] if command[:1] == ["--"] else command
        context.meta["command"] = command
        return super().parse_args(context, arguments[: at + 1])

    def _allocation_at(self, arguments: list[str]) -> int | None:
        takes_value = {
            name.lstrip("-")
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }
        skips = False
        for at, word in enumerate(arguments):
            if skips:
                skips = False
            elif not word.startswith("-") or word == "-":
                return at
            else:
                skips = "=" not in word and word.lstrip("-") in takes_value
        return None


@click.command(cls=ExecCommand)
@click.argument("alloc_id", metavar="ALLOC", shell_complete=complete_allocations)
@click.argument("command", metavar="CMD [ARG]...", required=False, expose_value=False)
@click.option("--task", default="", help="Beside which task, where there are several.")
@click.option("-i", "takes_input", is_flag=True, help="Pass on what is typed.  [with -t, or where it is piped in]")
@click.option("-t", "--tty", "is_tty", is_flag=True, help="Give it a terminal.")
@click.pass_context
def execute(
    context: click.Context, session: Session, alloc_id: str, task: str, takes_input: bool, is_tty: bool
) -> None:
    """Run a command beside a task: with its user, its variables and in its folder.

    The command's exit code is that of this one. It ends when this one ends.

    wharf alloc exec -it 1a2b3c4d /bin/sh
    """
    from wharf.cli.common.lookup import find_allocation
    from wharf.contract.client import open_command

    words: list[str] = context.meta.get("command", [])
    if not words:
        raise CliError("say which command: `wharf alloc exec ALLOC CMD`")
    found = find_allocation(session, alloc_id)
    name = require_task(found, task)
    is_tty = is_tty and sys.stdin.isatty()  # Otherwise there is none to give.
    opening = open_command(session.settings, found.id, name, words, is_tty=is_tty)
    run_interactive_command(session, opening, is_tty=is_tty, should_forward_input=takes_input)


def run_interactive_command(
    session: Session,
    connection: "AbstractAsyncContextManager[RunningCommand]",
    *,
    is_tty: bool,
    should_forward_input: bool,
) -> NoReturn:
    """To its end, whose exit code is then that of this program."""
    from wharf.contract.model.refusal import Refusal

    hears = should_forward_input or is_tty or _is_piped()
    try:
        code = asyncio.run(_converse(session, connection, is_tty=is_tty, hears=hears))
    except Refusal as refusal:
        raise CliError(refusal.text) from refusal
    except KeyboardInterrupt:
        code = INTERRUPTED_EXIT_CODE
    raise click.exceptions.Exit(code)


def _is_piped() -> bool:
    """Whether something was put in front of us: a file or another program."""
    import stat

    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


async def _converse(
    session: Session, opening: "AbstractAsyncContextManager[RunningCommand]", *, is_tty: bool, hears: bool
) -> int:
    async with opening as running:
        with _raw(is_tty), _resizing(session, running, is_tty):
            works = [session.world.start_task(_beat(running), name="beat")]
            if hears:
                works.append(session.world.start_task(_hear(running), name="input"))
            elif not is_tty:
                await running.close_input()
            try:
                async for stream, data in running.read_output():
                    out = sys.stdout if stream == "stdout" else sys.stderr
                    out.buffer.write(data)
                    out.buffer.flush()
            finally:
                for work in works:
                    work.cancel()
                await asyncio.gather(*works, return_exceptions=True)
    assert running.exit_code is not None, "it is over"
    return running.exit_code


async def _beat(running: "RunningCommand") -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_INTERVAL_S)
        await running.send_heartbeat()


async def _hear(running: "RunningCommand") -> None:
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    taken = threading.Semaphore(16)
    _read_input(asyncio.get_running_loop(), pieces.put_nowait, taken)
    while piece := await pieces.get():
        await running.write(piece)
        taken.release()
    await running.close_input()


def _read_input(loop: asyncio.AbstractEventLoop, put: Callable[[bytes], None], taken: threading.Semaphore) -> None:
    """By a thread: not everything that can be read from can be waited for otherwise. It ends with the program."""

    def read() -> None:
        while True:
            taken.acquire()
            try:
                piece = os.read(sys.stdin.fileno(), READ_CHUNK_BYTES)
            except OSError:
                piece = b""
            try:
                loop.call_soon_threadsafe(put, piece)
            except RuntimeError:
                return  # The conversation is over.
            if not piece:
                return

    threading.Thread(target=read, name="what is typed", daemon=True).start()


@contextmanager
def _raw(is_tty: bool) -> Iterator[None]:
    """Every key goes to the other end, also those that would end this program."""
    if not is_tty:
        yield
        return
    import termios
    import tty

    handle = sys.stdin.fileno()
    before: list[Any] = termios.tcgetattr(handle)
    try:
        tty.setraw(handle, termios.TCSADRAIN)  # What was typed already is meant for it, too.
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


@contextmanager
def _resizing(session: Session, running: "RunningCommand", is_tty: bool) -> Iterator[None]:
    if not is_tty:
        yield
        return
    loop = asyncio.get_running_loop()
    sent: set[asyncio.Task[None]] = set()

    def tell() -> None:
        size = os.get_terminal_size(sys.stdin.fileno())
        sent.add(session.world.start_task(running.resize(size.lines, size.columns), name="resize"))

    tell()
    loop.add_signal_handler(signal.SIGWINCH, tell)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for task in sent:
            task.cancel()
