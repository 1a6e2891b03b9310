"""Cron expressions with five to seven fields, and their next time in a time zone (scheduling.md 8.1).

Five fields are minute, hour, day of month, month, day of week; a sixth is the year; with seven the first is the second. Lists,
ranges, steps and names are supported; also `L`, `LW` and `15W` in the day of month, and `5L` (the last Friday) and `5#2` (the
second Friday) in the day of week, where 0 and 7 are Sunday. If both day fields are restricted, a day needs to match only one.

Daylight saving time: a skipped local time does not occur on that day; a repeated one occurs at both instants.

The search for the next time has a limit: see `MAX_SEARCH_STEPS`. It examines each kind of year once, because the calendar
repeats: a year begins on one of seven days of the week, and is a leap year or not.
"""

import bisect
import calendar
import datetime
import re
import zoneinfo
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec

MIN_YEAR: Final = 1970
MAX_YEAR: Final = 2099
MAX_CRON_CHARS: Final = 1_000
"""Length of an expression; limits the time to parse it."""
MAX_SEARCH_STEPS: Final = 20
"""Limits the steps in which `find_next_time` advances, each to the next matching local time or change of the UTC offset.

Each step takes about 30 microseconds. Almost every search ends within three steps. Only an expression whose local times are
skipped by daylight saving time for years in a row reaches the limit; it counts as an expression that never matches."""

UTC: Final = datetime.UTC
ONE_SECOND: Final = datetime.timedelta(seconds=1)
ONE_DAY: Final = datetime.timedelta(days=1)
UTC_OFFSET_CHECK_INTERVAL: Final = datetime.timedelta(hours=6)
"""Step of the search for a change of the UTC offset, such as daylight saving time; no zone changes twice within this
time."""

CRON_ALIASES: Final[Mapping[str, str]] = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
MONTHS: Final[Mapping[str, int]] = {name.upper(): n for n, name in enumerate(calendar.month_abbr) if n} | {
    name.upper(): n for n, name in enumerate(calendar.month_name) if n
}
LEAP_YEAR: Final = 2024
"""Any leap year; the year after it is not one."""
SUNDAY: Final = 0
SATURDAY: Final = 6
# Cron counts weekdays from Sunday, the calendar module from Monday.
WEEKDAYS: Final[Mapping[str, int]] = {name.upper(): (n + 1) % 7 for n, name in enumerate(calendar.day_abbr)} | {
    name.upper(): (n + 1) % 7 for n, name in enumerate(calendar.day_name)
}


class CronError(ValueError):
    """The error that a text is not a cron expression, or not the name of a time zone. The message states the reason."""


class _CronField(msgspec.Struct, frozen=True):
    """The rules for one field of a cron expression: its range of numbers, and the names that stand for numbers."""

    label: str  # Its name in error messages.
    low: int  # The smallest allowed number.
    high: int  # The largest one.
    names: Mapping[str, int] = {}  # Such as `MON` -> 1.


SECOND_FIELD: Final = _CronField("second", 0, 59)
MINUTE_FIELD: Final = _CronField("minute", 0, 59)
HOUR_FIELD: Final = _CronField("hour", 0, 23)
DAY_FIELD: Final = _CronField("day of month", 1, 31)
MONTH_FIELD: Final = _CronField("month", 1, 12, MONTHS)
WEEKDAY_FIELD: Final = _CronField("day of week", 0, 7, WEEKDAYS)
YEAR_FIELD: Final = _CronField("year", MIN_YEAR, MAX_YEAR)


