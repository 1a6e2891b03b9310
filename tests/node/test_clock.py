"""A node whose wall clock jumps by an hour: only displayed times change."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import running
from tests.node.nodes import NodeProcess, build_raw_job
from tests.node.test_network_outages import SERVER
from tests.waiting import wait_until
from wharf.contract.model.times import SECOND

HOUR_S = 3_600


class SteppedNode(NodeProcess):
    """A node agent whose wall clock a test sets."""

    module = "tests.node.stepped_node"

    def set_ahead(self, seconds: int) -> None:
        """Set the node's wall clock ahead by this many seconds."""
        draft = self.folder / "ahead.new"
        draft.write_text(str(seconds))
        draft.rename(self.folder / "ahead")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SteppedNode]:
    for name in ("server", "node"):
        (tmp_path / name).mkdir()
    (tmp_path / "server" / "wharf.toml").write_text(SERVER.format(folder=tmp_path / "server", ttl="2s"))
    with running(tmp_path / "server", "agent", "--config", "wharf.toml") as server:
        server.wait_ready()
        node = SteppedNode(server, tmp_path / "node")
        node.set_ahead(0)
        try:
            node.start()
            node.wait_ready()
            yield node
        finally:
            node.end()


def read_task_state(node: NodeProcess, job: str) -> dict[str, Any]:
    states = [allocation["TaskStates"] or {} for allocation in node.allocations(job)]
    return dict(states[0].get("t", {})) if states else {}


def list_messages(node: NodeProcess) -> list[str]:
    nodes: Any = node.server.get("/v1/nodes")
    details: Any = node.server.get(f"/v1/node/{nodes[0]['ID']}")
    return [event["Message"] for event in details["Events"]]


def run_batch_job(node: NodeProcess, id: str) -> None:
    node.run(build_raw_job(id, "true"))
    wait_until(
        lambda: [allocation["ClientStatus"] for allocation in node.allocations(id)] == ["complete"],
        what="the batch job ends",
        within_s=30,
    )


def count_restarts(node: NodeProcess, id: str) -> int:
    """Return how often the task was restarted: it fails at once, and each restart is delayed by a second."""
    return int(read_task_state(node, id).get("Restarts", 0))


def test_a_clock_change_of_an_hour_restarts_nothing_and_misses_no_heartbeat(node: SteppedNode) -> None:
    node.run(build_raw_job("runs", "exec sleep 1000", kind="service", KillTimeout=SECOND))
    job = build_raw_job("fails", "exit 1", kind="service")
    policy = {"Attempts": 1_000, "Delay": SECOND, "Interval": 100_000 * SECOND, "Mode": "delay"}
    job["TaskGroups"][0]["RestartPolicy"] = policy
    node.run(job)
    wait_until(lambda: read_task_state(node, "runs").get("State") == "running", what="the allocation runs")
    before = read_task_state(node, "runs")

    for number, ahead_s in enumerate((HOUR_S, -HOUR_S, 0)):
        node.set_ahead(ahead_s)
        restarts = count_restarts(node, "fails")
        wait_until(lambda: count_restarts(node, "fails") >= restarts + 3, what="restart delays are as long as before")  # noqa: B023
        run_batch_job(node, f"short-{number}")

    after = read_task_state(node, "runs")
    assert (before["StartedAt"], 0, "running") == (after["StartedAt"], after["Restarts"], after["State"])
    assert "Node heartbeat missed" not in list_messages(node)
