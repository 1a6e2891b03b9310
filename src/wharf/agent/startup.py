"""The parent process of an agent: checks its preconditions, lists its processes, and implements reloads and snapshots.

The supervision of the processes is in `wharf.agent.supervision`.
"""

import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from wharf import __version__
from wharf.agent.advertising import build_local_url, find_advertised_address
from wharf.agent.data_folder import (
    LOCK_FILE,
    STORE_FOLDER,
    DataFolder,
    check_program_folders,
    get_allocation_folder,
    get_keyring_file,
    get_state_folder,
)
from wharf.agent.errors import CommandError, StartupError
from wharf.agent.folder_access import find_agent_user
from wharf.agent.logs.setup import ProcessLogging, build_log_configuration
from wharf.agent.snapshots import schedule
from wharf.agent.sockets import build_url, listen_tcp
from wharf.agent.supervision.activity import SilenceLimits
from wharf.agent.supervision.channel import NewSettings, ProcessOrder, ReloadReply
from wharf.agent.supervision.control import ControlReply, DebugReply, ProcessReport, listen_for_commands
from wharf.agent.supervision.process_tree import ProcessSpec, ProcessTree
from wharf.agent.supervision.supervisor import SpawnSpec, Supervisor
from wharf.agent.tls.contexts import check_tls_files, require_reloadable_certificate, require_usable_tls_files
from wharf.cluster.engines.settings import EngineKind
from wharf.cluster.engines.store.shared_index import create_shared_index
from wharf.cluster.server.agent_interface import format_stacks
from wharf.config.configuration import Configuration
from wharf.config.display import apply_live_settings, compare_settings
from wharf.config.errors import ConfigurationError
from wharf.config.rules import get_listen_address
from wharf.config.settings import AgentSettings
from wharf.config.values import redact_settings
from wharf.node.supervisor.task_supervisor import count_running_programs, has_running_supervisor
from wharf.world import RealWorld

SNAPSHOT_ROLE: Final = "snapshot"
STORE_SILENCE_LIMITS: Final = SilenceLimits(max_busy_s=120.0, max_idle_s=60.0, max_unknown_s=60.0)
"""How long the store may send no sign of life. A commit blocks its loop until the disk has written, which may be slow."""
API_SILENCE_LIMITS: Final = SilenceLimits(max_idle_s=4.0)
"""How long an api process may send no sign of life. A hung one must be replaced before nodes count as down, and its end
harms nothing: clients repeat their requests."""
NODE_SILENCE_LIMITS: Final = SilenceLimits(max_idle_s=5.0)
"""How long the node process may send no sign of life. A hung one must be back before servers declare the node down, which is
some ten seconds later with the default heartbeats, and its tasks run on meanwhile."""
MAX_API_RESTART_PAUSE_S: Final = 2.0
"""The longest pause before an api process is started again. Nobody is served meanwhile, and a start takes a second of CPU
time, so one that ends at once each time uses a third of a core."""

log = logging.getLogger(__name__)


class ReadyReport(msgspec.Struct, frozen=True):
    """What the operator sees once all processes are ready."""

    address: str
    """The URL of the HTTP port. Empty for an agent without a server."""
    settings: AgentSettings
    data_folder: Path
    details: Mapping[str, Mapping[str, str]]
    """The details that each process reported."""
    ready_after_s: float


def list_process_specs(settings: AgentSettings) -> list[ProcessSpec]:
    """Return a specification of each process that the configuration requires."""
    parts: list[ProcessSpec] = []
    needs_store: tuple[str, ...] = ()
    if settings.server.enabled:
        if settings.state.engine is not EngineKind.ETCD:
            parts.append(ProcessSpec("store", silence_limits=STORE_SILENCE_LIMITS))
            needs_store = ("store",)
        parts.append(ProcessSpec("brain", needs_store))
        grace_s = settings.api.shutdown_grace.seconds + 2.0
        parts.extend(
            ProcessSpec(
                name,
                needs_store,
                grace_s=grace_s,
                max_restart_pause_s=MAX_API_RESTART_PAUSE_S,
                silence_limits=API_SILENCE_LIMITS,
            )
            for name in list_api_names(settings)
        )
    if settings.client.enabled:
        # A node that stops its tasks waits for the longest kill timeout that it allows.
        grace_s = 3.0 + (settings.client.max_kill_timeout.seconds + 7.0 if settings.client.stop_on_shutdown else 0.0)
        grace_s += settings.client.shutdown_drain_timeout_s
        # At its end a node still sends reports to the brain through an api process, so it stops before them.
        servers = (*list_api_names(settings)[:1], "brain") if settings.server.enabled else ()
        parts.append(ProcessSpec("node", servers, grace_s=grace_s, silence_limits=NODE_SILENCE_LIMITS))
    return parts


