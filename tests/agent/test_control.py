"""The control socket: requests of commands on the same machine to a running agent."""

import os
import socket
import stat
from pathlib import Path

import pytest

from tests.agent.processes import running
from tests.agent.test_processes import write_agent_config
from wharf.agent.data_folder import CONTROL_SOCKET
from wharf.agent.errors import CommandError
from wharf.agent.supervision.channel import ReloadReply
from wharf.agent.supervision.control import (
    ControlReloadRequest,
    DebugRequest,
    listen_for_commands,
    send_control_request,
)
from wharf.world.unix_sockets import shorten_socket_path


def test_a_reload_request_gets_a_reply(tmp_path: Path) -> None:
    file = write_agent_config(tmp_path / "a")
    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        write_agent_config(tmp_path / "a", 'log_level = "warn"\nregion = "eu"')

        answer = send_control_request(tmp_path / "a" / "data", ControlReloadRequest(), timeout_s=10.0)

        assert answer == ReloadReply(0, applied=["log_level"], needs_restart=["region"])


def test_invalid_data_on_the_control_socket_does_not_disturb_the_agent(tmp_path: Path) -> None:
    file = write_agent_config(tmp_path / "a")
    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc0"):
            with socket.socket(socket.AF_UNIX) as channel:
                channel.connect(str(tmp_path / "a" / "data" / CONTROL_SOCKET))
                channel.sendall(data)

        assert send_control_request(tmp_path / "a" / "data", DebugRequest(), timeout_s=10.0) is not None


def test_without_an_agent_there_is_no_reply(tmp_path: Path) -> None:
    assert send_control_request(tmp_path, DebugRequest(), timeout_s=1.0) is None
    assert send_control_request(tmp_path / "gone", DebugRequest(), timeout_s=1.0) is None
    listen_for_commands(tmp_path).close()
    assert send_control_request(tmp_path, DebugRequest(), timeout_s=1.0) is None


def test_an_agent_that_does_not_reply_in_time_is_an_error(tmp_path: Path) -> None:
    with listen_for_commands(tmp_path), pytest.raises(CommandError, match=r"did not answer within 0.1 s"):
        send_control_request(tmp_path, DebugRequest(), timeout_s=0.1)


def test_only_the_owner_can_connect_to_the_control_socket(tmp_path: Path) -> None:
    with listen_for_commands(tmp_path):
        assert stat.S_IMODE((tmp_path / CONTROL_SOCKET).stat().st_mode) & 0o077 == 0


def test_the_control_socket_works_in_a_folder_with_a_long_path(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 90) / ("b" * 90)
    deep.mkdir(parents=True)
    with listen_for_commands(deep), socket.socket(socket.AF_UNIX) as channel:
        with shorten_socket_path(deep / CONTROL_SOCKET) as name:
            channel.connect(name)

        assert len(os.fsencode(deep / CONTROL_SOCKET)) > 107
