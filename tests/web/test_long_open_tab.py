"""A tab that is open for a very long time: 100,000 changes of records while it shows the busiest page."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.waiting import wait_until
from tests.web.chromium import running_browser
from tests.web.signed_in_cluster import SignedInCluster, running_cluster

pytestmark = [pytest.mark.needs_program("chromium"), pytest.mark.faults]
ALLOCATIONS = 1_000
CHANGES_PER_ALLOCATION = 3
"""Placed, running and complete."""
ROUNDS = 34
MAX_GROWTH_MB = 20.0
MEGABYTE = 1_000_000
ROUND_WITHIN_S = 180.0


def run_round(cluster: SignedInCluster, number: int) -> None:
    """Run a job of many short tasks to its end."""
    resources = {"CPU": 10, "MemoryMB": 10}
    task = {"Name": "t", "Driver": "mock", "Config": {"run_for": "1s"}, "Resources": resources}
    group = {"Name": "g", "Count": ALLOCATIONS, "Tasks": [task]}
    name = f"round-{number}"
    cluster.ask("PUT", "/v1/jobs", {"Job": {"ID": name, "Type": "batch", "TaskGroups": [group]}})
    wait_until(lambda: count_complete(cluster, name) == ALLOCATIONS, what=f"{name} ends", within_s=ROUND_WITHIN_S)


def count_complete(cluster: SignedInCluster, name: str) -> int:
    return int(cluster.ask("GET", f"/v1/job/{name}/summary")["Summary"]["g"]["Complete"])


def measure_mb(page: Page) -> float:
    """Return the memory of the scripts and elements of a page, without garbage."""
    session: Any = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    usage = session.send("Runtime.getHeapUsage")
    session.detach()
    return float(usage["usedSize"] + usage["embedderHeapUsedSize"] + usage["backingStorageSize"]) / MEGABYTE


def test_tabs_that_are_open_for_100000_changes_do_not_grow(tmp_path: Path) -> None:
    with (
        running_browser() as browser,
        running_cluster(tmp_path, browser) as cluster,
        cluster.signed_in_tabs() as tabs,
    ):
        pages = [tabs.open(path) for path in ("/ui", "/ui/jobs")]
        run_round(cluster, 0)
        before = [measure_mb(page) for page in pages]
        for number in range(1, 1 + ROUNDS):
            run_round(cluster, number)
        after = [measure_mb(page) for page in pages]

    growth = [late - early for early, late in zip(before, after, strict=True)]
    changes = ROUNDS * ALLOCATIONS * CHANGES_PER_ALLOCATION
    assert max(growth) < MAX_GROWTH_MB, f"grown by {growth} MB in {changes:,} changes"
