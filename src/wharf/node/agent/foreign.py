"""What a node whose data folder was deleted has left on this machine: task supervisors, tasks, networks and containers.

Decision record 0076 says what counts as left, and when it is ended. The processes of other agents on this machine are never
touched: their folders exist.

A folder is lost if it was deleted, or if its path leads to nothing or to another folder: it was moved away, or its disk was
unmounted while processes still use it. Networks and containers carry the path of their node's folder (`node_mark`), so they
are found without a process of the node.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from wharf.contract.model.nodes.node import NodeEventSubsystem
from wharf.node.agent.servers.node_events import NodeEventQueue
from wharf.node.networks.manager import ADDRESSES_FOLDER, read_network_record
from wharf.node.node_mark import FolderLoss, MarkedContainer, NodeMark, find_log_folder_loss, find_node_loss
from wharf.node.processes import PROC, Process, find_process, kill_process, list_cgroups, list_pids, read_environment
from wharf.node.supervisor.process_tracker import RUN_MARK_VARIABLE
from wharf.node.supervisor.run import SHIM_PATH
from wharf.node.supervisor.task_supervisor import LOCK_FILE
from wharf.node.threads import ThreadGroup, run_in_thread

log = logging.getLogger(__name__)

SCAN_INTERVAL_S: Final = 60.0
CONFIRMATION_DELAY_S: Final = 2.0
"""Delay before the second scan. Only what two scans find counts: a folder can be deleted shortly before its processes end."""
ABSENCE_CONFIRMATION_DELAY_S: Final = 30.0
"""Delay before the second scan if a folder was not deleted but is missing. Its disk may be mounted again soon: task supervisors
wait 20 s for that."""
SUPERVISOR_MODULE: Final = b"wharf.node.supervisor"
DELETED_SUFFIX: Final = " (deleted)"
MAX_NAMED_NETWORKS: Final = 3
"""Limits the length of the event and the log line that name networks of unknown nodes."""
CGROUP_PARENT: Final = "/wharf/"
_MARK_PREFIX: Final = os.fsencode(f"{RUN_MARK_VARIABLE}=")


class ForeignRemains(NamedTuple):
    """What lost nodes have left. A lost node is one whose data folder was deleted."""

    supervisors: frozenset[Process] = frozenset()
    processes: frozenset[tuple[Process, str]] = frozenset()
    """The shims and tasks, each with the name of its run."""
    node_ids: frozenset[str] = frozenset()
    """The ids of lost nodes: something of them shows that their folder is lost, and nothing shows that it exists."""
    networks: frozenset[str] = frozenset()
    """The ids of allocations that have a network of a lost node."""
    containers: frozenset[str] = frozenset()
    unknown_networks: frozenset[str] = frozenset()
    """Networks of nodes of which nothing shows whether they exist, as NODE/ALLOCATION. Reported, but not ended."""
    has_absent_folder: bool = False
    """Whether a folder is only missing at its path, so that it may come back."""

    def keep_common(self, other: "ForeignRemains") -> "ForeignRemains":
        """Return what both scans have found."""
        return ForeignRemains(
            self.supervisors & other.supervisors,
            self.processes & other.processes,
            self.node_ids & other.node_ids,
            self.networks & other.networks,
            self.containers & other.containers,
            self.unknown_networks & other.unknown_networks,
            other.has_absent_folder,
        )

    def is_empty(self) -> bool:
        """Return whether there is nothing to report."""
        return not (self.unknown_networks or self.describe_lost())

    def describe_unknown(self) -> str:
        """Return a few of the networks of unknown nodes, such as `NODE/ALLOCATION and 2 more`; empty if there are none."""
        names = sorted(self.unknown_networks)
        rest = len(names) - MAX_NAMED_NETWORKS
        return ", ".join(names[:MAX_NAMED_NETWORKS]) + (f" and {rest} more" if rest > 0 else "")

    def describe_lost(self) -> str:
        """Return the number of things of each kind of lost nodes, such as `1 task supervisor, 2 tasks`; empty if there are none."""
        counts = (
            (len(self.supervisors), "task supervisors"),
            (len({run for _, run in self.processes}), "tasks"),
            (len(self.networks), "networks"),
            (len(self.containers), "containers"),
        )
        return _count_things(counts)


def _count_things(counts: Iterable[tuple[int, str]]) -> str:
    """Return numbers with their nouns, such as `1 network, 2 containers`, without those that are 0."""
    return ", ".join(f"{number} {noun if number != 1 else noun[:-1]}" for number, noun in counts if number)


class ForeignContainers(Protocol):
    """Lists the containers of other nodes, and removes those of lost nodes."""

    async def list_foreign_containers(self) -> list[MarkedContainer]:
        """Return the containers of other nodes; empty without an engine."""
        ...

    async def remove_lost_container(self, container: str) -> None:
        """Remove a container. Errors are logged."""
        ...


class ForeignSearch:
    """Searches the machine for what lost nodes have left, reports it, and ends it if the configuration says so."""

    def __init__(
        self,
        node_id: str,
        events: NodeEventQueue,
        containers: ForeignContainers,
        *,
        should_reap: bool,
        is_current_run: Callable[[str], bool],
        release_networks: Callable[[str], None],
        network_root: Path,
    ) -> None:
        """`release_networks` begins to remove all networks of a node id. `network_root` has a folder for each node id."""
        self._node_id = node_id
        self._events = events
        self._containers = containers
        self._should_reap = should_reap
        self._is_current_run = is_current_run
        self._release_networks = release_networks
        self._network_root = network_root
        self._reported_lost = ""
        self._reported_unknown = ""

    async def run(self) -> None:
        """Search, report and end at intervals. Runs until canceled."""
        while True:
            found = await self._scan()
            if not found.is_empty():
                await asyncio.sleep(ABSENCE_CONFIRMATION_DELAY_S if found.has_absent_folder else CONFIRMATION_DELAY_S)
                found = found.keep_common(await self._scan())
            await self.handle(found)
            await asyncio.sleep(SCAN_INTERVAL_S)

    async def _scan(self) -> ForeignRemains:
        """Return what lost nodes have left."""
        containers = await self._containers.list_foreign_containers()
        return await run_in_thread(
            ThreadGroup.SEARCH, scan_machine, self._node_id, self._is_current_run, self._network_root, containers
        )

    async def handle(self, found: ForeignRemains) -> None:
        """Report what was found if it differs from the last report; end it if `client.reap_foreign` is set."""
        self._report_unknown_networks(found)
        lost_text = found.describe_lost()
        if lost_text and lost_text != self._reported_lost:
            action = "ending them" if self._should_reap else "end them, or set client.reap_foreign"
            log.warning("found remains of a lost data folder found=%s action=%s", lost_text, action)
            self._events.add_event(
                NodeEventSubsystem.STORAGE,
                f"Found remains of a lost data folder: {lost_text}; {action}",
                found=lost_text,
            )
        self._reported_lost = lost_text
        if lost_text and self._should_reap:
            await self._end(found)
            log.warning("ended remains of a lost data folder ended=%s", lost_text)
            self._events.add_event(NodeEventSubsystem.STORAGE, f"Ended remains of a lost data folder: {lost_text}")

    def _report_unknown_networks(self, found: ForeignRemains) -> None:
        """Report the networks of unknown nodes if they differ from the last report. They are never ended."""
        text = found.describe_unknown()
        if text and text != self._reported_unknown:
            folder = str(self._network_root)
            log.warning("found networks of an unknown node folder=%s networks=%s", folder, text)
            self._events.add_event(
                NodeEventSubsystem.STORAGE,
                f"Found networks of an unknown node in {folder}: {text}; start their node again with its data folder, or "
                "restart the machine to remove them",
                networks=text,
            )
        self._reported_unknown = text

    async def _end(self, found: ForeignRemains) -> None:
        """Kill the processes, supervisors first, and remove control groups, containers and networks."""
        await run_in_thread(ThreadGroup.SEARCH, end_processes, found)
        for container in found.containers:
            await self._containers.remove_lost_container(container)
        for node_id in found.node_ids:
            self._release_networks(node_id)


class NodeEvidence:
    """What was found about the data folders of nodes: for each node id, whether something shows its loss or its existence."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._lost_ids: set[str] = set()
        self._living_ids: set[str] = set()
        self.losses: set[FolderLoss] = set()
        """The ways in which folders are lost."""

    def add(self, node_id: str, loss: FolderLoss) -> None:
        """Add one piece of evidence. An empty id means that the node is not known."""
        self.losses.add(loss)
        (self._living_ids if loss is FolderLoss.NONE else self._lost_ids).add(node_id)

    def list_lost(self) -> frozenset[str]:
        """Return the ids of nodes whose loss something shows, and whose existence nothing shows."""
        return frozenset(self._lost_ids - self._living_ids - {self._own_id, ""})

    def is_unknown(self, node_id: str) -> bool:
        """Return whether there is no evidence for this node."""
        return node_id not in self._lost_ids | self._living_ids | {self._own_id, ""}


