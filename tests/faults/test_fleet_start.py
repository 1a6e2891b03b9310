"""How long it takes until all nodes of a large fleet are ready, which `wharf dev --fake-nodes` starts at once."""

from pathlib import Path

import pytest

from tests.agent.processes import running
from tests.waiting import once_a_second, wait_until

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(("nodes", "within_s"), [(5_000, 60.0), (10_000, 150.0)])
def test_a_fleet_that_starts_at_once_is_ready_in_time_on_two_free_cores(
    tmp_path: Path, nodes: int, within_s: float
) -> None:
    def is_ready() -> bool:
        listed = agent.get("/v1/nodes?stale")
        assert isinstance(listed, list)
        ready = [node for node in listed if node["Status"] == "ready"]
        return len(ready) == nodes + 1  # One is the agent's own node.

    with running(tmp_path / "a", "dev", "--port", "0", "--fake-nodes", str(nodes)) as agent:
        agent.wait_ready()

        wait_until(once_a_second(is_ready), what=f"all {nodes} nodes are ready", within_s=within_s)
