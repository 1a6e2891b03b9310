"""Servers that are frozen by SIGSTOP: they accept connections and never answer. Nodes and callers use another server.

`test_dropped_network` runs these tests with servers whose packets are dropped instead.
"""

import os
import signal
import subprocess
import time
import urllib.error
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.agent.processes import RunningAgent, running
from tests.agent.test_processes import A_JOB
from tests.cluster.engines.etcd_server import running_etcd
from tests.node.tcp_relay import TO_NODE, TO_SERVER, TcpRelay, open_relay
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
READ_ATTEMPTS: Final = 3
MAX_HEARTBEAT_INTERVAL_S: Final = 2 * HEARTBEAT_TTL_S
MAX_SWITCH_S: Final = 3.0
"""How long a node may need for another server, from the heartbeat that gets no reply to the first reply of the other server."""
MAX_ASSIGNMENT_S: Final = 2.0
"""How long the node may then take to fetch its assignments again and to start a task."""
MAX_ROLLOUT_PAUSE_S: Final = 15.0
"""How long a rollout may stand still after its leader was frozen: 8 to 9 s until the lease of the leader ends, 1 s for the new
leader to start, 1 s until the next allocation counts as healthy, and a margin of 4 s for a busy machine."""
MAX_DROPPED_ROLLOUT_PAUSE_S: Final = 25.0
"""The same if the packets of the leader are dropped. It still reaches etcd, so it leads until it notices after 12 s that no
other server reaches it."""


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
def running_node(folder: Path, *servers: RunningAgent, addresses: Sequence[str] = ()) -> Iterator[RunningAgent]:
    """Run a node that knows these servers. `addresses` replaces the addresses of the servers."""
    own = folder / "node"
    own.mkdir()
    addresses = ", ".join(f'"{address}"' for address in addresses or [server.address for server in servers])
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


class HeartbeatWatch:
    """A relay between a node and a server that records when the server replied, from the first heartbeat on."""

    def __init__(self, relay: TcpRelay) -> None:
        self.reply_times_s: list[float] = []
        self._is_waiting = False
        """Whether a heartbeat was forwarded. The next reply counts, also if it is that of a request sent just before."""
        self.address = relay.address
        relay.on_chunk = self._on_chunk

    def _on_chunk(self, direction: str, data: bytes) -> None:
        if direction == TO_SERVER and b"/heartbeat " in data:
            self._is_waiting = True
        elif direction == TO_NODE and self._is_waiting and data.startswith(b"HTTP/1.1 200 "):
            self.reply_times_s.append(time.monotonic())


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
    """The time is measured from the freeze to the first heartbeat that the other server answers.

    The heartbeat that gets no reply is sent up to one interval after the freeze, so the limit is this interval and three seconds.
    """
    leader, follower = servers
    with open_relay(leader.address) as relay:
        watch = HeartbeatWatch(relay)
        with running_node(tmp_path, follower, leader, addresses=(follower.address, watch.address)):
            run_job(leader, "before", within_s=30.0)
            assert watch.reply_times_s == [], "the node uses its first server"
            freeze(follower)
            began_s = time.monotonic()

            # The assignment arrives although the blocking query for it hangs at the frozen server.
            run_job(leader, "after", within_s=MAX_HEARTBEAT_INTERVAL_S + MAX_SWITCH_S + MAX_ASSIGNMENT_S)
            # The node channel has left the frozen server too. A request that came before is refused within three seconds.
            wait_until(lambda: is_channel_open(leader), what="the node answers", within_s=MAX_SWITCH_S + 2.0)

            # If the node left the frozen server because of a missed report, its next heartbeat is not due yet.
            wait_until(
                lambda: watch.reply_times_s, what="a heartbeat is answered", within_s=MAX_HEARTBEAT_INTERVAL_S + 2.0
            )
            print(f"another server answered a heartbeat {watch.reply_times_s[0] - began_s:.1f} s after the freeze")
            assert watch.reply_times_s[0] - began_s < MAX_HEARTBEAT_INTERVAL_S + MAX_SWITCH_S
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
        run_job(follower, "after", within_s=MAX_HEARTBEAT_INTERVAL_S + MAX_SWITCH_S + MAX_ASSIGNMENT_S)
        wait_until(lambda: is_channel_open(follower), what="the node answers", within_s=MAX_SWITCH_S + 2.0)

        assert_node_was_never_down(follower)