class _Days(msgspec.Struct, frozen=True):
    """The days that a cron expression selects by day of month and day of week."""

    any_day: bool  # Both fields are `*`: every day matches, and the other attributes are unused.
    days: frozenset[int] = frozenset()  # Days of the month.
    last: bool = False  # Whether the last day of the month matches (`L`).
    last_workday: bool = False  # Whether the last Monday to Friday matches (`LW`).
    workdays_near: frozenset[int] = frozenset()  # For `15W`: 15.
    weekdays: frozenset[int] = frozenset()  # 0 is Sunday.
    last_weekdays: frozenset[int] = frozenset()  # For `5L`, the last Friday of the month: 5.
    nth_weekdays: frozenset[tuple[int, int]] = frozenset()  # For `5#2`, the second Friday of the month: (5, 2).

    def list_in_month(self, first: int, length: int) -> tuple[int, ...]:
        """Return the numbers of the selected days of a month, in ascending order.

        `first` is the day of the week on which the month begins (0 is Sunday), and `length` its number of days.
        """
        if self.any_day:
            return tuple(range(1, length + 1))
        found = {day for day in self.days if day <= length}
        if self.last:
            found.add(length)
        if self.last_workday:
            found.add(_find_nearest_workday(first, length, length))
        found.update(_find_nearest_workday(first, day, length) for day in self.workdays_near if day <= length)
        for weekday in self.weekdays:
            found.update(range(1 + (weekday - first) % 7, length + 1, 7))
        for weekday in self.last_weekdays:
            found.add(range(1 + (weekday - first) % 7, length + 1, 7)[-1])
        for weekday, nth in self.nth_weekdays:
            day = 1 + (weekday - first) % 7 + 7 * (nth - 1)
            if day <= length:
                found.add(day)
        return tuple(sorted(found))


def _find_nearest_workday(first: int, day: int, length: int) -> int:
    """Return the Monday to Friday nearest to a day, within the same month.

    `first` is the day of the week on which the month begins, and `length` its number of days.
    """
    weekday = (first + day - 1) % 7
    if weekday == SATURDAY:
        return day - 1 if day > 1 else day + 2
    if weekday == SUNDAY:
        return day + 1 if day < length else day - 2
    return day


class _MatchingMonth(msgspec.Struct, frozen=True):
    """A month in which a cron expression selects days."""

    month: int
    days: tuple[int, ...]  # In ascending order; at least one.


@lru_cache(maxsize=4096)
def _list_matching_months(
    days: _Days, months: tuple[int, ...], first: int, is_leap: bool
) -> tuple[_MatchingMonth, ...]:
    """Return the months with selected days, in ascending order, of a year that begins on the day of the week `first`."""
    found = []
    for month in range(1, 13):
        length = calendar.monthrange(LEAP_YEAR if is_leap else LEAP_YEAR + 1, month)[1]
        if month in months and (selected := days.list_in_month(first, length)):
            found.append(_MatchingMonth(month, selected))
        first = (first + length) % 7
    return tuple(found)


