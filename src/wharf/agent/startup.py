"""Starts an agent from its configuration: what has to be there first, which processes it has, and what a reload does.

It ends with one sentence for people, or with nothing when it was asked to end.
"""

import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from wharf import __version__
from wharf.agent.data_folder import LOCK_FILE, STORE_FOLDER, DataFolder
from wharf.agent.errors import CommandError
from wharf.agent.logs.setup import ProcessLogging, build_log_configuration
from wharf.agent.snapshots import schedule
from wharf.agent.sockets import build_url, listen_tcp
from wharf.agent.supervision.channel import NewSettings, ProcessOrder, ReloadReply
from wharf.agent.supervision.control import ControlReply, DebugReply, ProcessReport, listen_for_commands
from wharf.agent.supervision.process_tree import ProcessSpec, ProcessTree
from wharf.agent.supervision.supervisor import SpawnSpec, Supervisor
from wharf.cluster.engines.settings import EngineKind
from wharf.cluster.server.agent_interface import format_stacks
from wharf.config.configuration import Configuration
from wharf.config.display import apply_live_settings, compare_settings
from wharf.config.errors import ConfigurationError
from wharf.config.rules import get_listen_address
from wharf.config.settings import AgentSettings
from wharf.config.values import redact_settings
from wharf.node.supervisor.task_supervisor import has_running_supervisor
from wharf.world import RealWorld

SNAPSHOT_ROLE: Final = "snapshot"
MAX_STORE_SILENCE_S: Final = 60.0
"""A commit holds the store's loop until the disk has it, and a disk may take long; one that takes a minute is no disk."""

log = logging.getLogger(__name__)


class ReadyReport(msgspec.Struct, frozen=True):
    """What people are told when everything is ready."""

    address: str
    """The URL of HTTP; empty for an agent without a server."""
    settings: AgentSettings
    data_folder: Path
    details: Mapping[str, Mapping[str, str]]
    """What each process says of itself."""
    ready_after_s: float


def list_process_specs(settings: AgentSettings) -> list[ProcessSpec]:
    """The processes that a configuration asks for."""
    parts: list[ProcessSpec] = []
    needs_store: tuple[str, ...] = ()
    if settings.server.enabled:
        if settings.state.engine is not EngineKind.ETCD:
            parts.append(ProcessSpec("store", max_silence_s=MAX_STORE_SILENCE_S))
            needs_store = ("store",)
        parts.append(ProcessSpec("brain", needs_store))
        grace_s = settings.api.shutdown_grace.seconds + 2.0
        parts.extend(ProcessSpec(name, needs_store, grace_s=grace_s) for name in list_api_names(settings))
    if settings.client.enabled:
        # A node that stops its tasks waits for the longest kill timeout that it allows.
        grace_s = 3.0 + (settings.client.max_kill_timeout.seconds + 7.0 if settings.client.stop_on_shutdown else 0.0)
        grace_s += settings.client.shutdown_drain_timeout_s
        # Its last words are heard by the brain, through an api.
        servers = (*list_api_names(settings)[:1], "brain") if settings.server.enabled else ()
        parts.append(ProcessSpec("node", servers, grace_s=grace_s))
    return parts


def list_api_names(settings: AgentSettings) -> tuple[str, ...]:
    count = settings.api.processes
    return ("api",) if count == 1 else tuple(f"api-{number}" for number in range(1, count + 1))


