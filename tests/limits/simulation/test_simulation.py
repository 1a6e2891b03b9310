"""A simulation shows what rules would have refused, by the clock of the log, and lists what it did not simulate."""

import bz2
import gzip
import json
import lzma
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.limits.builders import build_rules_text
from wharf.cli.root import root
from wharf.limits.rules import read_rules
from wharf.limits.rules.rules_file import read_profile
from wharf.limits.simulation.access_log import AccessLogReader, LogRecord
from wharf.limits.simulation.chart import render_svg
from wharf.limits.simulation.parallel import MAX_LINES_BEFORE_REQUEST, can_split_callers, simulate_lines, simulate_logs

NOON_MS = 1_795_262_400_000
TWO_A_MINUTE = build_rules_text(
    '[[rule]]\nname = "few"\nmatch = ["GET /few"]\nresource = "few"\nwindow = "1m"\nceiling = 2'
)
ONE_AT_ONCE = build_rules_text('[[rule]]\nname = "alone"\ncounts = "connections"\nceiling = 1')


def line(second: int = 0, *, user: str = "-", path: str = "/few", host: str = "192.0.2.7", rest: str = "") -> bytes:
    minute, second = divmod(second, 60)
    stamp = f"21/Nov/2026:12:{minute:02}:{second:02} +0000"
    return f'{host} - {user} [{stamp}] "GET {path} HTTP/1.1" 200 12 "-" "curl/8"{rest}\n'.encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (line(), LogRecord(NOON_MS, "192.0.2.7", "", "GET", "/few", None, status=200)),
        (
            line(user="ada", path="/few?x=1"),
            LogRecord(NOON_MS, "192.0.2.7", "ada", "GET", "/few", None, "x=1", status=200),
        ),
        (
            line(path="HTTP://host:80/few?x=1"),
            LogRecord(NOON_MS, "192.0.2.7", "", "GET", "/few", None, "x=1", status=200),
        ),
        (line(rest=" 0.250"), LogRecord(NOON_MS, "192.0.2.7", "", "GET", "/few", 250, status=200)),
        (
            b'::1 - - [21/Nov/2026:13:00:00 +0100] "POST /a HTTP/1.1" 201 -\n',
            LogRecord(NOON_MS, "::1", "", "POST", "/a", None, status=201),
        ),
        (
            b'{"at_ms": 1795262400000, "method": "GET", "path": "/a", "caller": "user:ada", "address": "192.0.2.7"}',
            LogRecord(NOON_MS, "192.0.2.7", "ada", "GET", "/a", None),
        ),
        (
            b'{"time": "2026-11-21T12:00:00Z", "method": "GET", "path": "/a?b", "duration_ms": 3.6}',
            LogRecord(NOON_MS, "0.0.0.0", "", "GET", "/a", 4, "b"),
        ),
    ],
)
def test_lines_of_all_known_formats_are_read(text: bytes, expected: LogRecord) -> None:
    assert AccessLogReader().read_line(text) == expected


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (' "192.0.2.9" 0.250', (250, None, None)),
        (" 0.250 0.240", (250, None, 240)),
        (" 0.250 -", (250, None, None)),
        (" 0.100 0.250", (250, None, None)),
        (" rt=0.250 uct=0.001 uht=0.020 urt=0.240", (250, 20, 240)),
        (' rt=0.250 uht="0.020, 0.010" urt="0.240 : 0.002"', (250, 30, 242)),
        (" request_time=0.250 upstream_header_time=- upstream_response_time=0.1", (250, None, 100)),
        (" upstream_header_time=0.020", (20, 20, None)),
        (f" {'9' * 400}.0", (None, None, None)),
        (" nothing", (None, None, None)),
    ],
)
def test_times_at_the_end_of_a_line_are_read(rest: str, expected: tuple[int | None, ...]) -> None:
    record = AccessLogReader().read_line(line(rest=rest))

    assert record is not None
    assert (record.duration_ms, record.first_byte_ms, record.upstream_ms) == expected


