"""The leader of two servers on etcd is killed while it places: no allocation is placed twice or lost, and no node is over-committed.

The full size runs with `make faults`; a small size runs with the other tests.
"""

import contextlib
import http.client
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agent.processes import RunningAgent, running
from tests.cluster.engines.etcd_server import running_etcd
from tests.waiting import wait_until

pytestmark = pytest.mark.needs_program("etcd")

CPU: Final = 10
MEMORY_MB: Final = 10


def write_config(folder: Path, name: str, endpoint: str) -> Path:
    """Configure long heartbeat limits, because the nodes of this test send no heartbeats."""
    folder.mkdir()
    file = folder / "wharf.toml"
    file.write_text(
        f'name = "{name}"\ndata_dir = "{folder}/data"\nlog_level = "info"\n[ports]\nhttp = 0\n'
        '[server]\nenabled = true\nmin_heartbeat_ttl = "2h"\nfailover_heartbeat_ttl = "2h"\n[client]\nenabled = false\n'
        f'[state]\nengine = "etcd"\n[state.etcd]\nendpoints = ["{endpoint}"]\nprefix = "/{folder.parent.name}"\n'
        f'[keyring]\nfile = "{folder.parent}/keyring.key"\n'
    )
    return file


class Caller:
    """A client with one persistent connection to one server."""

    def __init__(self) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", timeout=120)

    def connect_to(self, agent: RunningAgent) -> None:
        self._connection.close()
        self._connection = http.client.HTTPConnection(agent.address.removeprefix("http://"), timeout=120)

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> Any:
        try:
            return self._send("GET", path, None, {})
        except http.client.RemoteDisconnected:  # Servers close idle connections.
            self._connection.close()
            return self._send("GET", path, None, {})

    def put(self, path: str, body: object, **headers: str) -> Any:
        return self._send("PUT", path, json.dumps(body), headers)

    def _send(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Any:
        self._connection.request(method, path, body=body, headers=headers)
        reply = self._connection.getresponse()
        text = reply.read().decode()
        assert reply.status == 200, f"{method} {path}: {reply.status} {text}"
        return json.loads(text) if text else None

    def count_allocations(self) -> int:
        tables: dict[str, int] = self.get("/v1/operator/state?stale")["Tables"]
        return tables.get("allocations", 0)


def node_id(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def register_nodes(caller: Caller, nodes: int, *, allocations_per_node: int) -> None:
    for number in range(nodes):
        fields = {
            "ID": node_id(number),
            "Name": f"node-{number}",
            "Attributes": {"kernel.name": "linux", "driver.mock": "1"},
            "NodeResources": {
                "Cpu": {"CpuShares": CPU * allocations_per_node, "TotalCpuCores": 16},
                "Memory": {"MemoryMB": 2 * MEMORY_MB * allocations_per_node},
                "Disk": {"DiskMB": 500_000_000},
            },
            "Status": "ready",
        }
        caller.put(f"/v1/node/{node_id(number)}/register", {"Node": fields, "SecretID": node_id(number)})
        secret = {"X-Cluster-Node-Secret": node_id(number)}
        caller.put(f"/v1/node/{node_id(number)}/report", {"ReportID": node_id(number), "IsWhole": True}, **secret)


def a_job(number: int, count: int) -> dict[str, Any]:
    task = {"Name": "task", "Driver": "mock", "Resources": {"CPU": CPU, "MemoryMB": MEMORY_MB}}
    return {"ID": f"job-{number}", "Type": "batch", "TaskGroups": [{"Name": "group", "Count": count, "Tasks": [task]}]}


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    with running_etcd(tmp_path / "etcd", options=("--quota-backend-bytes", "8000000000")) as cluster:
        yield cluster.members[0].endpoint


@pytest.mark.parametrize(
    ("jobs", "count", "nodes"),
    [
        pytest.param(10, 200, 20, id="small"),
        pytest.param(100, 1_000, 500, id="whole", marks=pytest.mark.faults),
    ],
)
def test_killing_the_leader_during_placement_loses_repeats_and_overcommits_no_allocation(
    jobs: int, count: int, nodes: int, tmp_path: Path, endpoint: str
) -> None:
    allocations_per_node = jobs * count // nodes + 1  # Capacity is tight, so that over-commitment is detected.
    first_file = write_config(tmp_path / "one", "one", endpoint)
    second_file = write_config(tmp_path / "two", "two", endpoint)
    with running(tmp_path / "one", "agent", "--config", str(first_file)) as first:
        first.wait_ready()
        wait_until(lambda: "elected leader" in first.err, what="the first server leads")
        with (
            running(tmp_path / "two", "agent", "--config", str(second_file)) as second,
            contextlib.closing(Caller()) as caller,
        ):
            second.wait_ready()
            caller.connect_to(second)
            register_nodes(caller, nodes, allocations_per_node=allocations_per_node)
            for number in range(jobs):
                caller.put("/v1/jobs", {"Job": a_job(number, count)})
            wait_until(
                lambda: caller.count_allocations() > jobs * count // 4,
                what="a quarter of the allocations is placed",
                within_s=300.0,
            )

            for pid in [*first.children(), first.process.pid]:
                os.kill(pid, signal.SIGKILL)
            placed_by_first = caller.count_allocations()
            wait_until(lambda: "elected leader" in second.err, what="the second server leads", within_s=90.0)
            wait_until(
                lambda: caller.count_allocations() >= jobs * count, what="all allocations are placed", within_s=600.0
            )
            wait_until(lambda: open_evaluations(caller) == 0, what="all evaluations are complete")

            assert placed_by_first < jobs * count
            assert_all_placed_once(caller, jobs, count)
            assert_nothing_over_committed(caller, jobs, allocations_per_node)


def open_evaluations(caller: Caller) -> int:
    return sum(each["Status"] in ("pending", "blocked") for each in caller.get("/v1/evaluations"))


def allocations_of(caller: Caller, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = caller.get(f"/v1/job/job-{number}/allocations")
    return found


def assert_all_placed_once(caller: Caller, jobs: int, count: int) -> None:
    for number in range(jobs):
        names = sorted(each["Name"] for each in allocations_of(caller, number) if each["DesiredStatus"] == "run")
        assert sorted(f"job-{number}.group[{index}]" for index in range(count)) == names
        summary = caller.get(f"/v1/job/job-{number}/summary")["Summary"]["group"]
        assert (0, count) == (summary["Queued"], summary["Starting"])


def assert_nothing_over_committed(caller: Caller, jobs: int, allocations_per_node: int) -> None:
    on_node: Counter[str] = Counter()
    for number in range(jobs):
        on_node.update(each["NodeID"] for each in allocations_of(caller, number))
    assert max(on_node.values()) <= allocations_per_node
