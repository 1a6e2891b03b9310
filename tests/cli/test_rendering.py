"""Times, tables, placement failures and other values as text for users."""

import datetime

import click
import pytest
from msgspec.structs import replace

from wharf.cli.alloc.group import format_event, list_ports
from wharf.cli.common.node_reasons import list_node_reasons
from wharf.cli.common.rendering import (
    MAX_PROSE_LINES,
    natural_sort_key,
    render_bar,
    render_pairs,
    render_table,
    shorten_words,
    wrap_words,
)
from wharf.cli.common.terminal import render_for_terminal, style
from wharf.cli.common.times import format_relative_time, format_utc_time
from wharf.contract.model.allocations.allocation import NetworkStatus
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.placement_reasons import list_placement_failures
from wharf.contract.model.allocations.resources import AllocatedPort
from wharf.contract.model.allocations.task_states import TaskEventView
from wharf.contract.model.explanations import GroupExplanation, Shortage
from wharf.contract.model.times import format_rounded_duration

S = 1_000_000_000
NOW = 1_790_000_000 * S


@pytest.mark.parametrize(
    ("length_ns", "expected"),
    [
        (0, "0s"), (250_000_000, "250ms"), (40 * S, "40s"), (125 * S, "2m5s"), (3_600 * S, "1h"), (3_605 * S, "1h"),
        (7_260 * S, "2h1m"), (90_000 * S, "1d1h"), (-5 * S, "-5s"),
    ],
)  # fmt: skip
def test_durations_are_shown_in_their_two_largest_units(length_ns: int, expected: str) -> None:
    assert format_rounded_duration(length_ns) == expected


def test_a_future_time_is_rounded_up_to_seconds() -> None:
    assert format_relative_time(NOW + 8 * 3_600 * S - 5_000_000, NOW) == "in 8h"


def test_times_are_shown_relative_to_now() -> None:
    date = datetime.datetime.fromtimestamp(NOW // S + 90, tz=datetime.UTC)

    assert format_relative_time(NOW - 65 * S, NOW) == "1m5s ago"
    assert format_relative_time(date, NOW) == "in 1m30s"
    assert format_relative_time(NOW - 5, NOW) == "now"
    assert (format_relative_time(0, NOW), format_relative_time(None, NOW), format_utc_time(None)) == ("-", "-", "-")
    assert format_utc_time(NOW) == "2026-09-21 14:13:20Z"


def test_columns_are_as_wide_as_their_content_and_numbers_are_right_aligned() -> None:
    shown = click.unstyle(render_table(("ID", "Count", "Status"), [("web", 2, "running"), ("a-long-id", 10, "failed")]))

    assert shown.splitlines() == [
        "ID         Count  Status",
        "web            2  running",
        "a-long-id     10  failed",
    ]


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (42, ["ID    Since   Status   Why", "web1  3h ago  running  because of a reason"]),
        (36, ["ID    Status   Why", "web1  running  because of a reason"]),
        (30, ["ID    Status   Why", "web1  running  because of a r…"]),
        (20, ["ID    Status", "web1  running"]),
    ],
)
def test_a_table_that_is_too_wide_drops_optional_columns_and_cuts_the_last(width: int, shown: list[str]) -> None:
    titles, row = ("ID", "Since", "Status", "Why"), ("web1", "3h ago", "running", "because of a reason")

    output = click.unstyle(render_table(titles, [row], optional_columns=("Since",), max_width=width))

    assert output.splitlines() == shown


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (45, ["a-name-that-machines-make[10]  running  short", "web[1]                         running  -"]),
        (38, ["a-name-that…s-make[10]  running  short", "web[1]                  running  -"]),
        (27, ["a-name-th…make[10]  running", "web[1]              running"]),
    ],
)
def test_a_table_that_is_still_too_wide_cuts_the_middle_of_names(width: int, shown: list[str]) -> None:
    rows = [("a-name-that-machines-make[10]", "running", "short"), ("web[1]", "running", "-")]

    output = click.unstyle(
        render_table(("Name", "Status", "Why"), rows, shortenable_columns=("Name",), max_width=width)
    )

    assert output.splitlines()[1:] == shown