def scan_machine(
    node_id: str,
    is_current_run: Callable[[str], bool],
    network_root: Path,
    containers: Collection[MarkedContainer] = (),
) -> ForeignRemains:
    """Return the processes, networks and containers of lost nodes.

    `node_id` is this node, whose current runs never count. `containers` are those of other nodes.
    """
    evidence = NodeEvidence(node_id)
    supervisors, marked, losses_of_runs = _scan_processes(evidence, node_id, is_current_run)
    networks = {
        owner: _list_folder(network_root / owner)
        for owner in _list_folder(network_root)
        if owner not in (node_id, ADDRESSES_FOLDER)
    }
    for owner, allocations in networks.items():
        for folder in {_read_state_folder(network_root / owner / allocation) for allocation in allocations} - {""}:
            evidence.add(owner, find_node_loss(NodeMark(owner, folder)))
    for container in containers:
        if container.owner.state_folder:
            evidence.add(container.owner.node_id, find_node_loss(container.owner))
        elif container.log_folder:
            evidence.add(container.owner.node_id, find_log_folder_loss(container))
    lost_ids = evidence.list_lost()
    lost_runs = {run for run, loss in losses_of_runs.items() if loss is not FolderLoss.NONE}
    unknown_ids = frozenset(filter(evidence.is_unknown, networks))
    return ForeignRemains(
        supervisors,
        frozenset((each.process, each.run) for each in marked if each.run in lost_runs or each.owner in lost_ids),
        lost_ids,
        frozenset(allocation for owner in lost_ids for allocation in networks.get(owner, ())),
        frozenset(container.id for container in containers if container.owner.node_id in lost_ids),
        frozenset(f"{owner}/{allocation}" for owner in unknown_ids for allocation in networks[owner]),
        has_absent_folder=FolderLoss.ABSENT in evidence.losses,
    )


