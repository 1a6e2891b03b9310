"""Waiting for the end of a caller, with an HTTP server whose messages are always ready."""

import asyncio

import pytest

from tests.cluster.api.test_websocket_relay import build_relay, reject_local_request
from tests.kit.in_memory_relay import InMemoryRelay
from wharf.cluster.api.asgi import Message
from wharf.cluster.api.requests.body import BodyLimit, iterate_body, read_body, wait_for_disconnect

TOO_MANY_MESSAGES = 1_000


class EndlessMessages:
    """The `receive` of an HTTP server that returns the same message at once, whenever it is called."""

    def __init__(self, *, more_body: bool) -> None:
        self._more_body = more_body
        self.count = 0

    async def receive(self) -> Message:
        self.count += 1
        if self.count > TOO_MANY_MESSAGES:
            raise AssertionError("messages are received in an endless loop")
        return {"type": "http.request", "body": b"", "more_body": self._more_body}


class UnlimitedBody:
    """The memory of a body, without a limit."""

    def __init__(self) -> None:
        self.size = 0

    def grow(self, size: int) -> None:
        self.size += size


async def permit() -> None:
    return


def test_a_message_after_the_end_of_the_body_counts_as_a_disconnect() -> None:
    messages = EndlessMessages(more_body=False)

    asyncio.run(wait_for_disconnect(messages.receive))

    assert messages.count == 2


def test_a_relayed_request_ends_at_a_message_after_the_end_of_its_body() -> None:
    async def scenario() -> int:
        other_region = InMemoryRelay(reject_local_request)
        other_region.is_frozen = True
        messages = EndlessMessages(more_body=False)
        scope = {"type": "http", "method": "GET", "path": "/v1/jobs", "query_string": b"region=west", "headers": []}
        await build_relay("http://west", http_relay=other_region)(scope, messages.receive, lambda _message: permit())
        return messages.count

    assert asyncio.run(scenario()) <= 4


@pytest.mark.parametrize("how", ["wait", "read", "iterate"])
def test_parts_that_are_always_ready_do_not_hold_the_event_loop(how: str) -> None:
    messages = EndlessMessages(more_body=True)

    async def read() -> None:
        match how:
            case "wait":
                await wait_for_disconnect(messages.receive)
            case "read":
                await read_body(messages.receive, {}, BodyLimit(1_000, "a setting"), UnlimitedBody(), permit)
            case _:
                async for _ in iterate_body(messages.receive):
                    pass

    async def scenario() -> int:
        reading = asyncio.ensure_future(read())
        for _ in range(10):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        return messages.count

    assert asyncio.run(scenario()) <= 12
