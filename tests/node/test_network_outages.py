"""A node without servers or with slow ones: tasks keep running, and their ends are reported later."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.agent.processes import RunningAgent, running
from tests.node.nodes import NodeProcess, build_raw_job, find_termination
from tests.node.tcp_relay import TO_NODE, TO_SERVER, TcpRelay, open_relay
from tests.waiting import wait_until
from wharf.contract.model.times import SECOND
from wharf.world import RealWorld

SERVER = """\
data_dir = "{folder}/data"
[server]
enabled = true
min_heartbeat_ttl = "{ttl}"
heartbeat_grace = "{ttl}"
[ports]
http = 0
"""


class Cluster(NamedTuple):
    """A server, and a node that is connected to it through a relay. Tests reach the server directly."""

    server: RunningAgent
    node: NodeProcess
    relay: TcpRelay


@contextmanager
def run_cluster(folder: Path, *, ttl: str = "1s") -> Iterator[Cluster]:
    for name in ("server", "node"):
        (folder / name).mkdir()
    (folder / "server" / "wharf.toml").write_text(SERVER.format(folder=folder / "server", ttl=ttl))
    with running(folder / "server", "agent", "--config", "wharf.toml") as server:
        server.wait_ready()
        with open_relay(server.address) as relay:
            node = NodeProcess(server, folder / "node", address=relay.address)
            try:
                node.start()
                node.wait_ready()
                yield Cluster(server, node, relay)
            finally:
                relay.restore()
                node.end()


def read_node_status(cluster: Cluster) -> str:
    nodes: Any = cluster.server.get("/v1/nodes")
    return str(nodes[0]["Status"])


def find_allocation(cluster: Cluster, job: str) -> dict[str, Any]:
    (allocation,) = cluster.node.allocations(job)
    return dict(allocation)


def have_status(cluster: Cluster, **status_by_job: str) -> Callable[[], bool]:
    def list_statuses(job: str) -> list[str]:
        return [allocation["ClientStatus"] for allocation in cluster.node.allocations(job)]

    return lambda: all(list_statuses(job) == [status] for job, status in status_by_job.items())


def run(cluster: Cluster, id: str, script: str, **disconnect: Any) -> None:
    kind = "batch" if id == "ends" else "service"
    job = build_raw_job(id, script, kind=kind)
    job["TaskGroups"][0]["Disconnect"] = disconnect or {"LostAfter": 3_600 * SECOND, "Replace": False}
    cluster.node.run(job)


def run_jobs(cluster: Cluster, folder: Path) -> None:
    """Run a job that keeps running, and one that ends once the file `end` exists."""
    run(cluster, "goes", "exec sleep 1000")
    run(cluster, "ends", f"until [ -e {folder}/end ]; do sleep 0.1; done; exit 0")
    wait_until(have_status(cluster, goes="running", ends="running"), what="both allocations run")


def check_jobs(cluster: Cluster, before: dict[str, Any], restored_ns: int) -> None:
    """Check that one job kept running, and that the end of the other was reported with the time at which it ended."""
    goes, ends = find_allocation(cluster, "goes"), find_allocation(cluster, "ends")
    assert before["TaskStates"]["t"]["StartedAt"] == goes["TaskStates"]["t"]["StartedAt"]
    assert 0 == goes["TaskStates"]["t"]["Restarts"]
    assert "0" == find_termination(ends)["exit_code"]
    events = ends["TaskStates"]["t"]["Events"]
    assert ["Received", "Task Setup", "Started", "Terminated"] == [event["Type"] for event in events][:4]
    assert sorted(event["Time"] for event in events) == [event["Time"] for event in events]
    (end,) = [event["Time"] for event in events if event["Type"] == "Terminated"]
    assert end < restored_ns


@pytest.mark.parametrize(
    "directions",
    [(TO_SERVER, TO_NODE), (TO_SERVER,), (TO_NODE,)],
    ids=["both directions", "to the server", "to the node"],
)
def test_tasks_keep_running_without_network_and_their_ends_are_reported_in_order_afterwards(
    tmp_path: Path, directions: tuple[str, ...]
) -> None:
    with run_cluster(tmp_path) as cluster:
        run_jobs(cluster, tmp_path)
        before = find_allocation(cluster, "goes")

        cluster.relay.cut(*directions)
        if TO_SERVER in directions:  # Otherwise heartbeats still arrive.
            wait_until(lambda: read_node_status(cluster) == "disconnected", what="heartbeats are missed")
            wait_until(
                have_status(cluster, goes="unknown", ends="unknown"), what="servers do not know what became of them"
            )
        (tmp_path / "end").touch()
        wait_until(lambda: is_end_stored(cluster), what="the task ends")
        restored_ns = RealWorld().now_ns()
        cluster.relay.restore()

        wait_until(
            have_status(cluster, goes="running", ends="complete"), what="both statuses are reported", within_s=60
        )
        wait_until(lambda: read_node_status(cluster) == "ready", what="the node is ready again", within_s=60)
        check_jobs(cluster, before, restored_ns)


def is_end_stored(cluster: Cluster) -> bool:
    """Return whether the node has stored the end of the job `ends`: its supervisor has deleted the run."""
    id = find_allocation(cluster, "ends")["ID"]
    return not list((cluster.node.folder / "node" / "runs").glob(f"{id}.*"))


def test_slow_replies_delay_nothing_else(tmp_path: Path) -> None:
    with run_cluster(tmp_path, ttl="3s") as cluster:
        cluster.relay.delay_s = 0.5
        run_jobs(cluster, tmp_path)
        (tmp_path / "end").touch()

        wait_until(
            have_status(cluster, goes="running", ends="complete"), what="both statuses are reported", within_s=60
        )
        assert "ready" == read_node_status(cluster)
        nodes: Any = cluster.server.get("/v1/nodes")
        node: Any = cluster.server.get(f"/v1/node/{nodes[0]['ID']}")
        assert "Node heartbeat missed" not in [event["Message"] for event in node["Events"]]


@pytest.mark.faults
@pytest.mark.parametrize("directions", [(TO_SERVER, TO_NODE), (TO_NODE,)], ids=["both directions", "to the node"])
def test_each_group_follows_its_disconnect_rule_when_servers_are_away_for_minutes(
    tmp_path: Path, directions: tuple[str, ...]
) -> None:
    with run_cluster(tmp_path, ttl="10s") as cluster:
        run_jobs(cluster, tmp_path)
        run(cluster, "stops", f"trap 'touch {tmp_path}/stopped; exit 0' INT; while :; do sleep 0.1; done",
            StopOnClientAfter=30 * SECOND)  # fmt: skip
        wait_until(have_status(cluster, stops="running"), what="the allocation runs")
        before, stops = find_allocation(cluster, "goes"), find_allocation(cluster, "stops")
        began_ns = RealWorld().now_ns()

        cluster.relay.cut(*directions)
        wait_until((tmp_path / "stopped").exists, what="the task stops by its disconnect rule", within_s=120)
        assert RealWorld().now_ns() - began_ns > 25 * SECOND
        wait_until(lambda: RealWorld().now_ns() - began_ns > 150 * SECOND, what="minutes pass", within_s=200)
        (tmp_path / "end").touch()
        wait_until(lambda: is_end_stored(cluster), what="the task ends")
        restored_ns = RealWorld().now_ns()
        cluster.relay.restore()

        wait_until(
            have_status(cluster, goes="running", ends="complete"), what="both statuses are reported", within_s=120
        )
        check_jobs(cluster, before, restored_ns)
        wait_until(lambda: not cluster.node.list_processes([stops["ID"]]), what="no process of it is left")
