"""More short tasks than a node can run, for minutes: they wait, each runs once, and all their resources are freed.

It takes more than ten minutes; `OVERLOAD_SECONDS=60` makes it shorter.
"""

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.file_search import find_folders
from tests.node.nodes import NodeProcess, build_raw_job, run_node, run_server
from tests.waiting import wait_until

SECONDS = int(os.environ.get("OVERLOAD_SECONDS", "600"))
TASKS_PER_SECOND = 200
MAX_JOURNAL_BYTES = 4_000_000 + 3_000 * SECONDS * TASKS_PER_SECOND
"""An ended allocation needs about 500 bytes, and the file is compacted at four times what it needs."""
MAX_KB_PER_ALLOCATION = 1.5
"""Memory that the agent may use for an ended allocation until servers delete it."""
LINE_BYTES = 37
"""Length of a line in the file `starts`: an allocation id."""


def read_usage(pid: int) -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "kb": int(status["VmRSS"].split()[0]),
    }


def list_control_groups(node: NodeProcess) -> list[Path]:
    """Return the control groups of the node's runs, in all hierarchies."""
    nodes: Any = node.server.get("/v1/nodes")
    folders = find_folders(Path("/sys/fs/cgroup"), nodes[0]["ID"])
    return [group for folder in folders for group in folder.iterdir() if group.is_dir()]


def is_complete(node: NodeProcess, job: str, count: int) -> bool:
    summary: Any = node.server.get(f"/v1/job/{job}/summary")
    return bool(summary["Summary"].get("g", {}).get("Complete") == count)


def is_explained(node: NodeProcess, job: str) -> bool:
    """Return whether all tasks of a job are counted, and an evaluation names the exhausted resource for queued ones."""
    evaluations: Any = node.server.get(f"/v1/job/{job}/evaluations")
    summary: Any = node.server.get(f"/v1/job/{job}/summary")
    counts = summary["Summary"].get("g", {})
    exhausted = [e["FailedTGAllocs"]["g"]["DimensionExhausted"] for e in evaluations if e["Status"] == "blocked"]
    return sum(counts.values()) == TASKS_PER_SECOND and (not counts["Queued"] or (bool(exhausted) and all(exhausted)))


def read_node_status(node: NodeProcess) -> str:
    nodes: Any = node.server.get("/v1/nodes")
    return str(nodes[0]["Status"])


def has_passed(time_s: float) -> bool:
    return time.monotonic() >= time_s


@pytest.mark.faults
def test_more_short_tasks_than_a_node_can_run_wait_and_are_cleaned_up(tmp_path: Path) -> None:
    with run_server(tmp_path / "server") as server, run_node(server, tmp_path / "node") as node:
        node.run(build_raw_job("warm", "exit 0", count=20))
        wait_until(lambda: is_complete(node, "warm", 20), what="the node is warm", within_s=60.0)
        agent, supervisor = node.agent(), node.supervisor()
        assert supervisor is not None
        before = {pid: read_usage(pid) for pid in (agent, supervisor)}

        starts, began_s = tmp_path / "starts", time.monotonic()
        for second in range(SECONDS):
            wait_until(partial(has_passed, began_s + second), what="a second is over")
            node.run(build_raw_job(f"many-{second}", f"echo $WHARF_ALLOC_ID >>{starts}", count=TASKS_PER_SECOND))
        requested_s, ran_by_then = time.monotonic() - began_s, starts.stat().st_size // LINE_BYTES
        wait_until(
            lambda: is_explained(node, f"many-{SECONDS - 1}"), what="queued tasks have an explanation", within_s=60.0
        )
        all_bytes = SECONDS * TASKS_PER_SECOND * LINE_BYTES
        wait_until(lambda: starts.stat().st_size >= all_bytes, what="all tasks have started", within_s=30.0 * SECONDS)
        for second in range(SECONDS):
            wait_until(
                partial(is_complete, node, f"many-{second}", TASKS_PER_SECOND),
                what="all tasks have ended",
                within_s=120.0,
            )

        ran = starts.read_text().split()
        assert (len(ran), len(set(ran))) == (SECONDS * TASKS_PER_SECOND, SECONDS * TASKS_PER_SECOND)
        wait_until(lambda: not list((node.folder / "node" / "runs").iterdir()), what="no run is left")
        wait_until(lambda: not list_control_groups(node), what="no control group is left")
        assert not node.shims()
        assert not [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(tmp_path) in line]
        took_s = time.monotonic() - began_s
        print(
            f"{len(ran)} tasks within {took_s:.0f} s; requested within {requested_s:.0f} s, {ran_by_then} had run by then"
        )
        for pid, earlier in before.items():
            now = read_usage(pid)
            print("agent" if pid == agent else "supervisor", "before:", earlier, "after:", now)
            assert now["files"] <= earlier["files"] + 8
            assert now["threads"] <= earlier["threads"] + 8
            # The rest is memory that the allocator does not return to the system.
            assert now["kb"] <= earlier["kb"] + 60_000 + MAX_KB_PER_ALLOCATION * SECONDS * TASKS_PER_SECOND * (
                pid == agent
            )
        journal_bytes = (node.folder / "node" / "journal").stat().st_size
        print(f"journal: {journal_bytes} bytes")
        assert journal_bytes < MAX_JOURNAL_BYTES

        # After its return, the node reports all its allocations.
        os.kill(agent, signal.SIGSTOP)
        wait_until(lambda: read_node_status(node) == "down", what="the node is down", within_s=600.0)
        os.kill(agent, signal.SIGCONT)
        node.run(build_raw_job("next", "exit 0"))
        wait_until(lambda: is_complete(node, "next", 1), what="the node is back and runs tasks", within_s=900.0)
        node.kill_agent()
        node.run(build_raw_job("last", "exit 0"))
        wait_until(lambda: is_complete(node, "last", 1), what="the restarted agent runs tasks", within_s=900.0)
        print("restarted agent:", read_usage(node.agent()))
