"""Activity that is folded because a minute has too many rows: the busiest callers stay, and all sums are exact."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.limits.builders import NOON_MS, InMemoryLimiter, a_user, anonymous, build_rules_text
from tests.limits.stores.redis_server import running_redis
from wharf.limits.core.callers.directory import MemoryDirectory, Organization
from wharf.limits.decisions.activity import ActivityCounts, ActivityRow
from wharf.limits.decisions.activity_folding import OTHER_ENDPOINT, OTHERS, fold_rows
from wharf.limits.decisions.insights import compute_insights
from wharf.limits.decisions.shared_records import SharedRecords
from wharf.limits.stores.redis import RedisSettings
from wharf.limits.stores.redis.link import RedisLink
from wharf.limits.stores.redis.records import RedisRecords
from wharf.world import RealWorld

DAY_MS = 24 * 3_600_000

DIRECTORY = MemoryDirectory(organizations={"acme": Organization(login="acme")})
ENDPOINTS = ["GET /a", "GET /b", "POST /c", "GET /d/{id}"]


def make_row(login: str, total: int, *, endpoint: str = "GET /a", resource: str = "acme/site") -> ActivityRow:
    caller = anonymous(login) if login[0].isdigit() else a_user(login)
    return ActivityRow(1, caller, endpoint, total, total // 3, total // 7, total, total // 2, resource, "core")


def make_crowd(seed: int, *, repositories: int = 40) -> list[ActivityRow]:
    """Return the rows of 5,000 callers in one minute: a few send much, most send little."""
    chance = random.Random(seed)
    return [
        make_row(
            f"u{number}",
            1 + 20_000 // (number + 1),
            endpoint=endpoint,
            resource=f"acme/r{chance.randrange(repositories)}",
        )
        for number in range(5_000)
        for endpoint in chance.sample(ENDPOINTS, chance.randint(1, 3))
    ]


def sum_by_owner(rows: Iterable[ActivityRow]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.caller.owner] += row.total
    return counts


def list_sums(rows: list[ActivityRow]) -> list[int]:
    return [sum(getattr(row, name) for row in rows) for name in ("total", "primary", "secondary")]


def test_few_rows_stay_as_they_are() -> None:
    rows = [make_row("ada", 3), make_row("bob", 1)]

    assert fold_rows(rows, max_rows=9, max_of_organization=9) == rows


@pytest.mark.parametrize("seed", [1, 2])
def test_of_5000_callers_in_a_minute_the_busiest_50_are_right_and_the_sums_exact(seed: int) -> None:
    rows = make_crowd(seed)
    folded = fold_rows(rows, max_rows=1_000, max_of_organization=400)
    busiest = [owner for owner, _ in sum_by_owner(rows).most_common(50)]

    counts = sum_by_owner(folded)
    assert {owner: counts[owner] for owner in busiest} == {owner: sum_by_owner(rows)[owner] for owner in busiest}
    assert list_sums(folded) == list_sums(rows)
    assert len(folded) <= 400


def test_reports_of_folded_rows_show_the_rest_as_others_after_all_callers() -> None:
    folded = fold_rows(make_crowd(1), max_rows=1_000, max_of_organization=400)

    last_page = compute_insights(folded, DIRECTORY, "acme", "subject-stats", {"per_page": "100", "page": "99"})
    pages = [
        compute_insights(folded, DIRECTORY, "acme", report, {"per_page": "100", "page": str(page)})
        for report in ("subject-stats", "user-stats")
        for page in range(1, 5)
    ]
    names = [[row.get("subject_name") or row["actor_name"] for row in page] for page in pages if page]
    total = compute_insights(folded, DIRECTORY, "acme", "summary-stats", {})["total_request_count"]
    assert last_page == []
    assert [page[-1] for page in names if page[-1].startswith("others")] == ["others", "others:others"]
    assert names[0][0] == "u0"
    assert sum(row["total_request_count"] for page in pages for row in page) == 2 * total


def test_sums_by_endpoint_and_by_resource_stay_exact_while_they_are_few() -> None:
    rows = make_crowd(3, repositories=20)
    folded = fold_rows(rows, max_rows=1_000, max_of_organization=400)

    for report in ("route-stats", "resource-stats", "bucket-stats", "time-stats"):
        fields = ("api_route", "resource_name", "bucket", "timestamp", "total_request_count")
        shown, expected = (
            [
                [row.get(name) for name in fields]
                for row in compute_insights(some, DIRECTORY, "acme", report, {"per_page": "100"})
            ]
            for some in (folded, rows)
        )
        assert sorted(map(str, shown)) == sorted(map(str, expected))


def test_the_smallest_of_too_many_endpoints_are_one_row() -> None:
    rows = [make_row(f"u{number}", number + 1, endpoint=f"GET /{number}") for number in range(100)]
    folded = fold_rows(rows, max_rows=20, max_of_organization=20)

    rest = [row for row in folded if row.endpoint == OTHER_ENDPOINT]
    assert len(folded) <= 20
    assert [(row.caller, row.resource, row.bucket) for row in rest] == [(OTHERS, "acme", "core")]
    assert list_sums(folded) == list_sums(rows)


def test_callers_without_a_credential_stay_apart_from_others() -> None:
    rows = [make_row(f"192.0.2.{number}", 2) for number in range(100)]
    rows += [make_row(f"u{number}", 3) for number in range(100)]
    folded = fold_rows(rows, max_rows=20, max_of_organization=20)

    counts = {
        row["subject_type"]: row["total_request_count"]
        for row in compute_insights(folded, DIRECTORY, "acme", "subject-stats", {"per_page": "100"})
    }
    assert counts["address"] == 200
    assert sum(row.total for row in folded) == 500


def test_a_busy_organization_leaves_rows_for_the_others() -> None:
    rows = [make_row(f"u{number}", 1_000, resource="acme/site") for number in range(1_000)]
    rows += [make_row(f"v{number}", 1, resource=f"o{number % 3}/x") for number in range(30)]
    folded = fold_rows(rows, max_rows=100, max_of_organization=90)

    small = [row for row in folded if row.resource != "acme/site"]
    assert sorted(row.caller.owner for row in small) == sorted(f"user:v{number}" for number in range(30))
    assert len(folded) <= 100


def test_times_of_folded_rows_are_the_latest() -> None:
    rows = [make_row(f"u{number}", 100 - number) for number in range(50)]
    folded = fold_rows(rows, max_rows=4, max_of_organization=4)

    others = [row for row in folded if row.caller == OTHERS]
    assert [(row.last_ms, row.last_limited_ms) for row in others] == [(97, 48)]


def test_the_sum_of_a_busy_caller_with_many_endpoints_is_right() -> None:
    rows = [make_row("ada", 10, endpoint=f"GET /{number}") for number in range(300)]
    rows += [make_row(f"u{number}", 1) for number in range(300)]
    folded = fold_rows(rows, max_rows=40, max_of_organization=40)

    assert sum_by_owner(folded)["user:ada"] == 3_000
    assert len(folded) <= 40


@pytest.mark.needs_program("redis-server")
def test_processes_on_one_redis_report_5000_callers_of_a_minute(tmp_path: Path) -> None:
    limiter, expected = InMemoryLimiter(build_rules_text()), Counter[str]()
    processes = [ActivityCounts() for _ in "ab"]
    for number in range(5_000):
        caller = a_user(f"u{number}")
        decision = limiter.send(caller)
        for index, counts in enumerate(processes):
            count = 1 + 400 // (number + 1 + index)
            expected[caller.owner] += count
            for _ in range(count):
                counts.record_admission(decision, caller, "acme/site")
    for counts in processes:
        counts.add_admissions_to_rows(NOON_MS)

    async def scenario(address: str) -> list[ActivityRow]:
        link = RedisLink(RedisSettings(addresses=(address,)))
        await link.open()
        store = RedisRecords(link, "test:", max_decisions=0, retention_ms=DAY_MS)
        for name, counts in zip("ab", processes, strict=True):
            records = SharedRecords(counts, name, RealWorld(), kept_ms=DAY_MS)
            records.record_store = store
            await records.write(NOON_MS)
        reader = SharedRecords(ActivityCounts(), "c", RealWorld(), kept_ms=DAY_MS)
        reader.record_store = store
        rows = await reader.read_activity(now_ms=NOON_MS, since_ms=NOON_MS, organization="acme")
        await link.close()
        return [row for process_rows in rows.values() for row in process_rows]

    with running_redis(tmp_path) as redis:
        rows = asyncio.run(scenario(redis.address))

    page = compute_insights(rows, DIRECTORY, "acme", "subject-stats", {"per_page": "50"})
    shown = [(f"user:{row['subject_name']}", row["total_request_count"]) for row in page]
    assert sorted(shown) == sorted(expected.most_common(50))
    total = compute_insights(rows, DIRECTORY, "acme", "summary-stats", {})["total_request_count"]
    assert total == expected.total()
