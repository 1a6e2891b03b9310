"""The whole server at work: batch jobs of 1,000 from register to committed, on 5,000 nodes in 50 racks, durable on SQLite.

Evaluations, summaries and one API replica are in the run. Nodes are registered and say nothing more: what is measured is
placing, not running.
"""

import http.client
import json
import sys
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from benchmarks.agent_process import AgentProcess, agent, own_mb
from benchmarks.figures import Figure, Figures

NODES: Final = 5_000
RACKS: Final = 50
JOBS: Final = 100
COUNT: Final = 1_000
GIVE_UP_S: Final = 120.0
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


def measure(nodes: int = NODES, jobs: int = JOBS) -> Figures:
    with agent(heartbeat_ttl="1h") as server:
        caller = _Caller(server)
        for number in range(nodes):
            caller.put(f"/v1/node/{_node_id(number)}/register", _registration(number))
            secret = {"X-Cluster-Node-Secret": _node_id(number)}
            caller.put(f"/v1/node/{_node_id(number)}/report", {"ReportID": _node_id(number), "IsWhole": True}, secret)
        placed_s, reads_ms = _place(caller, jobs)
        memory_mb = own_mb(server.pids())
    allocations = jobs * COUNT
    reads_ms.sort()
    return {
        f"batch jobs of {COUNT:,}, {nodes:,} nodes: register to committed": Figure(
            value=allocations / placed_s, unit="allocations/s", at_least=16_000,
            note=f"{allocations:,} allocations in {placed_s:.1f} s; the peer places 600/s",
        ),
        "reads meanwhile, 99th percentile": Figure(
            value=reads_ms[int(len(reads_ms) * 0.99)] if reads_ms else 0.0, unit="ms", at_most=20.0,
            note=f"one job, default consistency, {len(reads_ms)} reads",
        ),
        f"memory of all processes with {allocations:,} allocations": Figure(value=memory_mb, unit="MB"),
    }  # fmt: skip


def _place(caller: "_Caller", jobs: int) -> tuple[float, list[float]]:
    began = time.perf_counter()
    for number in range(jobs):
        caller.put("/v1/jobs", {"Job": _job(number)})
    reads_ms: list[float] = []
    while caller.get("/v1/operator/state?stale")["Tables"].get("allocations", 0) < jobs * COUNT:
        asked = time.perf_counter()
        caller.get("/v1/job/bench-0")
        reads_ms.append((time.perf_counter() - asked) * 1_000)
        assert time.perf_counter() - began < GIVE_UP_S, "not everything was placed in time"
        time.sleep(0.05)
    return time.perf_counter() - began, reads_ms


def _job(number: int) -> dict[str, Any]:
    task = {"Name": "task", "Driver": "mock", "Resources": {"CPU": 10, "MemoryMB": 10}}
    group = {"Name": "group", "Count": COUNT, "Tasks": [task]}
    return {"ID": f"bench-{number}", "Type": "batch", "TaskGroups": [group]}


def _node_id(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def _registration(number: int) -> dict[str, Any]:
    node = {
        "ID": _node_id(number),
        "Name": f"node-{number}",
        "Attributes": {"kernel.name": "linux", "driver.mock": "1", "unique.hostname": f"node-{number}"},
        "Meta": {"rack": f"rack-{number % RACKS}"},
        "NodeResources": {
            "Cpu": {"CpuShares": 16_000, "TotalCpuCores": 16},
            "Memory": {"MemoryMB": 64_000},
            "Disk": {"DiskMB": 500_000_000},
        },
        "Status": "ready",
    }
    return {"Node": node, "SecretID": _node_id(number)}


class _Caller:
    def __init__(self, server: AgentProcess) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def put(self, path: str, body: object, headers: Mapping[str, str] = NO_HEADERS) -> Any:
        return self._ask("PUT", path, json.dumps(body), headers)

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None, NO_HEADERS)

    def _ask(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Any:
        self._connection.request(method, path, body=body, headers=dict(headers))
        reply = self._connection.getresponse()
        text = reply.read().decode()
        assert reply.status == 200, f"{method} {path}: {reply.status} {text}"
        return json.loads(text) if text else None


if __name__ == "__main__":
    for name, figure in measure(jobs=int(sys.argv[1]) if len(sys.argv) > 1 else JOBS).items():
        print(f"{name}: {figure.value:.1f} {figure.unit} ({figure.note})")