class MarkedProcess(NamedTuple):
    """A shim or a process of a task."""

    process: Process
    run: str
    owner: str
    """The id of the node, by the control group of the process; empty without such a group."""


def _scan_processes(
    evidence: NodeEvidence, node_id: str, is_current_run: Callable[[str], bool]
) -> tuple[frozenset[Process], list[MarkedProcess], dict[str, FolderLoss]]:
    """Return the task supervisors of lost folders, the shims and tasks of all nodes, and the losses of run folders.

    The losses are those of runs with a shim, by the name of the run. What the processes show is added to `evidence`.
    """
    supervisors: set[Process] = set()
    losses_of_runs: dict[str, FolderLoss] = {}
    marked: list[MarkedProcess] = []
    for pid in list_pids():
        process, words = find_process(pid), _read_arguments(pid)
        if process is None:
            continue
        if SUPERVISOR_MODULE in words and len(words) > words.index(SUPERVISOR_MODULE) + 2:
            owner = os.fsdecode(words[words.index(SUPERVISOR_MODULE) + 2])
            loss = _find_lock_loss(pid, os.fsdecode(words[words.index(SUPERVISOR_MODULE) + 1]))
            if loss is FolderLoss.DELETED or (loss is FolderLoss.ABSENT and owner != node_id):
                supervisors.add(process)
                evidence.add(owner, loss)
            else:
                evidence.add(owner, FolderLoss.NONE)
        run = _read_run(pid)
        if run and not is_current_run(run):
            marked.append(MarkedProcess(process, run, _read_owner(pid, run)))
            if os.fsencode(SHIM_PATH) in words:
                losses_of_runs[run] = _find_run_folder_loss(pid, words)
    for each in marked:
        if each.run in losses_of_runs:
            evidence.add(each.owner, losses_of_runs[each.run])
    return frozenset(supervisors), marked, losses_of_runs


