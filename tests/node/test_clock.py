"""A node whose wall clock jumps by an hour: only displayed times change."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import running
from tests.node.nodes import ANode, a_raw_job
from tests.node.test_far_servers import SERVER
from tests.waiting import wait_until
from wharf.node.core.clock import SECOND_NS

HOUR_S = 3_600


class SteppedNode(ANode):
    module = "tests.node.stepped_node"

    def set_ahead(self, seconds: int) -> None:
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
        it = SteppedNode(server, tmp_path / "node")
        it.set_ahead(0)
        try:
            it.begin()
            it.wait_ready()
            yield it
        finally:
            it.end()


def state(node: ANode, job: str) -> dict[str, Any]:
    states = [each["TaskStates"] or {} for each in node.allocations(job)]
    return dict(states[0].get("t", {})) if states else {}


def messages(node: ANode) -> list[str]:
    nodes: Any = node.server.get("/v1/nodes")
    shown: Any = node.server.get(f"/v1/node/{nodes[0]['ID']}")
    return [event["Message"] for event in shown["Events"]]


def run_to_the_end(node: ANode, id: str) -> None:
    node.run(a_raw_job(id, "true"))
    wait_until(
        lambda: [each["ClientStatus"] for each in node.allocations(id)] == ["complete"], what="it ends", within_s=30
    )


def resting(node: ANode, id: str) -> int:
    """How often it has begun anew: it fails at once, and rests for a second each time."""
    return int(state(node, id).get("Restarts", 0))


def test_a_clock_change_of_an_hour_restarts_nothing_and_misses_no_heartbeat(node: SteppedNode) -> None:
    node.run(a_raw_job("goes", "exec sleep 1000", kind="service", KillTimeout=SECOND_NS))
    job = a_raw_job("rests", "exit 1", kind="service")
    policy = {"Attempts": 1_000, "Delay": SECOND_NS, "Interval": 100_000 * SECOND_NS, "Mode": "delay"}
    job["TaskGroups"][0]["RestartPolicy"] = policy
    node.run(job)
    wait_until(lambda: state(node, "goes").get("State") == "running", what="it runs")
    before = state(node, "goes")

    for number, ahead_s in enumerate((HOUR_S, -HOUR_S, 0)):
        node.set_ahead(ahead_s)
        restarts = resting(node, "rests")
        wait_until(lambda: resting(node, "rests") >= restarts + 3, what="rests take as long as ever")  # noqa: B023
        run_to_the_end(node, f"short-{number}")

    after = state(node, "goes")
    assert (before["StartedAt"], 0, "running") == (after["StartedAt"], after["Restarts"], after["State"])
    assert "Node heartbeat missed" not in messages(node)
