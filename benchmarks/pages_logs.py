"""The pages of logs of a real node: a log of 50,000 lines, and a search through 100 MB. Part of the benchmark `pages`."""

import time
import urllib.request
from typing import Any, Final

from benchmarks.agent_process import measure_cpu_s
from benchmarks.figures import Figure, Figures
from benchmarks.node import NodeBenchmarkCluster, run_cluster, wait_until
from benchmarks.pages_browser import open_page

LONG_LOG_LINES: Final = 50_000
LARGE_LOG_MB: Final = 100
PRINT_TIMEOUT_S: Final = 180.0
SEARCHES: Final = 3
LINE: Final = "2026-11-29T18:00:00Z INFO request %.0f path=/v1/jobs/example status=200 duration=12ms bytes=00004096"


def measure_logs(browser: Any | None) -> Figures:
    """Run the tasks that print, then open one log and search the other one."""
    lines = LARGE_LOG_MB * 1_000_000 // len(LINE % 1_000_000)
    with run_cluster() as cluster:
        cluster.send("PUT", "/v1/jobs", _make_printing_job("long", LONG_LOG_LINES))
        cluster.send("PUT", "/v1/jobs", _make_printing_job("large", lines))
        for job, count in (("long", LONG_LOG_LINES), ("large", lines)):
            wait_until(lambda: _has_ended(cluster, job), PRINT_TIMEOUT_S, 0.5)  # noqa: B023  # called at once
            assert f"request {count} " in _read_page(cluster, f"/ui/jobs/{job}/logs"), "the last line is shown"
        figures = {
            f"search through {LARGE_LOG_MB} MB, few lines match": _measure_search(cluster, "request+99999", lines),
            f"search through {LARGE_LOG_MB} MB, all lines match": _measure_search(cluster, "STATUS", lines),
        }
        if browser is not None:
            paint_ms = open_page(browser.new_page(), f"{cluster.address}/ui/jobs/long/logs")
            name = f"log of {LONG_LOG_LINES:,} lines: first paint at its end"
            figures[name] = Figure(value=paint_ms, unit="ms", at_most=500)
        return figures


def _make_printing_job(name: str, lines: int) -> dict[str, Any]:
    """Return a job whose task prints numbered lines of 100 bytes."""
    task = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "/usr/bin/seq", "args": ["-f", LINE, str(lines)]},
        "LogConfig": {"MaxFiles": 20, "MaxFileSizeMB": 10},
        "Resources": {"CPU": 20, "MemoryMB": 20},
    }
    group = {"Name": "g", "EphemeralDisk": {"SizeMB": 1_000}, "Tasks": [task]}
    return {"Job": {"ID": name, "Type": "batch", "TaskGroups": [group]}}


def _has_ended(cluster: NodeBenchmarkCluster, job: str) -> bool:
    return any(each["ClientStatus"] == "complete" for each in cluster.get(f"/v1/job/{job}/allocations"))


def _read_page(cluster: NodeBenchmarkCluster, path: str) -> str:
    with urllib.request.urlopen(cluster.address + path, timeout=120) as reply:
        text: str = reply.read().decode()
    return text


def _measure_search(cluster: NodeBenchmarkCluster, text: str, lines: int) -> Figure:
    """Return how long a search takes, and how much processor time of the api process and of the node."""
    pids = {role: cluster.find_role_pid(role) for role in ("api", "node")}
    before_s = {role: measure_cpu_s((pid,)) for role, pid in pids.items()}
    times_ms = []
    for _ in range(SEARCHES):
        began_s = time.perf_counter()
        page = _read_page(cluster, f"/ui/jobs/large/logs?q={text}&stream=stdout")
        times_ms.append((time.perf_counter() - began_s) * 1_000)
        assert "not complete" not in page
        assert f"Searched: {lines * len(LINE) / 1_000_000:.0f}"[:11] in page
    used_ms = {role: (measure_cpu_s((pid,)) - before_s[role]) / SEARCHES * 1_000 for role, pid in pids.items()}
    note = ", ".join(f"{role} {ms:.0f} ms of a core" for role, ms in used_ms.items())
    return Figure(value=sorted(times_ms)[SEARCHES // 2], unit="ms", at_most=2_000, note=note)
