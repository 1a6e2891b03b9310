"""The idle CPU time of a node with containers: agent, supervisor, the engine and its container monitors, per process.

`python -m benchmarks.idle_containers [COUNT [SECONDS]]`. Needs Podman and root.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.agent_process import measure_cpu_s
from benchmarks.figures import Figure, Figures, print_table
from benchmarks.node import SUPERVISOR, NodeBenchmarkCluster, wait_until
from tests.node.docker.podman import running_podman
from wharf.node.agent.foreign import SCAN_INTERVAL_S, scan_machine

CONTAINER_COUNT: Final = 50
IDLE_S: Final = 120.0
"""Long enough for every periodic task of an agent, such as the search for remains of other nodes."""
SETTLE_S: Final = 15.0
MONITOR: Final = b"conmon"
TARGET_SHARE: Final = {"engine": 5.0, "programs started by the engine": 5.0, "node": 2.0}
"""Percent of a core, with 50 containers. Before the probes and the events of the engine were changed, it used a whole core, and
three quarters of one for programs that it started."""


def measure(*, count: int = CONTAINER_COUNT, idle_s: float = IDLE_S) -> Figures:
    """Run `count` sleeping containers, and measure the CPU time of each kind of process."""
    with tempfile.TemporaryDirectory() as name, running_podman() as (podman, registry):
        extra = f'[client.drivers.docker]\nsocket = "{podman.socket}"\n'
        cluster = NodeBenchmarkCluster(Path(name), extra_config=extra)
        try:
            task = {
                "Name": "t",
                "Driver": "docker",
                "Config": {
                    "image": f"{registry.address}/box:1",
                    "command": "sleep",
                    "args": ["100000"],
                    "network_mode": "none",
                },
                "Resources": {"CPU": 1, "MemoryMB": 10},
                "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
            }
            group = {"Name": "g", "Count": count, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [task]}
            cluster.send("PUT", "/v1/jobs", {"Job": {"ID": "box", "Type": "service", "TaskGroups": [group]}})
            wait_until(
                lambda: cluster.get("/v1/job/box/summary")["Summary"]["g"].get("Running") == count, 500, interval_s=0.5
            )
            time.sleep(SETTLE_S)
            figures = _measure_idle(cluster, podman.folder, idle_s)
            figures["search for remains of lost nodes, one scan"] = _measure_scan()
            return figures
        finally:
            cluster.stop()


def _measure_idle(cluster: NodeBenchmarkCluster, engine_folder: Path, idle_s: float) -> Figures:
    """Measure the share of a core that each kind of process uses for `idle_s` seconds."""
    roles = cluster.list_roles()
    pids = {name: [pid] for name, pid in roles.items() if name != "supervisor"}
    pids["task supervisor"] = cluster.list_pids(SUPERVISOR)
    engine = _list_pids(b"podman", engine_folder)
    pids["engine"] = [pid for pid in engine if b"system\0service" in _read_command(pid)]
    pids["container monitors"] = _list_pids(MONITOR, engine_folder)
    before = {name: measure_cpu_s(group) for name, group in pids.items()}
    children_before = sum(map(_read_children_cpu_s, pids["engine"]))
    time.sleep(idle_s)
    used = {name: measure_cpu_s(group) - before[name] for name, group in pids.items()}
    used["programs started by the engine"] = sum(map(_read_children_cpu_s, pids["engine"])) - children_before
    note = f"load {os.getloadavg()[0]:.1f}"
    return {
        f"idle with containers: {name}": Figure(
            value=round(cpu_s / idle_s * 100, 2), unit="% of a core", at_most=TARGET_SHARE.get(name), note=note
        )
        for name, cpu_s in used.items()
    }


def _measure_scan() -> Figure:
    """Measure the CPU time of one search for remains, with all processes of this machine."""
    started_s = time.thread_time()
    rounds = 5
    for _ in range(rounds):
        scan_machine("", lambda _run: True, Path("/nonexistent"))
    cpu_ms = (time.thread_time() - started_s) / rounds * 1000
    processes = sum(entry.name.isdecimal() for entry in Path("/proc").iterdir())
    note = f"{processes} processes; every {SCAN_INTERVAL_S:.0f} s: {cpu_ms / SCAN_INTERVAL_S / 10:.3f} % of a core"
    return Figure(value=round(cpu_ms, 1), unit="ms", note=note)


def _list_pids(word: bytes, folder: Path) -> list[int]:
    """Return the processes whose command line contains `word` and `folder`."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal()
        and word in (command := _read_command(int(entry.name)))
        and os.fsencode(folder) in command
    ]


def _read_command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _read_children_cpu_s(pid: int) -> float:
    """Return the CPU seconds of the ended children of this process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    arguments = list(map(float, sys.argv[1:]))
    print_table(
        measure(
            count=int(arguments[0]) if arguments else CONTAINER_COUNT,
            idle_s=arguments[1] if len(arguments) > 1 else IDLE_S,
        )
    )
