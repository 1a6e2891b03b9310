"""Eight processes together never exceed a limit; without leases they admit exactly the limit."""

from pathlib import Path

import pytest

from tests.limits.builders import HOUR_MS, MINUTE_MS
from tests.limits.stores.eight_processes import PROCESSES, build_rules, count_in_eight, sum_windows
from tests.limits.stores.redis_server import running_redis

pytestmark = pytest.mark.needs_program("redis-server")

MINUTELY, HOURLY = 6, 200
LEASED_MINUTELY, LEASED_HOURLY, LEASE = 1_000, 1_500, 10  # Lower limits are never leased.
MAX_UNUSED = PROCESSES * LEASE
TICKS_OF_HOUR = [313] * 8 + [1, 0, 0, 0] * 58
"""Ten times the limit in the first two minutes, then single requests."""


def check_exact(folder: Path, *, callers: int, minutes: int) -> None:
    """Send ten times the limits, so that every window is used up completely."""
    with running_redis(folder) as server:
        check_exact_at(server.address, callers=callers, minutes=minutes)


def check_exact_at(address: str, *, callers: int, minutes: int) -> None:
    admitted = count_in_eight(address, build_rules(MINUTELY, HOURLY), callers=callers, minutes=minutes, sent=[2])
    for caller in range(callers):
        by_hour = sum_windows(admitted, caller, HOUR_MS)
        assert by_hour == list_hours(minutes), caller
        by_minute = sum_windows(admitted, caller, MINUTE_MS)
        # The last minute before the hourly limit is used up admits the rest of it.
        assert sum(by_minute) == sum(by_hour)
        assert set(by_minute) <= {MINUTELY, HOURLY % MINUTELY}, (caller, by_minute)


def list_hours(minutes: int) -> list[int]:
    hours, minutes_left = divmod(minutes, 60)
    return [HOURLY] * hours + ([min(HOURLY, minutes_left * MINUTELY)] if minutes_left else [])


def test_in_eight_processes_exactly_the_limit_is_admitted_in_every_window(tmp_path: Path) -> None:
    check_exact(tmp_path, callers=10, minutes=4)


def test_eight_neighbours_of_a_counter_server_admit_exactly_the_limit_in_every_window(tmp_path: Path) -> None:
    check_exact_at(str(tmp_path / "counters.sock"), callers=10, minutes=4)


@pytest.mark.faults
def test_in_three_hours_of_eight_processes_exactly_the_limit_is_admitted_in_every_window(tmp_path: Path) -> None:
    check_exact(tmp_path, callers=200, minutes=180)


def check_leased(folder: Path, *, callers: int, minutes: int) -> None:
    """The first minute of each hour is used up; the second uses up the rest of the hour."""
    with running_redis(folder) as server:
        admitted = count_in_eight(
            server.address,
            build_rules(LEASED_MINUTELY, LEASED_HOURLY),
            callers=callers,
            minutes=minutes,
            sent=TICKS_OF_HOUR,
            lease=LEASE,
        )
    for caller in range(callers):
        by_minute, by_hour = sum_windows(admitted, caller, MINUTE_MS), sum_windows(admitted, caller, HOUR_MS)
        assert len(by_hour) == -(-minutes // 60), caller
        assert sum(total >= LEASED_MINUTELY - MAX_UNUSED for total in by_minute) == len(by_hour), (caller, by_minute)
        assert max(by_minute) <= LEASED_MINUTELY, (caller, by_minute)
        assert all(LEASED_HOURLY - MAX_UNUSED <= total <= LEASED_HOURLY for total in by_hour), (caller, by_hour)


def test_with_leases_eight_processes_admit_at_most_the_limit_and_at_least_the_limit_minus_unused_leases(
    tmp_path: Path,
) -> None:
    check_leased(tmp_path, callers=2, minutes=2)


@pytest.mark.faults
def test_with_leases_three_hours_admit_at_most_the_limit_and_little_less(tmp_path: Path) -> None:
    check_leased(tmp_path, callers=200, minutes=180)