def end_processes(found: ForeignRemains) -> None:
    """Kill supervisors, shims and tasks, and remove the control groups of the tasks."""
    for process in found.supervisors:
        kill_process(process.pid, partial(_is_running, process))
    groups: dict[Path, None] = {}
    for process, run in found.processes:
        groups |= dict.fromkeys(list_cgroups(process.pid, run))
        kill_process(process.pid, partial(_is_running, process))
    for group in groups:
        with contextlib.suppress(OSError):  # A process that is ending may still be in it.
            group.rmdir()


def _is_running(process: Process) -> bool:
    """Return whether the process still exists; its id may belong to another one."""
    return find_process(process.pid) == process


def _read_arguments(pid: int) -> list[bytes]:
    """Return the command line of a process; empty if it cannot be read."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _read_run(pid: int) -> str:
    """Return the name of the run that the process belongs to, by its environment; empty if there is none."""
    entries: Collection[bytes] = read_environment(pid)
    return next((os.fsdecode(each[len(_MARK_PREFIX) :]) for each in entries if each.startswith(_MARK_PREFIX)), "")


def _read_owner(pid: int, run: str) -> str:
    """Return the id of the node whose control group for this run has the process; empty without such a group."""
    return next((group.parent.name for group in list_cgroups(pid, run) if CGROUP_PARENT in str(group)), "")


def _find_run_folder_loss(pid: int, words: list[bytes]) -> FolderLoss:
    """Return what has happened to the working folder of a shim, which is the folder of its run."""
    position = words.index(os.fsencode(SHIM_PATH)) + 1
    path = os.fsdecode(words[position]) if len(words) > position else ""
    return _find_loss(pid, path, PROC / str(pid) / "cwd")


def _find_lock_loss(pid: int, folder: str) -> FolderLoss:
    """Return what has happened to the lock file that a task supervisor has open in its folder."""
    for file in _list_paths(PROC / str(pid) / "fd"):
        if _read_link(file).removesuffix(DELETED_SUFFIX).endswith(f"/{LOCK_FILE}"):
            return _find_loss(pid, f"{folder}/{LOCK_FILE}", file)
    return FolderLoss.NONE


def _find_loss(pid: int, path: str, link: Path) -> FolderLoss:
    """Return whether `path` still leads to what the process has open, which `link` in /proc shows.

    Paths of a process with other mounts mean something else, so only a deletion counts there.
    """
    if _read_link(link).endswith(DELETED_SUFFIX):
        return FolderLoss.DELETED
    if not os.path.isabs(path) or _read_link(PROC / str(pid) / "ns" / "mnt") != _read_link(
        PROC / "self" / "ns" / "mnt"
    ):
        return FolderLoss.NONE
    try:
        used = os.stat(link)
        return FolderLoss.NONE if os.path.samestat(os.stat(path), used) else FolderLoss.ABSENT
    except (FileNotFoundError, NotADirectoryError):
        return FolderLoss.ABSENT if os.path.lexists(link) else FolderLoss.NONE
    except OSError:
        return FolderLoss.NONE


def _read_state_folder(network: Path) -> str:
    """Return the state folder that the record of a network names; empty if it names none."""
    record = read_network_record(network)
    return record.state_folder if record is not None else ""


def _read_link(path: Path) -> str:
    """Return the target of a link; empty if it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _list_paths(folder: Path) -> list[Path]:
    return [folder / name for name in _list_folder(folder)]


def _list_folder(folder: Path) -> list[str]:
    """Return the names in a folder; empty if it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []
