"""Both clients have the same methods, and type checkers know their return types. `make check` checks the types of this file."""

from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any, assert_type

from wharf.contract.client import AsyncClient, Response, SyncClient
from wharf.contract.client.nouns import ClientMethods
from wharf.contract.model.jobs.job import Job
from wharf.contract.wire.events import EventLine
from wharf.contract.wire.jobs import messages
from wharf.world import SimulatedWorld

if TYPE_CHECKING:

    def check_types_of_synchronous_client(client: SyncClient) -> None:
        assert_type(client.jobs.read("web", stale=True), Response[Job])
        assert_type(client.jobs.list(per_page=5), Response[list[messages.JobStub]])
        assert_type(client.jobs.list.iterate(prefix="we"), Generator[messages.JobStub, None, None])
        assert_type(client.jobs.read.follow("web"), Generator[Response[Job], None, None])
        assert_type(client.jobs.deregister("web"), messages.JobDeregisterResponse)
        assert_type(client.events.stream(), Generator[EventLine, None, None])
        client.jobs.read("web", per_page=5)  # type: ignore[call-arg]  # a job has no pages
        client.jobs.read(7)  # type: ignore[arg-type]  # an id is text

    async def check_types_of_asyncio_client(client: AsyncClient) -> None:
        assert_type(await client.jobs.read("web", stale=True), Response[Job])
        assert_type(await client.jobs.list(per_page=5), Response[list[messages.JobStub]])
        assert_type(client.jobs.list.iterate(prefix="we"), AsyncGenerator[messages.JobStub, None])
        assert_type(client.jobs.read.follow("web"), AsyncGenerator[Response[Job], None])
        assert_type(await client.jobs.deregister("web"), messages.JobDeregisterResponse)
        assert_type(client.events.stream(), AsyncGenerator[EventLine, None])
        await client.jobs.read("web", per_page=5)  # type: ignore[call-arg]  # a job has no pages


class NoTransport:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nothing is sent here, so nothing needs {name}")


def test_both_clients_have_the_same_method_groups() -> None:
    clients = (SyncClient(SimulatedWorld(1), [NoTransport()]), AsyncClient(SimulatedWorld(1), [NoTransport()]))
    nouns = [{name for name in vars(client) if not name.startswith("_")} for client in clients]

    assert nouns[0] == nouns[1]
    assert len(nouns[0]) > 20
    assert all(isinstance(client, ClientMethods) for client in clients)
