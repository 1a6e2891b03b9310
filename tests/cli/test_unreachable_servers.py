"""What commands print while servers do not reply, cannot be reached or are other programs, over real sockets."""

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import click
import pytest

from tests.cli.terminal import CommandResult
from tests.http_servers import QuietHandler, serving
from wharf.agent.tls.certificates import get_files, make_authority, make_certificate, write_pair
from wharf.cli.common.unreachable import suggest_fix
from wharf.cli.common.waiting_notices import LEADER_QUERY_TIMEOUT_S, NOTICE_DELAY_S
from wharf.cli.root import main
from wharf.contract.client import ClientSettings, Unreachable
from wharf.contract.model.times import SECOND
from wharf.world import RealWorld
from wharf.world.failover import MAX_PART_S

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Return a function that runs a command with the real client."""

    def run_command(*words: str) -> CommandResult:
        code = 0
        try:
            main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return CommandResult(code, out, err)

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
    ("address", "advice"),
    [
        ("http://127.0.0.1:4646", "`wharf dev` starts a server on this machine"),
        ("http://[::1]:4646", "`wharf dev` starts a server on this machine"),
        ("unix:///run/wharf.sock", "`wharf dev` starts a server on this machine"),
        ("http://192.0.2.7:4646", "check that a server runs there and listens on this address"),
    ],
)
def test_a_server_is_started_on_this_machine_only_if_the_address_belongs_to_it(address: str, advice: str) -> None:
    error = Unreachable("refused", is_sent=False)

    text = suggest_fix(error, ClientSettings(addresses=(address,)), now_ns=0)

    assert text == f"{advice}; --address or WHARF_ADDR selects another"


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
    "words",
    [("status",), ("job", "status", "web"), ("search", "web"), ("monitor",), ("operator", "api", "/v1/jobs")],
    ids=" ".join,
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


@pytest.mark.parametrize("words", [("system", "gc"), ("operator", "api", "/v1/jobs", "{}")], ids=" ".join)
def test_a_write_to_another_service_says_that_it_may_have_been_applied(
    run: Callable[..., CommandResult], words: tuple[str, ...]
) -> None:
    with other_service() as address:
        result = run(*words, "--address", address)

    assert "the change may already have been applied" in result.err


@contextmanager
def serving_at_address(handler: type[QuietHandler]) -> Iterator[str]:
    """Run an HTTP server with this handler, and return its address."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@contextmanager
