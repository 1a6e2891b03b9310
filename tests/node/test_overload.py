"""More short tasks than a node can run, for minutes: they wait, each runs once, and nothing is left of them.

`OVERLOAD_SECONDS=600` runs the test for ten minutes.
"""

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.looking import folders_named
from tests.node.nodes import ANode, a_node, a_raw_job, a_server
from tests.waiting import wait_until

SECONDS, A_SECOND = int(os.environ.get("OVERLOAD_SECONDS", "60")), 200
JOURNAL_MOST_BYTES = 4_000_000 + 3_000 * SECONDS * A_SECOND
"""What is settled takes some 500 bytes; what is old is written out of it when it is four times as much."""
REMEMBERED_KB = 1.5
"""What the agent may keep in memory of an allocation that has ended, until servers forget it."""
LINE_BYTES = 37
"""Of an allocation in `starts`."""


def held(pid: int) -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "kb": int(status["VmRSS"].split()[0]),
    }


def groups_of(node: ANode) -> list[Path]:
    """Control groups of runs, in whichever tree."""
    nodes: Any = node.server.get("/v1/nodes")
    folders = folders_named(Path("/sys/fs/cgroup"), nodes[0]["ID"])
    return [group for folder in folders for group in folder.iterdir() if group.is_dir()]


def is_complete(node: ANode, job: str, count: int) -> bool:
    told: Any = node.server.get(f"/v1/job/{job}/summary")
    return bool(told["Summary"].get("g", {}).get("Complete") == count)


def is_explained(node: ANode, job: str) -> bool:
    """All copies of a job are somewhere: of what has no place yet an evaluation tells what there is too little of."""
    evaluations: Any = node.server.get(f"/v1/job/{job}/evaluations")
    told: Any = node.server.get(f"/v1/job/{job}/summary")
    groups = told["Summary"].get("g", {})
    lacks = [each["FailedTGAllocs"]["g"]["DimensionExhausted"] for each in evaluations if each["Status"] == "blocked"]
    return sum(groups.values()) == A_SECOND and (not groups["Queued"] or (bool(lacks) and all(lacks)))


def status(node: ANode) -> str:
    nodes: Any = node.server.get("/v1/nodes")
    return str(nodes[0]["Status"])


def is_passed(moment_s: float) -> bool:
    return time.monotonic() >= moment_s


@pytest.mark.faults
def test_more_short_tasks_than_a_node_can_run_wait_and_are_cleaned_up(tmp_path: Path) -> None:
    with a_server(tmp_path / "server") as server, a_node(server, tmp_path / "node") as node:
        node.run(a_raw_job("warm", "exit 0", count=20))
        wait_until(lambda: is_complete(node, "warm", 20), what="the node is warm", within_s=60.0)
        agent, keeper = node.agent(), node.supervisor()
        assert keeper is not None
        before = {pid: held(pid) for pid in (agent, keeper)}

        starts, began_s = tmp_path / "starts", time.monotonic()
        for second in range(SECONDS):
            wait_until(partial(is_passed, began_s + second), what="a second is over")
            node.run(a_raw_job(f"many-{second}", f"echo $WHARF_ALLOC_ID >>{starts}", count=A_SECOND))
        asked_s, ran_by_then = time.monotonic() - began_s, starts.stat().st_size // LINE_BYTES
        wait_until(lambda: is_explained(node, f"many-{SECONDS - 1}"), what="who waits is told why", within_s=60.0)
        all_bytes = SECONDS * A_SECOND * LINE_BYTES
        wait_until(lambda: starts.stat().st_size >= all_bytes, what="all have begun", within_s=30.0 * SECONDS)
        for second in range(SECONDS):
            wait_until(partial(is_complete, node, f"many-{second}", A_SECOND), what="all have run", within_s=120.0)

        ran = starts.read_text().split()
        assert (len(ran), len(set(ran))) == (SECONDS * A_SECOND, SECONDS * A_SECOND)
        wait_until(lambda: not list((node.folder / "node" / "runs").iterdir()), what="nothing is kept of runs")
        wait_until(lambda: not groups_of(node), what="no control group is left")
        assert not node.shims()
        assert not [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(tmp_path) in line]
        took_s = time.monotonic() - began_s
        print(
            f"{len(ran)} tasks within {took_s:.0f} s; asked for within {asked_s:.0f} s, {ran_by_then} had run by then"
        )
        for pid, was in before.items():
            now = held(pid)
            print("agent" if pid == agent else "supervisor", "before:", was, "after:", now)
            assert now["files"] <= was["files"] + 8
            assert now["threads"] <= was["threads"] + 8
            # And room that is not given back.
            assert now["kb"] <= was["kb"] + 60_000 + REMEMBERED_KB * SECONDS * A_SECOND * (pid == agent)
        journal_bytes = (node.folder / "node" / "journal").stat().st_size
        print(f"journal: {journal_bytes} bytes")
        assert journal_bytes < JOURNAL_MOST_BYTES

        # A node that was away must tell of all that it remembers.
        os.kill(agent, signal.SIGSTOP)
        wait_until(lambda: status(node) == "down", what="the node is missed", within_s=600.0)
        os.kill(agent, signal.SIGCONT)
        node.run(a_raw_job("next", "exit 0"))
        wait_until(lambda: is_complete(node, "next", 1), what="it is back and works", within_s=900.0)
        node.kill_agent()
        node.run(a_raw_job("last", "exit 0"))
        wait_until(lambda: is_complete(node, "last", 1), what="it has begun anew and works", within_s=900.0)
        print("agent begun anew:", held(node.agent()))
