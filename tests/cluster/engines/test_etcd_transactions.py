"""Keys, epochs and transactions of the etcd engine, without a server: what is compared, put and deleted."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.cluster.engines.contract import a_write, drop, put, unchanged
from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.commit import build_write_transaction, commit_write, compute_write_limits
from wharf.cluster.engines.etcd.layout import (
    EMPTY_LOG_EPOCH,
    LAYOUT_FORMAT,
    Epoch,
    EpochValue,
    GenerationKeys,
    LogKeys,
    PastEpoch,
    UnknownLogFormat,
    decode_epoch,
    decode_head,
    decode_past_epoch,
    encode_value,
    make_fence_value,
    make_first_epoch_value,
    make_next_epoch_value,
    raise_marks,
)
from wharf.cluster.engines.etcd.session import EtcdSession
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.port import LogUnavailable, WriteRejected
from wharf.world import RealWorld

SETTINGS = EtcdSettings(endpoints=("127.0.0.1:1",), prefix="/p", max_txn_ops=32)
EPOCH = Epoch(number=2, generation="g2", base=1_000, since=50, fence=60)
RECORD = b"/p/g/g2/r/"


def make_session(settings: EtcdSettings = SETTINGS) -> EtcdSession:
    return EtcdSession(settings, RealWorld())


def build(write: Any, epoch: Epoch = EPOCH) -> Any:
    session = make_session()
    return build_write_transaction(session, write, epoch, session.get_generation_keys(epoch))


def list_puts(request: Any) -> dict[bytes, bytes]:
    puts = [operation.request_put for operation in request.success if operation.HasField("request_put")]
    return {each.key: each.value for each in puts}


# --- transactions ---


def test_a_write_compares_the_fence_and_every_condition() -> None:
    request = build(a_write(put("a"), conditions=[unchanged("a", 1_007), unchanged("b", 0), unchanged("c", 999)]))

    assert [(each.key, each.mod_revision) for each in request.compare] == [
        (b"/p/epoch", 60), (RECORD + b"jobs/a", 7), (RECORD + b"jobs/b", 0), (RECORD + b"jobs/c", -1)
    ]  # fmt: skip
    # A failed comparison is explained by a read of the same keys, the records without their bytes.
    reads = [operation.request_range for operation in request.failure]
    assert [(each.key, each.keys_only) for each in reads] == [
        (each.key, each.key != b"/p/epoch") for each in request.compare
    ]


def test_a_write_puts_its_records_and_the_head_and_marks_tables_that_only_lose_records() -> None:
    write = a_write(put("a", b"1"), drop("b"), drop("n", table="nodes"), put("e", b"2", table="evaluations"), id="w1")
    request = build(write)

    puts = list_puts(request)
    head = decode_head(puts.pop(b"/p/head"))
    assert puts == {
        RECORD + b"jobs/a": b"1", RECORD + b"evaluations/e": b"2", b"/p/g/g2/last/nodes": b"",
    }  # fmt: skip
    assert (head.format, head.id, head.kind, head.cause) == (LAYOUT_FORMAT, "w1", "test", write.cause)
    assert (head.puts, head.drops) == (2, [("jobs", "b"), ("nodes", "n")])
    deletes = [each.request_delete_range.key for each in request.success if each.HasField("request_delete_range")]
    assert deletes == [RECORD + b"jobs/b", RECORD + b"nodes/n"]


def test_a_write_on_a_lease_marks_its_records_as_held() -> None:
    request = build(a_write(put("a", b"1"), drop("b"), lease=77))

    puts = [operation.request_put for operation in request.success if operation.HasField("request_put")]
    assert [(each.key, each.lease) for each in puts] == [
        (RECORD + b"jobs/a", 77), (b"/p/g/g2/held/jobs/a", 0), (b"/p/head", 0)
    ]  # fmt: skip


def test_the_first_write_of_an_empty_log_puts_its_epoch() -> None:
    request = build(a_write(put("a")), EMPTY_LOG_EPOCH)

    assert (request.compare[0].key, request.compare[0].mod_revision) == (b"/p/epoch", 0)
    assert decode_epoch(list_puts(request)[b"/p/epoch"], 41) == Epoch(0, "0", -40, 41, 41)
    assert b"/p/epoch" not in list_puts(build(a_write(put("a"))))


def test_the_limits_leave_room_for_what_the_engine_adds() -> None:
    limits = compute_write_limits(replace(SETTINGS, max_txn_ops=128, max_request_bytes=1_572_864))
    assert (limits.changes, limits.conditions, limits.bytes) == (112, 127, 1_400_000)
    assert compute_write_limits(replace(SETTINGS, max_request_bytes=200_000)).bytes == 100_000


@pytest.mark.parametrize(("tables", "is_rejected"), [(15, False), (16, True)])
async def test_a_write_that_needs_too_many_operations_is_rejected_before_it_is_sent(
    tables: int, is_rejected: bool
) -> None:
    """A deletion from a table of its own needs two operations, and the head one."""
    session = make_session(replace(SETTINGS, dial_timeout_s=0.01))
    session.adopt_epoch(EPOCH)
    write = a_write(*(drop("x", table=f"t{number}") for number in range(tables)))
    limits = compute_write_limits(SETTINGS)

    if is_rejected:
        outcome = await commit_write(session, write, limits)
        assert isinstance(outcome, WriteRejected)
        assert outcome.why.startswith("the write needs 33 operations of etcd, which takes 32")
    else:
        with pytest.raises(LogUnavailable):
            await commit_write(session, write, limits)


async def test_a_write_that_is_too_large_with_its_keys_is_rejected_before_it_is_sent() -> None:
    write = a_write(*(put("k" * 500 + str(number)) for number in range(10)))
    session = make_session(replace(SETTINGS, max_request_bytes=5_000))
    session.adopt_epoch(EPOCH)

    outcome = await commit_write(session, write, compute_write_limits(session.settings))

    assert isinstance(outcome, WriteRejected)
    assert outcome.why.endswith(" bytes with its keys and conditions; etcd takes 5000")


# --- epochs ---


def test_an_epoch_converts_revisions_indexes_and_versions() -> None:
    assert (EPOCH.to_index(7), EPOCH.to_revision(1_007)) == (1_007, 7)
    assert [EPOCH.version_to_revision(version) for version in (0, 999, 1_000, 1_001)] == [0, -1, -1, 1]


def test_the_values_of_the_epoch_key_are_read_as_they_were_written() -> None:
    assert decode_epoch(encode_value(make_first_epoch_value()), 9) == Epoch(0, "0", -8, 9, 9)
    following = make_next_epoch_value(number=4, generation="x", base=70)
    assert decode_epoch(encode_value(following), 9) == Epoch(4, "x", 70, 9, 9)
    assert decode_epoch(encode_value(make_fence_value(EPOCH)), 99) == replace(EPOCH, fence=99)
    assert decode_past_epoch(encode_value(PastEpoch(3, 4))) == PastEpoch(3, 4)
    newer = EpochValue(LAYOUT_FORMAT + 1, 0, "0", None, None)
    with pytest.raises(UnknownLogFormat, match="has format 2 and this program knows formats up to 1"):
        decode_epoch(encode_value(newer), 9)
    for decode in (lambda data: decode_epoch(data, 9), decode_head, decode_past_epoch):
        with pytest.raises(UnknownLogFormat, match="in etcd cannot be read"):
            decode(b"\xc1")


def test_only_a_newer_epoch_or_fence_is_adopted() -> None:
    session, begun = make_session(), list[str]()
    session.on_new_epoch = lambda: begun.append("new")
    session.adopt_epoch(EPOCH)
    session.adopt_epoch(replace(EPOCH, number=1, fence=99))
    session.adopt_epoch(replace(EPOCH, fence=59))
    session.adopt_epoch(EPOCH)
    assert (session.epoch, begun) == (EPOCH, ["new"])

    session.adopt_epoch(replace(EPOCH, fence=61))
    assert (session.epoch.fence, begun) == (61, ["new"])
    assert session.generation_keys.prefix == b"/p/g/g2/"

    session.adopt_epoch(replace(EPOCH, number=3, generation="g3", fence=70))
    assert (session.epoch.number, session.generation_keys.prefix, begun) == (3, b"/p/g/g3/", ["new", "new"])
    assert session.get_generation_keys(EPOCH).prefix == b"/p/g/g2/"


def test_the_time_of_contact_is_when_the_newest_answered_request_was_sent() -> None:
    session = make_session()
    older = session.begin_request()
    newer = older._replace(sent_s=older.sent_s + 1)
    contacts = []
    for revision, request in ((5, None), (7, newer), (6, older)):
        session.record_revision(revision, request)
        contacts.append(session.last_contact_s)

    assert contacts == [None, newer.sent_s, newer.sent_s]
    assert session.begin_request().seen_revision == 7
    assert session.is_current(older)
    session.replacement_count += 1
    assert not session.is_current(older)


# --- keys ---


def test_the_keys_of_a_record_are_converted_into_each_other() -> None:
    keys = LogKeys("/a/b/").build_generation_keys("7")
    record_key = keys.build_record_key("jobs", "x/y")

    assert record_key == b"/a/b/g/7/r/jobs/x/y"
    assert keys.split_record_key(record_key) == ("jobs", "x/y")
    assert keys.build_held_key(record_key) == b"/a/b/g/7/held/jobs/x/y"
    assert keys.convert_held_key(keys.build_held_key(record_key)) == record_key
    assert (keys.build_last_key("jobs"), keys.build_ended_key("jobs")) == (
        b"/a/b/g/7/last/jobs", b"/a/b/g/7/ended/jobs"
    )  # fmt: skip
    assert keys.build_past_key(12) == b"/a/b/g/7/past/12"
    assert keys.read_mark_table(b"/a/b/g/7/last/jobs") == "jobs"
    assert keys.find_table_end("jobs") == b"/a/b/g/7/r/jobs0"


def test_a_range_of_keys_ends_after_its_prefix() -> None:
    keys = LogKeys("/p")
    assert (keys.prefix, keys.prefix_end, keys.epoch, keys.head) == (b"/p/", b"/p0", b"/p/epoch", b"/p/head")
    assert (keys.restoring, keys.generations) == (b"/p/restoring", b"/p/g/")
    generation = GenerationKeys(b"/p/g/1/")
    for start, end in (
        (generation.prefix, generation.prefix_end), (generation.records, generation.records_end),
        (generation.last, generation.last_end), (generation.held, generation.held_end),
        (generation.ended, generation.ended_end), (generation.past, generation.past_end),
    ):  # fmt: skip
        assert end == messages.find_prefix_end(start) == start[:-1] + b"0"


def test_marks_are_raised_and_never_lowered() -> None:
    marks = {"jobs": 5, "nodes": 7}

    raise_marks(marks, {"jobs": 6, "nodes": 6, "quotas": 1})

    assert marks == {"jobs": 6, "nodes": 7, "quotas": 1}


def test_messages_name_their_keys_values_and_limits() -> None:
    read = messages.build_range(b"a", b"b", limit=3, revision=4, keys_only=True)
    assert (read.key, read.range_end, read.limit, read.revision, read.keys_only) == (b"a", b"b", 3, 4, True)
    deletion = messages.build_delete_range(b"a", b"b").request_delete_range
    assert (deletion.key, deletion.range_end) == (b"a", b"b")
    transaction = messages.build_transaction(
        [messages.compare_revision(b"c", 1)], [messages.build_put(b"p", b"v", 5)], [messages.build_read(b"r")]
    )
    assert [each.key for each in transaction.compare] == [b"c"]
    assert (transaction.success[0].request_put.value, transaction.success[0].request_put.lease) == (b"v", 5)
    assert transaction.failure[0].request_range.key == b"r"
    login = messages.build_authentication("user", "password")
    assert (login.name, login.password) == ("user", "password")
