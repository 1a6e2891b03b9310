"""Cron expressions and their next times (scheduling.md 8.1)."""

import datetime
import zoneinfo
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wharf.contract.model.jobs.cron import CronError, find_next_time, load_zone, parse_cron
from wharf.contract.model.jobs.job import Periodic
from wharf.contract.model.jobs.periodic import (
    MAX_SCHEDULES,
    LaunchTimes,
    find_next_launch,
    list_cron_specs,
    list_used_specs,
)

UTC = datetime.UTC
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def utc(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=UTC)


def upcoming(spec: str, start: str, zone: datetime.tzinfo = UTC, count: int = 4) -> Iterator[str]:
    current: datetime.datetime | None = utc(start)
    for _ in range(count):
        assert current is not None
        current = find_next_time(spec, current, zone)
        if current is None:
            return
        yield current.isoformat(sep=" ").removesuffix("+00:00")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("*/15 * * * *", ["2026-01-01 00:15:00", "2026-01-01 00:30:00"]),
        ("5/20 * * * *", ["2026-01-01 00:05:00", "2026-01-01 00:25:00"]),
        ("10,20-22 3 * * *", ["2026-01-01 03:10:00", "2026-01-01 03:20:00"]),
        ("10-20/5 3 * * *", ["2026-01-01 03:10:00", "2026-01-01 03:15:00"]),
        ("0 0 1 FEB,apr *", ["2026-02-01 00:00:00", "2026-04-01 00:00:00"]),
        ("0 12 * * MON-FRI", ["2026-01-01 12:00:00", "2026-01-02 12:00:00", "2026-01-05 12:00:00"]),
        (
            "0 12 * * fri-sun",
            ["2026-01-02 12:00:00", "2026-01-03 12:00:00", "2026-01-04 12:00:00", "2026-01-09 12:00:00"],
        ),
        ("0 12 * * 7", ["2026-01-04 12:00:00", "2026-01-11 12:00:00"]),
        ("0 12 * * 0", ["2026-01-04 12:00:00", "2026-01-11 12:00:00"]),
        ("0 0 L * *", ["2026-01-31 00:00:00", "2026-02-28 00:00:00"]),
        ("0 0 LW * *", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        ("0 0 15W * *", ["2026-01-15 00:00:00", "2026-02-16 00:00:00"]),
        ("0 0 1W 2,3,8 ?", ["2026-02-02 00:00:00", "2026-03-02 00:00:00", "2026-08-03 00:00:00"]),
        ("0 0 31W 1,5 ?", ["2026-01-30 00:00:00", "2026-05-29 00:00:00"]),
        ("0 0 * * 5L", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        ("0 0 * * MON#2", ["2026-01-12 00:00:00", "2026-02-09 00:00:00"]),
        ("0 0 * * 4#5", ["2026-01-29 00:00:00", "2026-04-30 00:00:00"]),
        ("0 0 13 * 5", ["2026-01-02 00:00:00", "2026-01-09 00:00:00", "2026-01-13 00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00"]),
        ("0 0 1 1 * 2028", ["2028-01-01 00:00:00"]),
        ("*/10 * * * * * *", ["2026-01-01 00:00:10", "2026-01-01 00:00:20"]),
        ("30 0 0 1 1 * 2027-2028", ["2027-01-01 00:00:30", "2028-01-01 00:00:30"]),
        ("@hourly", ["2026-01-01 01:00:00", "2026-01-01 02:00:00"]),
        ("@daily", ["2026-01-02 00:00:00"]),
        ("@weekly", ["2026-01-04 00:00:00"]),
        ("@monthly", ["2026-02-01 00:00:00"]),
        ("@yearly", ["2027-01-01 00:00:00"]),
        ("@annually", ["2027-01-01 00:00:00"]),
        ("0 0 30 2 *", []),
        ("0 0 1 1 * 2020", []),
    ],
)
def test_an_expression_matches_these_times(spec: str, expected: list[str]) -> None:
    assert list(upcoming(spec, "2026-01-01 00:00:00", count=max(len(expected), 1))) == expected


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("", "expected 5 to 7 fields, got 0"),
        ("* * * *", "expected 5 to 7 fields, got 4"),
        ("* * * * * * * *", "expected 5 to 7 fields, got 8"),
        ("@reboot", '"@reboot" is not one of'),
        ("60 * * * *", "60 is not in 0..59 (field minute)"),
        ("* 24 * * *", "24 is not in 0..23 (field hour)"),
        ("* * 0 * *", "0 is not in 1..31 (field day of month)"),
        ("* * * 13 *", "13 is not in 1..12 (field month)"),
        ("* * * * 8", "8 is not in 0..7 (field day of week)"),
        ("* * * * * 1969", "1969 is not in 1970..2099 (field year)"),
        ("20-10 * * * *", 'the range "20-10" in field minute runs backwards'),
        ("*/0 * * * *", 'bad step "0" in field minute'),
        ("*/x * * * *", 'bad step "x" in field minute'),
        ("1,,2 * * * *", '"" is not understood in field minute'),
        ("* * * * 1#6", '"6" is not one of 1..5'),
        ("* * * * L", '"L" is not understood in field day of week'),
        ("* * W * *", '"" is not understood in field day of month'),
        ("x * * * *", '"x" is not understood in field minute'),
        ("-1 * * * *", '"" is not understood in field minute'),
        ("\u0663 * * * *", "is not understood in field minute"),
        ("1" * 2_000, "longer than"),
    ],
)
def test_an_invalid_expression_is_reported_with_its_reason(spec: str, reason: str) -> None:
    with pytest.raises(CronError) as caught:
        parse_cron(spec)

    assert reason in str(caught.value)