class CronSchedule(msgspec.Struct, frozen=True):
    """A parsed cron expression: the selected values of each field, in ascending order."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: _Days
    months: tuple[int, ...]
    years: tuple[int, ...]

    def has_dates(self) -> bool:
        """Return whether the expression selects at least one day up to `MAX_YEAR`; `31 4` (day, month) selects none."""
        return any(
            _list_matching_months(self.days, self.months, (calendar.weekday(year, 1, 1) + 1) % 7, calendar.isleap(year))
            for year in self.years
        )

    def find_next_time(self, instant: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime | None:
        """Return the first time (UTC) after `instant` that matches the expression in a time zone.

        The result is `None` if no time up to `MAX_YEAR` matches, or if none is found within `MAX_SEARCH_STEPS`.
        """
        # While the UTC offset of the zone stays the same, local time advances like UTC. Each such period is searched separately.
        current = instant.astimezone(UTC).replace(microsecond=0) + ONE_SECOND
        for _ in range(MAX_SEARCH_STEPS):
            if current.year > MAX_YEAR:
                return None
            offset = _get_utc_offset(current, zone)
            local_match = self._find_local_time((current + offset).replace(tzinfo=None))
            if local_match is None:
                return None
            match = local_match.replace(tzinfo=UTC) - offset
            change = _find_offset_change(zone, current, min(match, current + ONE_DAY), offset)
            if change is None and match <= current + ONE_DAY:
                return match
            # No match within a day, or the offset changes first: continue at the change, or shortly before the match.
            current = change or max(match - 2 * ONE_DAY, current + ONE_DAY)
        return None

    def _find_local_time(self, local: datetime.datetime) -> datetime.datetime | None:
        """Return the first matching time at or after `local`, or `None`. Both are local times without a zone."""
        for day in self._iter_days(local):
            clock = (0, 0, 0) if day > local.date() else (local.hour, local.minute, local.second)
            found = self._find_time_of_day(*clock)
            if found is not None:
                return datetime.datetime(day.year, day.month, day.day, *found)
        return None

    def _iter_days(self, local: datetime.datetime) -> Iterator[datetime.date]:
        """Yield the matching days in ascending order, beginning with the day of `local` if it matches."""
        today = local.date()
        for year in self.years[bisect.bisect_left(self.years, today.year) :]:
            first = (calendar.weekday(year, 1, 1) + 1) % 7
            for matching in _list_matching_months(self.days, self.months, first, calendar.isleap(year)):
                if (year, matching.month) < (today.year, today.month):
                    continue
                for number in matching.days:
                    day = datetime.date(year, matching.month, number)
                    if day >= today:
                        yield day

    def _find_time_of_day(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        """Return the first matching time of day at or after this one, as hour, minute and second.

        The result is `None` if no later time of the day matches.
        """
        for found_hour in self.hours[bisect.bisect_left(self.hours, hour) :]:
            if found_hour > hour:
                return found_hour, self.minutes[0], self.seconds[0]
            for found_minute in self.minutes[bisect.bisect_left(self.minutes, minute) :]:
                if found_minute > minute:
                    return found_hour, found_minute, self.seconds[0]
                later = self.seconds[bisect.bisect_left(self.seconds, second) :]
                if later:
                    return found_hour, found_minute, later[0]
        return None


def _get_utc_offset(instant: datetime.datetime, zone: datetime.tzinfo) -> datetime.timedelta:
    """Return how far the local time of a zone is ahead of UTC at an instant."""
    return instant.astimezone(zone).utcoffset() or datetime.timedelta()


def _find_offset_change(
    zone: datetime.tzinfo, start: datetime.datetime, end: datetime.datetime, offset: datetime.timedelta
) -> datetime.datetime | None:
    """Return the first instant after `start`, up to `end`, at which the UTC offset of the zone is not `offset`.

    The result is exact to the second; `None` if the offset does not change. The search advances in steps of six
    hours, then bisects the step in which the offset changes.
    """
    before, after = start, start
    while after < end:
        before, after = after, min(after + UTC_OFFSET_CHECK_INTERVAL, end)
        if _get_utc_offset(after, zone) != offset:
            break
    else:
        return None
    while after - before > ONE_SECOND:
        middle = before + datetime.timedelta(seconds=int((after - before).total_seconds()) // 2)
        if _get_utc_offset(middle, zone) == offset:
            before = middle
        else:
            after = middle
    return after


def find_next_time(spec: str, instant: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime | None:
    """Return the first time (UTC) after `instant` that matches a cron expression in a time zone, or `None`.

    Raises `CronError` if the expression is invalid.
    """
    return parse_cron(spec).find_next_time(instant, zone)


@lru_cache(maxsize=256)
def load_zone(name: str) -> datetime.tzinfo:
    """Return the time zone with this name, such as "Europe/Berlin". Raises `CronError` if it does not exist."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise CronError(f'unknown time zone "{name}"') from None


# ---- parsing


@lru_cache(maxsize=1024)
def parse_cron(spec: str) -> CronSchedule:
    """Parse a cron expression of 5 to 7 fields, or an alias such as `@daily`.

    Raises `CronError` with the field and the reason if it is invalid.
    """
    if len(spec) > MAX_CRON_CHARS:
        raise CronError(f"the expression is longer than {MAX_CRON_CHARS} characters")
    text = spec.strip()
    if text.startswith("@"):
        if text.lower() not in CRON_ALIASES:
            raise CronError(f'"{text}" is not one of {", ".join(CRON_ALIASES)}')
        text = CRON_ALIASES[text.lower()]
    fields = text.split()
    if not 5 <= len(fields) <= 7:
        raise CronError(f"expected 5 to 7 fields, got {len(fields)}")
    second = fields.pop(0) if len(fields) == 7 else "0"
    minute, hour, day, month, weekday = fields[:5]
    year = fields[5] if len(fields) == 6 else "*"
    return CronSchedule(
        seconds=_parse_numbers(second, SECOND_FIELD),
        minutes=_parse_numbers(minute, MINUTE_FIELD),
        hours=_parse_numbers(hour, HOUR_FIELD),
        days=_parse_days(day, weekday),
        months=_parse_numbers(month, MONTH_FIELD),
        years=_parse_numbers(year, YEAR_FIELD),
    )


