"""Unix sockets work in folders of any depth, and only their owner may connect."""

import os
import socket
import stat
from pathlib import Path

import pytest

from wharf.world.unix_sockets import MAX_SOCKET_PATH_BYTES, bind_private_socket, is_listening, shorten_socket_path


@pytest.fixture
def deep_folder(tmp_path: Path) -> Path:
    folder = tmp_path / ("a" * 100) / ("b" * 100)
    folder.mkdir(parents=True)
    return folder


def count_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_short_path_is_not_changed() -> None:
    with shorten_socket_path(Path("/run/a.sock")) as address:
        assert address == "/run/a.sock"


def test_a_socket_in_a_deep_folder_accepts_connections(deep_folder: Path) -> None:
    path = deep_folder / "a.sock"
    before = count_open_files()
    with bind_private_socket(path) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.listen()
        with shorten_socket_path(path) as address:
            assert len(address) <= MAX_SOCKET_PATH_BYTES
            client.connect(address)
    assert count_open_files() == before


def test_only_the_owner_may_connect(tmp_path: Path) -> None:
    with bind_private_socket(tmp_path / "a.sock"):
        assert stat.S_IMODE((tmp_path / "a.sock").stat().st_mode) == 0o600


def test_no_process_can_connect_before_the_owner_listens(tmp_path: Path) -> None:
    with (
        bind_private_socket(tmp_path / "a.sock"),
        socket.socket(socket.AF_UNIX) as client,
        pytest.raises(ConnectionRefusedError),
    ):
        client.connect(str(tmp_path / "a.sock"))


def test_the_socket_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    bind_private_socket(path).close()
    with bind_private_socket(path) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.listen()
        client.connect(str(path))


@pytest.mark.parametrize("name", ["missing", "m" * 200])
def test_a_missing_folder_is_an_error_of_the_system(tmp_path: Path, name: str) -> None:
    before = count_open_files()
    with pytest.raises(OSError, match=r"No such file|path too long"):
        bind_private_socket(tmp_path / name / "a.sock")
    assert count_open_files() == before


def test_a_missing_deep_folder_is_reported_as_missing(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 150) / "a.sock"

    with pytest.raises(FileNotFoundError), shorten_socket_path(path):
        pass
    with pytest.raises(FileNotFoundError):
        bind_private_socket(path)


def test_a_socket_is_listened_on_only_while_its_process_accepts_connections(tmp_path: Path, deep_folder: Path) -> None:
    path = deep_folder / "a.sock"
    before = is_listening(path)
    with bind_private_socket(path) as listener:
        is_listening_when_bound = is_listening(path)
        listener.listen()
        listening = is_listening(path)

    assert (before, is_listening_when_bound, listening, is_listening(path)) == (False, False, True, False)
    assert not is_listening(tmp_path / ("c" * 150) / "a.sock")