def test_a_local_time_skipped_in_spring_does_not_occur_that_day() -> None:
    assert list(upcoming("30 2 * * *", "2026-03-28 00:00:00", BERLIN, count=2)) == [
        "2026-03-28 01:30:00",
        "2026-03-30 00:30:00",
    ]


def test_a_local_time_repeated_in_autumn_occurs_twice() -> None:
    assert list(upcoming("30 2 * * *", "2026-10-24 12:00:00", BERLIN, count=3)) == [
        "2026-10-25 00:30:00",
        "2026-10-25 01:30:00",
        "2026-10-26 01:30:00",
    ]


def test_a_repeated_time_is_found_from_within_the_first_of_both_hours() -> None:
    # At 02:40 local time, 02:10 has passed. It occurs again an hour later, because the clock is set back to 02:00.
    assert next(upcoming("10 2 25 10 *", "2026-10-25 00:40:00", BERLIN)) == "2026-10-25 01:10:00"


def test_quarter_hours_continue_through_both_clock_changes() -> None:
    for start in ("2026-03-29 00:30:00", "2026-10-25 00:30:00"):
        times = [utc(time) for time in upcoming("*/15 * * * *", start, BERLIN, count=8)]

        assert times == [utc(start) + datetime.timedelta(minutes=15 * n) for n in range(1, 9)]


def test_fractions_of_a_second_do_not_repeat_a_time() -> None:
    current = datetime.datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)

    assert find_next_time("* * * * * * *", current, UTC) == utc("2026-01-01 00:00:01")


def test_time_zones_are_found_by_name() -> None:
    assert load_zone("Europe/Berlin") == BERLIN


@pytest.mark.parametrize("name", ["Nowhere/Land", "../etc/passwd", "", "Europe", "/etc/localtime", "a\x00b"])
def test_an_unknown_time_zone_is_reported(name: str) -> None:
    with pytest.raises(CronError, match="unknown time zone"):
        load_zone(name)


def matches(spec: str, local: datetime.datetime) -> bool:
    """Return whether a local time matches a simple expression. An independent implementation that checks each field."""
    minute, hour, day, month, weekday = spec.split()

    def fits(field: str, value: int, low: int) -> bool:
        for item in field.split(","):
            body, _, step = item.partition("/")
            first, _, last = body.partition("-")
            start = low if body == "*" else int(first)
            end = 99 if body == "*" or (step and not last) else int(last or first)
            if start <= value <= end and (value - start) % int(step or 1) == 0:
                return True
        return False

    day_fits, weekday_fits = fits(day, local.day, 1), fits(weekday, local.isoweekday() % 7, 0)
    either = day != "*" and weekday != "*"
    return (
        fits(minute, local.minute, 0)
        and fits(hour, local.hour, 0)
        and fits(month, local.month, 1)
        and (day_fits or weekday_fits if either else day_fits and weekday_fits)
    )


def a_field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(sorted).map(lambda ends: f"{ends[0]}-{ends[1]}")
    return st.one_of(
        st.just("*"), number.map(str), st.integers(1, high).map(lambda step: f"*/{step}"), span,
        st.tuples(span, st.integers(1, 5)).map(lambda both: f"{both[0]}/{both[1]}"),
        st.lists(number, min_size=2, max_size=3).map(lambda many: ",".join(map(str, many))),
    )  # fmt: skip


EXPRESSIONS = st.tuples(a_field(0, 59), a_field(0, 23), a_field(1, 31), a_field(1, 12), a_field(0, 6)).map(" ".join)
# The days of both clock changes of 2026, the days before them, and another day.
STARTS = st.sampled_from(["2026-03-28", "2026-03-29", "2026-06-10", "2026-10-24", "2026-10-25"])


