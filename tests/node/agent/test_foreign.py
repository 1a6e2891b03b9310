"""What a node with a deleted data folder has left: it is found, reported, and ended only if the configuration says so."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.processes import is_alive
from tests.node.supervisor.supervisor_process import SupervisorProcess, running_supervisor
from tests.waiting import wait_until
from wharf.node.agent.allocations.journal import DiskJournalFile, NodeJournal
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.agent.foreign import ForeignRemains, ForeignSearch, scan_machine
from wharf.node.agent.servers.node_events import NodeEventQueue
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
    assert "1 task supervisor, 1 task, 1 network" == found.describe()


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

    assert "" == first.keep_common(scan(supervisor, tmp_path)).describe()


class NoContainers:
    async def list_lost_containers(self) -> frozenset[str]:
        return frozenset()

    async def remove_lost_container(self, container: str) -> None:
        raise AssertionError(f"no container was found: {container}")


def handle(found: ForeignRemains, tmp_path: Path, *, should_reap: bool) -> tuple[list[str], list[str]]:
    """Return the messages of the node events, and the ids of nodes whose networks are removed."""

    async def run() -> tuple[list[str], list[str]]:
        events, released = NodeEventQueue(RealWorld()), list[str]()
        search = ForeignSearch(
            "new-node",
            events,
            NoContainers(),
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
