"""A node with real programs: throughput, latency, memory and idle CPU time of tasks and their logs.

A server and a node run in one agent, on SQLite, with `raw_exec`. Some figures have CPU times and the load of the machine as
notes, because durations depend on other programs. `python -m benchmarks.node [SHORT [RUNNING]]` sets the numbers of tasks.
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

from benchmarks.agent_process import list_children, measure_cpu_s, measure_memory_mb, read_role
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
    """An agent with a server and a node, and a client of its API."""

    def __init__(self, folder: Path, *, extra_config: str = "") -> None:
        (folder / "wharf.toml").write_text(CONFIG.format(folder=folder) + extra_config)
        self.folder = folder
        out = folder / "out.txt"
        with out.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "wharf", "agent", "--config", "wharf.toml"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
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
        """Return the processes of this cluster whose command line contains `word`."""
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    command_line = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if word in command_line and os.fsencode(self.folder) in command_line:
                    pids.append(int(entry.name))
        return pids

    def find_role_pid(self, name: str) -> int:
        """Return the child process of the agent with this role. Raises `LookupError` if there is none."""
        for role, pid in self._list_child_roles():
            if role.partition("-")[0] == name:
                return pid
        raise LookupError(name)

    def list_roles(self) -> dict[str, int]:
        """Return the process id of each role, including the agent and the supervisor."""
        children = dict(self._list_child_roles())
        return {"agent": self.process.pid, **children, "supervisor": self.list_pids(SUPERVISOR)[0]}

    def _list_child_roles(self) -> list[tuple[str, int]]:
        """Return the role and the process id of each child process of the agent."""
        return [(read_role(pid), pid) for pid in list_children(self.process.pid)]

    def stop(self) -> None:
        """Stop the agent, and kill the supervisors that outlive it."""
        supervisors = self.list_pids(SUPERVISOR)
        self.process.terminate()
        self.process.wait(60)
        for pid in supervisors:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


@contextmanager
def run_cluster() -> Iterator[NodeBenchmarkCluster]:
    """Run an agent in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = NodeBenchmarkCluster(Path(folder))
        try:
            yield cluster
        finally:
            cluster.stop()


