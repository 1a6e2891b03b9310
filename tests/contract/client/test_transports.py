"""The HTTP transports of both clients: Unix sockets, TLS with certificates, and default headers."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from wharf.agent.tls.certificates import AUTHORITY_FILES_NAME, get_files, make_authority, make_certificate, write_pair
from wharf.contract.client import NO_RETRIES, ClientSettings, Unreachable, connect, connect_async
from wharf.contract.client.transport import TlsFailure
from wharf.world import RealWorld

REPLY = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n"leader"'


class RecordingServer:
    """A server that replies to every request with the leader's address and records the request heads."""

    def __init__(self) -> None:
        self.heads: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                writer.write(REPLY)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def serve_unix_socket(path: Path) -> AsyncIterator[RecordingServer]:
    server = RecordingServer()
    async with await asyncio.start_unix_server(server.serve, path):
        yield server


def build_server_context(folder: Path) -> ssl.SSLContext:
    """Return the TLS context of a server that requires client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*get_files(folder, "server"))
    context.load_verify_locations(get_files(folder, AUTHORITY_FILES_NAME)[0])
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@asynccontextmanager
async def serve_tls(folder: Path) -> AsyncIterator[str]:
    context = build_server_context(folder)
    async with await asyncio.start_server(RecordingServer().serve, "127.0.0.1", 0, ssl=context) as server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def read_leaders(settings: ClientSettings) -> tuple[str, str]:
    """Return the leader as each of the two clients reads it."""

    def read_leader() -> str:
        with connect(settings, retry_policy=NO_RETRIES) as client:
            return client.status.leader()

    async with connect_async(settings, retry_policy=NO_RETRIES) as client:
        return await client.status.leader(), await asyncio.to_thread(read_leader)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with certificates of a server whose only name is `server.global.wharf`, and of a client."""
    folder, now_ns = tmp_path_factory.mktemp("certificates"), RealWorld().now_ns()
    authority = make_authority(now_ns=now_ns, days=10)
    write_pair(folder, AUTHORITY_FILES_NAME, authority)
    for name, is_server in (("server", True), ("client", False)):
        pair = make_certificate(
            authority, name=f"{name}.global.wharf", alternative_names=[], is_server=is_server, now_ns=now_ns, days=5
        )
        write_pair(folder, name, pair)
    return folder


def settings_for(folder: Path, address: str, *, server_name: str = "", skip_verify: bool = False) -> ClientSettings:
    """Return client settings with the certificates of the folder."""
    (authority, _), (cert, key) = get_files(folder, AUTHORITY_FILES_NAME), get_files(folder, "client")
    return ClientSettings(
        addresses=(address,),
        ca_file=str(authority),
        cert_file=str(cert),
        key_file=str(key),
        server_name=server_name,
        skip_verify=skip_verify,
    )


def test_a_unix_socket_can_be_an_address(tmp_path: Path) -> None:
    async def run_clients() -> tuple[tuple[str, str], list[str]]:
        async with serve_unix_socket(tmp_path / "api.sock") as server:
            settings = ClientSettings(addresses=(f"unix://{tmp_path}/api.sock",), token="secret", http_auth="me:mine")
            return await read_leaders(settings), server.heads

    leaders, heads = asyncio.run(run_clients())

    assert leaders == ("leader", "leader")
    assert [head.split("\r\n")[0] for head in heads] == ["GET /v1/status/leader HTTP/1.1"] * 2
    assert ["x-cluster-token: secret" in head.lower() for head in heads] == [True, True]
    assert ["authorization: Basic bWU6bWluZQ==" in head for head in heads] == [True, True]


