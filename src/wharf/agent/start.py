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
from wharf.agent import snapshots
from wharf.agent.channel import NewSettings, Order, ReloadAnswer
from wharf.agent.control import Answer, DebugAnswer, ProcessNews, listen_for_commands
from wharf.agent.folder import LOCK_FILE, STORE_FOLDER, DataFolder
from wharf.agent.listening import listen, url_of
from wharf.agent.logs import Logs, order_from
from wharf.agent.refusal import Refused
from wharf.agent.supervisor import Spawned, Supervisor
from wharf.agent.tree import Part, ProcessTree
from wharf.config.configuration import Configuration
from wharf.config.display import compare, take_live
from wharf.config.problems import ConfigurationRefused
from wharf.config.rules import listen_address
from wharf.config.settings import Settings
from wharf.config.values import redacted
from wharf.engines.settings import EngineKind
from wharf.node.supervisor.keeper import has_keeper
from wharf.server.agent_door import say_stacks
from wharf.world import RealWorld

SNAPSHOT: Final = "snapshot"
STORE_SILENCE_S: Final = 60.0
"""A commit holds the store's loop until the disk has it, and a disk may take long; one that takes a minute is no disk."""

log = logging.getLogger(__name__)


class Running(msgspec.Struct, frozen=True):
    """What people are told when everything is ready."""

    address: str
    """The URL of HTTP; empty for an agent without a server."""
    settings: Settings
    data_folder: Path
    details: Mapping[str, Mapping[str, str]]
    """What each process says of itself."""
    ready_after_s: float


def parts_of(settings: Settings) -> list[Part]:
    """The processes that a configuration asks for."""
    parts: list[Part] = []
    needs_store: tuple[str, ...] = ()
    if settings.server.enabled:
        if settings.state.engine is not EngineKind.ETCD:
            parts.append(Part("store", silence_s=STORE_SILENCE_S))
            needs_store = ("store",)
        parts.append(Part("brain", needs_store))
        grace_s = settings.api.shutdown_grace.s + 2.0
        parts.extend(Part(name, needs_store, grace_s=grace_s) for name in api_names(settings))
    if settings.client.enabled:
        # A node that stops its tasks waits for the longest kill timeout that it allows.
        grace_s = 3.0 + (settings.client.max_kill_timeout.s + 7.0 if settings.client.stop_on_shutdown else 0.0)
        grace_s += settings.client.leaves_within_s
        # Its last words are heard by the brain, through an api.
        servers = (*api_names(settings)[:1], "brain") if settings.server.enabled else ()
        parts.append(Part("node", servers, grace_s=grace_s))
    return parts


def api_names(settings: Settings) -> tuple[str, ...]:
    count = settings.api.processes
    return ("api",) if count == 1 else tuple(f"api-{number}" for number in range(1, count + 1))