def wait_until(condition: Callable[[], bool], timeout_s: float, interval_s: float = 0.02) -> None:
    """Wait until the condition is true. Fail after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not true after {timeout_s:.0f} s"
        time.sleep(interval_s)


def make_job(id: str, *command: str, count: int = 1, kind: str = "batch") -> dict[str, Any]:
    """Return a job with one task that runs this command."""
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
    """Measure the time from the registration of a job to `complete`, as a client with blocking queries sees it."""
    durations_s = []
    for number in range(count):
        started_s = time.perf_counter()
        cluster.send("PUT", "/v1/jobs", make_job(f"one-{number}", "/bin/true"))
        index, is_done = 0, False
        while not is_done:
            path = f"/v1/job/one-{number}/allocations"
            with urllib.request.urlopen(f"{cluster.address}{path}?index={index}&wait=30s", timeout=70) as reply:
                index = int(reply.headers["X-Cluster-Index"])
                is_done = any(stub["ClientStatus"] == "complete" for stub in json.loads(reply.read()))
        durations_s.append(time.perf_counter() - started_s)
    return Figure(value=round(statistics.median(durations_s) * 1000, 1), unit="ms", at_most=150.0)


def measure_short_tasks(cluster: NodeBenchmarkCluster, count: int) -> Figures:
    """Measure the throughput and the CPU time of one job with many short tasks."""
    roles = cluster.list_roles()
    before = {name: measure_cpu_s([pid]) for name, pid in roles.items()}
    tasks_before = _read_children_cpu_s(roles["supervisor"])
    started_s = time.perf_counter()
    cluster.send("PUT", "/v1/jobs", make_job("many", "/bin/true", count=count))

    def are_complete() -> bool:
        summary = cluster.get("/v1/job/many/summary")["Summary"].get("g", {})
        return bool(summary.get("Complete") == count)

    wait_until(are_complete, 600, interval_s=0.2)
    duration_s = time.perf_counter() - started_s
    used = {name: (measure_cpu_s([pid]) - before[name]) / count * 1000 for name, pid in roles.items()}
    used["shims and tasks"] = (_read_children_cpu_s(roles["supervisor"]) - tasks_before) / count * 1000
    parts = ", ".join(f"{name} {ms:.1f}" for name, ms in used.items() if ms >= 0.05)
    return {
        "node: short tasks": Figure(value=round(count / duration_s, 1), unit="/s", at_least=150.0),
        "node: CPU time of a short task, all processes": Figure(
            value=round(sum(used.values()), 1), unit="ms", note=parts
        ),
    }


def _read_children_cpu_s(pid: int) -> float:
    """Return the CPU seconds of the ended children of this process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def measure_running_tasks(cluster: NodeBenchmarkCluster, count: int) -> Figures:
    """Measure memory, idle CPU time and recovery of a node with many running tasks."""
    cluster.send("PUT", "/v1/jobs", make_job("running", "/bin/sleep", "100000", count=count, kind="service"))
    wait_until(
        lambda: cluster.get("/v1/job/running/summary")["Summary"]["g"].get("Running") == count, 300, interval_s=0.2
    )
    node, supervisor = cluster.find_role_pid("node"), cluster.list_pids(SUPERVISOR)[0]
    time.sleep(5)
    used_s, idle_s = measure_cpu_s([node, supervisor]), 20.0
    time.sleep(idle_s)
    cpu_percent = (measure_cpu_s([node, supervisor]) - used_s) / idle_s * 100
    shims = cluster.list_pids(SHIM)
    figures = {
        f"node: agent with {count} tasks": Figure(
            value=round(measure_memory_mb([node]), 1), unit="MB (PSS)", at_most=80.0
        ),
        f"node: supervisor with {count} tasks": Figure(
            value=round(measure_memory_mb([supervisor]), 1), unit="MB (PSS)", at_most=30.0
        ),
        "node: a shim": Figure(value=round(measure_memory_mb(shims) / len(shims), 2), unit="MB (PSS)", at_most=1.5),
        f"node: idle CPU with {count} tasks": Figure(value=round(cpu_percent, 2), unit="% of a core", at_most=2.0),
    }
    figures[f"node: recovery of a killed agent with {count} tasks"] = measure_adoption(cluster, node)
    cluster.send("DELETE", "/v1/job/running")
    wait_until(lambda: not cluster.list_pids(SHIM), 300, interval_s=0.2)
    return figures


def measure_adoption(cluster: NodeBenchmarkCluster, node: int) -> Figure:
    """Kill the node process. Measure the time from its restart until its connection to the supervisor."""
    out = cluster.folder / "out.txt"
    old_count = out.read_text().count(SUPERVISOR_CONNECTED_TEXT)
    os.kill(node, 9)
    wait_until(lambda: find_new_node_pid(cluster, node) is not None, 60, interval_s=0.005)
    started_s = time.perf_counter()
    wait_until(lambda: out.read_text().count(SUPERVISOR_CONNECTED_TEXT) > old_count, 60, interval_s=0.005)
    return Figure(value=round(time.perf_counter() - started_s, 2), unit="s", at_most=2.0)


def find_new_node_pid(cluster: NodeBenchmarkCluster, old_pid: int) -> int | None:
    """Return the node process if it was restarted, or `None`."""
    try:
        pid = cluster.find_role_pid("node")
    except (LookupError, OSError):
        return None
    return pid if pid != old_pid else None


def measure_log_throughput(cluster: NodeBenchmarkCluster, mb: int) -> Figure:
    """Measure the log of a task that writes as fast as possible, with two log files of 100 MB."""
    job = make_job("log", "/bin/sh", "-c", f"dd if=/dev/zero bs=64k count={mb * 16} 2>/dev/null")
    job["Job"]["TaskGroups"][0]["Tasks"][0]["LogConfig"] = {"MaxFiles": 2, "MaxFileSizeMB": 100}
    job["Job"]["TaskGroups"][0]["EphemeralDisk"] = {"SizeMB": 500}
    supervisor = cluster.list_pids(SUPERVISOR)[0]
    used_s = measure_cpu_s([supervisor])
    cluster.send("PUT", "/v1/jobs", job)
    stubs: list[dict[str, Any]] = []

    def is_complete() -> bool:
        stubs[:] = cluster.get("/v1/job/log/allocations")
        return any(stub["ClientStatus"] == "complete" for stub in stubs)

    wait_until(is_complete, 300, interval_s=0.05)
    times = {event["Type"]: event["Time"] for event in stubs[0]["TaskStates"]["t"]["Events"]}
    duration_s = (times["Terminated"] - times["Started"]) / 1e9
    cpu_s_per_mb = (measure_cpu_s([supervisor]) - used_s) / mb
    note = f"{mb} MB; the supervisor uses {cpu_s_per_mb * 1000:.2f} ms of CPU time per MB"
    return Figure(value=round(mb / duration_s, 1), unit="MB/s", at_least=200.0, note=note)


