"""What the two drivers do beside taking steps: they end what they began."""

import threading
from contextlib import aclosing

import pytest

from tests.builders import a_job
from tests.contract.client.steps import nobody
from tests.kit.cluster import ACluster
from tests.kit.exchange import OpenedInMemory
from tests.kit.virtual_time import in_virtual_time
from wharf.contract.client import AsyncClient, RetryPolicy, SyncClient, Unreachable
from wharf.contract.client.transport import ClientReply, ClientRequest, SyncStreamedReply
from wharf.world import RealWorld


class Away:
    """A server that is not there. `asked` is set when somebody tried."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.is_closed = False

    def send(self, _: ClientRequest) -> ClientReply:
        self.asked.set()
        raise nobody()

    def open(self, _: ClientRequest) -> SyncStreamedReply:
        raise nobody()

    def close(self) -> None:
        self.is_closed = True


def test_a_client_that_is_closed_wakes_who_pauses_between_two_attempts() -> None:
    away = Away()
    client = SyncClient(RealWorld(), [away], retry_policy=RetryPolicy(initial_pause_s=20.0, max_pause_s=20.0))
    told: list[Unreachable] = []

    def ask() -> None:
        with pytest.raises(Unreachable) as error:
            client.status.leader()
        told.append(error.value)

    asking = threading.Thread(target=ask)
    asking.start()
    assert away.asked.wait(60.0)
    client.close()
    asking.join(60.0)

    assert [str(error) for error in told] == ["the client was closed"]
    assert away.is_closed


@in_virtual_time
async def test_who_stops_listening_is_gone_for_the_server() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        opened: list[OpenedInMemory] = []
        open_one = server.exchange.open

        async def open_and_keep(request: ClientRequest) -> OpenedInMemory:
            opened.append(await open_one(request))
            return opened[-1]

        server.exchange.open = open_and_keep  # type: ignore[method-assign]  # so that the test sees it
        client = AsyncClient(server.world, [server.exchange])
        await client.jobs.register(a_job("web"))

        async with aclosing(client.events.stream(["Job"], index=0)) as lines:
            assert [event.key for event in (await anext(lines)).events] == ["web"]

        assert [one.gone.is_set() for one in opened] == [True]
        assert server.server.events is not None
        assert server.server.events.subscription_count == 0