@pytest.mark.parametrize("text", [b"what?\n", b"{\n", b'a - - [99/Foo/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1\n'])
def test_lines_of_other_formats_are_counted_and_skipped(text: bytes) -> None:
    reader = AccessLogReader()

    assert (reader.read_line(text), reader.unreadable_lines) == (None, 1)


def test_refusals_are_reported_by_caller_and_rule_with_their_times() -> None:
    lines = [line(second, user="ada") for second in (0, 1, 2, 30, 61)] + [line(62, user="bob")]

    result = simulate_lines(lines, read_rules(TWO_A_MINUTE))

    assert (result.lines, result.admitted, result.refused, result.rules) == (6, 4, 2, {"few": 2})
    (ada,) = result.callers
    assert (ada.caller, ada.count, ada.first_ms, ada.last_ms) == ("user:ada", 2, NOON_MS + 2_000, NOON_MS + 30_000)


def test_concurrency_is_simulated_if_the_log_has_durations() -> None:
    lines = [line(0, rest=" 5.000"), line(1, rest=" 1.000"), line(6, rest=" 1.000")]

    assert simulate_lines(lines, read_rules(ONE_AT_ONCE)).rules == {"alone": 1}


def test_the_result_lists_what_was_not_simulated() -> None:
    result = simulate_lines([line(), b"what?\n"], read_rules(ONE_AT_ONCE))

    assert result.refused == 0
    assert result.not_judged[0].endswith("because the log has no durations: alone")
    assert result.not_judged[-1] == "1 lines in an unknown format"


@pytest.mark.parametrize(
    "path", ["/few", "/few/", "/FEW", "/f%65w", "/few.json", "/few;a", "/few?/../x", "http://host/few"]
)
def test_every_spelling_of_a_logged_path_is_judged(path: str) -> None:
    assert simulate_lines([line(path=path) for _ in range(3)], read_rules(TWO_A_MINUTE)).rules == {"few": 1}


def test_logged_paths_that_the_limiter_refuses_are_reported() -> None:
    result = simulate_lines([line(path="/a/../few"), line(path="//few"), line()], read_rules(TWO_A_MINUTE))

    assert (result.lines, result.admitted, result.refused, result.unacceptable) == (3, 1, 0, 2)
    assert result.not_judged[-1] == "2 requests with a path or a query that is refused whatever the counters are"


def test_a_graphql_query_in_a_logged_url_is_charged_by_its_cost() -> None:
    query = "%7Ba(first:100)%7Bb(first:100)%7Bid%7D+c(first:100)%7Bid%7D%7D%7D"
    rules = read_rules('[[rule]]\nname = "graphql"\nceiling = { user = 5 }\n')
    lines = [line(path=f"/graphql?query={query}", user="ada") for _ in range(3)]

    result = simulate_lines([*lines, line(path="/graphql?query=a&query=b", user="ada")], rules)

    assert (result.admitted, result.rules, result.unacceptable) == (2, {"graphql": 1}, 1)


def test_rules_in_shadow_mode_are_counted_and_refuse_no_request() -> None:
    shadow_rules = TWO_A_MINUTE.replace("ceiling = 2", "ceiling = 2\nshadow = true", 1)

    result = simulate_lines([line() for _ in range(3)], read_rules(shadow_rules))

    assert (result.refused, result.shadowed) == (0, {"few": 1})


