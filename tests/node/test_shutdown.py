"""A node that drains itself before it shuts down."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.agent.processes import RunningAgent, running
from tests.node.nodes import build_raw_job, run_node, run_server
from tests.waiting import wait_until

NODE = """\
name = "stopping"
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
def run_stopping_node(server: RunningAgent, folder: Path, *, drains: bool = True) -> Iterator[RunningAgent]:
    folder.mkdir(exist_ok=True)
    settings = NODE.format(folder=folder, address=server.address)
    (folder / "wharf.toml").write_text(settings if drains else settings.replace("true\ndeadline", "false\ndeadline"))
    with running(folder, "agent", "--config", "wharf.toml") as agent:
        wait_until(lambda: read_node(server).get("Status") == "ready", what="the node is ready")
        yield agent


def read_node(server: RunningAgent) -> dict[str, Any]:
    nodes: Any = server.get("/v1/nodes")
    return next((dict(node) for node in nodes if node["Name"] == "stopping"), {})


def list_allocations(server: RunningAgent) -> list[dict[str, Any]]:
    allocations: Any = server.get("/v1/job/moves/allocations")
    return list(allocations)


def list_nodes_with_task(server: RunningAgent) -> list[str]:
    """Return the names of the nodes on which an allocation of the job `moves` runs."""
    return [a["NodeName"] for a in list_allocations(server) if a["ClientStatus"] == "running"]


def test_a_node_is_drained_before_shutdown_and_gets_allocations_again_afterwards(tmp_path: Path) -> None:
    with run_server(tmp_path / "server") as server, run_stopping_node(server, tmp_path / "stopping") as agent:
        job = build_raw_job("moves", "exec sleep 1000", kind="service")
        job["TaskGroups"][0]["Migrate"] = {"HealthCheck": "task_states", "MinHealthyTime": 1}
        server.put("/v1/jobs", {"Job": job})
        wait_until(lambda: list_nodes_with_task(server) == ["stopping"], what="the task runs")
        with run_node(server, tmp_path / "other"):
            agent.process.send_signal(signal.SIGTERM)
            agent.process.wait(40)

            assert ["one"] == list_nodes_with_task(server)
            statuses = {a["NodeName"]: a["ClientStatus"] for a in list_allocations(server)}
            assert {"stopping": "complete", "one": "running"} == statuses
            description = read_node(server)
            assert "ineligible" == description["SchedulingEligibility"]
            assert "the node shuts down" == description["LastDrain"]["Meta"]["message"]

            with run_stopping_node(server, tmp_path / "stopping"):
                wait_until(
                    lambda: read_node(server)["SchedulingEligibility"] == "eligible", what="the node is eligible again"
                )
                marker_file = tmp_path / "stopping/data/node/left"
                wait_until(lambda: not marker_file.exists(), what="the marker of the drain is removed")


def test_nothing_starts_on_a_node_that_stops_its_tasks(tmp_path: Path) -> None:
    """Servers replace a task that ended first while another still stops. The node must not start the replacement."""
    with run_server(tmp_path / "server") as server, run_stopping_node(server, tmp_path / "ends", drains=False) as agent:
        end = tmp_path / "end"
        slow = build_raw_job(
            "slow",
            f"trap '' INT; while [ ! -e {end} ]; do sleep 0.1; done",
            kind="service",
            KillTimeout=25_000_000_000,
        )
        server.put("/v1/jobs", {"Job": slow})
        server.put("/v1/jobs", {"Job": build_raw_job("moves", "exec sleep 1000", kind="service")})

        def all_run() -> bool:
            allocations: Any = server.get("/v1/allocations")
            return [allocation["ClientStatus"] for allocation in allocations] == ["running", "running"]

        wait_until(all_run, what="both tasks run")
        folders = set((tmp_path / "ends/data/alloc").iterdir())

        agent.process.send_signal(signal.SIGTERM)
        wait_until(lambda: len(list_allocations(server)) == 2, what="servers place a replacement")
        end.touch()
        agent.process.wait(60)

        assert folders == set((tmp_path / "ends/data/alloc").iterdir())
