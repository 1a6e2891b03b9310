"""Detection of ports that other programs hold."""

import socket
from collections.abc import Iterator

import pytest

from wharf.contract.model.allocations.resources import AllocatedPort
from wharf.node.agent.fingerprint.host_ports import LOOPBACK_ADDRESS, find_taken_port, is_port_bound


@pytest.fixture(params=[socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["listens", "receives"])
def taken_port(request: pytest.FixtureRequest) -> Iterator[int]:
    with socket.socket(socket.AF_INET, request.param) as holder:
        holder.bind((LOOPBACK_ADDRESS, 0))
        if request.param is socket.SOCK_STREAM:
            holder.listen()
        yield holder.getsockname()[1]


def test_a_port_held_by_another_program_is_found(taken_port: int) -> None:
    port = AllocatedPort(label="http", value=taken_port)
    assert find_taken_port([port], LOOPBACK_ADDRESS) == port


def test_a_port_is_free_again_when_its_holder_has_ended() -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK_ADDRESS, 0))
        holder.listen()
        port = holder.getsockname()[1]
        with socket.create_connection((LOOPBACK_ADDRESS, port)) as caller:
            accepted, _ = holder.accept()
            accepted.close()
            assert caller.recv(1) == b""
    assert is_port_bound(LOOPBACK_ADDRESS, port) is False


def test_a_port_of_a_foreign_address_is_left_to_the_task(taken_port: int) -> None:
    assert (
        find_taken_port([AllocatedPort(label="http", value=taken_port, host_ip="192.0.2.1")], LOOPBACK_ADDRESS) is None
    )
