"""HTTP sinks with a real receiver: forms of bodies, what a status means, and a receiver that restarts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.ports import free_ports
from tests.sinks.receivers import (
    HttpReceiver,
    NamedBatch,
    ReceivedRequest,
    accept,
    make_line,
    read_ids,
    running_receiver,
)
from tests.waiting import wait_on_loop_until
from wharf.sinks import delivery as delivery_module
from wharf.sinks.build import build_stream
from wharf.sinks.http_sink import BODIES, OTLP_BODY, HttpBody, HttpSender, HttpSink
from wharf.sinks.port import RecordsRejected, SinkUnavailable
from wharf.sinks.records import RecordSeverity
from wharf.sinks.settings import HttpFormat, SinkKind, SinkSettings
from wharf.world import RealWorld


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with running_receiver() as running:
        yield running


def send(url: str, *lines: bytes, body: HttpBody = BODIES[HttpFormat.LINES], **options: Any) -> int:
    """Send one batch and return how many of its records were rejected."""

    async def main() -> int:
        sink = HttpSink(HttpSender(timeout_s=5.0), url, body, headers=options.pop("headers", {}), **options)
        try:
            return await sink.send(NamedBatch("s-1", list(lines)))
        finally:
            await sink.close()

    return asyncio.run(main())


def test_a_batch_is_posted_as_lines_with_its_name_and_the_secret(receiver: HttpReceiver) -> None:
    send(receiver.url, make_line(1), make_line(2), headers={"authorization": "Bearer x"})

    (request,) = receiver.accepted
    assert (request.method, request.path, read_ids(request.body)) == ("POST", "/records", ["1", "2"])
    assert {name: request.headers[name] for name in ("content-type", "wharf-batch", "authorization")} == {
        "content-type": "application/x-ndjson",
        "wharf-batch": "s-1",
        "authorization": "Bearer x",
    }


def test_a_batch_can_be_an_array_and_compressed(receiver: HttpReceiver) -> None:
    send(receiver.url, make_line(1), make_line(2), body=BODIES[HttpFormat.ARRAY], is_compressed=True)

    (request,) = receiver.accepted
    assert [record["id"] for record in msgspec.json.decode(request.body)] == ["1", "2"]
    assert (request.headers["content-type"], request.headers["content-encoding"]) == ("application/json", "gzip")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_status_about_the_content_rejects_the_records(receiver: HttpReceiver, status: int) -> None:
    receiver.answer = lambda _request: (status, {}, b"line 1:\n bad")

    with pytest.raises(RecordsRejected, match=rf"/records replied {status} line 1: bad$"):
        send(receiver.url, make_line(1))


@pytest.mark.parametrize("status", [301, 401, 403, 404, 408, 429, 500, 503])
def test_any_other_status_is_tried_again(receiver: HttpReceiver, status: int) -> None:
    receiver.answer = lambda _request: (status, {"retry-after": "7", "location": "/elsewhere"}, b"")

    with pytest.raises(SinkUnavailable, match=rf"/records replied {status}$") as caught:
        send(receiver.url, make_line(1))

    assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize("retry_after", ["", "soon", "-1", "99999999", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_retry_time_that_is_no_number_is_ignored(receiver: HttpReceiver, retry_after: str) -> None:
    receiver.answer = lambda _request: (503, {"retry-after": retry_after}, b"")

    with pytest.raises(SinkUnavailable) as caught:
        send(receiver.url, make_line(1))

    assert caught.value.retry_after_s is None


def test_a_receiver_that_does_not_listen_is_tried_again() -> None:
    (port,) = free_ports(1)

    with pytest.raises(SinkUnavailable, match=f"127.0.0.1:{port}/: "):
        send(f"http://127.0.0.1:{port}/", make_line(1))


def test_a_query_is_not_in_messages(receiver: HttpReceiver) -> None:
    receiver.answer = lambda _request: (403, {}, b"")

    with pytest.raises(SinkUnavailable, match=r"/records replied 403$"):
        send(f"{receiver.url}?token=secret", make_line(1))

    assert receiver.requests[0].path == "/records?token=secret"


def test_a_missing_ca_file_is_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        sender = HttpSender(timeout_s=5.0, ca_file=str(tmp_path / "none.pem"))
        with pytest.raises(SinkUnavailable, match="No such file"):
            await sender.send("POST", "https://127.0.0.1:9/", b"", {})

    asyncio.run(main())


def test_a_long_reply_is_not_read_to_its_end(receiver: HttpReceiver) -> None:
    receiver.answer = lambda _request: (200, {}, b"x" * 100_000)

    with pytest.raises(SinkUnavailable, match="more than 65536 bytes"):
        send(receiver.url, make_line(1))


def run_stream(tmp_path: Path, settings: SinkSettings, steps: Any) -> None:
    """Run an asynchronous function with an open stream, then close the stream."""

    async def main() -> None:
        stream = build_stream([settings], RealWorld(), folder=tmp_path, source="h1/p1")
        stream.open()
        try:
            await steps(stream)
        finally:
            await stream.close()

    asyncio.run(main())


def test_nothing_is_lost_while_a_receiver_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STORE_INTERVAL_S", 0.0), ("MIN_RETRY_S", 0.01), ("MAX_RETRY_S", 0.05)):
        monkeypatch.setattr(delivery_module, name, value)
    receiver = HttpReceiver()
    settings = SinkSettings(name="out", kind=SinkKind.HTTP, url=receiver.url)

    async def steps(stream: Any) -> None:
        for restart in range(4):
            for number in range(100):
                stream.publish("test.example", "", make_line(restart * 100 + number))
                await asyncio.sleep(0)
                if number == 50:
                    await asyncio.to_thread(receiver.stop if restart % 2 else receiver.start)
        await asyncio.to_thread(receiver.stop)
        await asyncio.to_thread(receiver.start)
        await wait_on_loop_until(lambda: stream.describe_sinks()[0].waiting_records == 0, what="an empty spool")

    try:
        run_stream(tmp_path, settings, steps)
    finally:
        receiver.stop()

    # A batch whose reply was lost arrives twice.
    assert list(dict.fromkeys(receiver.list_accepted_ids())) == [str(number) for number in range(400)]


def test_a_receiver_that_refuses_a_batch_for_its_size_gets_its_halves(tmp_path: Path) -> None:
    def refuse_long(request: ReceivedRequest) -> tuple[int, dict[str, str], bytes]:
        return (413, {}, b"") if len(request.body) > 1_000 else accept(request)

    with running_receiver(refuse_long) as receiver:
        settings = SinkSettings(
            name="out", kind=SinkKind.HTTP, url=receiver.url, secret="s3", secret_header="dd-api-key"
        )

        async def steps(stream: Any) -> None:
            for number in range(40):
                stream.publish("test.example", "", make_line(number))
            await wait_on_loop_until(lambda: len(receiver.list_accepted_ids()) == 40, what="all records")

        run_stream(tmp_path, settings, steps)

        assert receiver.list_accepted_ids() == [str(number) for number in range(40)]
        assert {request.headers["dd-api-key"] for request in receiver.accepted} == {"s3"}


# -- OpenTelemetry --------------------------------------------------------------------------------------------------


def test_records_become_logs_of_opentelemetry(receiver: HttpReceiver) -> None:
    send(receiver.url, make_line(1, text="é", severity=RecordSeverity.WARNING), make_line(2), body=OTLP_BODY)

    (request,) = receiver.accepted
    (resource,) = msgspec.json.decode(request.body)["resourceLogs"]
    (scope,) = resource["scopeLogs"]
    first, second = scope["logRecords"]
    assert request.headers["content-type"] == "application/json"
    assert resource["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "wharf"}},
        {"key": "host.name", "value": {"stringValue": "h1"}},
        {"key": "service.instance.id", "value": {"stringValue": "p1"}},
    ]
    assert first == {
        "timeUnixNano": "1800000000250000000",
        "observedTimeUnixNano": "1800000000250000000",
        "severityNumber": 13,
        "severityText": "WARNING",
        "eventName": "wharf.test.example",
        "body": {
            "kvlistValue": {
                "values": [
                    {"key": "number", "value": {"intValue": "1"}},
                    {"key": "text", "value": {"stringValue": "é"}},
                ]
            }
        },
        "attributes": [
            {"key": "wharf.record.type", "value": {"stringValue": "test.example"}},
            {"key": "wharf.record.version", "value": {"intValue": "1"}},
            {"key": "log.record.uid", "value": {"stringValue": "1"}},
        ],
    }
    assert second["severityNumber"] == 10


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"", 0),
        (b"{}", 0),
        (b'{"partialSuccess":{}}', 0),
        (b'{"partialSuccess":{"rejectedLogRecords":"1","errorMessage":"old"}}', 1),
        (b'{"partialSuccess":{"rejectedLogRecords":99}}', 2),
        (b'{"partialSuccess":{"rejectedLogRecords":-9}}', 0),
        (b'{"partialSuccess":[]}', 0),
    ],
)
def test_records_that_a_collector_rejects_are_counted(receiver: HttpReceiver, reply: bytes, expected: int) -> None:
    receiver.answer = lambda _request: (200, {}, reply)

    assert send(receiver.url, make_line(1), make_line(2), body=OTLP_BODY) == expected


def test_a_line_that_is_no_record_is_rejected(receiver: HttpReceiver) -> None:
    with pytest.raises(RecordsRejected, match="not a record"):
        send(receiver.url, b"{}", body=OTLP_BODY)

    assert receiver.requests == []
