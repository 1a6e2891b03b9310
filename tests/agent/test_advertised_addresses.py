"""The address that a server gives to other agents, also if it listens on all addresses of its machine."""

import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.processes import running
from tests.waiting import wait_until
from wharf.agent.advertising import build_local_url, find_advertised_address
from wharf.agent.errors import CommandError
from wharf.agent.sockets import listen_tcp
from wharf.cluster.api.settings import AdvertiseSettings
from wharf.cluster.engines.settings import EngineKind
from wharf.config.settings import AgentSettings
from wharf.world.host_address import find_default_address

ALL_ADDRESSES = AgentSettings(bind_addr="0.0.0.0")
NO_INTERFACE = msgspec.structs.replace(
    ALL_ADDRESSES, client=msgspec.structs.replace(ALL_ADDRESSES.client, network_interface="absent0")
)
NO_INTERFACE_IN_ETCD = msgspec.structs.replace(
    NO_INTERFACE, state=msgspec.structs.replace(NO_INTERFACE.state, engine=EngineKind.ETCD)
)


def test_a_server_on_all_addresses_publishes_the_address_that_its_node_found(tmp_path: Path) -> None:
    file = tmp_path / "wharf.toml"
    file.write_text(
        f'data_dir = "{tmp_path}/data"\nbind_addr = "0.0.0.0"\nallow_insecure = true\n[ports]\nhttp = 0\n'
        "[server]\nenabled = true\n[client]\nenabled = true\n"
    )
    with running(tmp_path / "agent", "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        wait_until(lambda: agent.get("/v1/nodes"), what="the node is registered")
        [node_stub] = read(agent.get("/v1/nodes"))
        node = read(agent.get(f"/v1/node/{node_stub['ID']}"))
        [member] = read(agent.get("/v1/agent/members"))["Members"]
        [raft_server] = read(agent.get("/v1/operator/raft/configuration"))["Servers"]
        port = int(agent.address.rpartition(":")[2])
        published = {
            "node's Address": node_stub["Address"],
            "node's HTTPAddr": node["HTTPAddr"],
            "member's Addr": member["Addr"],
            "member's rpc_addr": member["Tags"]["rpc_addr"],
            "leader": agent.get("/v1/status/leader"),
            "peers": agent.get("/v1/status/peers"),
            "raft": raft_server["Address"],
        }
    host = node["Attributes"]["unique.network.ip-address"]

    assert published == {
        "node's Address": host,
        "node's HTTPAddr": f"{host}:{port}",
        "member's Addr": host,
        "member's rpc_addr": host,
        "leader": f"{host}:{port}",
        "peers": [f"{host}:{port}"],
        "raft": f"{host}:{port}",
    }


def read(reply: object) -> Any:
    return reply


@pytest.mark.parametrize("listen", ["0.0.0.0", "::"])
def test_a_socket_on_all_addresses_is_advertised_with_the_address_of_the_host(listen: str) -> None:
    _, host = find_default_address("")
    with listen_tcp(listen, 0) as listening:
        advertised = find_advertised_address(ALL_ADDRESSES, listening)

        assert advertised == f"{host}:{listening.getsockname()[1]}"


def test_a_server_on_all_ipv6_addresses_also_accepts_connections_by_ipv4() -> None:
    _, host = find_default_address("")
    with listen_tcp("::", 0) as listening, socket.create_connection((host, listening.getsockname()[1])) as connection:
        assert connection.getpeername()[0] == host


def test_the_configured_address_is_advertised_before_any_other() -> None:
    settings = msgspec.structs.replace(ALL_ADDRESSES, advertise=AdvertiseSettings(http="wharf.example:80"))
    with listen_tcp("0.0.0.0", 0) as listening:
        assert find_advertised_address(settings, listening) == "wharf.example:80"


def test_a_server_on_one_address_advertises_it() -> None:
    with listen_tcp("127.0.0.1", 0) as listening:
        assert find_advertised_address(AgentSettings(), listening) == f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("listen", ["0.0.0.0", "::"])
def test_an_agent_reaches_its_own_socket_on_all_addresses_by_the_loopback_address(listen: str) -> None:
    with listen_tcp(listen, 0) as listening:
        assert build_local_url(listening, tls=False) == f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_server_of_a_cluster_in_etcd_does_not_start_without_an_address_for_others() -> None:
    with listen_tcp("0.0.0.0", 0) as listening, pytest.raises(CommandError) as refusal:
        find_advertised_address(NO_INTERFACE_IN_ETCD, listening)

    assert str(refusal.value) == (
        "other servers cannot be given an address of this one: it listens on 0.0.0.0, and the interface absent0 has no "
        "IPv4 address that other machines can reach: set advertise.http to an address of this machine, such as "
        'advertise.http = "10.0.0.1:4646"'
    )


def test_a_single_server_without_an_address_for_others_warns_and_advertises_loopback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with listen_tcp("0.0.0.0", 0) as listening:
        advertised = find_advertised_address(NO_INTERFACE, listening)

    assert advertised.startswith("127.0.0.1:")
    assert "no address for other machines found" in caplog.text
