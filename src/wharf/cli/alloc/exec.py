"""`wharf alloc exec`: runs a command in the environment of a task, with or without a terminal."""

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.hints import add_hint
from wharf.cli.common.lookup import require_task
from wharf.cli.common.options import INTERRUPTED_EXIT_CODE
from wharf.cli.common.program import name_variables
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import QuietServerCommand, Session
from wharf.cli.common.waiting_notices import announce_slow_begin, announce_wait
from wharf.cli.completion import complete_allocations
from wharf.world.tasks import cancel_tasks

if TYPE_CHECKING:
    from wharf.contract.client import RunningCommand
    from wharf.contract.model.refusal import Refusal

HEARTBEAT_INTERVAL_S: Final = 10.0
"""How often a heartbeat is sent, so that an idle connection is not closed."""
PERMISSION_DENIED_TEXT: Final = "Permission denied"
"""The text of servers for a token that lacks a capability."""
_NOT_FOUND: Final = re.compile(
    r"program .+ (?:not found in PATH|does not exist)|.+ cannot be started: No such file or directory$"
)
_NOT_EXECUTABLE: Final = re.compile(
    r".+ (?:cannot be started: (?:Permission denied|Exec format error)|is a folder, not a program|is not executable)$"
)
"""Why a node cannot start a command, in the words of the node."""
READ_CHUNK_BYTES: Final = 2048
"""How many bytes of standard input are read and sent at a time."""
INTERRUPT_KEY: Final = b"\x03"
"""What a terminal in raw mode sends for Ctrl-C, in place of a signal."""


class ExecCommand(QuietServerCommand):
    """Passes everything after ALLOC to the remote command, including words that look like options."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Split the arguments after ALLOC: the rest is the remote command. A `--` between them is optional."""
        position = self._find_allocation_argument(arguments)
        if position is None:
            return super().parse_args(context, arguments)
        command = arguments[position + 1 :]
        command = command[1:] if command[:1] == ["--"] else command
        context.meta["command"] = command
        return super().parse_args(context, arguments[: position + 1])

    def _find_allocation_argument(self, arguments: list[str]) -> int | None:
        """Return the position of the first argument that is neither an option nor the value of one."""
        takes_value = {
            name.lstrip("-")
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }
        is_option_value = False
        for position, word in enumerate(arguments):
            if is_option_value:
                is_option_value = False
            elif not word.startswith("-") or word == "-":
                return position
            else:
                is_option_value = "=" not in word and word.lstrip("-") in takes_value
        return None


@click.command(cls=ExecCommand)
@click.argument("alloc_id", metavar="ALLOC", shell_complete=complete_allocations)
@click.argument("command", metavar="CMD [ARG]...", required=False, expose_value=False)
@click.option("--task", default="", help="The task, if the allocation has several.")
@click.option("-i", "takes_input", is_flag=True, help="Send standard input.  [default with -t, or if input is piped]")
@click.option("-t", "--tty", "is_tty", is_flag=True, help="Allocate a terminal.")
@click.pass_context
def execute(
    context: click.Context, session: Session, alloc_id: str, task: str, takes_input: bool, is_tty: bool
) -> None:
    """Run a command in a task: with its user, environment and working directory.

    The exit code is that of the command. The command is stopped if this one is interrupted.

    wharf alloc exec -it 1a2b3c4d /bin/sh
    """
    from wharf.cli.common.lookup import find_allocation
    from wharf.contract.client import open_command

    words: list[str] = context.meta.get("command", [])
    if not words:
        raise CliError("missing command: `wharf alloc exec ALLOC CMD`")
    found = find_allocation(session, alloc_id)
    name = require_task(found, task)
    is_tty = is_tty and sys.stdin.isatty()  # Without a terminal here, there is none to connect.
    opening = open_command(session.settings, found.id, name, words, is_tty=is_tty)
    run_interactive_command(
        session,
        opening,
        is_tty=is_tty,
        should_forward_input=takes_input,
        node_name=found.node_name,
        namespace=found.namespace,
    )


def run_interactive_command(
    session: Session,
    connection: "AbstractAsyncContextManager[RunningCommand]",
    *,
    is_tty: bool,
    should_forward_input: bool,
    node_name: str = "",
    namespace: str,
) -> NoReturn:
    """Run the remote command to its end and exit with its exit code. Raises CliError if a server refuses it.

    `node_name` is the node of the task if it is known. `namespace` is that of the task.
    """
    from wharf.contract.model.refusal import Refusal

    should_forward_input = should_forward_input or is_tty or _is_input_piped()
    try:
        code = asyncio.run(
            _run_remote_command(
                session,
                connection,
                is_tty=is_tty,
                should_forward_input=should_forward_input,
                node_name=node_name,
            )
        )
    except Refusal as refusal:
        exit_code = find_start_exit_code(refusal.text)
        raise CliError(_format_exec_refusal(session, refusal, namespace), exit_code=exit_code) from refusal
    except KeyboardInterrupt:
        print_notice("stopped; the command in the task is stopped too")
        code = INTERRUPTED_EXIT_CODE
    raise click.exceptions.Exit(code)