def test_wide_characters_are_cut_by_their_width() -> None:
    output = click.unstyle(render_table(("ID", "Title"), [("a", "日本語日本語日本語")], max_width=15))

    assert output.splitlines()[1] == "a   日本語日本…"


def test_sentences_in_the_last_column_are_wrapped_and_numbers_stay_on_the_right() -> None:
    rows = [("b", 10, "the program does not exist: check the path"), ("a", 9, "started")]

    shown = click.unstyle(render_table(("ID", "Count", "Message"), rows, max_width=34))

    assert shown.splitlines()[1:] == [
        "b      10  the program does not",
        "           exist: check the path",
        "a       9  started",
    ]


def test_a_sentence_of_many_lines_is_cut_after_the_fourth() -> None:
    shown = click.unstyle(render_table(("ID", "Message"), [("a", "word " * 100)], max_width=30)).splitlines()

    assert (len(shown), shown[-1][-1]) == (1 + MAX_PROSE_LINES, "…")


def test_a_long_name_is_cut_before_optional_columns_are_dropped() -> None:
    table = render_table(
        ("Name", "Type", "Status"),
        [("n" * 60, "batch", "running")],
        optional_columns=("Type",),
        shortenable_columns=("Name",),
        max_width=60,
    )

    assert click.unstyle(table).splitlines()[1].split()[1:] == ["batch", "running"]


def test_wide_characters_are_aligned_by_their_width() -> None:
    shown = click.unstyle(
        render_table(("ID", "Status"), [("日本", "running"), ("cafe\u0301", "running"), ("abcde", "failed")])
    )

    assert shown.splitlines()[1:] == ["日本   running", "cafe\u0301   running", "abcde  failed"]


def test_numbers_in_names_are_sorted_by_value() -> None:
    names = ["node-10", "node-2", "a", "node-2b", "10"]

    assert sorted(names, key=natural_sort_key) == ["a", "node-2", "node-2b", "node-10", "10"]


def test_empty_values_are_omitted() -> None:
    assert (
        click.unstyle(render_pairs([("ID", "a"), ("Description", ""), ("Node", None), ("Count", 0)]))
        == "ID     a\nCount  0"
    )


@pytest.mark.parametrize(("done", "total", "filled"), [(0, 4, 0), (1, 4, 1), (4, 4, 4), (9, 4, 4), (0, 0, 0)])
def test_a_progress_bar_is_filled_by_the_share_that_is_done(done: int, total: int, filled: int) -> None:
    green, grey = render_for_terminal(render_bar(done, total, width=4)).split("\x1b[0m")[:2]

    assert (green.count("━"), grey.count("─")) == (filled, 4 - filled)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (AllocMetric(node_pool="gpu"), ["no ready node in node pool gpu and the job's datacenters"]),
        (
            AllocMetric(nodes_evaluated=3, nodes_in_pool=3, nodes_available={"dc1": 3, "dc2": 0}),
            ["no ready node in datacenter dc2"],
        ),
        (
            AllocMetric(nodes_evaluated=4, constraint_filtered={"a": 1, "b": 3}, dimension_exhausted={"memory": 1}),
            ["3 nodes excluded: b", "1 node excluded: a", "too little memory on 1 node"],
        ),
        (AllocMetric(nodes_evaluated=2, nodes_exhausted=2), ["2 nodes full"]),
        (AllocMetric(nodes_evaluated=2), ["no node fits"]),
    ],
)
def test_placement_failures_are_described_one_line_each(metric: AllocMetric, expected: list[str]) -> None:
    assert list_placement_failures(metric) == expected


