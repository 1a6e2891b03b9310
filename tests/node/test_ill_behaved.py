"""Misbehaving tasks: each is limited and ended in time, without effect on the node or other tasks."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.nodes import ANode, a_node, a_raw_job, a_server, ended
from tests.waiting import wait_until
from wharf.node.core.clock import SECOND_NS
from wharf.node.supervisor.processes import list_pids

WITHIN_S = 60.0
FLOOD_MB = 200
ZOMBIES = 50


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ANode]:
    """With a task that behaves well, which is not to notice anything."""
    folder = tmp_path_factory.mktemp("ill")
    with a_server(folder / "server") as server, a_node(server, folder / "node") as it:
        it.run(a_raw_job("good", "while :; do date +%s >$WHARF_TASK_DIR/beat; sleep 0.2; done", kind="service"))
        wait_until(lambda: statuses(it, "good") == ["running"], what="the good one runs", within_s=WITHIN_S)
        yield it
        (good,) = it.allocations("good")
        assert ("running", 0) == (good["ClientStatus"], good["TaskStates"]["t"]["Restarts"])
        nodes: Any = server.get("/v1/nodes")
        assert ["ready"] == [each["Status"] for each in nodes]


def statuses(node: ANode, job: str) -> list[str]:
    return [each["ClientStatus"] for each in node.allocations(job)]


def begin(node: ANode, id: str, script: str, **task: Any) -> str:
    """The id of its allocation, which runs."""
    node.run(a_raw_job(id, script, kind="service", **task))
    wait_until(lambda: statuses(node, id) == ["running"], what="it runs", within_s=WITHIN_S)
    return str(node.allocations(id)[0]["ID"])


def stop(node: ANode, id: str) -> dict[str, Any]:
    """Its allocation, when it has ended and nothing of it is left."""
    address = f"{node.server.address}/v1/job/{id}"
    urllib.request.urlopen(urllib.request.Request(address, method="DELETE"), timeout=ANSWERED_WITHIN_S).close()
    wait_until(lambda: statuses(node, id) == ["complete"], what="it has ended", within_s=WITHIN_S)
    (allocation,) = node.allocations(id)
    wait_until(lambda: not node.left([allocation["ID"]]), what="nothing of it is left", within_s=WITHIN_S)
    return allocation


def test_a_task_that_ignores_signals_is_killed_after_its_timeout(node: ANode) -> None:
    script = "trap '' INT TERM HUP; >$WHARF_TASK_DIR/deaf; while :; do sleep 0.1; done"
    alloc = begin(node, "stubborn", script, KillTimeout=SECOND_NS)
    wait_until(
        (node.folder / "alloc" / alloc / "t" / "local" / "deaf").exists, what="it hears nothing", within_s=WITHIN_S
    )

    allocation = stop(node, "stubborn")

    assert ("137", "9") == (ended(allocation)["exit_code"], ended(allocation)["signal"])
    times = {each["Type"]: each["Time"] for each in allocation["TaskStates"]["t"]["Events"]}
    assert times["Terminated"] - times["Killing"] >= SECOND_NS


def test_a_process_that_forks_away_from_its_session_ends_with_its_task(node: ANode) -> None:
    away = "( trap '' INT TERM HUP; exec setsid sh -c 'setsid sleep 1001 & sleep 1002' ) &"
    alloc = begin(node, "forks", f"{away} {away} exec sleep 1003")
    wait_until(lambda: len(node.left([alloc])) >= 5, what="all have forked away", within_s=WITHIN_S)

    stop(node, "forks")


def test_zombies_of_a_task_disappear_with_it(node: ANode) -> None:
    script = f"import os,time\nfor _ in range({ZOMBIES}):\n    os.fork() or os._exit(0)\ntime.sleep(1000)"
    job = a_raw_job(
        "zombies", "", kind="service", Config={"command": "/usr/bin/env", "args": ["python3", "-c", script]}
    )
    job["TaskGroups"][0]["Tasks"][0]["Resources"] = {"CPU": 1, "MemoryMB": 100}
    node.run(job)
    wait_until(lambda: statuses(node, "zombies") == ["running"], what="it runs", within_s=WITHIN_S)
    (alloc,) = [each["ID"] for each in node.allocations("zombies")]
    made: list[int] = []

    def has_made() -> bool:
        made[:] = zombies_of(node.left([alloc]))
        return len(made) == ZOMBIES

    wait_until(has_made, what="it has its zombies", within_s=WITHIN_S)

    stop(node, "zombies")

    wait_until(lambda: not any(stat_of(pid)[:1] == ["Z"] for pid in made), what="they are gone", within_s=WITHIN_S)


def zombies_of(parents: list[int]) -> list[int]:
    looked = ((pid, stat_of(pid)) for pid in list_pids())
    return [pid for pid, stat in looked if stat and stat[0] == "Z" and int(stat[1]) in parents]


def stat_of(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


@pytest.mark.needs("memory_bounds")
def test_a_task_above_its_memory_limit_is_killed_by_the_kernel_and_shown_as_out_of_memory(node: ANode) -> None:
    eat = "import sys\nheld = []\nwhile True: held.append(bytearray(1 << 20))"
    job = a_raw_job("eats", "", Config={"command": "/usr/bin/env", "args": ["python3", "-c", eat]})
    job["TaskGroups"][0]["Tasks"][0]["Resources"] = {"CPU": 1, "MemoryMB": 40}
    node.run(job)
    wait_until(lambda: statuses(node, "eats") == ["failed"], what="it is ended", within_s=WITHIN_S)

    (allocation,) = node.allocations("eats")
    assert ("137", "true") == (ended(allocation)["exit_code"], ended(allocation)["oom_killed"])


@pytest.mark.needs("memory_bounds")
def test_a_task_without_enough_memory_to_start_is_shown_as_out_of_memory(node: ANode) -> None:
    job = a_raw_job("tiny", "", Config={"command": "/usr/bin/env", "args": ["python3", "-c", "print(bytes(1 << 25))"]})
    node.run(job)
    wait_until(lambda: statuses(node, "tiny") == ["failed"], what="it is ended", within_s=WITHIN_S)

    assert "true" == ended(node.allocations("tiny")[0])["oom_killed"]


def test_a_task_that_floods_its_log_keeps_only_the_last_part(node: ANode) -> None:
    count = FLOOD_MB * 1_048_576 // 32
    flood = f"i=0; yes {'x' * 31} | head -n {count}; echo the end; exec sleep 1000"
    alloc = begin(node, "floods", flood)
    folder = node.folder / "alloc" / alloc / "alloc" / "logs"

    def last() -> bytes:
        files = sorted(folder.glob("t.stdout.*"), key=lambda file: int(file.suffix[1:]))
        return files[-1].read_bytes()[-8:] if files else b""

    wait_until(lambda: last() == b"the end\n", what="all of it is written", within_s=120)
    sizes = [file.stat().st_size for file in folder.glob("t.stdout.*")]
    assert (True, True) == (len(sizes) <= 2, max(sizes) <= 5 << 20)  # As its log settings say.
    stop(node, "floods")
