"""A node that drains itself before it shuts down."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.agent.processes import RunningAgent, running
from tests.node.nodes import a_node, a_raw_job, a_server
from tests.waiting import wait_until

NODE = """\
name = "leaves"
data_dir = "{folder}/data"
[client]
enabled = true
servers = ["{address}"]
stop_on_shutdown = true
[client.drivers.raw_exec]
enabled = true
[client.drain_on_shutdown]
enabled = true
deadline = "60s"
[ports]
http = 0
"""


@contextmanager
def a_leaving_node(server: RunningAgent, folder: Path, *, drains: bool = True) -> Iterator[RunningAgent]:
    folder.mkdir(exist_ok=True)
    settings = NODE.format(folder=folder, address=server.address)
    (folder / "wharf.toml").write_text(settings if drains else settings.replace("true\ndeadline", "false\ndeadline"))
    with running(folder, "agent", "--config", "wharf.toml") as agent:
        wait_until(lambda: the_node(server).get("Status") == "ready", what="the node is ready")
        yield agent


def the_node(server: RunningAgent) -> dict[str, Any]:
    nodes: Any = server.get("/v1/nodes")
    return next((dict(node) for node in nodes if node["Name"] == "leaves"), {})


def allocations(server: RunningAgent) -> list[dict[str, Any]]:
    found: Any = server.get("/v1/job/moves/allocations")
    return list(found)


def running_on(server: RunningAgent) -> list[str]:
    return [each["NodeName"] for each in allocations(server) if each["ClientStatus"] == "running"]


def test_a_node_is_drained_before_shutdown_and_gets_allocations_again_afterwards(tmp_path: Path) -> None:
    with a_server(tmp_path / "server") as server, a_leaving_node(server, tmp_path / "leaves") as agent:
        job = a_raw_job("moves", "exec sleep 1000", kind="service")
        job["TaskGroups"][0]["Migrate"] = {"HealthCheck": "task_states", "MinHealthyTime": 1}
        server.put("/v1/jobs", {"Job": job})
        wait_until(lambda: running_on(server) == ["leaves"], what="it runs")
        with a_node(server, tmp_path / "stays"):
            agent.process.send_signal(signal.SIGTERM)
            agent.process.wait(40)

            assert ["one"] == running_on(server)
            statuses = {each["NodeName"]: each["ClientStatus"] for each in allocations(server)}
            assert {"leaves": "complete", "one": "running"} == statuses
            told = the_node(server)
            assert "ineligible" == told["SchedulingEligibility"]
            assert "the node shuts down" == told["LastDrain"]["Meta"]["message"]

            with a_leaving_node(server, tmp_path / "leaves"):
                wait_until(lambda: the_node(server)["SchedulingEligibility"] == "eligible", what="work may come again")
                left = tmp_path / "leaves/data/node/left"
                wait_until(lambda: not left.exists(), what="it is said only once")


def test_nothing_starts_on_a_node_that_stops_its_tasks(tmp_path: Path) -> None:
    """What ended early is replaced by servers while others take their time to end: the node would never come to its end."""
    with a_server(tmp_path / "server") as server, a_leaving_node(server, tmp_path / "ends", drains=False) as agent:
        slow = a_raw_job(
            "slow", "trap '' INT; while true; do sleep 0.1; done", kind="service", KillTimeout=4_000_000_000
        )
        server.put("/v1/jobs", {"Job": slow})
        server.put("/v1/jobs", {"Job": a_raw_job("moves", "exec sleep 1000", kind="service")})

        def all_run() -> bool:
            found: Any = server.get("/v1/allocations")
            return [each["ClientStatus"] for each in found] == ["running", "running"]

        wait_until(all_run, what="both run")
        begun = set((tmp_path / "ends/data/alloc").iterdir())

        agent.process.send_signal(signal.SIGTERM)
        wait_until(lambda: len(allocations(server)) == 2, what="servers place another")
        agent.process.wait(60)

        assert begun == set((tmp_path / "ends/data/alloc").iterdir())
