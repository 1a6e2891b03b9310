"""Callers near a limit are told of once a window at 80 and at 95 per cent."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.limits.front.desks import ADA, Caller, MovingWorld, a_desk, ask, run
from wharf.limits.config import read_settings
from wharf.limits.decisions.alerts import Alert, AlertQueue, Webhook
from wharf.limits.rules import InvalidFile

TWENTY_A_MINUTE = '[[rule]]\nname = "core"\nwindow = "1m"\nceiling = 20\n'


def test_each_level_is_told_once_a_window() -> None:
    world = MovingWorld()
    desk = a_desk(TWENTY_A_MINUTE, world=world)
    desk.alerts = AlertQueue()
    for _ in range(25):
        ask(desk, Caller(token=ADA))
    first = desk.alerts.take_pending()
    world.advance(61)
    for _ in range(16):
        ask(desk, Caller(token=ADA))

    assert [(a.caller, a.resource, a.percent, a.used, a.limit) for a in first] == [
        ("user:ada", "core", 80, 16, 20),
        ("user:ada", "core", 95, 19, 20),
    ]
    assert [a.percent for a in desk.alerts.take_pending()] == [80]


def test_alerts_are_posted_and_a_receiver_that_is_away_costs_a_count(caplog: pytest.LogCaptureFixture) -> None:
    alert = Alert("user:ada", "core", 80, 16, 20, 1_800_000_000)

    async def scenario() -> tuple[bytes, int]:
        body: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body.set_result(await reader.readexactly(length))
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(receive, "127.0.0.1", 0)
        webhook = Webhook(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/alerts")
        await webhook.send([alert])
        server.close()
        await webhook.send([alert])
        return await body, webhook.failures

    body, failures = run(scenario)

    assert msgspec.json.decode(body) == {"alerts": [msgspec.to_builtins(alert)]}
    assert failures == 1
    assert "sending alerts to the webhook failed alerts=1" in caplog.text


def test_the_address_of_a_webhook_is_checked() -> None:
    with pytest.raises(InvalidFile, match=r"webhook.url: 'acme' is not a URL: write https://host/path"):
        read_settings('[webhook]\nurl = "acme"', folder=Path())
