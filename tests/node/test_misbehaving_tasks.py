"""Misbehaving tasks: each is limited and ended in time, without effect on the node or other tasks."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.nodes import NodeProcess, build_raw_job, find_termination, run_node, run_server
from tests.waiting import wait_until
from wharf.contract.model.times import SECOND
from wharf.node.processes import list_pids

WITHIN_S = 60.0
FLOOD_MB = 200
ZOMBIES = 50


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Run a node with a well-behaved task, which the other tasks must not disturb."""
    folder = tmp_path_factory.mktemp("misbehaving")
    with run_server(folder / "server") as server, run_node(server, folder / "node") as node:
        node.run(
            build_raw_job("well-behaved", "while :; do date +%s >$WHARF_TASK_DIR/beat; sleep 0.2; done", kind="service")
        )
        wait_until(
            lambda: list_statuses(node, "well-behaved") == ["running"],
            what="the well-behaved task runs",
            within_s=WITHIN_S,
        )
        yield node
        (allocation,) = node.allocations("well-behaved")
        assert ("running", 0) == (allocation["ClientStatus"], allocation["TaskStates"]["t"]["Restarts"])
        nodes: Any = server.get("/v1/nodes")
        assert ["ready"] == [description["Status"] for description in nodes]


def list_statuses(node: NodeProcess, job: str) -> list[str]:
    return [allocation["ClientStatus"] for allocation in node.allocations(job)]


def run_service(node: NodeProcess, id: str, script: str, **task: Any) -> str:
    """Run a job and return the id of its running allocation."""
    node.run(build_raw_job(id, script, kind="service", **task))
    wait_until(lambda: list_statuses(node, id) == ["running"], what="the allocation runs", within_s=WITHIN_S)
    return str(node.allocations(id)[0]["ID"])


def stop_service(node: NodeProcess, id: str) -> dict[str, Any]:
    """Stop the job and return its allocation once it has ended and all its processes are gone."""
    address = f"{node.server.address}/v1/job/{id}"
    urllib.request.urlopen(urllib.request.Request(address, method="DELETE"), timeout=ANSWERED_WITHIN_S).close()
    wait_until(lambda: list_statuses(node, id) == ["complete"], what="the task has ended", within_s=WITHIN_S)
    (allocation,) = node.allocations(id)
    wait_until(
        lambda: not node.list_processes([allocation["ID"]]), what="no process of the task is left", within_s=WITHIN_S
    )
    return allocation


def test_a_task_that_ignores_signals_is_killed_after_its_timeout(node: NodeProcess) -> None:
    script = "trap '' INT TERM HUP; >$WHARF_TASK_DIR/ready; while :; do sleep 0.1; done"
    alloc = run_service(node, "stubborn", script, KillTimeout=SECOND)
    wait_until(
        (node.folder / "alloc" / alloc / "t" / "local" / "ready").exists,
        what="the task ignores signals",
        within_s=WITHIN_S,
    )

    allocation = stop_service(node, "stubborn")

    assert ("137", "9") == (find_termination(allocation)["exit_code"], find_termination(allocation)["signal"])
    times = {event["Type"]: event["Time"] for event in allocation["TaskStates"]["t"]["Events"]}
    assert times["Terminated"] - times["Killing"] >= SECOND


def test_a_process_that_forks_away_from_its_session_ends_with_its_task(node: NodeProcess) -> None:
    fork = "( trap '' INT TERM HUP; exec setsid sh -c 'setsid sleep 1001 & sleep 1002' ) &"
    alloc = run_service(node, "forks", f"{fork} {fork} exec sleep 1003")
    wait_until(lambda: len(node.list_processes([alloc])) >= 5, what="all processes have forked", within_s=WITHIN_S)

    stop_service(node, "forks")


def test_zombies_of_a_task_disappear_with_it(node: NodeProcess) -> None:
    script = f"import os,time\nfor _ in range({ZOMBIES}):\n    os.fork() or os._exit(0)\ntime.sleep(1000)"
    job = build_raw_job(
        "zombies", "", kind="service", Config={"command": "/usr/bin/env", "args": ["python3", "-c", script]}
    )
    job["TaskGroups"][0]["Tasks"][0]["Resources"] = {"CPU": 1, "MemoryMB": 100}
    node.run(job)
    wait_until(lambda: list_statuses(node, "zombies") == ["running"], what="the allocation runs", within_s=WITHIN_S)
    (alloc,) = [allocation["ID"] for allocation in node.allocations("zombies")]
    zombies: list[int] = []

    def has_all_zombies() -> bool:
        zombies[:] = list_zombies(node.list_processes([alloc]))
        return len(zombies) == ZOMBIES

    wait_until(has_all_zombies, what="the task has its zombies", within_s=WITHIN_S)

    stop_service(node, "zombies")

    wait_until(
        lambda: not any(read_stat(pid)[:1] == ["Z"] for pid in zombies), what="the zombies are gone", within_s=WITHIN_S
    )


def list_zombies(parents: list[int]) -> list[int]:
    stats = ((pid, read_stat(pid)) for pid in list_pids())
    return [pid for pid, stat in stats if stat and stat[0] == "Z" and int(stat[1]) in parents]


def read_stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


@pytest.mark.needs("memory_bounds")
def test_a_task_above_its_memory_limit_is_killed_by_the_kernel_and_shown_as_out_of_memory(node: NodeProcess) -> None:
    script = "import sys\nblocks = []\nwhile True: blocks.append(bytearray(1 << 20))"
    job = build_raw_job("greedy", "", Config={"command": "/usr/bin/env", "args": ["python3", "-c", script]})
    job["TaskGroups"][0]["Tasks"][0]["Resources"] = {"CPU": 1, "MemoryMB": 40}
    node.run(job)
    wait_until(lambda: list_statuses(node, "greedy") == ["failed"], what="the task has failed", within_s=WITHIN_S)

    (allocation,) = node.allocations("greedy")
    assert ("137", "true") == (find_termination(allocation)["exit_code"], find_termination(allocation)["oom_killed"])


@pytest.mark.needs("memory_bounds")
def test_a_task_without_enough_memory_to_start_is_shown_as_out_of_memory(node: NodeProcess) -> None:
    job = build_raw_job(
        "tiny", "", Config={"command": "/usr/bin/env", "args": ["python3", "-c", "print(bytes(1 << 25))"]}
    )
    node.run(job)
    wait_until(lambda: list_statuses(node, "tiny") == ["failed"], what="the task has failed", within_s=WITHIN_S)

    assert "true" == find_termination(node.allocations("tiny")[0])["oom_killed"]


def test_a_task_that_floods_its_log_keeps_only_the_last_part(node: NodeProcess) -> None:
    count = FLOOD_MB * 1_048_576 // 32
    flood = f"i=0; yes {'x' * 31} | head -n {count}; echo THE_END; exec sleep 1000"
    alloc = run_service(node, "floods", flood)
    folder = node.folder / "alloc" / alloc / "alloc" / "logs"

    def read_end() -> bytes:
        files = sorted(folder.glob("t.stdout.*"), key=lambda file: int(file.suffix[1:]))
        return files[-1].read_bytes()[-8:] if files else b""

    wait_until(lambda: read_end() == b"THE_END\n", what="the whole log is written", within_s=120)
    sizes = [file.stat().st_size for file in folder.glob("t.stdout.*")]
    assert (True, True) == (len(sizes) <= 2, max(sizes) <= 5 << 20)  # The default limits of `LogConfig`.
    stop_service(node, "floods")