def waiting_server(may_reply: threading.Event, *leader_headers: tuple[str, str]) -> Iterator[str]:
    """Run a server without a leader that replies to a request, except that for the leader, only when it may."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/status/leader":
                self.reply(200, b'""', *leader_headers)
                return
            assert may_reply.wait(30.0)
            self.reply(500, b"No cluster leader", ("x-cluster-error", "no-leader"))

    with serving_at_address(Handler) as address:
        yield address


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
        "wharf: No cluster leader: the cluster has no leader now, and `wharf operator api /v1/agent/health` shows the health of "
        "a server; --stale reads what the server knew last",
    ]


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        ({"ok": False, "message": "etcd has used up its quota"}, ": etcd has used up its quota; "),
        (
            {"ok": False, "message": "no leader"},
            ", and `wharf operator api /v1/agent/health` shows the health of a server; ",
        ),
        ({"ok": True, "message": "a certificate ends soon"}, ", and `wharf operator api"),
    ],
)
def test_a_command_refused_for_lack_of_a_leader_names_the_reason_that_the_server_knows(
    run: Callable[..., CommandResult], health: dict[str, object], reason: str
) -> None:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/v1/agent/health"):
                self.reply(200 if health["ok"] else 500, json.dumps({"server": health}).encode())
            else:
                self.reply(500, b"No cluster leader", ("x-cluster-error", "no-leader"))

    with serving_at_address(Handler) as address:
        result = run("job", "status", "--address", address)

    assert result.code == 1
    assert f"wharf: No cluster leader: the cluster has no leader now{reason}" in result.err.splitlines()[-1]


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


@pytest.mark.parametrize("address", ["http://", "https://", "http:///v1"])
def test_an_address_without_a_host_is_refused(run: Callable[..., CommandResult], address: str) -> None:
    result = run("status", "--address", address)

    assert result.code == 1
    assert f"invalid address {address} (it has no host: expected http://HOST:PORT or https://HOST:PORT)" in result.err


class PageHandler(QuietHandler):
    """Replies like a program that is no Wharf server: with a page, or that there is none under paths of the API."""

    def do_GET(self) -> None:
        is_page = self.path.startswith("/ui")
        self.reply(200 if is_page else 404, b"<html></html>" if is_page else b"404 page not found\n")


def test_an_address_with_a_path_is_named_as_the_cause_of_an_unexpected_reply(run: Callable[..., CommandResult]) -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), PageHandler)) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        result = run("status", "--address", f"{address}/ui")

    assert result.code == 1
    assert result.err.startswith(f"wharf: {address}/ui: unexpected reply: JSON is malformed: ")
    assert result.err.endswith(f"; the address has the path /ui: set --address or WHARF_ADDR to {address}\n")
    assert "Wharf server" not in result.err


def test_a_reply_that_a_page_does_not_exist_asks_whether_this_is_a_wharf_server(
    run: Callable[..., CommandResult],
) -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), PageHandler)) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        result = run("status", "--address", address)

    assert (result.code, result.err) == (
        1,
        f"wharf: {address}: 404 page not found; is this the address of a Wharf server?\n",
    )


def test_the_first_line_of_a_command_that_waits_leaves_half_a_second_for_its_start() -> None:
    assert NOTICE_DELAY_S + LEADER_QUERY_TIMEOUT_S <= 1.5


ALLOCATION_ID: Final = "1a2b3c4d-0000-4000-8000-000000000001"
ALLOCATION: Final = {
    "ID": ALLOCATION_ID,
    "Name": "web.api[0]",
    "JobID": "web",
    "TaskGroup": "api",
    "NodeName": "n7",
    "DesiredStatus": "run",
    "ClientStatus": "running",
    "TaskStates": {"main": {"State": "running"}},
}


@contextmanager
def server_of_frozen_node(may_reply: threading.Event) -> Iterator[str]:
    """Run a server with one allocation, whose node does not answer until it may; then the server gives up."""
    documents = {
        "/v1/status/leader": "10.0.0.1:4646",
        "/v1/jobs": [{"ID": "web", "Name": "web", "Namespace": "default", "Type": "service", "Status": "running"}],
        "/v1/job/web/allocations": [ALLOCATION],
        "/v1/allocations": [ALLOCATION],
        f"/v1/allocation/{ALLOCATION_ID}": ALLOCATION,
    }

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path.startswith("/v1/client/"):
                assert may_reply.wait(30.0)
                self.reply(500, b"the node's connection was closed; retry", ("x-cluster-error", "unavailable"))
            else:
                self.reply(200, json.dumps(documents[path]).encode(), ("x-cluster-index", "7"))

    with serving_at_address(Handler) as address:
        try:
            yield address
        finally:
            may_reply.set()


@pytest.mark.parametrize("words", [("job", "logs", "web"), ("alloc", "logs", ALLOCATION_ID)], ids=" ".join)
def test_a_command_that_waits_for_a_node_names_it(
    run: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    has_printed = threading.Event()
    echo = click.echo

    def echo_and_tell(*args: Any, **options: Any) -> None:
        echo(*args, **options)
        has_printed.set()

    monkeypatch.setattr(click, "echo", echo_and_tell)
    with server_of_frozen_node(has_printed) as address:
        result = run(*words, "--address", address)

    if words[0] == "job":
        assert result.err.splitlines() == [
            "waiting for node n7, which has not answered yet, for the log of web.api[0]; Ctrl-C ends the command",
            "wharf: node n7 did not send the log of web.api[0]: the node's connection was closed; retry",
        ]
    else:
        assert result.err.splitlines()[0] == (
            f"waiting for a reply from {address}: node n7 has not answered the server yet; Ctrl-C ends the command"
        )
    assert result.code == 1


@contextmanager
def frozen_server(scheme: str) -> Iterator[str]:
    """Yield the address of a server that is frozen: the kernel accepts connections, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_command_says_that_a_frozen_server_accepted_the_connection_and_did_not_answer(
    run: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr("wharf.contract.client.flow.REQUEST_TIMEOUT_S", 3.0)
    with frozen_server(scheme) as address:
        result = run("job", "status", "--address", address)

    failure = "did not answer" if scheme == "http" else "did not begin TLS"
    assert result.code == 1
    assert result.err.splitlines()[-1] == (
        f"wharf: no reply from {address} (it accepted the connection, but {failure} within 3 s); the server is frozen or "
        "overloaded: check its machine, or select another server with --address or WHARF_ADDR"
    )


def test_a_command_that_waits_for_a_frozen_server_says_that_it_answers_no_request(
    run: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wharf.contract.client.flow.REQUEST_TIMEOUT_S", 3.0)
    with frozen_server("http") as address:
        result = run("job", "status", "--address", address)

    assert result.err.splitlines()[0] == (
        f"waiting for a reply from {address}: it accepts connections, but answers no request; Ctrl-C ends the command"
    )


def test_a_command_names_each_server_that_it_tried(
    run: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wharf.contract.client.flow.REQUEST_TIMEOUT_S", 3.0)
    with frozen_server("http") as frozen:
        result = run("job", "status", "--address", f"{frozen},{NOBODY}")

    assert f"no reply from {frozen} (it accepted the connection, but did not answer within" in result.err
    assert f"cannot connect to {NOBODY} (Connection refused)" in result.err


def test_a_raw_read_of_the_api_is_answered_by_the_next_server(run: Callable[..., CommandResult]) -> None:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.reply(200, b"[]")

    with frozen_server("http") as frozen, serving_at_address(Handler) as address:
        result = run("operator", "api", "/v1/jobs", "--address", f"{frozen},{address}")

    assert (result.code, result.out) == (0, "[]")


def test_a_raw_blocking_query_waits_longer_than_one_server_may_be_silent(run: Callable[..., CommandResult]) -> None:
    has_other_server_replied = threading.Event()

    class Waiting(QuietHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/v1/jobs"):
                has_other_server_replied.wait(MAX_PART_S + 1.0)
            self.reply(200, b"[]")

    class Other(QuietHandler):
        def do_GET(self) -> None:
            has_other_server_replied.set()
            self.reply(200, b'["other"]')

    with serving_at_address(Waiting) as waiting, serving_at_address(Other) as other:
        result = run("operator", "api", "/v1/jobs?index=7", "--address", f"{waiting},{other}")

    assert (result.code, result.out) == (0, "[]")


def test_the_list_of_servers_says_that_no_server_is_the_leader(run: Callable[..., CommandResult]) -> None:
    member = {"Name": "s1.global", "Addr": "10.0.0.1", "Port": 4646, "Status": "alive", "Tags": {}}
    reply = {"ServerName": "s1", "ServerRegion": "global", "Members": [member]}

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            is_leader_query = self.path == "/v1/status/leader"
            self.reply(200, b'""' if is_leader_query else json.dumps(reply).encode())

    with serving_at_address(Handler) as address:
        result = run("server", "members", "--address", address)

    assert result.code == 0
    assert "s1.global" in result.out
    assert result.err == (
        "no server is the leader now, so the list is as the server last knew it; "
        "`wharf operator api /v1/operator/autopilot/health` shows why\n"
    )


# -- TLS


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates: of an authority, its server, its client, an expired client; and of another authority."""
    folder, now_ns = tmp_path_factory.mktemp("tls"), RealWorld().now_ns()
    for name in ("ca", "other"):
        authority = make_authority(now_ns=now_ns, days=10)
        write_pair(folder, name, authority)
        past_ns = now_ns - 9 * 86_400 * SECOND
        for end, at_ns in (
            ("server", now_ns),
            ("client", now_ns),
            ("expired-server", past_ns),
            ("expired-client", past_ns),
        ):
            pair = make_certificate(
                authority,
                name=f"{end}.wharf",
                alternative_names=["127.0.0.1"],
                is_server=end.endswith("server"),
                now_ns=at_ns,
                days=5,
            )
            write_pair(folder, f"{name}-{end}", pair)
    return folder


@contextmanager
def tls_server(folder: Path, *, certificate: str = "ca-server") -> Iterator[str]:
    """Run an asyncio server that requires client certificates, as a server of Wharf does, and return its host and port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*get_files(folder, certificate))
    context.load_verify_locations(get_files(folder, "ca")[0])
    context.verify_mode = ssl.CERT_REQUIRED
    loop, port = asyncio.new_event_loop(), 0
    has_started, stopping = threading.Event(), asyncio.Event()

    async def serve() -> None:
        nonlocal port
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        has_started.set()
        async with server:
            await stopping.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert has_started.wait(30.0)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        loop.close()


NO_CERTIFICATE: Final = (
    "the server requires a client certificate; set --client-cert and --client-key, or WHARF_CLIENT_CERT"
)


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ("", NO_CERTIFICATE),
        ("other-client", "other-client.pem is not accepted by the server; set --client-cert and --client-key"),
        ("ca-expired-client", "ca-expired-client.pem expired on "),
    ],
)
@pytest.mark.parametrize("words", [("job", "status"), ("system", "gc"), ("job", "logs", "web")], ids=" ".join)
def test_a_refused_client_certificate_is_named_with_the_option_to_set(
    run: Callable[..., CommandResult], tls_folder: Path, client: str, expected: str, words: tuple[str, ...]
) -> None:
    options = ["--ca-cert", str(get_files(tls_folder, "ca")[0])]
    if client:
        certificate, key = get_files(tls_folder, client)
        options += ["--client-cert", str(certificate), "--client-key", str(key)]
    with tls_server(tls_folder) as server:
        result = run(*words, "--address", f"https://{server}", *options)

    assert result.code == 1
    assert expected in result.err
    assert "may already have been applied" not in result.err


def test_a_plain_address_of_a_server_with_tls_is_answered_with_the_right_one(
    run: Callable[..., CommandResult], tls_folder: Path
) -> None:
    with tls_server(tls_folder) as server:
        result = run("system", "gc", "--address", f"http://{server}")

    assert result.err.endswith(f"; the server uses https; set --address or WHARF_ADDR to https://{server}\n")


@pytest.mark.parametrize(
    ("certificate", "options", "expected"),
    [
        (
            "other-server",
            [],
            "the server's certificate is not trusted: unable to get local issuer certificate); set --ca-cert or WHARF_",
        ),
        ("ca-expired-server", [], "the server's certificate is not valid now); renew the certificate on the server"),
        ("ca-server", ["--tls-server-name", "b.wharf"], "is for another name or address); use an address that"),
    ],
)
def test_a_server_certificate_that_is_not_accepted_is_explained(
    run: Callable[..., CommandResult], tls_folder: Path, certificate: str, options: list[str], expected: str
) -> None:
    with tls_server(tls_folder, certificate=certificate) as server:
        address = ["--address", f"https://{server}", "--ca-cert", str(get_files(tls_folder, "ca")[0])]
        result = run("job", "status", *address, *options)

    assert expected in result.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--ca-cert", "missing.pem"], "cannot read missing.pem (--ca-cert, WHARF_CACERT): No such file or directory"),
        (["--client-cert", "missing.pem"], "cannot read missing.pem (--client-cert, WHARF_CLIENT_CERT)"),
        (["--client-key", "ca-client-key.pem"], "--client-key is set without --client-cert (WHARF_CLIENT_CERT)"),
        (
            ["--ca-cert", "ca-client-key.pem"],
            "cannot use ca-client-key.pem (--ca-cert, WHARF_CACERT) as certificates of",
        ),
        (
            ["--client-cert", "ca-client.pem"],
            "cannot use ca-client.pem (--client-cert, WHARF_CLIENT_CERT) as client certificate without a key file",
        ),
        (
            ["--client-cert", "ca-client.pem", "--client-key", "other-client-key.pem"],
            "as client certificate with the key other-client-key.pem",
        ),
    ],
)
def test_a_tls_file_that_cannot_be_used_is_named_with_its_option(
    run: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
    tls_folder: Path,
    options: list[str],
    expected: str,
) -> None:
    monkeypatch.chdir(tls_folder)

    result = run("job", "status", "--address", "https://127.0.0.1:1", *options)

    assert (result.code, expected in result.err) == (1, True), result.err
