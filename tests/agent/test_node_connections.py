"""The connections of nodes to a port whose other connections come from the node's address, such as from its tasks."""

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.agent.processes import ANSWERED_WITHIN_S, RunningAgent, running
from tests.waiting import wait_until

UNROUTED_ADDRESS: Final = ("203.0.113.1", 9)
"""An address for documentation. Connecting a datagram socket to it sends nothing, and selects an own address."""
IDLE_CONNECTIONS: Final = 130
"""More than the 100 that one address may open."""


def find_own_address() -> str:
    """Return an address of this machine that is not a loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(UNROUTED_ADDRESS)
        return str(probe.getsockname()[0])


@contextmanager
def occupying(address: str, port: int) -> Iterator[None]:
    """Open idle connections to the port from the address, and reopen each one that the server closes."""
    is_ending = threading.Event()

    def occupy() -> None:
        while not is_ending.is_set():
            try:
                with socket.create_connection((address, port), 1.0, source_address=(address, 0)) as connection:
                    connection.settimeout(0.2)
                    while not is_ending.is_set():
                        try:
                            if not connection.recv(4_096):
                                break
                        except TimeoutError:
                            continue
            except OSError:
                is_ending.wait(0.01)

    threads = [threading.Thread(target=occupy) for _ in range(IDLE_CONNECTIONS)]
    with ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(is_ending.set)
        yield


def is_refused(server: RunningAgent) -> bool:
    """Return whether the server refuses a connection of a caller who proves nothing."""
    try:
        server.get("/v1/status/leader")
    except urllib.error.HTTPError as error:
        return error.code == 429
    except OSError:
        return True
    return False


def send_heartbeat(server: RunningAgent, node_id: str, secret: str) -> int:
    """Send a heartbeat of the node over a new connection, and return the status of the reply."""
    request = urllib.request.Request(
        f"{server.address}/v1/node/{node_id}/heartbeat",
        b"{}",
        {"x-cluster-node-secret": secret, "content-type": "application/json"},
        method="PUT",
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_heartbeats_of_a_node_are_answered_while_its_tasks_hold_all_connections_of_its_address(tmp_path: Path) -> None:
    address = find_own_address()
    config = f'data_dir = "{tmp_path}/data"\nbind_addr = "{address}"\nallow_insecure = true\n[ports]\nhttp = 0\n'
    (tmp_path / "a.toml").write_text(config + "[server]\nenabled = true\n[limits]\nenabled = false\n")
    with running(tmp_path, "agent", "--config", "a.toml") as server:
        server.wait_ready()
        node_id = "3f0a8f0e-0000-4000-8000-000000000001"
        body = {"Node": {"ID": node_id, "Name": "n1", "Datacenter": "dc1"}, "SecretID": "secret-of-n1"}
        server.put(f"/v1/node/{node_id}/register", body)
        with occupying(address, int(server.address.rpartition(":")[2])):
            wait_until(lambda: is_refused(server), what="the address has no connection left")

            assert [send_heartbeat(server, node_id, "secret-of-n1") for _ in range(20)] == [200] * 20
            assert is_refused(server)
