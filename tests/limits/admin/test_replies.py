"""Commands for a limiter, against an admin endpoint whose reply never ends."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wharf.cli.common.errors import CliError
from wharf.cli.limits import admin_client


@contextlib.contextmanager
def serve_forever(path: Path, head: bytes, part: bytes) -> Iterator[None]:
    """Accept one connection at a Unix socket, and send `head` and then `part` until the client closes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(head)
                while True:
                    connection.sendall(part)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize(
    ("head", "part"),
    [
        pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, id="interim replies"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 10, id="body"),
    ],
)
def test_a_reply_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, part: bytes
) -> None:
    monkeypatch.setattr(admin_client, "RESPONSE_TIMEOUT_S", 0.3)
    path = tmp_path / "admin.sock"
    began_s = time.monotonic()

    with serve_forever(path, head, part), pytest.raises(CliError, match="no reply from the limiter"):
        admin_client._send(path, "GET", "/", None)

    assert time.monotonic() - began_s < 5


def test_a_reply_that_is_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "MAX_RESPONSE_BYTES", 1_000)
    path = tmp_path / "admin.sock"

    with (
        serve_forever(path, b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1_000),
        pytest.raises(CliError, match="more than 1,000 bytes"),
    ):
        admin_client._send(path, "GET", "/", None)