def find_start_exit_code(text: str) -> int:
    """Return the exit code for a refused command, as shells have it: 127 if no such program exists in the task, 126 if it
    cannot be executed, and 1 for every other refusal.
    """
    if _NOT_FOUND.match(text):
        return 127
    return 126 if _NOT_EXECUTABLE.match(text) else 1


def _format_exec_refusal(session: Session, refusal: "Refusal", namespace: str) -> str:
    """Return the text of a refusal. A denial names the capabilities, because the websocket carries only its text."""
    if refusal.text != PERMISSION_DENIED_TEXT:
        return add_hint(refusal.text)
    if not session.settings.token:
        return f"{refusal.text}: the request had no token; {name_variables('set --token or WHARF_TOKEN')}"
    return (
        f'{refusal.text}: {_name_own_token(session)} lacks the capability alloc-exec in namespace "{namespace}", or '
        "alloc-node-exec there, which is also needed if the task can access the files of its node, as with raw_exec; "
        "`wharf acl token self` shows the token"
    )


def _name_own_token(session: Session) -> str:
    """Return the token of the command by its name or accessor id, or "the token" if the servers do not show it."""
    from wharf.contract.client.errors import RequestRefused, Unreachable

    try:
        token = session.client.acl.tokens.read_own().value
    except (RequestRefused, Unreachable):
        return "the token"
    return f'token "{token.name}"' if token.name else f"token {token.accessor_id}"


def _is_input_piped() -> bool:
    """Return whether standard input is a pipe or a file."""
    import stat

    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


async def _run_remote_command(
    session: Session,
    connection: "AbstractAsyncContextManager[RunningCommand]",
    *,
    is_tty: bool,
    should_forward_input: bool,
    node_name: str,
) -> int:
    """Copy input and output between this process and the remote command until it ends; return its exit code."""
    async with AsyncExitStack() as exit_stack:
        with announce_wait(f"a reply from {', '.join(session.settings.addresses)}"):
            running = await exit_stack.enter_async_context(connection)
        with _raw_terminal(is_tty), _forward_terminal_size(session, running, is_tty):
            tasks = [
                session.world.start_task(_send_heartbeats(running), name="exec heartbeat"),
                session.world.start_task(announce_slow_begin(running, node_name, is_tty=is_tty), name="notice"),
            ]
            if should_forward_input:
                tasks.append(session.world.start_task(_forward_input(running, is_tty=is_tty), name="exec input"))
            elif not is_tty:
                await running.close_input()
            try:
                async for stream, data in running.read_output():
                    out = sys.stdout if stream == "stdout" else sys.stderr
                    out.buffer.write(data)
                    out.buffer.flush()
            finally:
                await cancel_tasks(*tasks)
    assert running.exit_code is not None, "the output ends with the exit code"
    return running.exit_code


async def _send_heartbeats(running: "RunningCommand") -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_INTERVAL_S)
        await running.send_heartbeat()


async def _forward_input(running: "RunningCommand", *, is_tty: bool) -> None:
    """Send standard input to the remote command, at most 16 chunks ahead, and close its input at the end.

    On a terminal, Ctrl-C interrupts this process until the node has begun to run the command, which then receives it.
    """
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    free_slots = threading.Semaphore(16)
    _start_input_thread(asyncio.get_running_loop(), chunks.put_nowait, free_slots)
    while chunk := await chunks.get():
        if is_tty and INTERRUPT_KEY in chunk and not running.begun_event.is_set():
            signal.raise_signal(signal.SIGINT)
        await running.write(chunk)
        free_slots.release()
    await running.close_input()


def _start_input_thread(
    loop: asyncio.AbstractEventLoop, put: Callable[[bytes], None], free_slots: threading.Semaphore
) -> None:
    """Read standard input in a thread, because an event loop cannot wait for every kind of file. `put` gets each chunk.

    An empty chunk marks the end. The thread ends with the process.
    """

    def read() -> None:
        """Read standard input until its end, one chunk for each free slot."""
        while True:
            free_slots.acquire()
            try:
                chunk = os.read(sys.stdin.fileno(), READ_CHUNK_BYTES)
            except OSError:
                chunk = b""
            try:
                loop.call_soon_threadsafe(put, chunk)
            except RuntimeError:
                return  # The event loop is closed: the remote command has ended.
            if not chunk:
                return

    threading.Thread(target=read, name="standard input", daemon=True).start()


@contextmanager
def _raw_terminal(is_tty: bool) -> Iterator[None]:
    """Switch the terminal to raw mode in the block, so that the remote command also receives keys such as Ctrl-C."""
    if not is_tty:
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    saved_attributes: list[Any] = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)  # TCSADRAIN keeps keys that were typed before.
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved_attributes)


@contextmanager
def _forward_terminal_size(session: Session, running: "RunningCommand", is_tty: bool) -> Iterator[None]:
    """Send the size of the terminal at the start of the block and whenever it changes."""
    if not is_tty:
        yield
        return
    loop = asyncio.get_running_loop()
    resize_tasks: set[asyncio.Task[None]] = set()

    def send_size() -> None:
        size = os.get_terminal_size(sys.stdin.fileno())
        resize_tasks.add(session.world.start_task(running.resize(size.lines, size.columns), name="resize"))

    send_size()
    loop.add_signal_handler(signal.SIGWINCH, send_size)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for task in resize_tasks:
            task.cancel()
