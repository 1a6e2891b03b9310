"""The parts of a simulation: times of log lines, callers, timelines, merged parts, and the chart."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.limits.builders import build_rules_text
from wharf.limits.rules import read_rules
from wharf.limits.simulation import access_log, parallel, replay
from wharf.limits.simulation.access_log import AccessLogReader, LogRecord
from wharf.limits.simulation.chart import render_svg
from wharf.limits.simulation.parallel import (
    SimulationFailed,
    choose_worker_count,
    simulate_lines,
    simulate_logs,
)
from wharf.limits.simulation.replay import PartialResult, RefusalCount, Replay, SimulationResult, count_cpu_ms

NOON_MS = 1_795_262_400_000  # 21 November 2026, 12:00:00 UTC
FEW = '[[rule]]\nname = "few"\nmatch = ["GET /few"]\nresource = "few"\nwindow = "1m"\nceiling = 2'
SLOTS = '[[rule]]\nname = "slots"\ncounts = "connections"\nceiling = 1'
CPU = '[[rule]]\nname = "cpu"\ncounts = "cpu_ms"\nwindow = "1m"\nceiling = 1000'


def make_replay(*rules: str, has_durations: bool = False) -> Replay:
    return Replay(read_rules(build_rules_text(*rules)), has_durations=has_durations)


def make_record(
    second: float = 0,
    *,
    user: str = "ada",
    address: str = "192.0.2.7",
    path: str = "/few",
    duration_ms: int | None = None,
    first_byte_ms: int | None = None,
    upstream_ms: int | None = None,
    status: int = 200,
) -> LogRecord:
    at_ms = NOON_MS + round(second * 1_000)
    return LogRecord(at_ms, address, user, "GET", path, duration_ms, "", first_byte_ms, upstream_ms, status)


def replay_all(target: Replay, *records: LogRecord) -> SimulationResult:
    for record in records:
        target.replay_record(record)
    return target.finish()


# -- log lines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stamp", "at_ms"),
    [
        ("21/Nov/2026:12:00:00 +0000", NOON_MS),
        ("21/Nov/2026:12:00:00", NOON_MS),
        ("21/Nov/2026:14:30:00 +0230", NOON_MS),
        ("21/Nov/2026:09:30:00 -0230", NOON_MS),
        ("21/Nov/2026:12:34:56 +0000", NOON_MS + (34 * 60 + 56) * 1_000),
        ("01/Jan/1970:00:00:01 +0000", 1_000),
        ("31/Dec/1969:23:59:60 +0000", -1_000),  # A leap second counts as the second before.
        ("30/Feb/2026:12:00:00 +0000", None),
        ("21/Foo/2026:12:00:00 +0000", None),
        ("21/Nov/2026:24:00:00 +0000", None),
        ("2x/Nov/2026:12:00:00 +0000", None),
    ],
)
def test_the_time_of_a_line_is_read(stamp: str, at_ms: int | None) -> None:
    line = f'192.0.2.7 - ada [{stamp}] "GET /x HTTP/1.1" 200 1'
    reader, bracketed = AccessLogReader(), AccessLogReader()

    for _ in range(2):
        record = reader.read_line(line.encode())
        assert (None if record is None else record.at_ms) == at_ms
        assert bracketed.read_time_ms(line.encode().split(b" ", 3)[3]) == at_ms
    assert reader.unreadable_lines == (2 if at_ms is None else 0)


def test_the_time_of_each_line_is_its_own() -> None:
    reader = AccessLogReader()
    stamps = ["12:00:00 +0000", "12:00:00 +0100", "12:00:01 +0100", "12:00:00 +0000"]

    ends = [f'[21/Nov/2026:{stamp}] "GET /x HTTP/1.1" 200 1'.encode() for stamp in stamps]
    lines = [reader.read_line(b"h - - " + end) for end in ends]

    expected = [NOON_MS, NOON_MS - 3_600_000, NOON_MS - 3_599_000, NOON_MS]
    assert [record.at_ms for record in lines if record is not None] == expected
    assert [reader.read_time_ms(end) for end in ends] == expected
    assert reader.read_time_ms(b"what") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"method": "A", "path": "/p?q"}', LogRecord(0, "0.0.0.0", "", "A", "/p", None, "q")),
        (b'{"method": "A", "path": "http://h"}', LogRecord(0, "0.0.0.0", "", "A", "/", None)),
        (b'{"method": "A", "path": "/", "remote_addr": "::1"}', LogRecord(0, "::1", "", "A", "/", None)),
        (b'{"method": "A", "path": "/", "remote_addr": "::1", "address": "::2"}', LogRecord(0, "::2", "", "A", "/", None)),
        (b'{"method": "A", "path": "/", "caller": "app:7"}', LogRecord(0, "0.0.0.0", "", "A", "/", None)),
        (b'{"method": "A", "path": "/", "caller": "user:x", "user": "y"}', LogRecord(0, "0.0.0.0", "y", "A", "/", None)),
        (b'{"method": "A", "path": "/", "duration_ms": 0}', LogRecord(0, "0.0.0.0", "", "A", "/", 0)),
        (
            b'{"method": "A", "path": "/", "request_time": 0.5, "upstream_response_time": "0.4", "status": 206}',
            LogRecord(0, "0.0.0.0", "", "A", "/", 500, "", None, 400, 206),
        ),
        (
            b'{"method": "A", "path": "/", "duration_ms": 7, "upstream_header_time": "0.001, 0.002", "status": "101"}',
            LogRecord(0, "0.0.0.0", "", "A", "/", 7, "", 3, None, 101),
        ),
        (
            b'{"method": "A", "path": "/", "first_byte_ms": 2.6, "upstream_response_time": "-"}',
            LogRecord(0, "0.0.0.0", "", "A", "/", 3, "", 3, None),
        ),
        (
            b'{"method": "A", "path": "/", "at_ms": 7, "time": "1970-01-01T00:00:01.5Z"}',
            LogRecord(1_500, "0.0.0.0", "", "A", "/", None),
        ),
    ],
)  # fmt: skip
def test_a_line_of_json_is_read(text: bytes, expected: LogRecord) -> None:
    assert AccessLogReader().read_line(text) == expected


@pytest.mark.parametrize(("text", "count"), [(b"", 0), (b" \n", 0), (b"{}", 1), (b"x", 1)])
def test_only_lines_with_text_are_counted_as_unreadable(text: bytes, count: int) -> None:
    reader = AccessLogReader()

    assert (reader.read_line(text), reader.unreadable_lines) == (None, count)


def test_a_full_cache_of_texts_changes_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "MAX_CACHED_TEXTS", 3)
    reader = AccessLogReader()

    paths = []
    for number in (*range(5), *range(5)):
        record = reader.read_line(
            f'h{number} - u{number} [21/Nov/2026:12:00:00] "GET /{number}?x HTTP/1.1" 200 1'.encode()
        )
        assert record is not None
        paths.append((record.address, record.user, record.path))

    assert paths == [(f"h{number}", f"u{number}", f"/{number}") for number in range(5)] * 2


# -- requests ------------------------------------------------------------------------------------------------------


def test_a_user_is_one_caller_at_all_addresses_and_others_count_by_address() -> None:
    records = [
        *(make_record(user="ada l", address=f"192.0.2.{number}") for number in range(3)),
        *(make_record(user="", address="192.0.2.1") for _ in range(3)),
        make_record(user="", address="192.0.2.2"),
        *(make_record(user="", address=address) for address in ("what", "else", "third")),
    ]

    result = replay_all(make_replay(FEW), *records)

    assert [(count.caller, count.rule, count.count) for count in result.callers] == [
        ("address:0.0.0.0", "few", 1),
        ("address:192.0.2.1", "few", 1),
        ("user:ada_l", "few", 1),
    ]
    assert (result.lines, result.admitted, result.refused, result.rules) == (10, 7, 3, {"few": 3})


def test_a_limit_by_address_sees_the_addresses_of_a_user() -> None:
    by_address = '[[rule]]\nname = "wide"\ncounts = "points"\nscope = ["address"]\nceiling = 2'
    records = [
        make_record(address=address, path="/x") for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.1")
    ]

    assert replay_all(make_replay(by_address), *records).rules == {"wide": 1}


def test_a_line_out_of_order_counts_at_the_current_time() -> None:
    result = replay_all(make_replay(FEW), make_record(30), make_record(0), make_record(0), make_record(91))

    assert (result.admitted, result.refused, result.begins_ms, result.ends_ms) == (
        3,
        1,
        NOON_MS + 30_000,
        NOON_MS + 91_000,
    )
    (count,) = result.callers
    assert (count.first_ms, count.last_ms, count.busiest) == (NOON_MS + 30_000, NOON_MS + 30_000, "GET /few")


def test_the_first_and_last_refusal_of_a_caller_are_reported() -> None:
    result = replay_all(make_replay(FEW), *(make_record(second) for second in (0, 1, 2, 3, 4)))

    (count,) = result.callers
    assert (count.count, count.first_ms, count.last_ms) == (3, NOON_MS + 2_000, NOON_MS + 4_000)


def test_a_banned_caller_is_reported_as_such() -> None:
    target = Replay(
        read_rules(build_rules_text(FEW) + '[ban]\nrefusals_least = 1\nminutes = 1\ngrace = "1ms"\npercent = 1\n'),
        has_durations=False,
    )

    result = replay_all(target, *(make_record(second) for second in range(8)))

    assert result.rules == {"few": 3, "ban": 3}
    assert [(count.rule, count.count) for count in result.callers] == [("few", 3), ("ban", 3)]


def test_rules_in_shadow_mode_are_counted_for_every_request() -> None:
    result = replay_all(make_replay(FEW + "\nshadow = true"), *(make_record() for _ in range(4)))

    assert (result.admitted, result.shadowed, result.rules) == (4, {"few": 2}, {})


@pytest.mark.parametrize(
    ("durations_ms", "starts", "refused"),
    [((1_000, 1_000), (0, 0.9), 1), ((1_000, 1_000), (0, 1), 0), ((None, None), (0, 0), 0), ((0, 0), (0, 0), 0)],
)
def test_a_request_holds_its_slot_for_its_duration(
    durations_ms: tuple[int | None, ...], starts: tuple[float, ...], refused: int
) -> None:
    records = [make_record(start, duration_ms=ms) for start, ms in zip(starts, durations_ms, strict=True)]

    assert replay_all(make_replay(SLOTS, has_durations=True), *records).refused == refused


def test_a_refused_request_holds_no_slot() -> None:
    records = [make_record(start, duration_ms=ms) for start, ms in ((0, 1_000), (0.5, 9_000), (1, 1_000))]

    assert replay_all(make_replay(SLOTS, has_durations=True), *records).refused == 1


def test_the_time_of_waiting_routes_is_not_cpu_time() -> None:
    waiting = '[[endpoint]]\nmatch = ["GET /few"]\nwaiting = true'
    target = make_replay(CPU, waiting, has_durations=True)

    result = replay_all(target, *(make_record(second, duration_ms=900) for second in range(5)))

    assert (result.admitted, result.rules) == (5, {})


def test_cpu_time_is_charged_when_a_request_ends() -> None:
    records = [
        make_record(start, duration_ms=ms) for start, ms in ((0, 600), (0.1, 600), (0.65, 1), (0.9, 1), (1.0, 1))
    ]

    result = replay_all(make_replay(CPU, has_durations=True), *records)

    # 600 ms are charged at 0.6 s and at 0.7 s; then 1,200 of 1,000 ms are used.
    assert (result.admitted, result.rules) == (3, {"cpu": 2})


@pytest.mark.parametrize(
    ("record", "cpu_ms"),
    [
        (make_record(duration_ms=900, upstream_ms=700, first_byte_ms=200), 200),
        (make_record(duration_ms=900, upstream_ms=700), 700),
        (make_record(duration_ms=900), 900),
        (make_record(duration_ms=900, first_byte_ms=0), 0),
        (make_record(duration_ms=900_000, upstream_ms=900_000, status=101), 0),
        (make_record(duration_ms=900_000, upstream_ms=900_000, first_byte_ms=40, status=101), 40),
    ],
)
def test_the_time_that_is_closest_to_that_of_the_gateway_counts_as_cpu_time(record: LogRecord, cpu_ms: int) -> None:
    assert count_cpu_ms(record) == cpu_ms


def test_the_time_after_the_first_byte_is_not_charged() -> None:
    records = [make_record(second, duration_ms=900, first_byte_ms=200) for second in range(6)]

    assert replay_all(make_replay(CPU, has_durations=True), *records).rules == {"cpu": 1}


def test_a_websocket_holds_no_slot_of_plain_requests() -> None:
    slots = SLOTS + '\n[[rule]]\nname = "sockets"\ncounts = "connections"\nconnection = "websocket"\nceiling = 1'
    records = [make_record(0, duration_ms=9_000, status=101), make_record(1, duration_ms=1)]
    records += [make_record(2, duration_ms=9_000, status=101)]

    assert replay_all(make_replay(slots, has_durations=True), *records).rules == {"sockets": 1}


def test_the_work_of_a_long_request_is_charged_while_it_runs() -> None:
    cpu = '[[rule]]\nname = "cpu"\ncounts = "cpu_ms"\nwindow = "1m"\nceiling = 12000'
    starts = (0, 4, 9, 14, 16, 71)
    records = [make_record(start, duration_ms=17_000 if not start else 0) for start in starts]

    result = replay_all(make_replay(cpu, has_durations=True), *records)

    # 15,000 ms are charged after 15 s, 2,000 more after 17 s.
    assert (result.admitted, [count.first_ms - NOON_MS for count in result.callers]) == (5, [16_000])


def test_an_impossible_duration_does_not_take_forever() -> None:
    records = [make_record(0, duration_ms=10**12), make_record(10**9, duration_ms=1)]

    assert replay_all(make_replay(CPU, has_durations=True), *records).admitted == 2


def test_the_result_says_what_counted_as_cpu_time() -> None:
    records = [
        make_record(0, duration_ms=3, first_byte_ms=1),
        make_record(1, duration_ms=3, upstream_ms=2),
        make_record(2, duration_ms=3, upstream_ms=2),
        make_record(3, duration_ms=3),
        make_record(4, duration_ms=3, status=101),
    ]

    assert replay_all(make_replay(CPU, has_durations=True), *records).assumptions == [
        "CPU time of 1 request: the time to the first byte of the reply, as the gateway counts it",
        "CPU time of 2 requests: the time of the service with its whole reply, which is too much for long replies",
        "CPU time of 1 request: its whole duration, which is too much for long replies and slow callers; log the time to the "
        "first byte, such as $upstream_header_time of nginx",
        "CPU time of 1 request that opened a websocket: none",
    ]
    assert replay_all(make_replay(CPU), make_record(0)).assumptions == []


def test_an_opaque_credential_of_the_decision_log_counts_by_itself() -> None:
    key = "0123456789abcdef" * 2
    by_class = '[[rule]]\nname = "few"\nmatch = ["GET /few"]\nwindow = "1m"\nceiling = { none = 0, user = 2 }'
    line = '{"at_ms": %d, "method": "GET", "path": "/few", "caller": "credential:%s", "address": "192.0.2.7"}'
    reader = AccessLogReader()
    records = [reader.read_line((line % (NOON_MS, key)).encode()) for _ in range(3)]

    result = replay_all(make_replay(by_class), *(record for record in records if record is not None))

    assert [(count.caller, count.count) for count in result.callers] == [(f"credential:{key}", 1)]


@pytest.mark.parametrize("token", ["ghp_adaadaadaadaadaadaada", "glpat-0123456789abcdefghij", "0123456789abcdef" * 2])
def test_a_token_in_place_of_a_user_name_is_not_shown(token: str) -> None:
    result = replay_all(make_replay(FEW), *(make_record(user=token) for _ in range(3)))

    (count,) = result.callers
    assert (count.caller.startswith("credential:"), token in count.caller, count.count) == (True, False, 1)


def test_a_full_cache_of_calls_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [make_record(user=f"u{number % 3}") for number in range(12)]
    expected = replay_all(make_replay(FEW), *records)
    monkeypatch.setattr(replay, "MAX_CACHED_CALLS", 1)

    assert replay_all(make_replay(FEW), *records) == expected


# -- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "step_ms"),
    [(0, 1_000), (119, 1_000), (120, 5_000), (603, 5_000), (604, 15_000), (1_000_000_000, 8_333_333_341)],
)
def test_the_steps_of_the_timeline_fit_into_120_columns(seconds: int, step_ms: int) -> None:
    result = replay_all(make_replay(FEW), make_record(0), make_record(seconds))

    assert result.step_ms == step_ms


def test_the_timeline_adds_up_the_seconds_of_each_step() -> None:
    result = replay_all(make_replay(FEW), *(make_record(second) for second in (0, 1, 2, 4, 5, 200)))

    assert (result.step_ms, result.timeline) == (
        5_000,
        [(NOON_MS, 2, 2), (NOON_MS + 5_000, 0, 1), (NOON_MS + 200_000, 1, 0)],
    )


def test_only_the_callers_with_most_refusals_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MAX_REPORTED_CALLERS", 2)
    users = ["bob"] * 3 + ["ada"] * 3 + ["eve"] * 4

    result = replay_all(make_replay(FEW), *(make_record(user=user) for user in users))

    assert [(count.caller, count.count) for count in result.callers] == [("user:eve", 2), ("user:ada", 1)]


def test_what_was_not_simulated_is_listed() -> None:
    with_durations = replay_all(make_replay(SLOTS, CPU, has_durations=True))
    without = make_replay(SLOTS, CPU)
    without.result.unread = 3

    assert [line.partition(":")[0] for line in with_durations.not_judged] == ["bodies", "kinds of credentials"]
    lines = without.finish().not_judged
    assert lines[0].endswith("no durations: slots, cpu")
    assert (len(lines), lines[-1]) == (4, "3 lines in an unknown format")


def test_parts_are_added_up() -> None:
    target = make_replay(FEW)
    for second in (0, 0, 0):
        target.replay_record(make_record(second))
    added = SimulationResult(lines=7, unread=1, admitted=4, refused=3, rules={"few": 2, "b": 1}, shadowed={"s": 5})
    count = RefusalCount("user:eve", "few", 9)

    target.merge_part(
        PartialResult(added, {NOON_MS // 1_000: [4, 2], NOON_MS // 1_000 + 1: [0, 1]}, {("user:eve", "few"): count})
    )
    result = target.finish()

    assert (result.lines, result.unread, result.admitted, result.refused) == (10, 1, 6, 4)
    assert (result.rules, result.shadowed) == ({"few": 3, "b": 1}, {"s": 5})
    assert result.timeline == [(NOON_MS, 6, 3), (NOON_MS + 1_000, 0, 1)]
    assert [entry.caller for entry in result.callers] == ["user:eve", "user:ada"]


# -- processes -----------------------------------------------------------------------------------------------------


def make_line(number: int) -> bytes:
    return (
        f'10.0.0.{number % 7} - u{number % 5} [21/Nov/2026:12:00:{number % 60:02}] "GET /few HTTP/1.1" 200 1\n'.encode()
    )


def test_small_logs_and_rules_about_several_callers_are_simulated_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "MIN_PARALLEL_BYTES", 10)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(20)))
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"x" * 5)
    large.write_bytes(b"x" * 10)
    split = read_rules(build_rules_text(FEW))
    whole = read_rules(build_rules_text('[[rule]]\nname = "wide"\nscope = ["address"]\nceiling = 5'))

    counts = [choose_worker_count(logs, rules) for logs, rules in (([small], split), ([small] * 2, split), ([large], split), ([large], whole))]  # fmt: skip
    assert counts == [1, 16, 16, 1]


def test_progress_is_reported_with_lines_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "PROGRESS_INTERVAL_LINES", 2)
    log = tmp_path / "log"
    log.write_bytes(b"".join(make_line(number) for number in range(5)))
    seen: list[tuple[int, int]] = []
    size = len(make_line(0))

    simulate_logs([log], read_rules(build_rules_text(FEW)), 1, lambda lines, size: seen.append((lines, size)))

    assert seen == [(0, size), (2, 3 * size), (4, 5 * size)]


def test_a_process_that_ends_without_a_result_fails_the_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "_run_worker", lambda *_: None)
    log = tmp_path / "log"
    log.write_bytes(make_line(0))

    with pytest.raises(SimulationFailed, match="ended before it was finished"):
        simulate_logs([log], read_rules(build_rules_text(FEW)), 2)


def test_a_log_without_requests_needs_no_durations() -> None:
    result = simulate_lines([b"what\n", b"\n", b"else\n"], read_rules(build_rules_text(SLOTS)))

    assert (result.lines, result.unread, result.timeline) == (0, 2, [])


# -- the chart -----------------------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def draw(result: SimulationResult) -> ET.Element:
    return ET.fromstring(render_svg(result))


def test_each_step_is_a_column_whose_height_is_its_share_of_the_largest() -> None:
    result = SimulationResult(
        lines=1_200, refused=300, admitted=900, begins_ms=1_000, ends_ms=10_000, step_ms=1_000,
        timeline=[(1_000, 600, 200), (3_000, 300, 0), (10_000, 0, 100)],
    )  # fmt: skip
    root = draw(result)

    bars = [
        [[float(bar.attrib[name]) for name in ("x", "y", "width", "height")] for bar in group.iter(f"{SVG}rect")]
        for group in root.iter(f"{SVG}g")
    ]
    # 880 units wide and 230 high; the first column has all 800 requests of the largest step.
    assert bars == [
        [[60.0, 107.5, 87.5, 172.5], [60.0, 50.0, 87.5, 57.5]],
        [[236.0, 193.75, 87.5, 86.25]],
        [[852.0, 280.0, 87.5, 0.0], [852.0, 251.25, 87.5, 28.75]],
    ]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == [
        "300 of 1,200 requests would be refused",
        "admitted",
        "refused",
        "400",
        "800",
        "1970-01-01 00:00:01Z",
        "1970-01-01 00:00:10Z",
    ]
    assert next(group[0].text for group in root.iter(f"{SVG}g")) == "1970-01-01 00:00:01Z: 600 admitted, 200 refused"


def test_labels_lines_and_legend_have_their_places() -> None:
    root = draw(SimulationResult(timeline=[(1_000, 4, 0)], begins_ms=1_000, ends_ms=1_000, step_ms=1_000))

    places = [(text.attrib["x"], text.attrib["y"]) for text in root.iter(f"{SVG}text")]
    assert places == [
        ("60", "24"),
        ("768", "24"),
        ("868", "24"),
        ("54", "169.0"),
        ("54", "54.0"),
        ("60", "306"),
        ("940", "306"),
    ]
    lines = [tuple(line.attrib[name] for name in ("x1", "x2", "y1", "y2")) for line in root.iter(f"{SVG}line")]
    assert lines == [("60", "940", "165.0", "165.0"), ("60", "940", "50.0", "50.0"), ("60", "940", "280", "280")]
    legend = [
        (rect.attrib["x"], rect.attrib["fill"]) for rect in root.iter(f"{SVG}rect") if rect.attrib["width"] == "12"
    ]
    assert legend == [("750", "#4f7cac"), ("850", "#c8553d")]


def test_an_empty_chart_has_no_times() -> None:
    texts = [text.text for text in draw(SimulationResult()).iter(f"{SVG}text")]

    assert texts[3:] == ["0", "1", "-", "-"]


def test_narrow_columns_stay_visible() -> None:
    root = draw(SimulationResult(timeline=[(0, 1, 0)], begins_ms=0, ends_ms=10_000_000, step_ms=1_000))

    (bar,) = [rect for group in root.iter(f"{SVG}g") for rect in group.iter(f"{SVG}rect")]
    assert bar.attrib["width"] == "0.50"