@contextmanager
def drop_connections() -> Iterator[str]:
    """Yield an address at which the kernel drops every connection attempt, because the queue of the listener is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_address_whose_network_drops_all_packets_is_left_within_three_seconds(tmp_path: Path) -> None:
    async def run_clients(dropping: str) -> tuple[str, str]:
        async with serve_unix_socket(tmp_path / "api.sock"):
            settings = ClientSettings(addresses=(dropping, f"unix://{tmp_path}/api.sock"))
            async with asyncio.timeout(6):  # Two clients, one after the other.
                return await read_leaders(settings)

    with drop_connections() as dropping:
        assert asyncio.run(run_clients(dropping)) == ("leader", "leader")


def test_a_server_is_verified_by_its_server_name_and_accepts_the_client_certificate(certificates: Path) -> None:
    async def run_clients() -> tuple[str, str]:
        async with serve_tls(certificates) as address:
            return await read_leaders(settings_for(certificates, address, server_name="server.global.wharf"))

    assert asyncio.run(run_clients()) == ("leader", "leader")


def test_a_server_with_another_name_is_rejected_unless_verification_is_off(certificates: Path) -> None:
    async def run_clients() -> tuple[str, str]:
        async with serve_tls(certificates) as address:
            with pytest.raises(Unreachable, match="certificate"):
                await read_leaders(settings_for(certificates, address))
            return await read_leaders(settings_for(certificates, address, skip_verify=True))

    assert asyncio.run(run_clients()) == ("leader", "leader")


@contextmanager
def serve_connections(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve connections in a thread, one at a time, and yield the address with the scheme https."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve_until_closed() -> None:
            with suppress(OSError):
                while True:
                    connection, _address = listener.accept()
                    with connection, suppress(OSError):
                        connection.settimeout(5)
                        serve(connection)

        thread = threading.Thread(target=serve_until_closed, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def serve_plain_http(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def find_tls_failure(settings: ClientSettings) -> TlsFailure | None:
    """Return how TLS failed for the synchronous client."""
    with connect(settings, retry_policy=NO_RETRIES) as client, pytest.raises(Unreachable) as failed:
        client.status.leader()
    return failed.value.tls_failure


async def find_tls_failures(settings: ClientSettings) -> list[TlsFailure | None]:
    """Return how TLS failed, for the synchronous and the asyncio client."""
    async with connect_async(settings, retry_policy=NO_RETRIES) as client:
        with pytest.raises(Unreachable) as failed:
            await client.status.leader()
    return [await asyncio.to_thread(find_tls_failure, settings), failed.value.tls_failure]


def test_a_server_certificate_for_another_name_is_reported_as_such(certificates: Path) -> None:
    async def run_clients() -> list[TlsFailure | None]:
        async with serve_tls(certificates) as address:
            return await find_tls_failures(settings_for(certificates, address, server_name="another.wharf"))

    assert asyncio.run(run_clients()) == [TlsFailure.WRONG_SERVER_NAME] * 2


def test_an_untrusted_server_certificate_is_reported_as_such(certificates: Path) -> None:
    async def run_clients() -> list[TlsFailure | None]:
        async with serve_tls(certificates) as address:
            return await find_tls_failures(replace(settings_for(certificates, address), ca_file=""))

    assert asyncio.run(run_clients()) == [TlsFailure.UNTRUSTED_SERVER_CERTIFICATE] * 2


def test_a_missing_client_certificate_is_reported_as_such(certificates: Path) -> None:
    context = build_server_context(certificates)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as tls_connection:
            tls_connection.recv(1)

    with serve_connections(serve) as address:
        settings = replace(settings_for(certificates, address), cert_file="", key_file="")
        failure = find_tls_failure(replace(settings, server_name="server.global.wharf"))

    assert failure is TlsFailure.CLIENT_CERTIFICATE_REQUIRED


def test_a_server_without_tls_is_reported_as_such(certificates: Path) -> None:
    with serve_connections(serve_plain_http) as address:
        failures = asyncio.run(find_tls_failures(settings_for(certificates, address)))

    assert failures == [TlsFailure.SERVER_WITHOUT_TLS] * 2


def test_a_refused_connection_has_no_tls_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    assert asyncio.run(find_tls_failures(ClientSettings(addresses=(f"https://127.0.0.1:{port}",)))) == [None, None]