def test_the_command_prints_a_table_or_json_and_writes_a_chart(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(TWO_A_MINUTE)
    (tmp_path / "access.log").write_bytes(b"".join(line(second) for second in range(5)))
    words = ["limits", "simulate", "--rules", str(tmp_path / "rules.toml"), str(tmp_path / "access.log")]

    table = CliRunner().invoke(root, [*words, "--svg", str(tmp_path / "picture.svg")])
    json_output = CliRunner().invoke(root, [*words, "--json"])

    assert "3 of 5 requests would be refused, from 2026-11-21 12:00:00Z to 2026-11-21 12:00:04Z" in table.output
    assert "address:192.0.2.7" in table.output
    assert json.loads(json_output.output)["rules"] == {"few": 3}
    chart = ET.fromstring((tmp_path / "picture.svg").read_text())
    titles = [title.text for title in chart.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "3 of 5 requests would be refused"
    assert "2026-11-21 12:00:02Z: 0 admitted, 1 refused" in titles


def test_files_that_cannot_be_read_or_written_are_reported_at_the_start(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("")

    no_log = CliRunner().invoke(root, ["limits", "simulate", str(tmp_path / "none.log")])
    no_folder = CliRunner().invoke(root, ["limits", "simulate", "--svg", str(tmp_path / "no" / "a.svg"), str(log)])

    assert f"Error: {tmp_path}/none.log: No such file or directory\n" == no_log.stderr
    assert f"Error: {tmp_path}/no/a.svg: No such file or directory\n" == no_folder.stderr


def test_an_empty_log_gives_an_empty_result() -> None:
    result = simulate_lines([], read_rules(TWO_A_MINUTE))

    assert (result.lines, result.refused) == (0, 0)
    assert render_svg(result).startswith("<svg")


def test_the_result_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    """The log has users and addresses, lines out of order, lines of JSON, and unreadable lines."""
    log = tmp_path / "access.log"
    with log.open("wb") as file:
        for number in range(4_000):
            second = number // 100 if number % 50 else max(0, number // 100 - 5)
            user = f"u{number * 7 % 13}" if number % 3 else "-"
            stamp = f"21/Nov/2026:15:{second // 60:02}:{second % 60:02} +0100"
            file.write(f'10.0.0.{number % 11} - {user} [{stamp}] "GET /few HTTP/1.1" 200 12\n'.encode())
            if number % 90 == 0:
                file.write(f"10.0.0.{number % 11} - {user} [{stamp}] not a request\n".encode())
            if number % 100 == 0:
                at_ms = 1_795_269_600_000 + second * 1_000
                file.write(
                    f'{{"method": "GET", "path": "/few", "at_ms": {at_ms}, "address": "10.0.0.1"}}\nwhat?\n'.encode()
                )
    rules = read_rules(TWO_A_MINUTE)

    in_one, in_three = (simulate_logs([log], rules, parts).to_dict() for parts in (1, 3))

    assert in_one["refused"] > 1_000
    assert in_three == in_one


def test_callers_are_not_split_if_a_rule_counts_several_together() -> None:
    by_address = build_rules_text('[[rule]]\nname = "wide"\nscope = ["address"]\nceiling = 5\n')

    assert [can_split_callers(read_rules(rules)) for rules in ("", TWO_A_MINUTE, by_address)] == [True, True, False]


@pytest.mark.parametrize("content", [b"", b"garbage\n" * 3, b"\x00\xff\xfe\n", b'{"a": 1}\n'], ids=str)
@pytest.mark.parametrize("options", [[], ["--json"]], ids=str)
def test_a_file_without_a_request_is_refused_with_the_expected_format(
    tmp_path: Path, content: bytes, options: list[str]
) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(content)

    result = CliRunner().invoke(root, ["limits", "simulate", *options, str(log)])

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        f"Error: {log}: no line is a logged request: expected the common or combined format"
    )


def test_a_large_file_that_is_no_log_is_not_read_to_its_end() -> None:
    lines = iter([b"garbage\n"] * (MAX_LINES_BEFORE_REQUEST + 10))

    result = simulate_lines(lines, read_rules(TWO_A_MINUTE))

    assert (result.lines, result.unread) == (0, MAX_LINES_BEFORE_REQUEST)
    assert len(list(lines)) == 9


LINE = b'192.0.2.7 - ada [21/Nov/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 12\n'


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_logs_are_read(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    log = tmp_path / "access.log"  # The name does not show the format.
    log.write_bytes(compress(LINE * 3))

    result = CliRunner().invoke(root, ["limits", "simulate", str(log)])

    assert (result.exit_code, result.output.splitlines()[0].partition(",")[0]) == (
        0,
        "0 of 3 requests would be refused",
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x28\xb5\x2f\xfd whatever", "is compressed with zstd, which is not read: decompress it first"),
        (b"PK\x03\x04 whatever", "is compressed with zip, which is not read: decompress it first"),
        (gzip.compress(LINE * 3)[:-9], "cannot be decompressed"),
        (gzip.compress(LINE * 3)[:10] + b"damaged", "cannot be decompressed"),
        (lzma.compress(LINE * 3)[:-5], "cannot be decompressed"),
    ],
    ids=["zstd", "zip", "short gzip", "damaged gzip", "short xz"],
)
def test_a_log_that_cannot_be_decompressed_is_an_error(tmp_path: Path, content: bytes, expected: str) -> None:
    log = tmp_path / "access.log.gz"
    log.write_bytes(content)

    result = CliRunner().invoke(root, ["limits", "simulate", str(log)])

    assert (result.exit_code, f"{log} {expected}" in result.output) == (1, True)


def test_the_command_prints_what_it_assumed(tmp_path: Path) -> None:
    log = tmp_path / "access.log.gz"
    log.write_bytes(gzip.compress(LINE.rstrip() + b' "-" "curl/8" rt=0.250 uht=0.020 urt=0.240\n'))

    result = CliRunner().invoke(root, ["limits", "simulate", str(log)])

    section = result.output.partition("Assumed\n")[2].splitlines()
    assert section[0] == "- CPU time of 1 request: the time to the first byte of the reply, as the gateway counts it"


def test_a_compressed_log_is_simulated_by_several_processes_too(tmp_path: Path) -> None:
    plain, compressed = tmp_path / "a", tmp_path / "b"
    users = [*(b"user%d" % number for number in range(7)), b"ghp_adaadaadaadaadaadaada"]
    lines = [LINE.rstrip().replace(b"ada", users[number % 8], 1) + b" 0.%03d\n" % number for number in range(99)]
    plain.write_bytes(b"".join(lines))
    compressed.write_bytes(gzip.compress(b"".join(lines)))

    assert simulate_logs([compressed], read_profile(), 3) == simulate_logs([plain], read_profile(), 1)


def test_a_credential_mark_in_the_log_is_a_caller_of_its_own() -> None:
    lines = [line(rest=f" credential_mark={mark}") for mark in ("k2v9", "k2v9", "k2v9", "x7p1", "-")]

    result = simulate_lines(lines, read_rules(TWO_A_MINUTE))

    assert (result.refused, result.by_address) == (1, 1)


def test_a_user_name_counts_before_a_credential_mark() -> None:
    lines = [line(user="ada", rest=f' credential_mark="{number}"') for number in range(3)]

    assert [count.caller for count in simulate_lines(lines, read_rules(TWO_A_MINUTE)).callers] == ["user:ada"]


def test_a_log_in_json_can_have_credential_marks() -> None:
    entry = {"method": "GET", "path": "/few", "at_ms": NOON_MS, "remote_addr": "192.0.2.7", "credential_mark": "k2v9"}
    lines = [json.dumps(entry).encode()] * 3

    assert (
        simulate_lines(lines, read_rules(TWO_A_MINUTE)).refused,
        simulate_lines(lines, read_rules("")).by_address,
    ) == (
        1,
        0,
    )


def test_several_processes_find_the_same_credential_marks(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(b"".join(line(rest=f" credential_mark=k{number % 7}") for number in range(100)))
    rules = read_rules(TWO_A_MINUTE)

    assert [simulate_logs([log], rules, workers).refused for workers in (1, 2)] == [86, 86]


def test_the_result_says_how_many_requests_count_by_address_because_the_log_names_no_user() -> None:
    result = simulate_lines([line(), line(user="ada")], read_rules(TWO_A_MINUTE))

    assert (
        "tokens: 1 of 2 requests have neither a user name nor a credential_mark in the log, so they count by address, also if "
        "they had a token"
    ) in result.not_judged