ROLLOUT_COUNT: Final = 4


def list_allocations(server: RunningAgent, job_id: str, version: int) -> list[dict[str, Any]]:
    """Return the allocations of this version of the job that run."""
    allocations: Any = server.get(f"/v1/job/{job_id}/allocations")
    return [each for each in allocations if each["JobVersion"] == version and each["ClientStatus"] == "running"]


def register_version(server: RunningAgent, version: str) -> None:
    """Register a version of a job whose rollout replaces one allocation after the other."""
    task = {
        "Name": "task",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["1000"]},
        "Env": {"VERSION": version},
        "Resources": {"CPU": 10, "MemoryMB": 10},
    }
    update = {"MaxParallel": 1, "HealthCheck": "task_states", "MinHealthyTime": 1_000_000_000}
    group = {"Name": "group", "Count": ROLLOUT_COUNT, "Update": update, "Tasks": [task]}
    server.put("/v1/jobs", {"Job": {"ID": "rollout", "Type": "service", "TaskGroups": [group]}})


@pytest.mark.faults
def test_a_rollout_goes_on_behind_a_frozen_leader(tmp_path: Path, endpoint: str) -> None:
    """The time is measured from the freeze, while the rollout is at its first allocation, to the next allocation that runs."""
    limit_s = MAX_DROPPED_ROLLOUT_PAUSE_S if DROP_VARIABLE in os.environ else MAX_ROLLOUT_PAUSE_S
    with running_two_servers(tmp_path, endpoint) as (leader, follower), running_node(tmp_path, leader, follower):
        register_version(leader, "first")
        wait_until(
            lambda: len(list_allocations(follower, "rollout", 0)) == ROLLOUT_COUNT, what="all run", within_s=60.0
        )
        register_version(leader, "second")
        wait_until(lambda: list_allocations(follower, "rollout", 1), what="the rollout begins", within_s=30.0)
        freeze(leader)
        began_s = time.monotonic()
        before = len(list_allocations(follower, "rollout", 1))

        wait_until(
            lambda: len(list_allocations(follower, "rollout", 1)) > before,
            what="the rollout goes on",
            within_s=2 * limit_s,
        )
        paused_s = time.monotonic() - began_s
        print(f"the rollout went on after {paused_s:.1f} s")
        wait_until(
            lambda: len(list_allocations(follower, "rollout", 1)) == ROLLOUT_COUNT,
            what="the rollout ends",
            within_s=60.0,
        )

        assert paused_s < limit_s
        assert len(list_allocations(follower, "rollout", 0)) == 0
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


def test_a_request_that_is_forwarded_to_a_leader_whose_brain_alone_is_frozen_is_answered_within_three_seconds(
    servers: TwoServers,
) -> None:
    leader, follower = servers
    with connect(ClientSettings(addresses=(follower.address,)), retry_policy=NO_RETRIES) as client:
        with pytest.raises(NotFound, match="node not found"):
            client.nodes.set_eligibility(UNKNOWN_NODE_ID, eligible=False)
        brain = leader.child("brain")
        assert brain is not None
        os.kill(brain, signal.SIGSTOP)
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
        read_durations_s = []
        # The best of several attempts counts. A client that asks the frozen server after a write takes longer in each of them.
        for _ in range(READ_ATTEMPTS):
            client.namespaces.store(Namespace(name="written"))
            read_s = time.monotonic()
            names = [namespace.name for namespace in client.namespaces.list().value]
            read_durations_s.append(time.monotonic() - read_s)

        assert wrote_s - began_s < MAX_SWITCH_S
        assert min(read_durations_s) < 1.0  # The client remembers which server replied.
        assert names == ["default", "written"]
