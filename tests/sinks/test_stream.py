"""The stream of a process: followers, their limits, and where they continue."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.sinks.receivers import ExampleRecord, make_line, read_ids
from wharf.sinks.build import build_stream
from wharf.sinks.records import LossRecord, RecordHead, RecordSeverity, build_schema, decode_head, parse_record_time_ns
from wharf.sinks.settings import SinkKind, SinkSettings
from wharf.sinks.spool import SpoolError
from wharf.sinks.stream import MAX_FOLLOWER_RECORDS, MAX_FOLLOWERS, RecordStream, StreamFollower, TooManyFollowers
from wharf.world import RealWorld


def publish(stream: RecordStream, *numbers: int, record_type: str = "test.example") -> None:
    for number in numbers:
        stream.publish(record_type, str(number), make_line(number))


def take_ids(follower: StreamFollower) -> list[str]:
    return [entry.id for entry in follower.take()[0]]


def test_a_follower_gets_the_records_of_its_types_from_now_on() -> None:
    stream = RecordStream()
    publish(stream, 1)
    follower, other = stream.follow(), stream.follow(frozenset({"other"}))
    publish(stream, 2, 3)
    publish(stream, 4, record_type="other")

    assert (take_ids(follower), take_ids(other), take_ids(follower)) == (["2", "3", "4"], ["4"], [])


@pytest.mark.parametrize(("after_id", "expected"), [("2", ["3", "4"]), ("4", []), ("0", ["1", "2", "3", "4"])])
def test_a_follower_continues_after_the_last_record_that_it_received(after_id: str, expected: list[str]) -> None:
    stream = RecordStream()
    publish(stream, 1, 2, 3, 4)

    assert take_ids(stream.follow(after_id=after_id)) == expected


def test_a_follower_that_does_not_read_loses_records_and_learns_how_many() -> None:
    stream = RecordStream()
    follower = stream.follow()
    publish(stream, *range(MAX_FOLLOWER_RECORDS + 5))

    entries, lost = follower.take()
    assert (len(entries), lost, follower.take()) == (MAX_FOLLOWER_RECORDS, 5, ([], 0))


def test_the_number_of_followers_is_limited() -> None:
    stream = RecordStream()
    followers = [stream.follow() for _ in range(MAX_FOLLOWERS)]

    with pytest.raises(TooManyFollowers):
        stream.follow()
    stream.unfollow(followers[0])

    assert take_ids(stream.follow()) == []


def test_followers_end_with_the_stream() -> None:
    async def main() -> tuple[bool, list[str]]:
        stream = RecordStream()
        follower = stream.follow()
        publish(stream, 1)
        await follower.wait(5.0)
        ids = take_ids(follower)
        await follower.wait(0.0)
        await stream.close()
        await follower.wait(5.0)
        return follower.is_ended, ids

    assert asyncio.run(main()) == (True, ["1"])


def test_each_sink_gets_its_types(tmp_path: Path) -> None:
    settings = [
        SinkSettings(name="all", kind=SinkKind.FILE, path=tmp_path / "all"),
        SinkSettings(name="some", kind=SinkKind.FILE, path=tmp_path / "some", types=("other",)),
    ]

    async def main() -> bool:
        stream = build_stream(settings[1:], RealWorld(), folder=tmp_path, source="h1/p1")
        is_wanted = stream.wants("test.example") or not stream.wants("other")
        await stream.close()
        stream = build_stream(settings, RealWorld(), folder=tmp_path, source="h1/p1")
        stream.open()
        publish(stream, 1)
        publish(stream, 2, record_type="other")
        await stream.close()
        return is_wanted

    assert not asyncio.run(main())
    assert [read_ids((tmp_path / name).read_bytes()) for name in ("all", "some")] == [["1", "2"], ["2"]]


def test_a_sink_whose_spool_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "b.spool").mkdir()
    settings = [SinkSettings(name=name, kind=SinkKind.HTTP, url="http://127.0.0.1:9/") for name in ("a", "b")]

    async def main() -> None:
        with pytest.raises(SpoolError, match=r"b\.spool"):
            build_stream(settings, RealWorld(), folder=tmp_path, source="h1/p1")

    asyncio.run(main())


# -- records ---------------------------------------------------------------------------------------------------------


def test_the_head_of_a_record_has_what_formatters_need() -> None:
    head = decode_head(make_line(3))

    assert (head.type, head.version, head.id, head.source, head.severity) == (
        "test.example",
        1,
        "3",
        "h1/p1",
        RecordSeverity.NOTICE,
    )
    assert (parse_record_time_ns(head.time), msgspec.json.decode(head.data)["number"]) == (1_800_000_000_250_000_000, 3)


def test_a_record_without_the_newest_fields_is_readable() -> None:
    head = decode_head(b'{"type":"x","id":"1","time":"2027-01-15T08:00:00Z","unknown":1}')

    assert (head.version, head.severity, bytes(head.data)) == (1, RecordSeverity.INFO, b"{}")


def test_the_schema_describes_every_type_and_field() -> None:
    schema = build_schema([LossRecord, ExampleRecord])

    names = {option["$ref"] for option in schema["anyOf"]}
    assert names == {"#/$defs/LossRecord", "#/$defs/ExampleRecord"}
    properties = schema["$defs"]["LossRecord"]["properties"]
    assert properties["type"]["enum"] == ["sink.loss"]
    assert set(properties) == {"type", "data", *RecordHead.__struct_fields__}
