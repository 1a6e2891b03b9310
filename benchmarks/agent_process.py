"""A server for benchmarks: `wharf agent` on SQLite, with a free port and a temporary folder."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0
DEFAULT_MAX_COUNT: Final = 50_000
"""The default of `job_max_count`."""

_ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")
_READY: Final = re.compile(r"ready after [\d.]+ s|\bready\b.*after")

CONFIG: Final = """
data_dir = "{folder}/data"
enable_debug = true
log_level = "warn"

[server]
enabled = true
min_heartbeat_ttl = "{heartbeat_ttl}"
max_heartbeats_per_second = {max_heartbeats_per_second}
job_max_count = {max_count}

[client]
enabled = {has_node}
fake_nodes = {fake_nodes}

[acl]
enabled = {acl}

[api]
processes = {processes}
"""


class AgentProcess:
    """A running agent with a server. Its constructor waits until the agent is ready.

    With `fake_nodes`, the agent is also a node and has this number of fake nodes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        api_processes: int = 1,
        acl: bool = False,
        heartbeat_ttl: str = "10s",
        max_heartbeats_per_second: float = 50.0,
        fake_nodes: int = 0,
        max_count: int = DEFAULT_MAX_COUNT,
    ) -> None:
        config, out = folder / "agent.toml", folder / "out.txt"
        text = CONFIG.format(
            folder=folder,
            processes=api_processes,
            acl=str(acl).lower(),
            heartbeat_ttl=heartbeat_ttl,
            max_heartbeats_per_second=float(max_heartbeats_per_second),
            has_node=str(bool(fake_nodes)).lower(),
            fake_nodes=fake_nodes,
            max_count=max_count,
        )
        config.write_text(text, "utf-8")
        with out.open("wb") as opened, (folder / "err.txt").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "wharf", "agent", "--config", str(config), "--port", "0"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=errors,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _READY.search(out.read_text("utf-8")):
            output = out.read_text("utf-8") + (folder / "err.txt").read_text("utf-8")
            assert self._process.poll() is None, f"the agent ended before it was ready: {output}"
            assert time.monotonic() < deadline, f"the agent was not ready in time: {output}"
            time.sleep(0.02)
        match = _ADDRESS.search(out.read_text("utf-8"))
        assert match is not None, out.read_text("utf-8")
        self.port = int(match[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def list_pids(self) -> list[int]:
        return [self._process.pid, *list_children(self._process.pid)]

    def list_pids_of_role(self, role: str) -> list[int]:
        return [pid for pid in self.list_pids() if read_role(pid).partition("-")[0] == role]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=STOP_TIMEOUT_S)


@contextmanager
def run_agent(
    *,
    api_processes: int = 1,
    acl: bool = False,
    heartbeat_ttl: str = "10s",
    max_heartbeats_per_second: float = 50.0,
    max_count: int = DEFAULT_MAX_COUNT,
) -> Iterator[AgentProcess]:
    """Run an agent. A job may have `max_count` allocations. `heartbeat_ttl` is the time after which nodes without heartbeats are down; it grows with the fleet, so
    that at most `max_heartbeats_per_second` arrive.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = AgentProcess(
            Path(folder),
            api_processes=api_processes,
            acl=acl,
            heartbeat_ttl=heartbeat_ttl,
            max_heartbeats_per_second=max_heartbeats_per_second,
            max_count=max_count,
        )
        try:
            yield process
        finally:
            process.stop()


def list_children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def measure_cpu_s(pids: Sequence[int], *, with_children: bool = False) -> float:
    """Return the CPU seconds that these processes have used since their start; `with_children`, also their children that have ended."""
    if not with_children:
        return sum(time.clock_gettime(_get_cpu_clock(pid)) for pid in pids)
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _get_cpu_clock(pid: int) -> int:
    """Return the id of the clock that counts the CPU time of a process in nanoseconds (clock_getcpuclockid of Linux).

    `/proc` counts in steps of 10 ms. The scheduler takes 170 ms for 10,000 placements, so that a step would be 6 % of them.
    """
    return (~pid << 3) | 2


def measure_memory_mb(pids: Sequence[int]) -> float:
    """Return the proportional set size: memory that several processes share is divided among them."""
    return sum(map(_read_memory_kb, pids)) / 1_000


def _read_memory_kb(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(line.split()[1])


def read_role(pid: int) -> str:
    """Return the role of a child process of an agent, or "" for another process."""
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    return arguments[-1].decode() if len(arguments) > 1 and b"wharf.agent.child" in arguments else ""
