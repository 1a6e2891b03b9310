"""Servers that are frozen by SIGSTOP: they accept connections and never answer. Nodes and callers use another server."""

import os
import signal
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agent.processes import RunningAgent, running
from tests.agent.test_processes import A_JOB
from tests.cluster.engines.etcd_server import running_etcd
from tests.waiting import wait_until
from wharf.contract.client import NO_RETRIES, ClientSettings, connect
from wharf.contract.client.errors import OutcomeUnknown
from wharf.contract.model.namespaces import Namespace

pytestmark = pytest.mark.needs_program("etcd")

HEARTBEAT_TTL_S: Final = 1
"""The node sends a heartbeat every one to two seconds, and is down 4 s later."""
MAX_SWITCH_S: Final = 3.0
"""How long a node may need for another server after its heartbeat missed the reply."""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster.members[0].endpoint


@contextmanager
def running_server(folder: Path, name: str, endpoint: str) -> Iterator[RunningAgent]:
    own = folder / name
    own.mkdir()
    (own / "wharf.toml").write_text(
        f'name = "{name}"\ndata_dir = "{own}/data"\n[ports]\nhttp = 0\n[server]\nenabled = true\n'
        f'min_heartbeat_ttl = "{HEARTBEAT_TTL_S}s"\nheartbeat_grace = "4s"\n[client]\nenabled = false\n'
        f'[state]\nengine = "etcd"\n[state.etcd]\nendpoints = ["{endpoint}"]\nprefix = "/{folder.name}"\n'
        f'[keyring]\nfile = "{folder}/keyring.key"\n'
    )
    with running(own, "agent", "--config", "wharf.toml") as agent:
        agent.wait_ready()
        try:
            yield agent
        finally:
            for pid in [*agent.children(), agent.process.pid]:
                os.kill(pid, signal.SIGCONT)


@contextmanager
def running_node(folder: Path, *servers: RunningAgent) -> Iterator[RunningAgent]:
    own = folder / "node"
    own.mkdir()
    addresses = ", ".join(f'"{server.address}"' for server in servers)
    (own / "wharf.toml").write_text(f'data_dir = "{own}/data"\n[client]\nenabled = true\nservers = [{addresses}]\n')
    with running(own, "agent", "--config", "wharf.toml") as agent:
        wait_until(lambda: get_nodes(servers[-1]), what="the node is registered")
        yield agent


def freeze(server: RunningAgent) -> None:
    for pid in [server.process.pid, *server.children()]:
        os.kill(pid, signal.SIGSTOP)


def get_nodes(server: RunningAgent) -> list[dict[str, Any]]:
    nodes = server.get("/v1/nodes")
    assert isinstance(nodes, list)
    return nodes


def assert_node_was_never_down(server: RunningAgent) -> None:
    (node,) = get_nodes(server)
    details: Any = server.get(f"/v1/node/{node['ID']}")
    assert node["Status"] == "ready"
    assert "missed" not in " ".join(event["Message"] for event in details["Events"])


def is_channel_open(server: RunningAgent) -> bool:
    """Return whether the node answers a request that the server passes to it."""
    (node,) = get_nodes(server)
    try:
        stats: Any = server.get(f"/v1/client/stats?node_id={node['ID']}")
    except urllib.error.HTTPError:
        return False
    return bool(stats["Memory"]["Total"] > 0)


def run_job(server: RunningAgent, job_id: str, within_s: float) -> None:
    """Register a job, and wait until its allocation runs on the node."""
    server.put("/v1/jobs", {"Job": A_JOB["Job"] | {"ID": job_id}})

    def is_running() -> bool:
        allocations: Any = server.get(f"/v1/job/{job_id}/allocations")
        return [each["ClientStatus"] for each in allocations] in (["running"], ["complete"])

    wait_until(is_running, what=f"{job_id} runs", within_s=within_s)


def test_a_node_leaves_a_frozen_server_within_three_seconds_of_a_missed_heartbeat(
    tmp_path: Path, endpoint: str
) -> None:
    with (
        running_server(tmp_path, "leader", endpoint) as leader,
        running_server(tmp_path, "follower", endpoint) as follower,
        running_node(tmp_path, follower, leader),
    ):
        run_job(leader, "before", within_s=30.0)
        freeze(follower)
        began_s = time.monotonic()

        # The assignment arrives although the blocking query for it hangs at the frozen server.
        run_job(leader, "after", within_s=2 * HEARTBEAT_TTL_S + MAX_SWITCH_S + 2.0)
        assigned_s = time.monotonic()
        # The node channel has left the frozen server too. A request that came before is refused within three seconds.
        wait_until(lambda: is_channel_open(leader), what="the node answers", within_s=MAX_SWITCH_S + 2.0)

        assert assigned_s - began_s < 2 * HEARTBEAT_TTL_S + MAX_SWITCH_S + 2.0
        assert_node_was_never_down(leader)


@pytest.mark.faults
def test_a_node_and_its_jobs_survive_a_frozen_leader(tmp_path: Path, endpoint: str) -> None:
    with (
        running_server(tmp_path, "leader", endpoint) as leader,
        running_server(tmp_path, "follower", endpoint) as follower,
        running_node(tmp_path, leader, follower),
    ):
        run_job(follower, "before", within_s=30.0)
        freeze(leader)
        wait_until(lambda: "elected leader" in follower.err, what="the follower leads", within_s=30.0)

        # Requests that the follower forwarded to the frozen leader are sent to the new one.
        run_job(follower, "after", within_s=2 * HEARTBEAT_TTL_S + MAX_SWITCH_S + 2.0)
        wait_until(lambda: is_channel_open(follower), what="the node answers", within_s=MAX_SWITCH_S + 2.0)

        assert_node_was_never_down(follower)


def test_a_request_that_is_forwarded_to_a_frozen_leader_is_answered_within_three_seconds(
    tmp_path: Path, endpoint: str
) -> None:
    with (
        running_server(tmp_path, "leader", endpoint) as leader,
        running_server(tmp_path, "follower", endpoint) as follower,
        running_node(tmp_path, follower),
        connect(ClientSettings(addresses=(follower.address,)), retry_policy=NO_RETRIES) as client,
    ):
        (known,) = get_nodes(follower)
        freeze(leader)
        began_s = time.monotonic()

        with pytest.raises(OutcomeUnknown, match="does not reply, not even to a probe"):
            client.nodes.set_eligibility(known["ID"], eligible=False)

        assert time.monotonic() - began_s < MAX_SWITCH_S


def test_a_caller_with_two_addresses_is_answered_within_three_seconds(tmp_path: Path, endpoint: str) -> None:
    with (
        running_server(tmp_path, "leader", endpoint) as leader,
        running_server(tmp_path, "follower", endpoint) as follower,
        connect(ClientSettings(addresses=(follower.address, leader.address))) as client,
    ):
        assert client.jobs.list().value == []
        freeze(follower)
        began_s = time.monotonic()

        client.namespaces.store(Namespace(name="written"))
        wrote_s = time.monotonic()
        names = [namespace.name for namespace in client.namespaces.list().value]

        assert wrote_s - began_s < MAX_SWITCH_S
        assert time.monotonic() - wrote_s < 1.0  # The client remembers which server replied.
        assert names == ["default", "written"]