class AgentProcess:
    def __init__(
        self,
        configuration: Configuration,
        *,
        reload_configuration: Callable[[], Configuration],
        on_ready: Callable[[ReadyReport], None],
        is_fresh: bool = False,
        should_introduce_own_node: bool = False,
    ) -> None:
        """`read_again` reads the configuration anew, for a reload; it raises ConfigurationRefused. `introduces_own_node`:
        while access control is on, the node here needs no introduction to the server here.
        """
        self.settings = configuration.settings
        self._read_again = reload_configuration
        self._tell_ready = on_ready
        self._is_fresh = is_fresh
        self._world = RealWorld()
        self._door_secret = self._world.new_secret()
        # To servers elsewhere it would say nothing, and they must not see it.
        self._own_node_secret = (
            self._world.new_secret() if should_introduce_own_node and not configuration.settings.client.servers else ""
        )
        self._began_s = self._world.monotonic_s()
        self._folder = DataFolder(Path(self.settings.data_dir))
        self._logs = ProcessLogging("agent")
        self._listening: socket.socket | None = None
        self._address = ""
        self._next_snapshot_s: float | None = None

    def run(self) -> str:
        """Until it ends. Returns why, or nothing when it was asked to. Raises CommandError when it cannot even begin."""
        self._listen()
        try:
            self._folder.acquire(owner=self._say_who())
            try:
                return self._run_in_folder()
            finally:
                self._folder.release()
        finally:
            if self._listening is not None:
                self._listening.close()

    def _run_in_folder(self) -> str:
        if self._is_fresh:
            require_no_running_tasks(self.settings)
            self._folder.empty()
        try:
            self._logs.apply(build_log_configuration(self.settings))
        except OSError as error:
            raise CommandError(f"the log file {self.settings.log_file} cannot be written: {error.strerror}") from error
        self._folder.remove_leftovers()
        self._plan_snapshots()
        tree = ProcessTree(list_process_specs(self.settings))
        with listen_for_commands(self._folder.path) as commands:
            try:
                return Supervisor(self._world, tree, self, commands=commands).run()
            finally:
                self._remove_sockets()
                self._logs.close()

    def _remove_sockets(self) -> None:
        """Processes remove their own when they end in order; one that was killed did not."""
        for folder in (self._folder.path, self._folder.path / STORE_FOLDER):
            for entry in folder.glob("*.sock"):
                entry.unlink(missing_ok=True)

    def _listen(self) -> None:
        if self.settings.server.enabled:
            self._listening = listen_tcp(get_listen_address(self.settings), self.settings.ports.http)
            self._address = build_url(self._listening, tls=self.settings.tls.http)

    def _say_who(self) -> str:
        at = f", {self._address}" if self._address else ""
        return f"another wharf (process {os.getpid()}{at})"

    # -- what the supervisor leaves to us

    def build_spawn_spec(self, part: str) -> SpawnSpec:
        role = part.partition("-")[0]
        descriptors = [self._folder.lock_descriptor]
        listening = -1
        if role == "api":
            assert self._listening is not None
            listening = self._listening.fileno()
            descriptors.append(listening)
        order = ProcessOrder(
            role=role,
            name=part,
            data_folder=str(self._folder.path),
            settings=self.settings,
            log=build_log_configuration(self.settings),
            listening=listening,
            address=self._address,
            door_secret=self._door_secret if role in ("api", "brain") else "",
            own_node_secret=self._own_node_secret if role in ("api", "node") else "",
        )
        return SpawnSpec(order, tuple(descriptors))

    def on_ready(self, details: Mapping[str, Mapping[str, str]]) -> None:
        after_s = self._world.monotonic_s() - self._began_s
        self._tell_ready(ReadyReport(self._address, self.settings, self._folder.path, details, after_s))

    def reload(self) -> tuple[ReloadReply, NewSettings | None]:
        try:
            wanted = self._read_again().settings
        except ConfigurationError as refused:
            problem = "; ".join(str(problem) for problem in refused.problems)
            log.error("the configuration was not reloaded", extra={"problems": problem})
            return ReloadReply(0, problem=problem), None
        difference = compare_settings(self.settings, wanted)
        settings = apply_live_settings(self.settings, wanted)
        order = build_log_configuration(settings)
        try:
            self._logs.apply(order)
        except OSError as error:
            return ReloadReply(0, problem=f"the log file cannot be written: {error.strerror}"), None
        self.settings = settings
        log.info(
            "configuration reloaded",
            extra={"applied": difference.applied, "needs_restart": difference.needs_restart},
        )
        return ReloadReply(0, difference.applied, difference.needs_restart), NewSettings(settings, order)

    def forward_log(self, level: int, put: Callable[[int, str], None]) -> None:
        self._logs.forward_lines(level, put)

    def build_debug_reply(self, processes: list[ProcessReport]) -> ControlReply:
        return DebugReply(
            version=__version__,
            configuration=redact_settings(self.settings),
            processes=processes,
            agent_stacks=format_stacks(None),
            agent_log_lines=self._logs.get_retained_lines(),
        )

    # -- snapshots

    def _plan_snapshots(self) -> None:
        interval_s = self.settings.snapshots.interval.seconds
        if interval_s and self.settings.server.enabled:
            newest_ns = schedule.get_newest_time_ns(schedule.get_snapshot_folder(self.settings, self._folder.path))
            wait_s = schedule.compute_wait_s(interval_s, now_ns=self._world.now_ns(), newest_ns=newest_ns)
            self._next_snapshot_s = self._world.monotonic_s() + wait_s

    def next_one_off_s(self) -> float | None:
        return self._next_snapshot_s

    def start_one_off(self) -> str | None:
        self._next_snapshot_s = self._world.monotonic_s() + self.settings.snapshots.interval.seconds
        return SNAPSHOT_ROLE

    def on_one_off_done(self, part: str, how: str, why: str) -> None:
        if how != "exit code 0":
            log.error("no snapshot was saved", extra={"part": part, "how": how, "why": why or "see the lines above"})


def require_no_running_tasks(settings: AgentSettings) -> None:
    """A folder is not emptied under the tasks that run in it: nobody could find them again. Raises Refused."""
    state = Path(settings.client.state_dir or Path(settings.data_dir) / "node")
    if has_running_supervisor(state):
        raise CommandError(
            f"tasks of an earlier run still run in {settings.data_dir}: start once without --fresh and stop them, "
            "or choose another folder"
        )


def require_own_folder(folder: Path) -> None:
    """Nothing is removed from a folder that is none of ours. Raises CommandError."""
    try:
        entries = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise CommandError(f"the data folder {folder} cannot be read: {error.strerror}") from error
    if entries and LOCK_FILE not in entries:
        raise CommandError(
            f"{folder} holds other things than data of wharf, and --fresh would remove them: choose another"
        )
