"""Each free port is returned only once."""

import socket
import subprocess
import sys
from pathlib import Path

from tests.ports import PORTS, free_ports

ROOT = Path(__file__).parents[1]
FIRST = 17_000


def start_reserving_process(count: int) -> subprocess.Popen[str]:
    """Start a process that reserves ports, prints them and holds them until its input ends."""
    program = "import sys; from tests.ports import free_ports; "
    program += f"print(*free_ports({count}, first={FIRST}), flush=True); sys.stdin.read()"
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def read_ports(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def test_processes_that_request_ports_at_once_get_different_ones() -> None:
    with start_reserving_process(200) as first_process, start_reserving_process(200) as second_process:
        first, second = read_ports(first_process), read_ports(second_process)
        first_process.communicate()
        second_process.communicate()

    assert len(set(first + second)) == 400


def test_a_process_never_gets_the_same_port_twice() -> None:
    ports = free_ports(3) + free_ports(3)

    assert len(set(ports)) == 6
    assert all(port in PORTS for port in ports)


def test_a_port_in_use_is_not_returned() -> None:
    with socket.socket() as server:
        [port] = free_ports(1, first=FIRST + 1_000)
        server.bind(("127.0.0.1", port + 1))
        server.listen()

        assert free_ports(1, first=port + 1) != [port + 1]
