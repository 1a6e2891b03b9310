"""How allocations of a real node start and stop: ports in use, data of a predecessor, shutdown delays."""

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.nodes import NodeProcess, build_raw_job, run_node, run_server
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("starts")
    with run_server(folder / "server") as server, run_node(server, folder / "node") as node:
        yield node


def read_node(node: NodeProcess) -> dict[str, Any]:
    id = node.server.get("/v1/nodes")[0]["ID"]  # type: ignore[index]  # JSON.
    description: Any = node.server.get(f"/v1/node/{id}")
    return dict(description)


def read_reserved_ports(node: NodeProcess) -> str:
    return str(read_node(node)["ReservedResources"]["Networks"]["ReservedHostPorts"])


def test_a_port_in_use_is_reported_and_not_assigned_until_it_is_free(node: NodeProcess) -> None:
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        port = holder.getsockname()[1]
        job = build_raw_job("held", "sleep 1000")
        job["TaskGroups"][0]["Networks"] = [{"ReservedPorts": [{"Label": "http", "Value": port}]}]
        node.run(job)
        wait_until(
            lambda: [a["ClientStatus"] for a in node.allocations("held")] == ["failed"],
            what="the start of the task fails",
        )
        (allocation,) = node.allocations("held")
        (event,) = [event for event in allocation["TaskStates"]["t"]["Events"] if event["Type"] == "Setup Failure"]
        assert f"port {port} (http) is in use by another program on this node" in str(event)
        wait_until(lambda: read_reserved_ports(node) == str(port), what="servers have received the taken port")
        messages = [event["Message"] for event in read_node(node)["Events"]]
        assert f"Port {port} is in use by another program and is not assigned to tasks" in messages


def test_a_replacement_waits_for_its_predecessor_and_gets_its_data(node: NodeProcess, tmp_path: Path) -> None:
    output = tmp_path / "output"
    script = f"""
echo "$VERSION begins" >>{output}
trap 'sleep 1; echo "$VERSION ends" >>{output}; exit 0' INT
cat $WHARF_ALLOC_DIR/data/shared $WHARF_TASK_DIR/own >>{output} 2>/dev/null
echo "shared by $VERSION" >$WHARF_ALLOC_DIR/data/shared
echo "own of $VERSION" >$WHARF_TASK_DIR/own
while :; do sleep 0.1; done
"""
    for version in ("one", "two"):
        job = build_raw_job("sticky", script, kind="service", Env={"VERSION": version})
        job["TaskGroups"][0]["EphemeralDisk"] = {"SizeMB": 30, "Sticky": True}
        node.run(job)
        wait_until(lambda: output.exists() and f"{version} begins" in output.read_text(), what=f"{version} begins")  # noqa: B023
        wait_until(lambda: has_written(node, version), what="the task has written its files")  # noqa: B023

    assert output.read_text().splitlines() == ["one begins", "one ends", "two begins", "shared by one", "own of one"]


def has_written(node: NodeProcess, version: str) -> bool:
    files = (node.folder / "alloc").glob("*/t/local/own")
    return any(file.read_text() == f"own of {version}\n" for file in files)


def test_a_stop_without_delay_skips_the_shutdown_delay(node: NodeProcess) -> None:
    node.run(build_raw_job("slow", "exec sleep 1000", kind="service", ShutdownDelay=3_600_000_000_000))
    wait_until(lambda: [a["ClientStatus"] for a in node.allocations("slow")] == ["running"], what="the allocation runs")
    address = f"{node.server.address}/v1/job/slow?no_shutdown_delay=true"
    urllib.request.urlopen(urllib.request.Request(address, method="DELETE"), timeout=ANSWERED_WITHIN_S).close()
    wait_until(lambda: [a["ClientStatus"] for a in node.allocations("slow")] == ["complete"], what="the task has ended")