def list_api_names(settings: AgentSettings) -> tuple[str, ...]:
    """Return the names of the api processes: `api`, or `api-1`, `api-2`, ..."""
    count = settings.api.processes
    return ("api",) if count == 1 else tuple(f"api-{number}" for number in range(1, count + 1))


class AgentProcess:
    """The parent process of an agent. Owns the data folder and the HTTP socket, and acts for the supervisor."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        reload_configuration: Callable[[], Configuration],
        on_ready: Callable[[ReadyReport], None],
        is_fresh: bool = False,
        should_introduce_own_node: bool = False,
    ) -> None:
        """`reload_configuration` reads the configuration files again and may raise `ConfigurationError`.

        `is_fresh` empties the data folder first. `should_introduce_own_node`: with access control, the node of this
        agent needs no introduction token to register at its own server.
        """
        self.settings = configuration.settings
        self._reload_configuration = reload_configuration
        self._report_ready = on_ready
        self._is_fresh = is_fresh
        self._world = RealWorld()
        self._member_secret = self._world.new_secret()
        # A node that registers at other servers must not send them this secret.
        self._own_node_secret = (
            self._world.new_secret() if should_introduce_own_node and not configuration.settings.client.servers else ""
        )
        self._started_s = self._world.monotonic_s()
        self._folder = DataFolder(Path(self.settings.data_dir))
        self._node_folders: list[DataFolder] = []
        self._logs = ProcessLogging("agent")
        self._listening: socket.socket | None = None
        self._index_descriptor = -1
        """The memory in which the store publishes the newest log index. It outlives every store process."""
        self._address = ""
        self._local_address = ""
        self._advertised_address = ""
        self._next_snapshot_s: float | None = None

    def run(self) -> str:
        """Run the agent. Return why it ended, or an empty text after a request to stop.

        Raises `CommandError` or `StartupError` if the agent cannot start.
        """
        # Before any process starts: the brain could otherwise lead the cluster before an api process finds the problem.
        require_usable_tls_files(self.settings.tls)
        if self.settings.limits.enabled:
            from wharf.agent.http.limits import check_limits_file  # Loads slowly, and is needed only with limits.

            check_limits_file(self.settings)
        self._listen()
        try:
            self._folder.acquire(owner=self._describe_owner())
            try:
                return self._run_in_folder()
            finally:
                for folder in (*self._node_folders, self._folder):
                    folder.release()
        finally:
            if self._listening is not None:
                self._listening.close()
            if self._index_descriptor >= 0:
                os.close(self._index_descriptor)

    def _run_in_folder(self) -> str:
        """Run the agent while the data folder is locked."""
        if self._is_fresh:
            require_no_running_tasks(self.settings)
            self._folder.empty()
        self._folder.check_names()
        self._lock_node_folders()
        try:
            self._logs.apply(build_log_configuration(self.settings))
        except OSError as error:
            raise CommandError(f"the log file {self.settings.log_file} cannot be written: {error.strerror}") from error
        if self._listening is not None:
            self._advertised_address = find_advertised_address(self.settings, self._listening)
        self._folder.remove_leftovers()
        self._schedule_snapshots()
        specs = list_process_specs(self.settings)
        if any(spec.name == "store" for spec in specs):
            self._index_descriptor = create_shared_index()
        tree = ProcessTree(specs)
        with listen_for_commands(self._folder.path) as commands:
            try:
                return Supervisor(self._world, tree, self, commands=commands).run()
            finally:
                self._remove_sockets()
                self._logs.close()

    def _lock_node_folders(self) -> None:
        """Check and lock the folders of the node, which can be outside of the data folder. Raises `CommandError`."""
        settings = self.settings
        if not settings.client.enabled:
            return
        check_program_folders(settings, user_id=os.geteuid())
        state, allocations = get_state_folder(settings), get_allocation_folder(settings)
        locked = [self._folder.path]
        for path, setting in ((state, "client.state_dir"), (allocations, "client.alloc_dir")):
            if any(path.exists() and path.samefile(other) for other in locked):
                continue
            folder = DataFolder(path, setting=setting, has_lock_file=path == state)
            folder.acquire(owner=self._describe_owner())
            self._node_folders.append(folder)
            locked.append(path)

    def _remove_sockets(self) -> None:
        """Delete the sockets of processes that were killed. Other processes delete theirs when they end."""
        for folder in (self._folder.path, self._folder.path / STORE_FOLDER):
            for entry in folder.glob("*.sock"):
                entry.unlink(missing_ok=True)

    def _listen(self) -> None:
        """Open the HTTP socket if this agent has a server."""
        if self.settings.server.enabled:
            self._listening = listen_tcp(get_listen_address(self.settings), self.settings.ports.http)
            self._address = build_url(self._listening, tls=self.settings.tls.http)
            self._local_address = build_local_url(self._listening, tls=self.settings.tls.http)

    def _describe_owner(self) -> str:
        """Return how the lock error of another agent names this one."""
        at = f", {self._address}" if self._address else ""
        return f"another wharf (process {os.getpid()}{at})"

    # -- callbacks of the supervisor

    def build_spawn_spec(self, part: str) -> SpawnSpec:
        """Return how to start a process: its first message and the descriptors it inherits.

        `part` is its name, such as `api-2`.
        """
        role = part.partition("-")[0]
        descriptors = [*self._folder.inherited_descriptors]
        for folder in self._node_folders:
            descriptors += folder.inherited_descriptors
        listening = -1
        if role == "api":
            assert self._listening is not None
            listening = self._listening.fileno()
            descriptors.append(listening)
        index_descriptor = self._index_descriptor if role in ("store", "brain", "api") else -1
        if index_descriptor >= 0:
            descriptors.append(index_descriptor)
        order = ProcessOrder(
            role=role,
            name=part,
            data_folder=str(self._folder.path),
            settings=self.settings,
            log=build_log_configuration(self.settings),
            listening=listening,
            index_descriptor=index_descriptor,
            address=self._local_address,
            advertised_address=self._advertised_address,
            door_secret=self._member_secret if role in ("api", "brain") else "",
            own_node_secret=self._own_node_secret if role in ("api", "node") else "",
        )
        return SpawnSpec(order, tuple(descriptors))

    def on_ready(self, details: Mapping[str, Mapping[str, str]]) -> None:
        """Report to the operator that all processes are ready."""
        after_s = self._world.monotonic_s() - self._started_s
        self._report_ready(ReadyReport(self._address, self.settings, self._folder.path, details, after_s))

    def reload(self) -> tuple[ReloadReply, NewSettings | None]:
        """Reload the configuration. Return the reply, and the new settings for the children unless it failed."""
        try:
            new_settings = self._reload_configuration().settings
        except ConfigurationError as error:
            problem = "; ".join(str(problem) for problem in error.problems)
            log.error("the configuration was not reloaded", extra={"problems": problem})
            return ReloadReply(0, problem=problem), None
        difference = compare_settings(self.settings, new_settings)
        settings = apply_live_settings(self.settings, new_settings)
        try:
            check_reloaded_files(self.settings, settings, now_ns=self._world.now_ns())
        except (CommandError, StartupError) as error:
            log.error("the configuration was not reloaded", extra={"problems": str(error)})
            return ReloadReply(0, problem=str(error)), None
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
        """Forward log lines of this process to `put` from now on; level 0 stops forwarding."""
        self._logs.forward_lines(level, put)

    def build_debug_reply(self, processes: list[ProcessReport]) -> ControlReply:
        """Return the reply to a debug request, without secrets."""
        return DebugReply(
            version=__version__,
            configuration=redact_settings(self.settings),
            processes=processes,
            agent_stacks=format_stacks(None),
            agent_log_lines=self._logs.get_retained_lines(),
        )

    # -- snapshots

    def _schedule_snapshots(self) -> None:
        """Compute when the next scheduled snapshot is due."""
        interval_s = self.settings.snapshots.interval.seconds
        if interval_s and self.settings.server.enabled:
            newest_ns = self._find_newest_snapshot_ns()
            wait_s = schedule.compute_wait_s(interval_s, now_ns=self._world.now_ns(), newest_ns=newest_ns)
            self._next_snapshot_s = self._world.monotonic_s() + wait_s

    def _find_newest_snapshot_ns(self) -> int | None:
        """Return when the newest scheduled snapshot was saved, or `None` if there is none that can be read."""
        folder = schedule.get_snapshot_folder(self.settings, self._folder.path)
        try:
            snapshots = schedule.list_scheduled_snapshots(
                folder, server_tag=schedule.build_server_tag(self._folder.path)
            )
        except OSError as error:
            log.warning("snapshots cannot be listed folder=%s error=%s", folder, error)
            return None
        return schedule.get_newest_time_ns(snapshots, now_ns=self._world.now_ns())

    def next_one_off_s(self) -> float | None:
        """Return when the next snapshot is due, in seconds of the monotonic clock; `None` if no snapshots are
        scheduled.
        """
        return self._next_snapshot_s

    def start_one_off(self) -> str | None:
        """Schedule the next snapshot, and return the role of the process that saves one now."""
        self._next_snapshot_s = self._world.monotonic_s() + self.settings.snapshots.interval.seconds
        return SNAPSHOT_ROLE

    def on_one_off_done(self, part: str, how: str, why: str) -> None:
        """Log an error if the snapshot process failed."""
        if how != "exit code 0":
            log.error("no snapshot was saved", extra={"part": part, "how": how, "why": why or "see the lines above"})


def check_reloaded_files(running: AgentSettings, settings: AgentSettings, *, now_ns: int) -> None:
    """Raise `CommandError` or `StartupError` if a file that a reload reads cannot be used, or not without a restart.

    A reload calls this before its first change, because it applies either everything or nothing.
    """
    require_reloadable_certificate(running.tls, settings.tls)
    check_tls_files(settings.tls, now_ns=now_ns)
    if settings.server.enabled:
        check_existing_keyring_file(settings)
        if settings.limits.enabled:
            from wharf.agent.http.limits import check_limits_file  # Loads slowly, and is needed only with limits.

            check_limits_file(settings)


def check_existing_keyring_file(settings: AgentSettings) -> None:
    """Raise `StartupError` if the keyring file exists and cannot be used. If it is missing, the agent creates it.

    With `keyring.secret`, the file is not used.
    """
    if settings.keyring.secret:
        return
    from wharf.agent.keyring_file import read_wrapping_keys  # Loads slowly, and is not needed for a start.

    keyring_file = get_keyring_file(settings)
    if os.path.lexists(keyring_file):
        read_wrapping_keys(keyring_file, user_id=find_agent_user(Path(settings.data_dir)))


def require_no_running_tasks(settings: AgentSettings) -> None:
    """Raise `CommandError` if tasks run in the data folder. Emptying it would leave them without a supervisor."""
    state = get_state_folder(settings)
    if has_running_supervisor(state):
        raise CommandError(
            f"tasks of an earlier run still run in {settings.data_dir}: start once without --reset-data and stop them, "
            "or choose another folder"
        )


def count_programs_of_tasks(settings: AgentSettings) -> int:
    """Return how many programs of tasks this machine's node has left running; 0 without a node."""
    return count_running_programs(get_state_folder(settings)) if settings.client.enabled else 0


def require_own_folder(folder: Path) -> None:
    """Raise `CommandError` if the folder contains files but is not a data folder of an agent.

    `--reset-data` would delete these files.
    """
    try:
        entries = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise CommandError(f"the data folder {folder} cannot be read: {error.strerror}") from error
    if entries and LOCK_FILE not in entries:
        raise CommandError(
            f"{folder} holds other things than data of wharf, and --reset-data would remove them: choose another"
        )