def _parse_numbers(text: str, field: _CronField) -> tuple[int, ...]:
    """Return the numbers that one field of a cron expression selects, in ascending order.

    Raises `CronError` if it is invalid.
    """
    found: set[int] = set()
    for item in text.split(","):
        found.update(_parse_range(item, field))
    return tuple(sorted(found))


def _parse_range(item: str, field: _CronField) -> range:
    """Return the numbers that one item of a field selects: a number, a range such as `1-5`, or `*`.

    An item may have a step, as in `*/15`. Raises `CronError` if the item is invalid.
    """
    body, slash, step_text = item.partition("/")
    step = 1
    if slash:
        if not re.fullmatch(r"[0-9]{1,4}", step_text) or int(step_text) == 0:
            raise CronError(f'bad step "{step_text}" in field {field.label}')
        step = int(step_text)
    if body == "*":
        return range(field.low, field.high + 1, step)
    first, dash, last = body.partition("-")
    low = _parse_number(first, field)
    if dash:
        high = _parse_number(last, field)
        if field is WEEKDAY_FIELD and high == 0 < low:
            high = 7  # As the end of a range, Sunday is day 7.
    else:
        high = field.high if slash else low
    if low > high:
        raise CronError(f'the range "{body}" in field {field.label} runs backwards')
    return range(low, high + 1, step)


def _parse_number(text: str, field: _CronField) -> int:
    """Return the value of a number or of a name such as `MON`. Raises `CronError` if the field does not allow it."""
    named = field.names.get(text.upper())
    if named is not None:
        return named
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise CronError(f'"{text}" is not understood in field {field.label}')
    number = int(text)
    if not field.low <= number <= field.high:
        raise CronError(f"{number} is not in {field.low}..{field.high} (field {field.label})")
    return number


def _parse_days(day: str, weekday: str) -> _Days:
    """Return the days that the fields day of month and day of week select together.

    Raises `CronError` if one is invalid.
    """
    any_day, any_weekday = day in ("*", "?"), weekday in ("*", "?")
    if any_day and any_weekday:
        return _Days(any_day=True)
    days: set[int] = set()
    near: set[int] = set()
    last = last_workday = False
    for item in () if any_day else day.upper().split(","):
        if item == "L":
            last = True
        elif item in ("LW", "WL"):
            last_workday = True
        elif item.endswith("W"):
            near.add(_parse_number(item[:-1], DAY_FIELD))
        else:
            days.update(_parse_range(item, DAY_FIELD))
    weekdays: set[int] = set()
    last_weekdays: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for item in () if any_weekday else weekday.upper().split(","):
        name, hash_sign, number = item.partition("#")
        if hash_sign:
            if number not in ("1", "2", "3", "4", "5"):
                raise CronError(f'"{number}" is not one of 1..5 (field {WEEKDAY_FIELD.label})')
            nth.add((_parse_number(name, WEEKDAY_FIELD) % 7, int(number)))
        elif item.endswith("L") and item[:-1] and item not in WEEKDAYS:
            last_weekdays.add(_parse_number(item[:-1], WEEKDAY_FIELD) % 7)
        else:
            weekdays.update(day % 7 for day in _parse_range(item, WEEKDAY_FIELD))
    return _Days(
        any_day=False,
        days=frozenset(days),
        last=last,
        last_workday=last_workday,
        workdays_near=frozenset(near),
        weekdays=frozenset(weekdays),
        last_weekdays=frozenset(last_weekdays),
        nth_weekdays=frozenset(nth),
    )
