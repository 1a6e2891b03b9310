"""The agent's connection to the task supervisor. Starts a supervisor if none runs, and reconnects after its end.

Messages sent while disconnected are lost. After each connect the supervisor reports all its runs, and the callers
repeat the requests that are still open.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.drivers.port import CannotStart, Watcher
from wharf.node.processes import Process, find_process, read_arguments, send_signal
from wharf.node.supervisor import messages
from wharf.node.supervisor.supervisor_log import open_log
from wharf.node.supervisor.task_supervisor import MAX_FOLDER_ABSENCE_S, SOCKET_FILE
from wharf.world import World
from wharf.world.descriptors import get_open_file_limit_of_programs
from wharf.world.framing import FrameDecoder, FrameTooLong, encode_frame
from wharf.world.unix_sockets import shorten_socket_path

log = logging.getLogger(__name__)

CONNECT_RETRY_DELAY_S: Final = 0.05
MIN_START_INTERVAL_S: Final = 1.0
"""Seconds between two attempts to start a supervisor."""
READ_BYTES: Final = 262_144
SUPERVISOR_MODULE: Final = "wharf.node.supervisor"
_decoder: Final = msgspec.msgpack.Decoder(messages.FromSupervisor)


class SupervisorClient:
    """The agent's connection to the task supervisor: sends requests and passes its reports to the watcher."""

    def __init__(
        self, world: World, folder: Path, node_id: str, watcher: Watcher, *, tracking_method: str = "auto"
    ) -> None:
        """Create a client that is not connected. `folder` holds the supervisor's socket and state.

        `tracking_method` of `mark` selects tracking of processes by an environment variable only.
        """
        self._world = world
        self._folder = folder
        self._node = node_id
        self._requested_method = tracking_method
        self._watcher = watcher
        self._writer: asyncio.StreamWriter | None = None
        self._last_messages: dict[str, messages.FromSupervisor] = {}
        self._has_all_runs = asyncio.Event()
        self._is_shutting_down = False
        self._answers_pings = False
        self._is_ping_open = False
        """Whether a `Ping` was sent that the supervisor has not answered."""
        self._is_recovering = False
        """Whether `on_connected` runs. Messages are not read meanwhile."""
        self.process: Process | None = None
        """The process of the supervisor; None if none is connected."""
        self.tracking_method = ""
        self.enforced_limits: tuple[str, ...] = ()
        self.pid = 0

    async def run(self, on_connected: Callable[[], Awaitable[None]]) -> None:
        """Connect to the task supervisor, start one if none runs, and reconnect when the connection is lost.

        Runs until canceled or until a requested shutdown is complete. `on_connected` is called on each connection,
        after the supervisor has reported all its runs.
        """
        last_start_s: float | None = None
        while True:
            try:
                reader = await self._connect()
            except OSError:
                now_s = self._world.monotonic_s()
                if last_start_s is None or now_s - last_start_s > MIN_START_INTERVAL_S:
                    last_start_s = now_s
                    await asyncio.get_running_loop().run_in_executor(None, self._start_supervisor)
                else:
                    await asyncio.sleep(CONNECT_RETRY_DELAY_S)
                continue
            last_start_s = None
            try:
                await self._listen(reader, on_connected)
            except (OSError, FrameTooLong, msgspec.MsgspecError) as error:
                if not self._is_shutting_down:
                    log.error("supervisor connection failed error=%s", error)
            finally:
                self._has_all_runs.clear()
                self._is_ping_open = self._answers_pings = self._is_recovering = False
                self.process = None
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None
            if self._is_shutting_down:
                return
            log.warning("supervisor connection lost; reconnecting")

    async def _connect(self) -> asyncio.StreamReader:
        """Connect to the supervisor's socket, store the writer and return the reader. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            with shorten_socket_path(self._folder / SOCKET_FILE) as path:
                await asyncio.get_running_loop().sock_connect(connection, path)
        except BaseException:
            connection.close()
            raise
        # Known before the supervisor sends anything, so that one that hangs can be replaced.
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.process = find_process(struct.unpack("3i", credentials)[0])
        reader, self._writer = await asyncio.open_unix_connection(sock=connection, limit=READ_BYTES)
        return reader

    @property
    def is_silent(self) -> bool:
        """Whether the supervisor has not answered the last request, or no supervisor is connected."""
        is_waiting = self._is_ping_open or not self._has_all_runs.is_set()
        return is_waiting and not self._is_recovering and not self._is_shutting_down

    def request_answer(self) -> None:
        """Request an answer, unless the last request was not answered yet or the supervisor is too old for it."""
        if self._answers_pings and not self._is_ping_open and self._has_all_runs.is_set():
            self._is_ping_open = True
            self.send_message(messages.Ping())

    def kill_process(self) -> bool:
        """Kill the supervisor with SIGKILL, so that a new one is started. Return whether that was possible.

        Its tasks continue. Nothing is killed unless the process is a supervisor of this folder.
        """
        process = self.process
        if process is None:
            return False
        arguments = read_arguments(process.pid)
        if SUPERVISOR_MODULE not in arguments or str(self._folder) not in arguments:
            return False
        return send_signal(process, signal.SIGKILL, is_to_group=False)

    def _start_supervisor(self) -> None:
        """Start a task supervisor, which forks into the background. Blocks until the fork is done."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        options = [str(MAX_FOLDER_ABSENCE_S), str(get_open_file_limit_of_programs())]
        command = [
            *(sys.executable, "-m", SUPERVISOR_MODULE, str(self._folder), self._node, self._requested_method),
            *options,
        ]
        with open_log(self._folder) as log_file:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file, check=False)

    async def _listen(self, reader: asyncio.StreamReader, on_connected: Callable[[], Awaitable[None]]) -> None:
        """Handle the supervisor's messages until the connection closes.

        Calls `on_connected` after the list of all runs is complete. Raises OSError, FrameTooLong and MsgspecError.
        """
        frames, self._last_messages = FrameDecoder(messages.MAX_FRAME_BYTES), {}
        while data := await reader.read(READ_BYTES):
            for frame in frames.feed(data):
                message = _decoder.decode(frame)
                if isinstance(message, messages.AllRunsSent):
                    self._has_all_runs.set()
                    self._is_recovering = True
                    await on_connected()
                    self._is_recovering = False
                else:
                    self._handle_message(message)

    def _handle_message(self, message: messages.FromSupervisor) -> None:
        """Store the latest message about a run, and report it to the watcher.

        Nothing is reported before the list of all runs is complete.
        """
        match message:
            case messages.Hello(pid, tracking_method, enforced_limits, answers_pings, sends_run_messages):
                self.pid, self.tracking_method, self.enforced_limits = pid, tracking_method, enforced_limits
                self._answers_pings = answers_pings
                if sends_run_messages:
                    self.send_message(messages.RequestRunMessages())
                return
            case messages.RunMessage(name, text):
                self._watcher.on_said(name, text)
                return
            case messages.Pong():
                self._is_ping_open = False
                return
            case messages.AllRunsSent():
                return
        self._last_messages[message.name] = message
        if self._has_all_runs.is_set():
            self._report_to_watcher(message)

    def _report_to_watcher(self, message: messages.FromSupervisor) -> None:
        """Call the watcher if the message says that a run has started, has ended or was refused."""
        match message:
            case messages.RunBegun(name):
                self._watcher.on_begun(name)
            case messages.RunRefused(name, why):
                self._watcher.on_refused(name, why)
            case messages.RunEnded(name, exit_code, signal_number, is_known, is_out_of_memory):
                outcome = Outcome(exit_code, signal_number, is_out_of_memory=is_out_of_memory) if is_known else UNKNOWN
                self._watcher.on_ended(name, outcome)
            case _:
                pass

    def start_run(self, request: messages.RunRequest) -> None:
        """Request the supervisor to start a run. Raises CannotStart if the request is larger than a message may be.

        The supervisor would close the connection, which all tasks of the node share.
        """
        if (size := len(encode_frame(messages.StartRun(request)))) > messages.MAX_FRAME_BYTES:
            raise CannotStart(
                f"command and environment have {size} bytes together; the limit is {messages.MAX_FRAME_BYTES}: shorten "
                "the arguments, variables and metadata",
                is_final=True,
            )
        self.send_message(messages.StartRun(request))

    def send_message(self, message: msgspec.Struct) -> None:
        """Send a message to the supervisor; it is lost if the supervisor is not connected.

        A `ForgetRun` also deletes the stored message about that run.
        """
        if self._writer is not None:
            self._writer.write(encode_frame(message))
        if isinstance(message, messages.ForgetRun):
            self._last_messages.pop(message.name, None)

    def list_runs(self) -> list[str]:
        """Return the names of all runs that the supervisor has reported."""
        return list(self._last_messages)

    def find_pid(self, run: str) -> int | None:
        """Return the process id of a run's program; None if it is not known to run."""
        message = self._last_messages.get(run)
        return message.pid or None if isinstance(message, messages.RunBegun) else None

    async def recover_runs(self, runs: Collection[str]) -> None:
        """Wait until the supervisor has reported all runs, then report the state of these runs to the watcher.

        For a run that the supervisor does not know, an unknown outcome is reported.
        """
        await self._has_all_runs.wait()
        for run in runs:
            message = self._last_messages.get(run)
            if message is None:
                self._watcher.on_ended(run, UNKNOWN)
            else:
                self._report_to_watcher(message)

    async def shut_down(self) -> None:
        """Request that the supervisor exits once no program runs, and wait until it has closed the connection.

        Waits for the connection first, because the supervisor may be starting.
        """
        await self._has_all_runs.wait()
        self._is_shutting_down = True
        self.send_message(messages.ShutDown())
        if self._writer is not None:
            with contextlib.suppress(OSError):
                await self._writer.drain()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
