"""Kills of agent, supervisor and shims at random moments: no task is stopped or run twice, and no output or
exit code is lost.
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
from tests.node.nodes import NodeProcess, build_raw_job, find_termination, run_node, run_server
from tests.waiting import wait_until

LINES = 2_000
SCRIPT = f"""
echo start >>$STARTS/$WHARF_ALLOC_ID
i=0; while [ $i -lt 20 ]; do seq 1 {LINES // 20}; sleep 0.$((($WHARF_ALLOC_INDEX + i) % 5)); i=$((i + 1)); done
until [ -e $GO ]; do sleep 0.1; done
exit $((WHARF_ALLOC_INDEX % 3 + 40))
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Run one node for all tests: servers assign allocations to a dead node until its heartbeat is missed."""
    folder = tmp_path_factory.mktemp("kills")
    with run_server(folder / "server") as server, run_node(server, folder / "node") as node:
        yield node


class KillRounds:
    """Runs jobs while processes of the node are killed, and checks that every task ran once."""

    def __init__(self, node: NodeProcess, folder: Path, seed: int) -> None:
        self._node = node
        self._starts = folder / "starts"
        self._starts.mkdir()
        self._random = Random(seed)
        self._orphans: set[str] = set()
        """Allocations whose shim was killed, so that the exit codes of their tasks are unknown."""

    def kill(self, target: str) -> None:
        match target:
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
                arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                self._orphans.add(Path(arguments[2]).name.partition(".")[0])
                os.kill(pid, signal.SIGKILL)

    def run(self, job: str, count: int, kills: list[str]) -> None:
        may_end_file = self._starts.with_name(f"{job}.go")
        # If supervisor and shim are dead, unread output is lost when the task ends. The tasks then end later.
        must_outlive_kills = "all" in kills or {"supervisor", "shims"} <= set(kills)
        if not must_outlive_kills:
            may_end_file.touch()
        self._node.run(
            build_raw_job(job, SCRIPT, count=count, Env={"STARTS": str(self._starts), "GO": str(may_end_file)})
        )
        for target in kills:
            wait_until(self._is_random_moment, what="a random moment")
            self.kill(target)
        if must_outlive_kills:
            wait_until(lambda: self._has_begun(job, count), what="all tasks have started or failed")
            may_end_file.touch()
        self._check(job, count)

    def _is_random_moment(self) -> bool:
        return self._random.random() < 0.05

    def _has_begun(self, job: str, count: int) -> bool:
        """Return whether no task is pending, and the node has recovered from the kills."""
        allocations = self._node.allocations(job)
        has_begun = [allocation["ClientStatus"] != "pending" for allocation in allocations]
        return len(allocations) == count and all(has_begun) and self._node.has_adopted_all_runs()

    def _check(self, job: str, count: int) -> None:
        wait_until(lambda: self._are_over(job, count), what=f"all of {job} has ended", within_s=60.0)
        for allocation in self._node.allocations(job):
            id, index = allocation["ID"], int(allocation["Name"].rpartition("[")[2].rstrip("]"))
            if id in self._orphans and was_never_started(allocation):
                assert not (self._starts / id).exists()
                continue
            termination = find_termination(allocation)
            logs = self._node.folder / "alloc" / id / "alloc" / "logs"
            output = "".join(path.read_text() for path in sorted(logs.glob("t.stdout.*")))
            starts = self._starts / id
            if id in self._orphans and termination["exit_code"] == "-1" and not starts.exists():
                assert output == ""  # The shim was killed before the task started, and no record shows it.
                continue
            assert starts.read_text() == "start\n"
            if termination["exit_code"] == "-1":
                assert id in self._orphans
            else:
                assert termination == {"exit_code": str(index % 3 + 40), "signal": "0"}
            assert len(output.splitlines()) == LINES
            assert output == "".join(f"{number}\n" for number in range(1, LINES // 20 + 1)) * 20
        ids = [allocation["ID"] for allocation in self._node.allocations(job)]
        wait_until(lambda: not self._node.list_processes(ids), what="no process of the job is left")
        wait_until(lambda: not list((self._node.folder / "node" / "runs").iterdir()), what="no run is left")
        assert not self._node.shims()

    def _are_over(self, job: str, count: int) -> bool:
        statuses = [allocation["ClientStatus"] for allocation in self._node.allocations(job)]
        return len(statuses) == count and all(status in ("complete", "failed") for status in statuses)


def was_never_started(allocation: dict[str, Any]) -> bool:
    """Return whether the driver reported that the task was not started, because its shim was killed early."""
    return any(event["Type"] == "Driver Failure" for event in allocation["TaskStates"]["t"]["Events"])


@pytest.mark.parametrize("target", ["agent", "supervisor", "shims", "all"])
def test_tasks_run_once_and_to_their_end_whichever_process_is_killed(
    node: NodeProcess, tmp_path: Path, target: str
) -> None:
    KillRounds(node, tmp_path, seed=1).run(f"one-{target}", 6, [target] * 2)


@pytest.mark.faults
@pytest.mark.parametrize("tracking_method", ["auto", "mark"])
def test_a_hundred_kills_under_churn(tmp_path: Path, tracking_method: str) -> None:
    random = Random(7)
    with (
        run_server(tmp_path / "server") as server,
        run_node(server, tmp_path / "node", tracking_method=tracking_method) as node,
    ):
        rounds = KillRounds(node, tmp_path, seed=7)
        for number in range(25):
            kills = [random.choice(("agent", "supervisor", "shims", "all")) for _ in range(4)]
            rounds.run(f"churn-{tracking_method}-{number}", 12, kills)


def test_a_service_keeps_its_process_when_the_agent_is_killed(node: NodeProcess) -> None:
    node.run(build_raw_job("stays", "echo $$; exec sleep 1000", kind="service"))
    (allocation,) = wait_until(
        lambda: [a for a in node.allocations("stays") if a["ClientStatus"] == "running"], what="the allocation runs"
    )
    (pid,) = wait_until(
        lambda: [p for p in node.list_processes([allocation["ID"]]) if p not in node.shims()],
        what="the process of the task exists",
    )
    before = allocation["TaskStates"]["t"]["Events"]
    node.kill_agent()
    node.wait_ready()

    node.run(build_raw_job("next", "exit 0"))
    wait_until(
        lambda: [a["ClientStatus"] for a in node.allocations("next")] == ["complete"],
        what="the node runs tasks again",
    )
    (after,) = node.allocations("stays")
    assert is_alive(pid)
    assert (after["ClientStatus"], after["TaskStates"]["t"]["Events"]) == ("running", before)

    _stop(node.server, "stays")
    wait_until(lambda: not is_alive(pid), what="the process has ended")
    wait_until(
        lambda: node.allocations("stays")[0]["ClientStatus"] == "complete", what="the end of the allocation is reported"
    )


def _stop(server: RunningAgent, job: str) -> None:
    urllib.request.urlopen(
        urllib.request.Request(f"{server.address}/v1/job/{job}", method="DELETE"), timeout=ANSWERED_WITHIN_S
    ).close()