def measure_follow_delay(cluster: NodeBenchmarkCluster, lines: int) -> Figure:
    """Measure the delay from a line in a task's output to a client that follows the log through a server."""
    pipe = cluster.folder / "pipe"
    os.mkfifo(pipe)
    delays_ms = []
    with (
        _follow_log(cluster, "echo", f"exec cat {pipe}", origin="start") as log,
        pipe.open("wb", buffering=0) as pipe_end,
    ):
        for number in range(lines):
            started_s, line = time.perf_counter(), b"%d\n" % number
            pipe_end.write(line)
            assert log.readline() == line
            delays_ms.append((time.perf_counter() - started_s) * 1000)
            time.sleep(0.05)
    note = f"maximum of {lines}: {max(delays_ms):.0f} ms"
    return Figure(value=round(statistics.median(delays_ms), 1), unit="ms", at_most=50.0, note=note)


def measure_followed_throughput(cluster: NodeBenchmarkCluster, mb: int) -> Figure:
    """Measure a client that follows a log through a server while the task writes as fast as possible."""
    command = f"dd if=/dev/zero bs=64k count={mb * 16} 2>/dev/null; sleep 1000"
    with _follow_log(cluster, "flood", command, origin="start") as log:
        received_bytes, started_s = len(log.read(1)), time.perf_counter()
        while received_bytes < mb << 20:
            chunk = log.read1(1 << 20)
            assert chunk, f"the log ended after {received_bytes} bytes"
            received_bytes += len(chunk)
        duration_s = time.perf_counter() - started_s
    return Figure(value=round(mb / duration_s, 1), unit="MB/s", at_least=50.0, note=f"{mb} MB")


@contextmanager
def _follow_log(
    cluster: NodeBenchmarkCluster, id: str, command: str, *, origin: str
) -> Iterator[http.client.HTTPResponse]:
    """Run a task that runs `command` when a client follows its log. Yield the stream of the log."""
    start_file = cluster.folder / f"{id}.start"
    job = make_job(id, "/bin/sh", "-c", f"until [ -e {start_file} ]; do sleep 0.01; done; {command}", kind="service")
    job["Job"]["TaskGroups"][0]["Tasks"][0]["LogConfig"] = {"MaxFiles": 10, "MaxFileSizeMB": 100}
    job["Job"]["TaskGroups"][0]["EphemeralDisk"] = {"SizeMB": 1_500}
    cluster.send("PUT", "/v1/jobs", job)
    wait_until(lambda: any(stub["ClientStatus"] == "running" for stub in _list_allocations(cluster, id)), 60)
    allocation = _list_allocations(cluster, id)[0]["ID"]
    path = f"/v1/client/fs/logs/{allocation}?task=t&type=stdout&follow=true&plain=true&origin={origin}"
    with urllib.request.urlopen(cluster.address + path, timeout=70) as log:
        start_file.touch()
        yield log
    cluster.send("DELETE", f"/v1/job/{id}")


def _list_allocations(cluster: NodeBenchmarkCluster, id: str) -> list[dict[str, Any]]:
    stubs: list[dict[str, Any]] = cluster.get(f"/v1/job/{id}/allocations")
    return stubs


def measure(*, short: int = SHORT_TASK_COUNT, running: int = RUNNING_TASK_COUNT) -> Figures:
    """Measure logs and short tasks on one node, and running tasks on another one."""
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
        note="average of the last minute; above 2, the machine is busy and the times are not meaningful",
    )
    return figures | {"node: load average": load}


def main() -> None:
    short, running = (
        int(sys.argv[position]) if len(sys.argv) > position else default
        for position, default in ((1, SHORT_TASK_COUNT), (2, RUNNING_TASK_COUNT))
    )
    print_table(measure(short=short, running=running))


if __name__ == "__main__":
    main()
