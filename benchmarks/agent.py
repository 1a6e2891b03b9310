"""The whole agent: start times of `wharf --help` and `wharf dev`, and the CPU time and memory of an idle agent."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.agent_process import list_children
from benchmarks.figures import Figure, Figures

ROUND_COUNT = 5
SETTLE_S = 3.0
IDLE_S = 20.0
START_TIMEOUT_S = 30.0

_WHARF = (sys.executable, "-m", "wharf")
_READY = re.compile(r"ready after [\d.]+ s")


def measure(*, rounds: int = ROUND_COUNT, idle_s: float = IDLE_S) -> Figures:
    """Measure the start of several agents, and the idle costs of the first one."""
    bare_s = min(_measure_run_s(sys.executable, "-c", "pass") for _ in range(rounds))
    figures: Figures = {
        "wharf --help": Figure(
            value=min(_measure_run_s(*_WHARF, "--help") for _ in range(rounds)) * 1_000,
            unit="ms",
            at_most=150,
            note=f"an empty Python program: {bare_s * 1_000:.0f} ms",
        )
    }
    ready_s: list[float] = []
    stop_s: list[float] = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            dev = DevProcess(Path(folder))
            ready_s.append(dev.ready_s)
            if number == 0:
                figures |= dev.measure_idle(idle_s)
            stop_s.append(dev.stop())
    figures["wharf dev ready"] = Figure(
        value=min(ready_s), unit="s", at_most=2.0, note=f"worst of {rounds}: {max(ready_s):.2f} s"
    )
    figures["wharf dev stopped"] = Figure(
        value=min(stop_s), unit="s", at_most=5.0, note=f"worst of {rounds}: {max(stop_s):.2f} s"
    )
    return figures


def _measure_run_s(*command: str) -> float:
    started_s = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started_s


class DevProcess:
    """`wharf dev` with a new data folder."""

    def __init__(self, folder: Path) -> None:
        out = folder / "out"
        started_s = time.monotonic()
        with out.open("wb") as opened:
            self._process = subprocess.Popen(
                [*_WHARF, "dev", "--port", "0"], cwd=folder, stdout=opened, stderr=subprocess.DEVNULL
            )
        while not _READY.search(out.read_text("utf-8")):
            assert self._process.poll() is None, "wharf dev ended before it was ready"
            assert time.monotonic() - started_s < START_TIMEOUT_S, "wharf dev was not ready in time"
            time.sleep(0.005)
        self.ready_s = time.monotonic() - started_s

    def measure_idle(self, idle_s: float) -> Figures:
        """Measure CPU time and memory of all processes while nothing happens."""
        time.sleep(SETTLE_S)
        pids = [self._process.pid, *list_children(self._process.pid)]
        before = sum(map(_read_cpu_s, pids))
        time.sleep(idle_s)
        used = sum(map(_read_cpu_s, pids)) - before
        return {
            "idle CPU, all processes": Figure(value=100 * used / idle_s, unit="% of a core", at_most=1.0),
            "memory (PSS), all processes": Figure(
                value=sum(map(_read_memory_mb, pids)), unit="MB", note=f"{len(pids)} processes"
            ),
        }

    def stop(self) -> float:
        """Stop the agent. Return the seconds until its exit."""
        started_s = time.monotonic()
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=60)
        return time.monotonic() - started_s


def _read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_memory_mb(pid: int) -> float:
    """Return the proportional set size: memory that several processes share is divided among them."""
    line = next(line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) / 1_000