def test_ports_are_listed_with_host_address_and_target_address() -> None:
    ports = (
        AllocatedPort(label="http", value=25_000, to=8_080, host_ip="10.0.0.1"),
        AllocatedPort(label="admin", value=25_001, to=-1, host_ip="fd00::1"),
    )

    assert [("http", "10.0.0.1:25000", ""), ("admin", "[fd00::1]:25001", "")] == list_ports(ports, None)
    assert [
        ("http", "10.0.0.1:25000", "172.26.64.2:8080"),
        ("admin", "[fd00::1]:25001", "172.26.64.2:25001"),
    ] == list_ports(ports, NetworkStatus(interface_name="eth0", address="172.26.64.2"))


def test_a_task_killed_for_lack_of_memory_is_marked() -> None:
    killed = TaskEventView(type="Terminated", display_message="Exit Code: 137, Signal: 9", details={"exit_code": "137"})
    out_of_memory = replace(killed, details={"exit_code": "137", "oom_killed": "true"})

    assert ["Exit Code: 137, Signal: 9", "Exit Code: 137, Signal: 9 (out of memory)"] == [
        format_event(killed),
        format_event(out_of_memory),
    ]


@pytest.mark.parametrize(("missing", "text"), [(1, "at least 1 core missing"), (2, "at least 2 cores missing")])
def test_one_missing_core_is_named_in_the_singular(missing: int, text: str) -> None:
    group = GroupExplanation(
        group="web", exhausted=(Shortage(dimension="cores", nodes=1, missing=missing, unit="cores"),)
    )

    assert list_node_reasons(group) == [f"too few cores on 1 node, {text}"]


@pytest.mark.parametrize("width", [20, 60, 80, 100])
def test_long_lines_break_between_words_and_lose_nothing(width: int) -> None:
    text = (
        "big waits for resources: api lacks 2 allocations: none of 7 nodes can run one; lower CPU of api/main from 100500 "
        "to 2700, or add a node\n  · too little cpu on 7 nodes, at least 97,800 MHz missing (vm, vm-1, vm-2)"
    )

    wrapped = wrap_words(text, width).splitlines()

    assert max(map(len, wrapped)) <= width
    assert " ".join(wrapped).split() == text.split()


def test_a_continued_line_is_indented_like_its_beginning() -> None:
    assert wrap_words("  · one two three", 11).splitlines() == ["  · one two", "    three"]
    assert wrap_words("    one two three", 12).splitlines() == ["    one two", "    three"]


def test_a_command_on_a_line_of_its_own_stays_whole() -> None:
    line = "  wharf job run --check-index 9 web.yaml"

    assert wrap_words(f"To submit it:\n{line}", 20).splitlines()[-1] == line


def test_a_continued_line_of_an_output_has_its_mark() -> None:
    assert wrap_words("  │ one two three", 12) == "  │ one two\n  │ three"


def test_a_word_that_is_too_long_stays_whole() -> None:
    assert wrap_words("see https://example.org/a/long/path now", 10).splitlines() == [
        "see", "https://example.org/a/long/path", "now"
    ]  # fmt: skip


def test_a_long_path_keeps_its_beginning_and_the_name_of_its_file() -> None:
    line = shorten_words(f'  │ File "/home/{"deep/" * 30}train.py", line 3', 40)

    assert line.startswith('  │ File "/home/')
    assert line.endswith('train.py", line 3')
    assert max(map(len, line.split(" "))) == 40


def test_styled_text_is_wrapped_by_its_visible_width() -> None:
    assert click.unstyle(wrap_words(style("one two", fg="red"), 7)) == "one two"


def test_ids_are_on_the_left_also_if_all_have_only_digits() -> None:
    assert click.unstyle(render_table(("ID", "Count"), [("12345678", 1)])).startswith("ID ")


def test_an_exact_time_in_the_last_column_is_never_cut() -> None:
    time = "2026-11-29 13:00:00Z"

    assert time in render_table(("Name", "Modified"), [("a" * 40, time)], max_width=50)