@settings(max_examples=120, deadline=None)
@given(EXPRESSIONS, STARTS, st.integers(0, 86_399))
def test_the_next_time_is_the_first_matching_minute(spec: str, day: str, second: int) -> None:
    start = utc(day) + datetime.timedelta(seconds=second)
    found = find_next_time(spec, start, BERLIN)
    first_minute = start.replace(second=0) + datetime.timedelta(minutes=1)
    two_days = [first_minute + datetime.timedelta(minutes=n) for n in range(2 * 24 * 60)]
    expected = next((minute for minute in two_days if matches(spec, minute.astimezone(BERLIN))), None)

    if expected is None:
        assert found is None or found > two_days[-1]
    else:
        assert found == expected


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS, STARTS)
def test_the_next_time_matches_the_expression(spec: str, day: str) -> None:
    found = find_next_time(spec, utc(day), BERLIN)
    assume(found is not None)

    assert found is not None
    assert matches(spec, found.astimezone(BERLIN))


def test_the_earliest_of_several_expressions_is_the_next_launch() -> None:
    periodic = Periodic(specs=("0 5 * * *", "0 4 * * *"), time_zone="Europe/Berlin")

    assert find_next_launch(periodic, utc("2026-01-01 00:00:00")) == utc("2026-01-01 03:00:00")


def test_a_schedule_without_future_times_has_no_next_launch() -> None:
    assert find_next_launch(Periodic(specs=("0 0 1 1 * 2020",)), utc("2026-01-01 00:00:00")) is None


@pytest.mark.parametrize(
    ("periodic", "specs"),
    [(Periodic(), ()), (Periodic(spec="@daily"), ("@daily",)), (Periodic(specs=("a", "b")), ("a", "b"))],
)
def test_both_spec_and_specs_are_read(periodic: Periodic, specs: tuple[str, ...]) -> None:
    assert list_cron_specs(periodic) == specs


# -- limits


@pytest.mark.parametrize(
    ("spec", "has_dates"),
    [
        ("0 0 30 2 *", False),
        ("31 0 31,31W 2,4,6,9,11 *", False),
        ("0 0 29 2 * 2027", False),
        ("0 0 29 2 * 2027-2099/2", False),
        ("0 0 29 2 *", True),
        ("0 0 * 2 1#5", True),  # A February with five Mondays: 2044.
        ("0 0 30 2 1", True),  # Each Monday of February.
        ("0 0 1 1 * 2020", True),
        ("* * * * *", True),
    ],
)
def test_an_expression_without_any_date_is_recognized(spec: str, has_dates: bool) -> None:
    assert parse_cron(spec).has_dates() == has_dates
    assert (find_next_time(spec, utc("1970-01-01 00:00:00"), UTC) is not None) == has_dates


class CountingZone(datetime.tzinfo):
    """The time zone of New York, which counts how often its offset is read."""

    def __init__(self) -> None:
        self.reads = 0
        self._zone = zoneinfo.ZoneInfo("America/New_York")

    def fromutc(self, instant: datetime.datetime) -> datetime.datetime:
        self.reads += 1
        return self._zone.fromutc(instant.replace(tzinfo=self._zone)).replace(tzinfo=self)

    def utcoffset(self, instant: datetime.datetime | None) -> datetime.timedelta | None:
        return None if instant is None else instant.replace(tzinfo=self._zone).utcoffset()

    def tzname(self, _instant: datetime.datetime | None) -> str:
        return "New York"

    def dst(self, _instant: datetime.datetime | None) -> None:
        return None


def test_the_search_for_a_time_that_the_clock_always_skips_ends_early() -> None:
    zone = CountingZone()

    assert find_next_time("30 2 * 3 0#2", utc("2026-11-23 08:00:00"), zone) is None
    assert 0 < zone.reads < 300


def test_a_job_uses_its_first_schedules_each_of_them_once() -> None:
    specs = ("0 1 * * *", "0 1 * * *", *(f"{minute} 2 * * *" for minute in range(40)))

    used = list_used_specs(Periodic(specs=specs))

    assert used == ("0 1 * * *", *(f"{minute} 2 * * *" for minute in range(MAX_SCHEDULES - 2)))


def test_launch_times_are_those_of_all_schedules_in_order() -> None:
    periodic = Periodic(specs=("0 * * * *", "*/40 * * * *", "0 0 1 1 * 2020", "15 1 * * *"))
    after = utc("2026-01-01 00:00:00")
    times = LaunchTimes(periodic, after)
    found: list[str] = []
    while len(found) < 5 and (time := times.find_next(after)) is not None:
        after = time
        found.append(time.strftime("%H:%M"))

    assert found == ["00:40", "01:00", "01:15", "01:40", "02:00"]
    assert times.find_next(utc("2026-01-03 01:00:00")) == utc("2026-01-03 01:15:00")
