"""A whole server with many nodes, for benchmarks of placement: SQLite, and one api process.

The nodes only register. They run nothing, so that only placement is measured; a long heartbeat interval keeps them ready.
"""

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from benchmarks.agent_process import DEFAULT_MAX_COUNT, AgentProcess, measure_cpu_s, run_agent

RACK_COUNT: Final = 50
PLACEMENT_TIMEOUT_S: Final = 600.0
MAX_IDLE_S: Final = 2.0
"""A connection that was idle for longer is replaced."""
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
ROLES: Final = ("brain", "store", "api")


class PlacingCluster:
    """A server with a client that registers nodes and jobs and counts allocations."""

    def __init__(self, server: AgentProcess) -> None:
        self.server = server
        self.caller = ServerCaller(server)
        self._used_s = self._read_cpu_s()

    def register_nodes(self, first: int, last: int) -> None:
        """Register the nodes `first` to `last - 1`, and send an empty report of each."""
        for number in range(first, last):
            name = make_node_id(number)
            self.caller.put(f"/v1/node/{name}/register", _make_registration(number))
            secret = {"X-Cluster-Node-Secret": name}
            self.caller.put(f"/v1/node/{name}/report", {"ReportID": name, "IsWhole": True}, secret)

    def place_jobs(self, jobs: list[dict[str, Any]], *, count: int) -> tuple[float, list[float]]:
        """Register jobs, and wait until `count` allocations exist in all.

        Return the seconds from the first registration on, and the milliseconds of each read meanwhile.
        """
        started_s = time.perf_counter()
        for job in jobs:
            self.caller.put("/v1/jobs", {"Job": job})
        reads_ms = self.wait_for_allocations(count, read=f"/v1/job/{jobs[0]['ID']}")
        return time.perf_counter() - started_s, reads_ms

    def wait_for_allocations(self, count: int, *, read: str) -> list[float]:
        """Wait until `count` allocations exist, and read a path meanwhile. Return the milliseconds of each read."""
        started_s, reads_ms = time.perf_counter(), []
        while self.count_allocations() < count:
            sent_s = time.perf_counter()
            self.caller.get(read)
            reads_ms.append((time.perf_counter() - sent_s) * 1_000)
            assert time.perf_counter() - started_s < PLACEMENT_TIMEOUT_S, (
                f"less than {count} allocations were placed in {PLACEMENT_TIMEOUT_S:.0f} s"
            )
            time.sleep(0.05)
        return reads_ms

    def count_allocations(self) -> int:
        tables: dict[str, int] = self.caller.get("/v1/operator/state?stale")["Tables"]
        return tables.get("allocations", 0)

    def reset_cpu_usage(self) -> None:
        """Count CPU time from now on."""
        self._used_s = self._read_cpu_s()

    def format_cpu_usage(self, allocations: int) -> str:
        """Return the CPU time of each process per allocation. It depends less on other load than the duration does."""
        now_s = self._read_cpu_s()
        return (
            ", ".join(f"{role} {(now_s[role] - self._used_s[role]) / allocations * 1e6:.0f}" for role in ROLES) + " us"
        )

    def _read_cpu_s(self) -> dict[str, float]:
        return {role: measure_cpu_s(self.server.list_pids_of_role(role)) for role in ROLES}


@contextmanager
def run_placing_cluster(nodes: int, *, max_count: int = DEFAULT_MAX_COUNT) -> Iterator[PlacingCluster]:
    """Run a server with this number of nodes. A job may have `max_count` allocations."""
    with run_agent(heartbeat_ttl="4h", max_count=max_count) as server:
        cluster = PlacingCluster(server)
        cluster.register_nodes(0, nodes)
        yield cluster


def make_job(name: str, count: int, *, kind: str = "batch", **fields: Any) -> dict[str, Any]:
    task = {"Name": "task", "Driver": "mock", "Resources": {"CPU": 10, "MemoryMB": 10}}
    group = {"Name": "group", "Count": count, "Tasks": [task], **fields}
    return {"ID": name, "Type": kind, "TaskGroups": [group]}


def make_node_id(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def _make_registration(number: int) -> dict[str, Any]:
    """Return the registration of a node with 16 cores, in one of 50 racks."""
    node = {
        "ID": make_node_id(number),
        "Name": f"node-{number}",
        "Attributes": {"kernel.name": "linux", "driver.mock": "1", "unique.hostname": f"node-{number}"},
        "Meta": {"rack": f"rack-{number % RACK_COUNT}", "size": ("small", "middle", "large")[number % 3]},
        "NodeResources": {
            "Cpu": {"CpuShares": 16_000, "TotalCpuCores": 16},
            "Memory": {"MemoryMB": 64_000},
            "Disk": {"DiskMB": 500_000_000},
        },
        "Status": "ready",
    }
    return {"Node": node, "SecretID": make_node_id(number)}


class ServerCaller:
    """A client with one connection to a server. Replies must have status 200."""

    def __init__(self, server: AgentProcess) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self._last_request_s = time.monotonic()

    def put(self, path: str, body: object, headers: Mapping[str, str] = NO_HEADERS) -> Any:
        return self._send("PUT", path, json.dumps(body), headers)

    def get(self, path: str) -> Any:
        return self._send("GET", path, None, NO_HEADERS)

    def _send(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Any:
        if time.monotonic() - self._last_request_s > MAX_IDLE_S:
            self._connection.close()  # The server may have closed it. The request opens a new one.
        self._last_request_s = time.monotonic()
        self._connection.request(method, path, body=body, headers=dict(headers))
        reply = self._connection.getresponse()
        text = reply.read().decode()
        assert reply.status == 200, f"{method} {path}: {reply.status} {text}"
        return json.loads(text) if text else None