class Agent:
    def __init__(
        self,
        configuration: Configuration,
        *,
        read_again: Callable[[], Configuration],
        on_ready: Callable[[Running], None],
        is_fresh: bool = False,
        introduces_own_node: bool = False,
    ) -> None:
        """`read_again` reads the configuration anew, for a reload; it raises ConfigurationRefused. `introduces_own_node`:
        while access control is on, the node here needs no introduction to the server here.
        """
        self.settings = configuration.settings
        self._read_again = read_again
        self._tell_ready = on_ready
        self._is_fresh = is_fresh
        self._world = RealWorld()
        self._door_secret = self._world.new_secret()
        # To servers elsewhere it would say nothing, and they must not see it.
        self._own_node_secret = (
            self._world.new_secret() if introduces_own_node and not configuration.settings.client.servers else ""
        )
        self._began_s = self._world.monotonic_s()
        self._folder = DataFolder(Path(self.settings.data_dir))
        self._logs = Logs("agent")
        self._listening: socket.socket | None = None
        self._address = ""
        self._next_snapshot_s: float | None = None

    def run(self) -> str:
        """Until it ends. Returns why, or nothing when it was asked to. Raises Refused when it cannot even begin."""
        self._listen()
        try:
            self._folder.take(about=self._say_who())
            try:
                return self._run_in_folder()
            finally:
                self._folder.release()
        finally:
            if self._listening is not None:
                self._listening.close()

    def _run_in_folder(self) -> str:
        if self._is_fresh:
            refuse_while_tasks_run(self.settings)
            self._folder.empty()
        try:
            self._logs.apply(order_from(self.settings))
        except OSError as error:
            raise Refused(f"the log file {self.settings.log_file} cannot be written: {error.strerror}") from error
        self._folder.remove_left_over()
        self._plan_snapshots()
        tree = ProcessTree(parts_of(self.settings))
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
            self._listening = listen(listen_address(self.settings), self.settings.ports.http)
            self._address = url_of(self._listening, tls=self.settings.tls.http)

    def _say_who(self) -> str:
        at = f", {self._address}" if self._address else ""
        return f"another wharf (process {os.getpid()}{at})"

    # -- what the supervisor leaves to us

    def spawned(self, part: str) -> Spawned:
        role = part.partition("-")[0]
        descriptors = [self._folder.lock]
        listening = -1
        if role == "api":
            assert self._listening is not None
            listening = self._listening.fileno()
            descriptors.append(listening)
        order = Order(
            role=role,
            name=part,
            data_folder=str(self._folder.path),
            settings=self.settings,
            log=order_from(self.settings),
            listening=listening,
            address=self._address,
            door_secret=self._door_secret if role in ("api", "brain") else "",
            own_node_secret=self._own_node_secret if role in ("api", "node") else "",
        )
        return Spawned(order, tuple(descriptors))

    def on_ready(self, details: Mapping[str, Mapping[str, str]]) -> None:
        after_s = self._world.monotonic_s() - self._began_s
        self._tell_ready(Running(self._address, self.settings, self._folder.path, details, after_s))

    def reload(self) -> tuple[ReloadAnswer, NewSettings | None]:
        try:
            wanted = self._read_again().settings
        except ConfigurationRefused as refused:
            problem = "; ".join(str(problem) for problem in refused.problems)
            log.error("the configuration was not reloaded", extra={"problems": problem})
            return ReloadAnswer(0, problem=problem), None
        difference = compare(self.settings, wanted)
        settings = take_live(self.settings, wanted)
        order = order_from(settings)
        try:
            self._logs.apply(order)
        except OSError as error:
            return ReloadAnswer(0, problem=f"the log file cannot be written: {error.strerror}"), None
        self.settings = settings
        log.info(
            "configuration reloaded",
            extra={"applied": difference.applied, "needs_restart": difference.needs_restart},
        )
        return ReloadAnswer(0, difference.applied, difference.needs_restart), NewSettings(settings, order)

    def tell_log(self, level: int, put: Callable[[int, str], None]) -> None:
        self._logs.tell(level, put)

    def debug(self, processes: list[ProcessNews]) -> Answer:
        return DebugAnswer(
            version=__version__,
            configuration=redacted(self.settings),
            processes=processes,
            agent_stacks=say_stacks(None),
            agent_log_lines=self._logs.kept_lines(),
        )

    # -- snapshots

    def _plan_snapshots(self) -> None:
        interval_s = self.settings.snapshots.interval.s
        if interval_s and self.settings.server.enabled:
            newest_ns = snapshots.newest_ns(snapshots.folder_of(self.settings, self._folder.path))
            wait_s = snapshots.wait_s(interval_s, now_ns=self._world.now_ns(), newest_ns=newest_ns)
            self._next_snapshot_s = self._world.monotonic_s() + wait_s

    def next_errand_s(self) -> float | None:
        return self._next_snapshot_s

    def errand(self) -> str | None:
        self._next_snapshot_s = self._world.monotonic_s() + self.settings.snapshots.interval.s
        return SNAPSHOT

    def on_errand_done(self, part: str, how: str, why: str) -> None:
        if how != "exit code 0":
            log.error("no snapshot was saved", extra={"part": part, "how": how, "why": why or "see the lines above"})


def refuse_while_tasks_run(settings: Settings) -> None:
    """A folder is not emptied under the tasks that run in it: nobody could find them again. Raises Refused."""
    state = Path(settings.client.state_dir or Path(settings.data_dir) / "node")
    if has_keeper(state):
        raise Refused(
            f"tasks of an earlier run still run in {settings.data_dir}: start once without --fresh and stop them, "
            "or choose another folder"
        )


def refuse_fresh(folder: Path) -> None:
    """Nothing is removed from a folder that is none of ours. Raises Refused."""
    try:
        entries = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise Refused(f"the data folder {folder} cannot be read: {error.strerror}") from error
    if entries and LOCK_FILE not in entries:
        raise Refused(f"{folder} holds other things than data of wharf, and --fresh would remove them: choose another")
