"""Cron expressions of five to seven fields, and when they come next in a time zone (scheduling.md 8.1).

Five fields are minute, hour, day of month, month, day of week; a sixth is the year; with seven the first is the second.
Lists, ranges, steps and names; `L`, `LW` and `15W` in the day of month; `5L` (the last Friday) and `5#2` (the second) in
the day of week, where 0 and 7 are Sunday. Where both day fields say something, a day that suits either is meant.

Clock changes: a local time that is skipped does not come that day; one that is repeated comes at both instants.
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

UTC: Final = datetime.UTC
ONE_SECOND: Final = datetime.timedelta(seconds=1)
ONE_DAY: Final = datetime.timedelta(days=1)
OFFSET_CHECK_INTERVAL: Final = datetime.timedelta(hours=6)

CRON_ALIASES: Final[Mapping[str, str]] = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
MONTHS: Final[Mapping[str, int]] = {name.upper(): n for n, name in enumerate(calendar.month_abbr) if n} | {
    name.upper(): n for n, name in enumerate(calendar.month_name) if n
}
# Cron counts from Sunday, the calendar module from Monday.
WEEKDAYS: Final[Mapping[str, int]] = {name.upper(): (n + 1) % 7 for n, name in enumerate(calendar.day_abbr)} | {
    name.upper(): (n + 1) % 7 for n, name in enumerate(calendar.day_name)
}


class CronError(ValueError):
    """The text is no cron expression, or no time zone; says which field and why."""


class _Field(msgspec.Struct, frozen=True):
    label: str
    low: int
    high: int
    names: Mapping[str, int] = {}


SECOND_FIELD: Final = _Field("second", 0, 59)
MINUTE_FIELD: Final = _Field("minute", 0, 59)
HOUR_FIELD: Final = _Field("hour", 0, 23)
DAY_FIELD: Final = _Field("day of month", 1, 31)
MONTH_FIELD: Final = _Field("month", 1, 12, MONTHS)
WEEKDAY_FIELD: Final = _Field("day of week", 0, 7, WEEKDAYS)
YEAR_FIELD: Final = _Field("year", MIN_YEAR, MAX_YEAR)


class _Days(msgspec.Struct, frozen=True):
    """Which days of a month are meant."""

    any_day: bool
    days: frozenset[int] = frozenset()
    last: bool = False
    last_workday: bool = False
    workdays_near: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    last_weekdays: frozenset[int] = frozenset()
    # (weekday, which one of the month)
    nth_weekdays: frozenset[tuple[int, int]] = frozenset()

    def in_month(self, year: int, month: int) -> list[int]:
        """The days, in order."""
        length = calendar.monthrange(year, month)[1]
        if self.any_day:
            return list(range(1, length + 1))
        found = {day for day in self.days if day <= length}
        if self.last:
            found.add(length)
        if self.last_workday:
            found.add(_workday_near(year, month, length, length))
        found.update(_workday_near(year, month, day, length) for day in self.workdays_near if day <= length)
        first = (calendar.weekday(year, month, 1) + 1) % 7
        for weekday in self.weekdays:
            found.update(range(1 + (weekday - first) % 7, length + 1, 7))
        for weekday in self.last_weekdays:
            found.add(range(1 + (weekday - first) % 7, length + 1, 7)[-1])
        for weekday, nth in self.nth_weekdays:
            day = 1 + (weekday - first) % 7 + 7 * (nth - 1)
            if day <= length:
                found.add(day)
        return sorted(found)


def _workday_near(year: int, month: int, day: int, length: int) -> int:
    """The working day nearest to a day, never leaving the month."""
    weekday = calendar.weekday(year, month, day)
    if weekday == calendar.SATURDAY:
        return day - 1 if day > 1 else day + 2
    if weekday == calendar.SUNDAY:
        return day + 1 if day < length else day - 2
    return day


class CronSchedule(msgspec.Struct, frozen=True):
    """A parsed expression."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: _Days
    months: tuple[int, ...]
    years: tuple[int, ...]

    def find_next_time(self, instant: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime | None:
        """The first instant (UTC) after that one that the expression means in the zone; None if none is left."""
        # Between two changes of the zone's offset local time runs as UTC does. So each such stretch is looked at alone.
        moment = instant.astimezone(UTC).replace(microsecond=0) + ONE_SECOND
        while moment.year <= MAX_YEAR:
            offset = _offset(moment, zone)
            local = self._first_from((moment + offset).replace(tzinfo=None))
            if local is None:
                return None
            found = local.replace(tzinfo=UTC) - offset
            change = _offset_change(zone, moment, min(found, moment + ONE_DAY), offset)
            if change is None and found <= moment + ONE_DAY:
                return found
            # Nothing is due within a day, nor repeated by a change of the clock: go on shortly before what was found.
            moment = change or max(found - 2 * ONE_DAY, moment + ONE_DAY)
        return None

    def _first_from(self, local: datetime.datetime) -> datetime.datetime | None:
        """The first local time that is not before that one."""
        for day in self._days_from(local):
            clock = (0, 0, 0) if day > local.date() else (local.hour, local.minute, local.second)
            found = self._time_from(*clock)
            if found is not None:
                return datetime.datetime(day.year, day.month, day.day, *found)
        return None

    def _days_from(self, local: datetime.datetime) -> Iterator[datetime.date]:
        today = local.date()
        for year in self.years[bisect.bisect_left(self.years, today.year) :]:
            for month in self.months:
                if (year, month) < (today.year, today.month):
                    continue
                for number in self.days.in_month(year, month):
                    day = datetime.date(year, month, number)
                    if day >= today:
                        yield day

    def _time_from(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
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


def _offset(moment: datetime.datetime, zone: datetime.tzinfo) -> datetime.timedelta:
    return moment.astimezone(zone).utcoffset() or datetime.timedelta()


def _offset_change(
    zone: datetime.tzinfo, start: datetime.datetime, end: datetime.datetime, offset: datetime.timedelta
) -> datetime.datetime | None:
    """The first instant after `start`, up to `end`, at which the zone's offset is another; to the second."""
    before, after = start, start
    while after < end:
        before, after = after, min(after + OFFSET_CHECK_INTERVAL, end)
        if _offset(after, zone) != offset:
            break
    else:
        return None
    while after - before > ONE_SECOND:
        middle = before + datetime.timedelta(seconds=int((after - before).total_seconds()) // 2)
        if _offset(middle, zone) == offset:
            before = middle
        else:
            after = middle
    return after


def find_next_time(spec: str, instant: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime | None:
    """The first instant (UTC) after that one; a CronError if the expression can not be read."""
    return parse_cron(spec).find_next_time(instant, zone)


@lru_cache(maxsize=256)
def load_zone(name: str) -> datetime.tzinfo:
    """The time zone of that name; a CronError if there is none."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise CronError(f'unknown time zone "{name}"') from None


# ---- parsing


@lru_cache(maxsize=1024)
def parse_cron(spec: str) -> CronSchedule:
    """Reads an expression; a CronError says which field is wrong and why."""
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
        seconds=_numbers(second, SECOND_FIELD),
        minutes=_numbers(minute, MINUTE_FIELD),
        hours=_numbers(hour, HOUR_FIELD),
        days=_parse_days(day, weekday),
        months=_numbers(month, MONTH_FIELD),
        years=_numbers(year, YEAR_FIELD),
    )


def _numbers(text: str, field: _Field) -> tuple[int, ...]:
    found: set[int] = set()
    for item in text.split(","):
        found.update(_range(item, field))
    return tuple(sorted(found))


def _range(item: str, field: _Field) -> range:
    body, slash, step_text = item.partition("/")
    step = 1
    if slash:
        if not re.fullmatch(r"[0-9]{1,4}", step_text) or int(step_text) == 0:
            raise CronError(f'bad step "{step_text}" in field {field.label}')
        step = int(step_text)
    if body == "*":
        return range(field.low, field.high + 1, step)
    first, dash, last = body.partition("-")
    low = _number(first, field)
    if dash:
        high = _number(last, field)
        if field is WEEKDAY_FIELD and high == 0 < low:
            high = 7  # A range up to Sunday ends the week.
    else:
        high = field.high if slash else low
    if low > high:
        raise CronError(f'the range "{body}" in field {field.label} runs backwards')
    return range(low, high + 1, step)


def _number(text: str, field: _Field) -> int:
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
            near.add(_number(item[:-1], DAY_FIELD))
        else:
            days.update(_range(item, DAY_FIELD))
    weekdays: set[int] = set()
    last_weekdays: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for item in () if any_weekday else weekday.upper().split(","):
        name, hash_sign, which = item.partition("#")
        if hash_sign:
            if which not in ("1", "2", "3", "4", "5"):
                raise CronError(f'"{which}" is not one of 1..5 (field {WEEKDAY_FIELD.label})')
            nth.add((_number(name, WEEKDAY_FIELD) % 7, int(which)))
        elif item.endswith("L") and item[:-1] and item not in WEEKDAYS:
            last_weekdays.add(_number(item[:-1], WEEKDAY_FIELD) % 7)
        else:
            weekdays.update(number % 7 for number in _range(item, WEEKDAY_FIELD))
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
