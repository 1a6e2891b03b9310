"""Kills of agent, supervisor and shims at random moments: no task is stopped or run twice, and output and exit code
are kept.
"""

import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S, RunningAgent, is_alive
from tests.node.nodes import ANode, a_node, a_raw_job, a_server, ended
from tests.waiting import wait_until

LINES = 2_000
SCRIPT = f"""
echo start >>$STARTS/$WHARF_ALLOC_ID
i=0; while [ $i -lt 20 ]; do seq 1 {LINES // 20}; sleep 0.$((($WHARF_ALLOC_INDEX + i) % 5)); i=$((i + 1)); done
until [ -e $GO ]; do sleep 0.1; done
exit $((WHARF_ALLOC_INDEX % 3 + 40))
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ANode]:
    """One for all: a server goes on to give work to a node that is dead until its heartbeat is missed."""
    folder = tmp_path_factory.mktemp("kills")
    with a_server(folder / "server") as server, a_node(server, folder / "node") as it:
        yield it


class Rounds:
    """A job under churn, and killings; afterwards everything is accounted for."""

    def __init__(self, node: ANode, folder: Path, seed: int) -> None:
        self._node = node
        self._starts = folder / "starts"
        self._starts.mkdir()
        self._chance = Random(seed)
        self._orphans: set[str] = set()
        """Allocations whose shim was killed: nobody knows how their tasks ended."""

    def kill(self, what: str) -> None:
        match what:
            case "agent":
                self._node.kill_agent()
            case "supervisor":
                self._kill_supervisor()
            case "shims":
                self._kill_shims()
            case _:
                self._kill_supervisor()
                self._kill_shims()
                self._node.kill_agent()

    def _kill_supervisor(self) -> None:
        pid = self._node.supervisor()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _kill_shims(self) -> None:
        for pid in self._node.shims():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                self._orphans.add(Path(words[2]).name.partition(".")[0])
                os.kill(pid, signal.SIGKILL)

    def run(self, job: str, count: int, kills: list[str]) -> None:
        go = self._starts.with_name(f"{job}.go")
        # When supervisor and shim are dead, a task that ends takes with it what nobody has read: then they outlast it.
        outlast = "all" in kills or {"supervisor", "shims"} <= set(kills)
        if not outlast:
            go.touch()
        self._node.run(a_raw_job(job, SCRIPT, count=count, Env={"STARTS": str(self._starts), "GO": str(go)}))
        for what in kills:
            wait_until(self._is_moment, what="a moment by chance")
            self.kill(what)
        if outlast:
            wait_until(lambda: self._has_begun(job, count), what="all have begun, or never will")
            go.touch()
        self._check(job, count)

    def _is_moment(self) -> bool:
        return self._chance.random() < 0.05

    def _has_begun(self, job: str, count: int) -> bool:
        """By the word of a node that is there again."""
        found = self._node.allocations(job)
        has_begun = [each["ClientStatus"] != "pending" for each in found]
        return len(found) == count and all(has_begun) and self._node.keeps_all()

    def _check(self, job: str, count: int) -> None:
        wait_until(lambda: self._are_over(job, count), what=f"all of {job} has ended", within_s=60.0)
        for allocation in self._node.allocations(job):
            id, index = allocation["ID"], int(allocation["Name"].rpartition("[")[2].rstrip("]"))
            if id in self._orphans and was_not_begun(allocation):
                assert not (self._starts / id).exists()
                continue
            how = ended(allocation)
            logs = self._node.folder / "alloc" / id / "alloc" / "logs"
            told = "".join(path.read_text() for path in sorted(logs.glob("t.stdout.*")))
            starts = self._starts / id
            if id in self._orphans and how["exit_code"] == "-1" and not starts.exists():
                assert told == ""  # Its shim was killed before it had begun: nobody can know that.
                continue
            assert starts.read_text() == "start\n"
            if how["exit_code"] == "-1":
                assert id in self._orphans
            else:
                assert how == {"exit_code": str(index % 3 + 40), "signal": "0"}
            assert len(told.splitlines()) == LINES
            assert told == "".join(f"{number}\n" for number in range(1, LINES // 20 + 1)) * 20
        ids = [allocation["ID"] for allocation in self._node.allocations(job)]
        wait_until(lambda: not self._node.left(ids), what="no process of it is left")
        wait_until(
            lambda: not list((self._node.folder / "node" / "runs").iterdir()), what="nothing is kept of its runs"
        )
        assert not self._node.shims()

    def _are_over(self, job: str, count: int) -> bool:
        found = self._node.allocations(job)
        return len(found) == count and all(each["ClientStatus"] in ("complete", "failed") for each in found)


def was_not_begun(allocation: dict[str, Any]) -> bool:
    """Its shim was killed so early that nothing had been started, and this is surely known."""
    return any(event["Type"] == "Driver Failure" for event in allocation["TaskStates"]["t"]["Events"])


@pytest.mark.parametrize("what", ["agent", "supervisor", "shims", "all"])
def test_tasks_run_once_and_to_their_end_whichever_process_is_killed(node: ANode, tmp_path: Path, what: str) -> None:
    Rounds(node, tmp_path, seed=1).run(f"one-{what}", 6, [what] * 2)


@pytest.mark.faults
@pytest.mark.parametrize("way", ["auto", "mark"])
def test_a_hundred_kills_under_churn(tmp_path: Path, way: str) -> None:
    chance = Random(7)
    with a_server(tmp_path / "server") as server, a_node(server, tmp_path / "node", way=way) as node:
        rounds = Rounds(node, tmp_path, seed=7)
        for number in range(25):
            kills = [chance.choice(("agent", "supervisor", "shims", "all")) for _ in range(4)]
            rounds.run(f"churn-{way}-{number}", 12, kills)


def test_a_service_keeps_its_process_when_the_agent_is_killed(node: ANode) -> None:
    node.run(a_raw_job("stays", "echo $$; exec sleep 1000", kind="service"))
    (allocation,) = wait_until(
        lambda: [each for each in node.allocations("stays") if each["ClientStatus"] == "running"], what="it runs"
    )
    (pid,) = wait_until(
        lambda: [p for p in node.left([allocation["ID"]]) if p not in node.shims()], what="its process is there"
    )
    before = allocation["TaskStates"]["t"]["Events"]
    node.kill_agent()
    node.wait_ready()

    node.run(a_raw_job("next", "exit 0"))
    wait_until(
        lambda: [each["ClientStatus"] for each in node.allocations("next")] == ["complete"],
        what="it works",
    )
    (after,) = node.allocations("stays")
    assert is_alive(pid)
    assert (after["ClientStatus"], after["TaskStates"]["t"]["Events"]) == ("running", before)

    _stop(node.server, "stays")
    wait_until(lambda: not is_alive(pid), what="it has stopped")
    wait_until(lambda: node.allocations("stays")[0]["ClientStatus"] == "complete", what="its end is told")


def _stop(server: RunningAgent, job: str) -> None:
    urllib.request.urlopen(
        urllib.request.Request(f"{server.address}/v1/job/{job}", method="DELETE"), timeout=ANSWERED_WITHIN_S
    ).close()
