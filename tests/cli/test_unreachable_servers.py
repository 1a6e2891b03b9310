"""What commands print while servers do not reply, cannot be reached or are other programs, over real sockets."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.terminal import CommandResult
from wharf.cli.common.waiting_notices import LEADER_QUERY_TIMEOUT_S, NOTICE_DELAY_S
from wharf.cli.root import main

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., CommandResult]:
    """Return a function that runs a command with the real client."""
    for name in ("WHARF_ADDR", "WHARF_TOKEN", "NOMAD_ADDR", "NOMAD_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def run_command(*words: str) -> CommandResult:
        with pytest.raises(SystemExit) as end:
            main(words)
        out, err = capsys.readouterr()
        return CommandResult(int(end.value.code or 0), out, err)

    return run_command


@pytest.mark.parametrize(
    "words",
    [
        ("monitor",),
        ("monitor", "--node-id", "1a2b3c4d"),
        ("job", "logs", "-f", "web"),
        ("alloc", "logs", "-f", "1a2b3c4d"),
        ("alloc", "exec", "1a2b3c4d", "true"),
        ("job", "status", "web"),
        ("deployment", "status", "1a2b3c4d"),
    ],
    ids=" ".join,
)
def test_a_command_fails_if_no_server_can_be_reached(run: Callable[..., CommandResult], words: tuple[str, ...]) -> None:
    result = (
        run(*words[:-1], words[-1], "--address", NOBODY)
        if words[-1] != "true"
        else run(*words[:2], "--address", NOBODY, *words[2:])
    )

    assert result.code != 0
    assert f"cannot connect to {NOBODY}" in result.err


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("a\nb", "the token contains a line break"),
        ("secret\r", "the token contains a line break"),
        ("a\x07b", "the token contains a control character"),
        ("schlüssel", "the token contains a character that is not ASCII"),
        (" secret", "the token begins or ends with a space"),
    ],
)
@pytest.mark.parametrize("source", ["--token", "WHARF_TOKEN"])
@pytest.mark.parametrize("words", [("status",), ("alloc", "logs", "-f", "1a2b3c4d")], ids=" ".join)
def test_a_token_that_cannot_be_sent_is_named_but_not_shown(
    run: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
    token: str,
    problem: str,
    source: str,
    words: tuple[str, ...],
) -> None:
    if source == "WHARF_TOKEN":
        monkeypatch.setenv(source, token)
    result = run(*words, "--address", NOBODY, *(["--token", token] if source == "--token" else []))

    assert (result.code, result.err) == (
        1,
        f"wharf: {problem}: pass only the SecretID of the token with --token or WHARF_TOKEN, also if it comes from a file\n",
    )


def test_a_header_that_cannot_be_sent_is_named_but_its_value_is_not_shown(run: Callable[..., CommandResult]) -> None:
    result = run("operator", "api", "--header", "x-mine: a\nsecret", "/v1/jobs", "--address", NOBODY)

    assert (result.code, result.err) == (1, "wharf: the value of the header x-mine contains a line break\n")


@contextmanager
def other_service() -> Iterator[str]:
    """Run a service that closes each connection without a reply, and return its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    "words", [("status",), ("job", "status", "web"), ("search", "web"), ("monitor",)], ids=" ".join
)
def test_a_read_from_another_service_does_not_speak_of_a_change(
    run: Callable[..., CommandResult], words: tuple[str, ...]
) -> None:
    with other_service() as address:
        result = run(*words, "--address", address)

    assert result.code == 1
    assert f"no reply from {address}" in result.err
    assert "is this the address of a Wharf server?" in result.err
    assert "applied" not in result.err


def test_a_write_to_another_service_says_that_it_may_have_been_applied(run: Callable[..., CommandResult]) -> None:
    with other_service() as address:
        result = run("system", "gc", "--address", address)

    assert "the change may already have been applied" in result.err


@contextmanager
def waiting_server(may_reply: threading.Event, *leader_headers: tuple[str, str]) -> Iterator[str]:
    """Run a server without a leader that replies to a request, except that for the leader, only when it may."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # The name that the library calls.
            if self.path == "/v1/status/leader":
                self.reply(200, b'""', *leader_headers)
                return
            assert may_reply.wait(30.0)
            self.reply(500, b"No cluster leader", ("x-cluster-error", "no-leader"))

        def reply(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
            self.send_response(status)
            for name, value in (*headers, ("content-length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("headers", "cause"),
    [
        ([], "the server knows no leader of its cluster"),
        (
            [("x-cluster-error-reason", "store-unreachable")],
            "the server cannot reach the store of the cluster's state",
        ),
    ],
)
def test_a_command_that_waits_says_for_what_and_then_why_it_failed(
    run: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch, headers: list[tuple[str, str]], cause: str
) -> None:
    has_printed = threading.Event()
    echo = click.echo

    def echo_and_tell(*args: Any, **options: Any) -> None:
        echo(*args, **options)
        has_printed.set()

    monkeypatch.setattr(click, "echo", echo_and_tell)
    with waiting_server(has_printed, *headers) as address:
        result = run("job", "status", "--address", address)

    assert result.code == 1
    assert result.err.splitlines() == [
        f"waiting for a reply from {address}: {cause}; --stale reads what the server knew last; Ctrl-C ends the command",
        "No cluster leader; trying again",
        "wharf: No cluster leader: the cluster has no leader now; --stale reads what the server knew last",
    ]


def test_a_command_that_waits_for_a_limiter_says_so(
    run: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    has_printed = threading.Event()
    echo = click.echo

    def echo_and_tell(*args: Any, **options: Any) -> None:
        echo(*args, **options)
        has_printed.set()

    monkeypatch.setattr("wharf.cli.common.waiting_notices.click.echo", echo_and_tell)
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("limiter.sock")
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            assert has_printed.wait(30.0)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        result = run("limits", "rules", "--admin-address", "limiter.sock")
        thread.join()

    assert result.code == 1
    assert result.err.splitlines()[0] == (
        "waiting for a reply from the limiter at limiter.sock; Ctrl-C ends the command"
    )


@pytest.mark.parametrize("port", [0, 65_536, 99_999])
def test_an_address_with_an_impossible_port_is_refused(run: Callable[..., CommandResult], port: int) -> None:
    result = run("status", "--address", f"http://127.0.0.1:{port}")

    assert result.code == 1
    assert f"invalid address http://127.0.0.1:{port} (the port is not between 1 and 65535)" in result.err


def test_the_first_line_of_a_command_that_waits_leaves_half_a_second_for_its_start() -> None:
    assert NOTICE_DELAY_S + LEADER_QUERY_TIMEOUT_S <= 1.5
