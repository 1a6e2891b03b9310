"""The drivers of both clients: closing a client, and closing streams."""

import threading
from contextlib import aclosing

import pytest

from tests.builders import a_job
from tests.contract.client.steps import not_reached
from tests.kit.cluster import ACluster
from tests.kit.exchange import InMemoryStream
from tests.kit.virtual_time import in_virtual_time
from wharf.contract.client import AsyncClient, RetryPolicy, SyncClient, Unreachable
from wharf.contract.client.transport import ClientReply, ClientRequest, SyncStreamedReply
from wharf.world import RealWorld


class UnreachableTransport:
    """A transport whose server is unreachable. `was_called` is set at the first request."""

    def __init__(self) -> None:
        self.was_called = threading.Event()
        self.is_closed = False

    def send(self, _: ClientRequest) -> ClientReply:
        self.was_called.set()
        raise not_reached()

    def open(self, _: ClientRequest) -> SyncStreamedReply:
        raise not_reached()

    def close(self) -> None:
        self.is_closed = True


def test_closing_a_client_ends_the_pause_before_a_retry() -> None:
    transport = UnreachableTransport()
    client = SyncClient(RealWorld(), [transport], retry_policy=RetryPolicy(initial_pause_s=20.0, max_pause_s=20.0))
    errors: list[Unreachable] = []

    def read_leader() -> None:
        with pytest.raises(Unreachable) as error:
            client.status.leader()
        errors.append(error.value)

    thread = threading.Thread(target=read_leader)
    thread.start()
    assert transport.was_called.wait(60.0)
    client.close()
    thread.join(60.0)

    assert [str(error) for error in errors] == ["the client was closed"]
    assert transport.is_closed


@in_virtual_time
async def test_closing_an_event_stream_ends_its_subscription() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        opened: list[InMemoryStream] = []
        open_stream = server.exchange.open

        async def open_and_record(request: ClientRequest) -> InMemoryStream:
            opened.append(await open_stream(request))
            return opened[-1]

        server.exchange.open = open_and_record  # type: ignore[method-assign]  # so that the test sees it
        client = AsyncClient(server.world, [server.exchange])
        await client.jobs.register(a_job("web"))

        async with aclosing(client.events.stream(["Job"], index=0)) as lines:
            assert [event.key for event in (await anext(lines)).events] == ["web"]

        assert [stream.disconnected.is_set() for stream in opened] == [True]
        assert server.server.events is not None
        assert server.server.events.subscription_count == 0
