"""TLS connections of a port: their handshakes have limits, and nothing that callers send is lost."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.kit.certificates import ServerCertificates, make_certificates
from tests.waiting import wait_on_loop_until
from wharf.world import RealWorld, tls_listener
from wharf.world.tls_listener import TlsListener

DEADLINE_S = 20.0
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> ServerCertificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test on the event loop of the library, and of the processes of an agent."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_limited(scenario: Coroutine[Any, Any, None]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(DEADLINE_S):
                await scenario

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(limited())

    return run_limited


class Port:
    """A port that returns what it receives, in capital letters, until the caller ends."""

    def __init__(self, listener: TlsListener, port: int, certificates: ServerCertificates) -> None:
        self.listener = listener
        self.port = port
        self.rejected_count = 0
        self._connections = contextlib.ExitStack()
        self._client = ssl.create_default_context(cafile=certificates.authority_file)

    async def ask(self, text: bytes) -> bytes:
        """Send the text right after the handshake, and return the reply."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self._client, server_hostname="localhost"
        )
        writer.write(text)
        reply = await reader.readexactly(len(text))
        writer.close()
        return reply

    def connect(self) -> socket.socket:
        """Open a connection that sends nothing."""
        opened = self._connections.enter_context(socket.create_connection(("127.0.0.1", self.port)))
        opened.setblocking(False)
        return opened

    async def open_silent(self) -> socket.socket:
        """Open such a connection, and return it once the port waits for its handshake."""
        count = self.listener.handshake_count
        opened = self.connect()
        await wait_on_loop_until(lambda: self.listener.handshake_count > count, what="the handshake begins")
        return opened

    def close(self) -> None:
        self._connections.close()


class CapitalLetters(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def a_port(certificates: ServerCertificates, *, timeout_s: float = DEADLINE_S) -> AsyncIterator[Port]:
    def on_rejected() -> None:
        port.rejected_count += 1

    listening = socket.create_server(("127.0.0.1", 0))
    number = listening.getsockname()[1]
    context = certificates.build_server_context()
    listener = TlsListener(
        RealWorld(), listening, context, CapitalLetters, timeout_s=timeout_s, on_rejected=on_rejected
    )
    listener.start(100)
    port = Port(listener, number, certificates)
    try:
        yield port
    finally:
        port.close()
        listener.close()
        await listener.wait_closed()


async def receive(connection: socket.socket) -> bytes:
    """Return what the port sends next: nothing if it closes the connection."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.get_running_loop().sock_recv(connection, 1_000)
    return b""


def test_what_callers_send_with_the_end_of_the_handshake_is_received(
    run: Run, certificates: ServerCertificates
) -> None:
    async def scenario() -> None:
        async with a_port(certificates) as port:
            texts = [b"%d: hello" % number * 1_000 for number in range(50)]

            replies = await asyncio.gather(*(port.ask(text) for text in texts))

            assert replies == [text.upper() for text in texts]
            assert port.listener.handshake_count == 0

    run(scenario())


def test_the_oldest_of_too_many_handshakes_ends(
    run: Run, certificates: ServerCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_listener, "MAX_HANDSHAKES", 3)

    async def scenario() -> None:
        async with a_port(certificates) as port:
            silent = [await port.open_silent() for _ in range(3)]

            reply = await port.ask(b"hello")

            assert reply == b"HELLO"
            assert await receive(silent[0]) == b""
            assert (port.listener.handshake_count, port.rejected_count) == (2, 1)

    run(scenario())


def test_a_handshake_that_takes_too_long_ends(run: Run, certificates: ServerCertificates) -> None:
    async def scenario() -> None:
        async with a_port(certificates, timeout_s=0.1) as port:
            silent = await port.open_silent()

            assert await receive(silent) == b""
            await wait_on_loop_until(lambda: port.listener.handshake_count == 0, what="the handshake ends")
            assert port.rejected_count == 0

    run(scenario())


def test_a_caller_without_tls_is_disconnected(run: Run, certificates: ServerCertificates) -> None:
    async def scenario() -> None:
        async with a_port(certificates) as port:
            caller = await port.open_silent()
            caller.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")

            await wait_on_loop_until(lambda: port.listener.handshake_count == 0, what="the handshake fails")
            assert b"HTTP" not in await receive(caller)

    run(scenario())


def test_callers_that_leave_during_the_handshake_are_not_counted(run: Run, certificates: ServerCertificates) -> None:
    async def scenario() -> None:
        async with a_port(certificates) as port:
            silent = await port.open_silent()
            silent.close()
            await wait_on_loop_until(lambda: port.listener.handshake_count == 0, what="the handshake ends")

            assert await port.ask(b"hello") == b"HELLO"

    run(scenario())


@pytest.mark.parametrize("later_iterations", range(4))
def test_handshakes_that_have_just_begun_end_when_the_port_closes(
    run: Run, certificates: ServerCertificates, later_iterations: int
) -> None:
    async def scenario() -> None:
        async with a_port(certificates) as port:
            silent = port.connect()
            while port.listener.handshake_count == 0:  # noqa: ASYNC110 - the count of iterations matters
                await asyncio.sleep(0)
            for _ in range(later_iterations):
                await asyncio.sleep(0)

            port.listener.close()

            assert await receive(silent) == b""

    run(scenario())


def test_handshakes_end_when_the_port_closes(run: Run, certificates: ServerCertificates) -> None:
    async def scenario() -> None:
        async with a_port(certificates) as port:
            silent = await port.open_silent()

            port.listener.close()

            assert await receive(silent) == b""

    run(scenario())
