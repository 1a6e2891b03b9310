"""Alerts: once per window when a caller has used 80, and 95 percent of a limit."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.limits.decision_services import (
    ADA,
    AdvancingWorld,
    AsgiCaller,
    make_decision_service,
    run_async,
    send_request,
)
from wharf.limits.config import read_settings
from wharf.limits.decisions.alerts import Alert, AlertQueue, Webhook
from wharf.limits.rules import InvalidFile

TWENTY_A_MINUTE = '[[rule]]\nname = "core"\nwindow = "1m"\nceiling = 20\n'


def test_each_level_sends_one_alert_per_window() -> None:
    world = AdvancingWorld()
    decision_service = make_decision_service(TWENTY_A_MINUTE, world=world)
    decision_service.alerts = AlertQueue()
    for _ in range(25):
        send_request(decision_service, AsgiCaller(token=ADA))
    first = decision_service.alerts.take_pending()
    world.advance(61)
    for _ in range(16):
        send_request(decision_service, AsgiCaller(token=ADA))

    assert [(alert.caller, alert.resource, alert.percent, alert.used, alert.limit) for alert in first] == [
        ("user:ada", "core", 80, 16, 20),
        ("user:ada", "core", 95, 19, 20),
    ]
    assert [alert.percent for alert in decision_service.alerts.take_pending()] == [80]


def test_alerts_are_posted_and_an_unreachable_receiver_is_counted_as_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
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

    body, failures = run_async(scenario)

    assert msgspec.json.decode(body) == {"alerts": [msgspec.to_builtins(alert)]}
    assert failures == 1
    assert "sending alerts to the webhook failed alerts=1" in caplog.text


@pytest.mark.parametrize(("status", "failures"), [(b"204 No Content", 0), (b"500 Error", 1), (b"404 Not Found", 1)])
def test_an_alert_that_the_receiver_refuses_is_a_failure(status: bytes, failures: int) -> None:
    async def scenario() -> int:
        async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(receive, "127.0.0.1", 0)
        webhook = Webhook(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/alerts")
        await webhook.send([Alert("user:ada", "core", 80, 16, 20, 1_800_000_000)])
        server.close()
        return webhook.failures

    assert run_async(scenario) == failures


def test_too_many_waiting_alerts_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wharf.limits.decisions.alerts.MAX_PENDING_ALERTS", 1)
    decision_service = make_decision_service(TWENTY_A_MINUTE)
    decision_service.alerts = AlertQueue()
    for _ in range(19):
        send_request(decision_service, AsgiCaller(token=ADA))

    assert decision_service.alerts.dropped_alerts == 1
    assert [alert.percent for alert in decision_service.alerts.take_pending()] == [80]


def test_the_url_of_a_webhook_is_checked() -> None:
    with pytest.raises(InvalidFile, match=r"webhook.url: 'acme' is not a URL: write https://host/path"):
        read_settings('[webhook]\nurl = "acme"', folder=Path())
