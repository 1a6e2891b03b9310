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
        return [pid for pid in self.list_pids() if _read_role(pid).partition("-")[0] == role]

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
) -> Iterator[AgentProcess]:
    """Run an agent. `heartbeat_ttl` is the time after which nodes without heartbeats are down; it grows with the fleet, so
    that at most `max_heartbeats_per_second` arrive.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = AgentProcess(
            Path(folder),
            api_processes=api_processes,
            acl=acl,
            heartbeat_ttl=heartbeat_ttl,
            max_heartbeats_per_second=max_heartbeats_per_second,
        )
        try:
            yield process
        finally:
            process.stop()


def list_children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def measure_cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU seconds that these processes have used since their start."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure_memory_mb(pids: Sequence[int]) -> float:
    """Return the proportional set size: memory that several processes share is divided among them."""
    return sum(map(_read_memory_kb, pids)) / 1_000


def _read_memory_kb(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(line.split()[1])


def _read_role(pid: int) -> str:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return arguments[-2].decode() if len(arguments) > 2 and b"wharf.agent.child" in arguments else ""
