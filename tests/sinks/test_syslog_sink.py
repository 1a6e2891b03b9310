"""Syslog sinks with real receivers: the form of messages, every transport, and a receiver that restarts."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.certificates import make_certificates
from tests.ports import free_ports
from tests.sinks.receivers import DatagramReceiver, NamedBatch, StreamReceiver, make_line, read_ids
from tests.waiting import wait_until
from wharf.sinks.port import RecordsRejected, SinkUnavailable
from wharf.sinks.records import RecordSeverity
from wharf.sinks.syslog_sink import InvalidSyslogUrl, SyslogAddress, SyslogSink, format_syslog_message, read_syslog_url


@pytest.fixture
def stream_receiver() -> Iterator[StreamReceiver]:
    receiver = StreamReceiver()
    receiver.start()
    yield receiver
    receiver.stop()


def send(url: str, *batches: list[bytes]) -> None:
    async def main() -> None:
        sink = SyslogSink(read_syslog_url(url), facility=16)
        try:
            for batch in batches:
                await sink.send(NamedBatch("s-1", batch))
        finally:
            await sink.close()

    asyncio.run(main())


def split_message(message: bytes) -> tuple[str, bytes]:
    """Return the fields of a message, and its text."""
    *fields, text = message.split(b" ", 7)
    return b" ".join(fields).decode(), text


def test_a_record_is_the_text_of_a_message_with_its_time_host_and_type() -> None:
    line = make_line(1, text="a b", severity=RecordSeverity.WARNING)

    fields, text = split_message(format_syslog_message(line, facility=13, process_id=7))

    assert (fields, text) == ("<108>1 2027-01-15T08:00:00.250Z h1 wharf 7 test.example -", line)


def test_fields_have_only_printable_signs() -> None:
    line = make_line(1).replace(b"h1/p1", "hé 1".encode()).replace(b"test.example", b"x" * 40)

    fields, _ = split_message(format_syslog_message(line, facility=16, process_id=7))

    assert fields.split(" ")[2:6] == ["h??1", "wharf", "7", "x" * 32]


def test_a_line_that_is_no_record_is_rejected_by_the_formatter() -> None:
    with pytest.raises(RecordsRejected, match="not a record"):
        format_syslog_message(b"{}", facility=16, process_id=7)


def test_messages_are_datagrams_over_udp() -> None:
    receiver = DatagramReceiver()

    send(receiver.url, [make_line(1), make_line(2)])

    messages = receiver.receive(2)
    receiver.close()
    assert [read_ids(split_message(message)[1]) for message in messages] == [["1"], ["2"]]
    assert split_message(messages[0])[0] == f"<133>1 2027-01-15T08:00:00.250Z h1 wharf {os.getpid()} test.example -"


def test_a_message_too_long_for_a_datagram_is_rejected() -> None:
    receiver = DatagramReceiver()

    with pytest.raises(RecordsRejected, match="use tcp:// for records this long"):
        send(receiver.url, [make_line(1, text="x" * 66_000)])

    receiver.close()


def test_messages_are_datagrams_or_lines_on_a_unix_socket(tmp_path: Path) -> None:
    datagrams, lines = DatagramReceiver(tmp_path / "datagrams"), StreamReceiver(tmp_path / "stream")
    lines.start()

    for receiver in (datagrams, lines):
        send(receiver.url, [make_line(1)], [make_line(2)])

    assert [read_ids(split_message(message)[1]) for message in datagrams.receive(2)] == [["1"], ["2"]]
    wait_until(lambda: lines.received.count(b"\n") == 2, what="two lines")
    assert [read_ids(split_message(line)[1]) for line in lines.received.splitlines()] == [["1"], ["2"]]
    datagrams.close()
    lines.stop()


def test_messages_over_tcp_have_their_length_before_them(stream_receiver: StreamReceiver) -> None:
    send(stream_receiver.url, [make_line(1, text="é\n"), make_line(2)], [make_line(3)])

    wait_until(lambda: len(stream_receiver.list_messages()) == 3, what="three messages")
    assert [read_ids(split_message(message)[1]) for message in stream_receiver.list_messages()] == [["1"], ["2"], ["3"]]


def test_the_last_batch_is_sent_again_after_a_receiver_restarted(stream_receiver: StreamReceiver) -> None:
    async def main() -> None:
        sink = SyslogSink(read_syslog_url(stream_receiver.url), facility=16)
        await sink.send(NamedBatch("s-1", [make_line(1)]))
        await asyncio.to_thread(stream_receiver.stop)
        stream_receiver.received = b""
        await asyncio.to_thread(stream_receiver.start)
        await sink.send(NamedBatch("s-2", [make_line(2)]))
        await sink.close()

    asyncio.run(main())

    wait_until(lambda: len(stream_receiver.list_messages()) == 2, what="two messages")
    assert [read_ids(split_message(message)[1]) for message in stream_receiver.list_messages()] == [["1"], ["2"]]


def test_messages_can_be_sent_over_tls(tmp_path: Path) -> None:
    created = make_certificates(tmp_path)
    receiver = StreamReceiver(tls=created.build_server_context())
    receiver.start()

    async def main() -> None:
        address = read_syslog_url(f"tls://localhost:{receiver.port}")
        sink = SyslogSink(address, facility=16, ca_file=created.authority_file)
        for number in (1, 2):
            await sink.send(NamedBatch("s-1", [make_line(number)]))
        wait_until(lambda: len(receiver.list_messages()) == 2, what="two messages")
        await sink.close()

    asyncio.run(main())
    receiver.stop()
    assert [read_ids(split_message(message)[1]) for message in receiver.list_messages()] == [["1"], ["2"]]


def test_a_receiver_with_an_unknown_certificate_gets_nothing(tmp_path: Path) -> None:
    receiver = StreamReceiver(tls=make_certificates(tmp_path).build_server_context())
    receiver.start()

    with pytest.raises(SinkUnavailable, match="certificate verify failed"):
        send(f"tls://localhost:{receiver.port}", [make_line(1)])

    receiver.stop()
    assert receiver.received == b""


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_a_receiver_that_is_away_is_tried_again(scheme: str, tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none" if scheme == "unix" else f"tcp://127.0.0.1:{free_ports(1)[0]}"

    with pytest.raises(SinkUnavailable, match=r"^syslog receiver .+: (Connection refused|No such file or directory)$"):
        send(url, [make_line(1)])


def test_a_file_is_not_a_receiver(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SinkUnavailable, match="not a socket"):
        send(f"unix://{tmp_path}/file", [make_line(1)])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("udp://logs.example", SyslogAddress("udp", "logs.example", 514)),
        ("tcp://10.0.0.1:1514", SyslogAddress("tcp", "10.0.0.1", 1514)),
        ("tls://[::1]", SyslogAddress("tls", "::1", 6514)),
        ("unix:///dev/log", SyslogAddress("unix", path="/dev/log")),
    ],
)
def test_a_url_names_transport_and_address(url: str, expected: SyslogAddress) -> None:
    assert read_syslog_url(url) == expected


@pytest.mark.parametrize(
    "url", ["", "logs.example:514", "http://a", "tcp://", "tcp://a:0", "tcp://a:x", "udp://a/path", "unix://dev/log"]
)
def test_an_invalid_url_is_refused_with_examples(url: str) -> None:
    with pytest.raises(InvalidSyslogUrl, match="write udp://host:514"):
        read_syslog_url(url)
