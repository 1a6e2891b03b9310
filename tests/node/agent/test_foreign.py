"""What a node with a deleted data folder has left: it is found, reported, and ended only if the configuration says so."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.agent.processes import is_alive
from tests.node.supervisor.supervisor_process import SupervisorProcess, running_supervisor
from tests.waiting import wait_until
from wharf.node.agent.allocations.journal import DiskJournalFile, NodeJournal
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.agent.foreign import ForeignRemains, ForeignSearch, scan_machine
from wharf.node.agent.servers.node_events import NodeEventQueue
from wharf.node.credentials import NodeCredentials
from wharf.node.networks.manager import RECORD_FILE, NetworkRecord, NetworkRequest
from wharf.node.node_mark import NODE_IDENTITY_FILE, MarkedContainer, NodeMark, build_node_mark
from wharf.node.processes import find_process, has_arguments
from wharf.node.supervisor.process_tracker import RUN_MARK_VARIABLE
from wharf.world import RealWorld


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[SupervisorProcess]:
    folder = tmp_path / "data"
    folder.mkdir()
    with running_supervisor(folder) as supervisor:
        yield supervisor
        folder.mkdir(exist_ok=True)


def start_task(supervisor: SupervisorProcess) -> int:
    supervisor.start("left.t.1", ("/bin/sleep", "1000"))
    task = supervisor.wait_begun("left.t.1")
    wait_until(lambda: has_arguments(task, "/bin/sleep"), what="the program has replaced its launcher")
    return task


def scan(supervisor: SupervisorProcess, network_root: Path) -> ForeignRemains:
    """Return what the scan finds of this supervisor: tests beside this one may leave more on the machine."""
    found = scan_machine("new-node", lambda _: False, network_root)
    return ForeignRemains(
        frozenset(each for each in found.supervisors if each.pid == supervisor.pid),
        frozenset((each, run) for each, run in found.processes if run == "left.t.1"),
        found.node_ids & {supervisor.node},
        found.networks,
    )


def test_processes_of_a_node_whose_folder_exists_are_not_found(supervisor: SupervisorProcess, tmp_path: Path) -> None:
    start_task(supervisor)

    assert ForeignRemains() == scan(supervisor, tmp_path)


def test_supervisor_task_and_network_of_a_deleted_data_folder_are_found(
    supervisor: SupervisorProcess, tmp_path: Path
) -> None:
    task = start_task(supervisor)
    networks = tmp_path / "networks"
    (networks / supervisor.node / "left").mkdir(parents=True)
    (networks / "neighbor" / "stays").mkdir(parents=True)
    shutil.rmtree(supervisor.folder)

    found = scan(supervisor, networks)

    assert 1 == len(found.supervisors)
    assert (frozenset({supervisor.node}), frozenset({"left"})) == (found.node_ids, found.networks)
    assert find_process(task) in {process for process, _ in found.processes}
    assert "1 task supervisor, 1 task, 1 network" == found.describe_lost()


def test_what_uses_a_folder_that_was_moved_away_is_found(supervisor: SupervisorProcess, tmp_path: Path) -> None:
    task = start_task(supervisor)
    supervisor.folder.rename(tmp_path / "moved")

    found = scan(supervisor, tmp_path)

    assert (1, frozenset({supervisor.node})) == (len(found.supervisors), found.node_ids)
    assert scan_machine("new-node", lambda _: False, tmp_path).has_absent_folder
    assert find_process(task) in {process for process, _ in found.processes}


def test_what_uses_a_folder_whose_path_leads_to_another_folder_is_found(
    supervisor: SupervisorProcess, tmp_path: Path
) -> None:
    """The same is found after a lazy unmount, which leaves the empty folder below."""
    start_task(supervisor)
    supervisor.folder.rename(tmp_path / "unmounted")
    supervisor.folder.mkdir()

    found = scan(supervisor, tmp_path)

    assert (1, 2) == (len(found.supervisors), len(found.processes))


def test_a_folder_that_comes_back_is_not_found(supervisor: SupervisorProcess, tmp_path: Path) -> None:
    start_task(supervisor)
    supervisor.folder.rename(tmp_path / "moved")
    first = scan(supervisor, tmp_path)
    (tmp_path / "moved").rename(supervisor.folder)

    assert first.keep_common(scan(supervisor, tmp_path)).is_empty()


class FormerNode:
    """A node that left a network and a container, and no process."""

    def __init__(self, folder: Path) -> None:
        self.id = "former-node"
        self.state = folder / "data" / "node"
        self.network_root = folder / "networks"
        self.state.mkdir(parents=True)
        (self.state / NODE_IDENTITY_FILE).write_bytes(msgspec.json.encode(NodeCredentials(self.id, "secret")))
        self.mark = build_node_mark(self.id, self.state)

    def leave_network(self, mark: NodeMark | None = None) -> None:
        folder = self.network_root / self.id / "left"
        folder.mkdir(parents=True)
        record = NetworkRecord(NetworkRequest(None), state_folder=(mark or self.mark).state_folder)
        (folder / RECORD_FILE).write_bytes(msgspec.json.encode(record))

    def scan(self, *containers: MarkedContainer) -> ForeignRemains:
        """Return what the scan finds of nodes without a process: tests beside this one may leave more on the machine."""
        found = scan_machine("new-node", lambda _: False, self.network_root, containers)
        return found._replace(supervisors=frozenset(), processes=frozenset(), node_ids=found.node_ids & {self.id})

    def lose_folder(self) -> None:
        shutil.rmtree(self.state)

    def replace_folder(self) -> None:
        """Start a new node in the same folder."""
        (self.state / NODE_IDENTITY_FILE).write_bytes(msgspec.json.encode(NodeCredentials("new-node", "secret")))


@pytest.fixture
def former(tmp_path: Path) -> FormerNode:
    return FormerNode(tmp_path)


def get_found(found: ForeignRemains) -> tuple[set[str], set[str], set[str]]:
    """Return the lost nodes, their networks and their containers."""
    return set(found.node_ids), set(found.networks), set(found.containers)


@pytest.mark.parametrize("lose", [FormerNode.lose_folder, FormerNode.replace_folder])
def test_a_network_and_a_container_of_a_lost_folder_are_found_without_a_process(
    former: FormerNode, lose: Callable[[FormerNode], None]
) -> None:
    former.leave_network()
    container = MarkedContainer("c", former.mark)
    lose(former)

    assert ({former.id}, {"left"}, {"c"}) == get_found(former.scan(container))


def test_a_network_is_found_by_the_container_of_its_node(former: FormerNode) -> None:
    former.leave_network(NodeMark(former.id))
    former.lose_folder()

    assert ({former.id}, {"left"}, {"c"}) == get_found(former.scan(MarkedContainer("c", former.mark)))


def test_nothing_of_a_node_whose_folder_exists_is_found(former: FormerNode) -> None:
    former.leave_network()
    containers = [MarkedContainer("c", former.mark), MarkedContainer("d", NodeMark(former.id), "/nothing")]

    assert former.scan(*containers).is_empty()


def test_no_container_of_a_node_with_a_living_supervisor_is_found(
    supervisor: SupervisorProcess, former: FormerNode
) -> None:
    """Such as a node in a container, whose paths mean nothing outside of it."""
    container = MarkedContainer("c", NodeMark(supervisor.node, "/nothing"), "/nothing")

    assert not former.scan(container).containers


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_container_whose_folder_is_missing_gets_the_long_delay_and_is_left_if_the_folder_comes_back(
    former: FormerNode, tmp_path: Path, is_marked: bool
) -> None:
    logs = tmp_path / "data" / "logs"
    logs.mkdir()
    mark = former.mark if is_marked else NodeMark(former.id)
    container = MarkedContainer("c", mark, str(logs))
    (tmp_path / "data").rename(tmp_path / "unmounted")
    first = former.scan(container)
    (tmp_path / "unmounted").rename(tmp_path / "data")

    assert (True, {"c"}) == (first.has_absent_folder, set(first.containers))
    assert first.keep_common(former.scan(container)).is_empty()


def test_a_network_of_a_node_of_which_nothing_is_known_is_reported_but_not_removed(
    former: FormerNode, tmp_path: Path
) -> None:
    former.leave_network(NodeMark(former.id))

    events, released = handle(former.scan(), tmp_path, should_reap=True)

    text = (
        f"Found networks of an unknown node in {tmp_path}: former-node/left; start their node again with its data folder, "
        "or restart the machine to remove them"
    )
    assert ([text], []) == (events, released)


def test_only_a_few_networks_of_unknown_nodes_are_named() -> None:
    found = ForeignRemains(unknown_networks=frozenset(f"former-node/{n}" for n in range(5)))

    assert "former-node/0, former-node/1, former-node/2 and 2 more" == found.describe_unknown()


def test_remains_of_a_lost_folder_and_networks_of_an_unknown_node_are_reported_apart(tmp_path: Path) -> None:
    found = ForeignRemains(networks=frozenset({"a"}), unknown_networks=frozenset({"other-node/b"}))

    events, _ = handle(found, tmp_path, should_reap=False)

    assert ["Found networks of an unknown node", "Found remains of a lost data folder: 1 network"] == [
        event.partition(" in ")[0].partition(";")[0] for event in events
    ]


def test_networks_and_containers_of_a_lost_folder_are_removed_if_the_configuration_says_so(
    former: FormerNode, tmp_path: Path
) -> None:
    former.leave_network()
    container = MarkedContainer("c", former.mark)
    former.lose_folder()
    removed = list[str]()

    events, released = handle(former.scan(container), tmp_path, should_reap=True, removed=removed)

    assert "Ended remains of a lost data folder: 1 network, 1 container" in events
    assert (former.id, "c") == (released[0], removed[0])


@pytest.mark.needs("processor_limits")
def test_a_task_of_a_lost_folder_is_found_without_its_shim(supervisor: SupervisorProcess, tmp_path: Path) -> None:
    assert supervisor.tracking_method == "cgroup"
    task, shim = start_task(supervisor), supervisor.read_shim_pid("left.t.1")
    supervisor.kill()
    os.kill(shim, signal.SIGKILL)
    wait_until(lambda: not is_alive(shim), what="the shim has ended")
    container = MarkedContainer("c", NodeMark(supervisor.node, "/nothing"))

    found = scan_machine("new-node", lambda _: False, tmp_path, [container])

    assert (True, True) == (supervisor.node in found.node_ids, (find_process(task), "left.t.1") in found.processes)


class ListedContainers:
    def __init__(self, removed: list[str]) -> None:
        self._removed = removed

    async def list_foreign_containers(self) -> list[MarkedContainer]:
        return []

    async def remove_lost_container(self, container: str) -> None:
        self._removed.append(container)


def handle(
    found: ForeignRemains, tmp_path: Path, *, should_reap: bool, removed: list[str] | None = None
) -> tuple[list[str], list[str]]:
    """Return the messages of the node events, and the ids of nodes whose networks are removed.

    The ids of removed containers are added to `removed`.
    """

    async def run() -> tuple[list[str], list[str]]:
        events, released = NodeEventQueue(RealWorld()), list[str]()
        search = ForeignSearch(
            "new-node",
            events,
            ListedContainers([] if removed is None else removed),
            should_reap=should_reap,
            is_current_run=lambda _: False,
            release_networks=released.append,
            network_root=tmp_path,
        )
        await search.handle(found)
        await search.handle(found)
        return [event.message for event in events.pending_events or ()], released

    return asyncio.run(run())


def test_remains_are_reported_once_and_continue_by_default(supervisor: SupervisorProcess, tmp_path: Path) -> None:
    task = start_task(supervisor)
    shutil.rmtree(supervisor.folder)

    events, released = handle(scan(supervisor, tmp_path), tmp_path, should_reap=False)

    assert (
        ["Found remains of a lost data folder: 1 task supervisor, 1 task; end them, or set client.reap_foreign"],
        [],
    ) == (events, released)
    assert (True, True) == (is_alive(supervisor.pid), is_alive(task))


def test_remains_are_ended_if_the_configuration_says_so(supervisor: SupervisorProcess, tmp_path: Path) -> None:
    task = start_task(supervisor)
    shutil.rmtree(supervisor.folder)
    found = scan(supervisor, tmp_path)

    events, released = handle(found, tmp_path, should_reap=True)

    wait_until(lambda: not is_alive(task) and not is_alive(supervisor.pid), what="task and supervisor have ended")
    assert "Ended remains of a lost data folder: 1 task supervisor, 1 task" in events
    assert supervisor.node in released


def test_a_process_that_claims_to_be_a_run_does_not_end_the_search(tmp_path: Path) -> None:
    """Any user of the machine can set the variable that marks the processes of a run."""
    journal = NodeJournal(DiskJournalFile(tmp_path / "journal"), "boot-1")
    journal.load()
    environment = {RUN_MARK_VARIABLE: "not the name of a run"}
    with subprocess.Popen(["/bin/sleep", "1000"], env=environment) as process:
        wait_until(lambda: has_arguments(process.pid, "/bin/sleep"), what="the program has replaced its launcher")
        try:
            found = scan_machine("new-node", AllocationTable(journal).is_current_run, tmp_path)
        finally:
            process.kill()

    assert process.pid not in [each.pid for each, _ in found.processes]
