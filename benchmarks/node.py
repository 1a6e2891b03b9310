"""A node with real programs: how fast, how large, how idle. Alone: `python -m benchmarks.node [SHORT [RUNNING]]`.

A server and a node in one agent, on SQLite, `raw_exec` allowed. Each figure has the processor's seconds beside it and how
busy the machine was, for the time on the clock says little among neighbours.
"""

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.agent_process import list_children, measure_cpu_s, measure_memory_mb
from benchmarks.figures import Figure, Figures, print_table

CONFIG: Final = """
data_dir = "{folder}/data"
log_level = "info"
[ports]
http = 0
[server]
enabled = true
[client]
enabled = true
gc_max_allocs = 20000
[client.drivers.raw_exec]
enabled = true
"""
SHORT_TASK_COUNT: Final = 400
RUNNING_TASK_COUNT: Final = 100
SHIM: Final = b"shim.sh"
SUPERVISOR: Final = b"wharf.node.supervisor"
SUPERVISOR_CONNECTED_TEXT: Final = "connected to task supervisor"


class NodeBenchmarkCluster:
    def __init__(self, folder: Path) -> None:
        (folder / "wharf.toml").write_text(CONFIG.format(folder=folder))
        self.folder = folder
        out = folder / "out.txt"
        with out.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "wharf", "agent", "--config", "wharf.toml"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        wait_until(lambda: "127.0.0.1:" in out.read_text(), 60)
        self.address = "http://127.0.0.1:" + out.read_text().partition("http://127.0.0.1:")[2].split()[0].strip("/,")
        wait_until(self._is_ready, 60)

    def _is_ready(self) -> bool:
        try:
            return any(node["Status"] == "ready" for node in self.get("/v1/nodes")) and bool(self.list_pids(SUPERVISOR))
        except OSError:
            return False

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=70) as reply:
            return json.loads(reply.read())

    def send(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=70) as reply:
            return json.loads(reply.read())

    def list_pids(self, word: bytes) -> list[int]:
        """Of this node, by a word of their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    words = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if word in words and os.fsencode(self.folder) in words:
                    found.append(int(entry.name))
        return found

    def find_role_pid(self, name: str) -> int:
        """The process of the agent's tree that plays this role."""
        for pid in list_children(self.process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if len(words) > 2 and words[-2].decode().partition("-")[0] == name:
                return pid
        raise LookupError(name)

    def list_roles(self) -> dict[str, int]:
        found = {"agent": self.process.pid}
        for pid in list_children(self.process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found[words[-2].decode() if len(words) > 2 else str(pid)] = pid
        return found | {"supervisor": self.list_pids(SUPERVISOR)[0]}

    def stop(self) -> None:
        keepers = self.list_pids(SUPERVISOR)
        self.process.terminate()
        self.process.wait(60)
        for pid in keepers:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


@contextmanager
def run_cluster() -> Iterator[NodeBenchmarkCluster]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = NodeBenchmarkCluster(Path(folder))
        try:
            yield cluster
        finally:
            cluster.stop()


def wait_until(is_so: Callable[[], bool], within_s: float, every_s: float = 0.02) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(every_s)


def make_job(id: str, *command: str, count: int = 1, kind: str = "batch") -> dict[str, Any]:
    task = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": command[0], "args": command[1:]},
        "Resources": {"CPU": 1, "MemoryMB": 10},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
    }
    group = {"Name": "g", "Count": count, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [task]}
    return {"Job": {"ID": id, "Type": kind, "TaskGroups": [group]}}


def measure_sequential_jobs(cluster: NodeBenchmarkCluster, count: int) -> Figure:
    """From the PUT to `complete`, as one client sees it that waits for a change."""
    took = []
    for number in range(count):
        began_s = time.perf_counter()
        cluster.send("PUT", "/v1/jobs", make_job(f"one-{number}", "/bin/true"))
        index, is_done = 0, False
        while not is_done:
            path = f"/v1/job/one-{number}/allocations"
            with urllib.request.urlopen(f"{cluster.address}{path}?index={index}&wait=30s", timeout=70) as reply:
                index = int(reply.headers["X-Cluster-Index"])
                is_done = any(each["ClientStatus"] == "complete" for each in json.loads(reply.read()))
        took.append(time.perf_counter() - began_s)
    return Figure(value=round(statistics.median(took) * 1000, 1), unit="ms", at_most=150.0)


def measure_short_tasks(cluster: NodeBenchmarkCluster, count: int) -> Figures:
    roles = cluster.list_roles()
    before = {name: measure_cpu_s([pid]) for name, pid in roles.items()}
    tasks_before = _waited_s(roles["supervisor"])
    began_s = time.perf_counter()
    cluster.send("PUT", "/v1/jobs", make_job("many", "/bin/true", count=count))

    def are_over() -> bool:
        summary = cluster.get("/v1/job/many/summary")["Summary"].get("g", {})
        return bool(summary.get("Complete") == count)

    wait_until(are_over, 600, every_s=0.2)
    took_s = time.perf_counter() - began_s
    used = {name: (measure_cpu_s([pid]) - before[name]) / count * 1000 for name, pid in roles.items()}
    used["shims and tasks"] = (_waited_s(roles["supervisor"]) - tasks_before) / count * 1000
    parts = ", ".join(f"{name} {ms:.1f}" for name, ms in used.items() if ms >= 0.05)
    return {
        "node: short tasks": Figure(value=round(count / took_s, 1), unit="/s", at_least=150.0),
        "node: processor for a short task, all processes": Figure(
            value=round(sum(used.values()), 1), unit="ms", note=parts
        ),
    }


def _waited_s(pid: int) -> float:
    """What children used that this process has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def measure_running_tasks(cluster: NodeBenchmarkCluster, count: int) -> Figures:
    cluster.send("PUT", "/v1/jobs", make_job("stand", "/bin/sleep", "100000", count=count, kind="service"))
    wait_until(lambda: cluster.get("/v1/job/stand/summary")["Summary"]["g"].get("Running") == count, 300, every_s=0.2)
    node, keeper = cluster.find_role_pid("node"), cluster.list_pids(SUPERVISOR)[0]
    time.sleep(5)
    used_s, idle_s = measure_cpu_s([node, keeper]), 20.0
    time.sleep(idle_s)
    busy = (measure_cpu_s([node, keeper]) - used_s) / idle_s * 100
    shims = cluster.list_pids(SHIM)
    figures = {
        f"node: agent with {count} tasks": Figure(
            value=round(measure_memory_mb([node]), 1), unit="MB (PSS)", at_most=80.0
        ),
        f"node: supervisor with {count} tasks": Figure(
            value=round(measure_memory_mb([keeper]), 1), unit="MB (PSS)", at_most=30.0
        ),
        "node: a shim": Figure(value=round(measure_memory_mb(shims) / len(shims), 2), unit="MB (PSS)", at_most=1.5),
        f"node: idle processor with {count} tasks": Figure(value=round(busy, 2), unit="% of a core", at_most=2.0),
    }
    figures[f"node: a killed agent has all {count} tasks again"] = measure_adoption(cluster, node)
    cluster.send("DELETE", "/v1/job/stand")
    wait_until(lambda: not cluster.list_pids(SHIM), 300, every_s=0.2)
    return figures


def measure_adoption(cluster: NodeBenchmarkCluster, node: int) -> Figure:
    """From the start of the new process to the moment when it says that it follows its supervisor again."""
    out = cluster.folder / "out.txt"
    seen = out.read_text().count(SUPERVISOR_CONNECTED_TEXT)
    os.kill(node, 9)
    wait_until(lambda: _new_role(cluster, node) is not None, 60, every_s=0.005)
    began_s = time.perf_counter()
    wait_until(lambda: out.read_text().count(SUPERVISOR_CONNECTED_TEXT) > seen, 60, every_s=0.005)
    return Figure(value=round(time.perf_counter() - began_s, 2), unit="s", at_most=2.0)


def _new_role(cluster: NodeBenchmarkCluster, old: int) -> int | None:
    try:
        pid = cluster.find_role_pid("node")
    except (LookupError, OSError):
        return None
    return pid if pid != old else None


def measure_log_throughput(cluster: NodeBenchmarkCluster, mb: int) -> Figure:
    """One task writes as fast as it can, into files of 100 MB of which two are kept; nothing is lost on the way."""
    job = make_job("loud", "/bin/sh", "-c", f"dd if=/dev/zero bs=64k count={mb * 16} 2>/dev/null")
    job["Job"]["TaskGroups"][0]["Tasks"][0]["LogConfig"] = {"MaxFiles": 2, "MaxFileSizeMB": 100}
    job["Job"]["TaskGroups"][0]["EphemeralDisk"] = {"SizeMB": 500}
    keeper = cluster.list_pids(SUPERVISOR)[0]
    used_s = measure_cpu_s([keeper])
    cluster.send("PUT", "/v1/jobs", job)
    told: list[dict[str, Any]] = []

    def is_over() -> bool:
        told[:] = cluster.get("/v1/job/loud/allocations")
        return any(each["ClientStatus"] == "complete" for each in told)

    wait_until(is_over, 300, every_s=0.05)
    times = {event["Type"]: event["Time"] for event in told[0]["TaskStates"]["t"]["Events"]}
    took_s = (times["Terminated"] - times["Started"]) / 1e9
    each_s = (measure_cpu_s([keeper]) - used_s) / mb
    note = f"{mb} MB; the supervisor uses {each_s * 1000:.2f} ms of a processor for each MB"
    return Figure(value=round(mb / took_s, 1), unit="MB/s", at_least=200.0, note=note)


def measure_follow_delay(cluster: NodeBenchmarkCluster, lines: int) -> Figure:
    """A line goes into a task's pipe, through its log, node and server to a client that follows."""
    pipe = cluster.folder / "pipe"
    os.mkfifo(pipe)
    late_ms = []
    with _followed(cluster, "echo", f"exec cat {pipe}", of="start") as reading, pipe.open("wb", buffering=0) as writing:
        for number in range(lines):
            began_s, line = time.perf_counter(), b"%d\n" % number
            writing.write(line)
            assert reading.readline() == line
            late_ms.append((time.perf_counter() - began_s) * 1000)
            time.sleep(0.05)
    note = f"the slowest of {lines}: {max(late_ms):.0f} ms"
    return Figure(value=round(statistics.median(late_ms), 1), unit="ms", at_most=50.0, note=note)


def measure_followed_throughput(cluster: NodeBenchmarkCluster, mb: int) -> Figure:
    """A client that follows the log through a server while its task writes as fast as it can; nothing is left out."""
    says = f"dd if=/dev/zero bs=64k count={mb * 16} 2>/dev/null; sleep 1000"
    with _followed(cluster, "flood", says, of="start") as reading:
        got, began_s = len(reading.read(1)), time.perf_counter()
        while got < mb << 20:
            piece = reading.read1(1 << 20)
            assert piece, f"it ended after {got} bytes"
            got += len(piece)
        took_s = time.perf_counter() - began_s
    return Figure(value=round(mb / took_s, 1), unit="MB/s", at_least=50.0, note=f"{mb} MB, all of them")


@contextmanager
def _followed(cluster: NodeBenchmarkCluster, id: str, says: str, *, of: str) -> Iterator[http.client.HTTPResponse]:
    """A task that begins to write when somebody follows its log."""
    go = cluster.folder / f"{id}.go"
    job = make_job(id, "/bin/sh", "-c", f"until [ -e {go} ]; do sleep 0.01; done; {says}", kind="service")
    job["Job"]["TaskGroups"][0]["Tasks"][0]["LogConfig"] = {"MaxFiles": 10, "MaxFileSizeMB": 100}
    job["Job"]["TaskGroups"][0]["EphemeralDisk"] = {"SizeMB": 1_500}
    cluster.send("PUT", "/v1/jobs", job)
    wait_until(lambda: any(each["ClientStatus"] == "running" for each in _allocations(cluster, id)), 60)
    allocation = _allocations(cluster, id)[0]["ID"]
    path = f"/v1/client/fs/logs/{allocation}?task=t&type=stdout&follow=true&plain=true&origin={of}"
    with urllib.request.urlopen(cluster.address + path, timeout=70) as reading:
        go.touch()
        yield reading
    cluster.send("DELETE", f"/v1/job/{id}")


def _allocations(cluster: NodeBenchmarkCluster, id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get(f"/v1/job/{id}/allocations")
    return found


def measure(*, short: int = SHORT_TASK_COUNT, running: int = RUNNING_TASK_COUNT) -> Figures:
    figures: Figures = {}
    with run_cluster() as cluster:
        figures["node: PUT to complete, median"] = measure_sequential_jobs(cluster, 20)
        figures |= measure_short_tasks(cluster, short)
        figures["node: log of one task, to disk"] = measure_log_throughput(cluster, 1_000)
        figures["node: log of one task, followed through a server"] = measure_followed_throughput(cluster, 300)
        figures["node: delay of a followed log, median"] = measure_follow_delay(cluster, 120)
    with run_cluster() as cluster:
        figures |= measure_running_tasks(cluster, running)
    load = Figure(
        value=round(os.getloadavg()[0], 1),
        unit="",
        note="of the last minute; above 2 the times are those of a busy machine",
    )
    return figures | {"node: load of the machine": load}


def main() -> None:
    short, running = (
        int(sys.argv[at]) if len(sys.argv) > at else most
        for at, most in ((1, SHORT_TASK_COUNT), (2, RUNNING_TASK_COUNT))
    )
    print_table(measure(short=short, running=running))


if __name__ == "__main__":
    main()
