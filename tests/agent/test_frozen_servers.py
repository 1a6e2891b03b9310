"""Servers that are frozen by SIGSTOP: they accept connections and never answer. Nodes and callers use another server.

`test_dropped_network` runs these tests with servers whose packets are dropped instead.
"""

import os
import signal
import subprocess
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.agent.processes import RunningAgent, running
from tests.agent.test_processes import A_JOB
from tests.cluster.engines.etcd_server import running_etcd
from tests.waiting import wait_until
from wharf.contract.client import NO_RETRIES, ClientSettings, connect
from wharf.contract.client.errors import NotFound, OutcomeUnknown
from wharf.contract.model.namespaces import Namespace

pytestmark = pytest.mark.needs_program("etcd")

DROP_VARIABLE: Final = "WHARF_TEST_DROPS_PACKETS"
"""If it is set, `iptables` drops the packets of a server. The tests must be in a network namespace of their own."""
HEARTBEAT_TTL_S: Final = 1
"""The node sends a heartbeat every one to two seconds, and is down 4 s later."""
UNKNOWN_NODE_ID: Final = "00000000-0000-4000-8000-000000000000"
MAX_SWITCH_S: Final = 3.0
"""How long a node may need for another server after its heartbeat missed the reply."""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster.members[0].endpoint


class TwoServers(NamedTuple):
    """Two servers of one cluster."""

    leader: RunningAgent
    follower: RunningAgent


@pytest.fixture(scope="module")
def running_servers(tmp_path_factory: pytest.TempPathFactory, endpoint: str) -> Iterator[TwoServers]:
    with running_two_servers(tmp_path_factory.mktemp("shared"), endpoint) as servers:
        yield servers


@pytest.fixture
def servers(running_servers: TwoServers) -> Iterator[TwoServers]:
    """The servers that most tests of this file share. A test freezes one for less than the lease of the leader, 9 s."""
    yield running_servers
    for server in running_servers:
        thaw(server)
        wait_until(lambda server=server: server.get("/v1/namespaces"), what="the server answers")  # type: ignore[misc]


@contextmanager
def running_two_servers(folder: Path, endpoint: str) -> Iterator[TwoServers]:
    with running_server(folder, "leader", endpoint) as leader, running_server(folder, "follower", endpoint) as follower:
        yield TwoServers(leader, follower)


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
            thaw(agent)


@contextmanager
def running_node(folder: Path, *servers: RunningAgent) -> Iterator[RunningAgent]:
    own = folder / "node"
    own.mkdir()
    addresses = ", ".join(f'"{server.address}"' for server in servers)
    (own / "wharf.toml").write_text(
        f'data_dir = "{own}/data"\n[client]\nenabled = true\nservers = [{addresses}]\ndrivers.raw_exec.enabled = true\n'
    )
    with running(own, "agent", "--config", "wharf.toml") as agent:
        wait_until(lambda: get_nodes(servers[-1]), what="the node is registered")
        yield agent


def freeze(server: RunningAgent) -> None:
    """Silence a server without closing its connections."""
    if DROP_VARIABLE in os.environ:
        change_firewall(server, "--append", is_required=True)
        return
    for pid in [server.process.pid, *server.children()]:
        os.kill(pid, signal.SIGSTOP)


def thaw(server: RunningAgent) -> None:
    if DROP_VARIABLE in os.environ:
        change_firewall(server, "--delete", is_required=False)
        return
    for pid in [*server.children(), server.process.pid]:
        os.kill(pid, signal.SIGCONT)


def change_firewall(server: RunningAgent, action: str, *, is_required: bool) -> None:
    """Change the rules that drop all packets from and to the port of a server."""
    for side in ("--sport", "--dport"):
        rule = ["INPUT", "--protocol", "tcp", side, str(urlsplit(server.address).port), "--jump", "DROP"]
        subprocess.run(["iptables", "--wait", action, *rule], check=is_required, capture_output=not is_required)


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
    tmp_path: Path, servers: TwoServers
) -> None:
    leader, follower = servers
    with running_node(tmp_path, follower, leader):
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
    with running_two_servers(tmp_path, endpoint) as (leader, follower), running_node(tmp_path, leader, follower):
        run_job(follower, "before", within_s=30.0)
        freeze(leader)
        began_s = time.monotonic()
        wait_until(lambda: "elected leader" in follower.err, what="the follower leads", within_s=30.0)
        print(f"another server leads after {time.monotonic() - began_s:.1f} s")

        # Requests that the follower forwarded to the frozen leader are sent to the new one.
        run_job(follower, "after", within_s=2 * HEARTBEAT_TTL_S + MAX_SWITCH_S + 2.0)
        wait_until(lambda: is_channel_open(follower), what="the node answers", within_s=MAX_SWITCH_S + 2.0)

        assert_node_was_never_down(follower)


def test_a_request_that_is_forwarded_to_a_frozen_leader_is_answered_within_three_seconds(servers: TwoServers) -> None:
    leader, follower = servers
    with connect(ClientSettings(addresses=(follower.address,)), retry_policy=NO_RETRIES) as client:
        with pytest.raises(NotFound, match="node not found"):
            client.nodes.set_eligibility(UNKNOWN_NODE_ID, eligible=False)
        freeze(leader)
        began_s = time.monotonic()

        with pytest.raises(OutcomeUnknown, match="does not reply, not even to a probe"):
            client.nodes.set_eligibility(UNKNOWN_NODE_ID, eligible=False)

        assert time.monotonic() - began_s < MAX_SWITCH_S


def test_a_caller_with_two_addresses_is_answered_within_three_seconds(servers: TwoServers) -> None:
    leader, follower = servers
    with connect(ClientSettings(addresses=(follower.address, leader.address))) as client:
        assert [namespace.name for namespace in client.namespaces.list().value] == ["default"]
        freeze(follower)
        began_s = time.monotonic()

        client.namespaces.store(Namespace(name="written"))
        wrote_s = time.monotonic()
        names = [namespace.name for namespace in client.namespaces.list().value]

        assert wrote_s - began_s < MAX_SWITCH_S
        assert time.monotonic() - wrote_s < 1.0  # The client remembers which server replied.
        assert names == ["default", "written"]
