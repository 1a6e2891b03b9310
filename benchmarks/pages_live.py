"""Open pages of a cluster that changes: 1,000 without a window, and tabs of Chromium. Part of the benchmark `pages`."""

import json
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks.agent_process import measure_cpu_s
from benchmarks.figures import Figure, Figures
from benchmarks.http_load import HttpCaller
from benchmarks.placing_cluster import PlacingCluster, make_job

VIEWERS: Final = 1_000
CHANGES_PER_S: Final = 100
CHANGED_JOBS: Final = 300
MEASURED_S: Final = 15.0
SETTLE_S: Final = 3.0
PLACED: Final = 10_000
PLACEMENT_ROUNDS: Final = 5
"""Single measurements with and without pages differ by up to a tenth for other reasons."""
LATENCY_SAMPLES: Final = 20
SHOWN_SCRIPT: Final = """(text) => new Promise((done) => {
  const check = () => document.querySelector(".counts").textContent.includes(text) ? done() : requestAnimationFrame(check);
  check();
})"""
"""Waits until the page shows a text. The policy of the pages forbids Playwright's own way."""
TABS: Final = 12
TABS_TIMEOUT_MS: Final = 30_000


class AllocationReporter:
    """Reports states of allocations as their nodes do. Each report is one change."""

    def __init__(self, cluster: PlacingCluster) -> None:
        self._caller = HttpCaller(cluster.server.port)
        self._read = cluster.caller.get

    def find_allocation(self, job: str) -> tuple[str, str]:
        """Return the id and the node of an allocation of the job."""
        (allocation,) = self._read(f"/v1/job/{job}/allocations?newest=1")
        return allocation["ID"], allocation["NodeID"]

    def report(self, allocation: tuple[str, str], status: str) -> None:
        allocation_id, node_id = allocation
        body = {"ReportID": str(uuid.uuid4()), "Allocations": [{"ID": allocation_id, "ClientStatus": status}]}
        self._caller.send_request("PUT", f"/v1/node/{node_id}/report", body, X_Cluster_Node_Secret=node_id)


@contextmanager
def changing(cluster: PlacingCluster) -> Iterator[Callable[[], int]]:
    """Change `CHANGES_PER_S` allocations a second, of different jobs. Yield a function that returns how many were changed."""
    reporter, stop = AllocationReporter(cluster), threading.Event()
    allocations = [reporter.find_allocation(f"job-{number}") for number in range(CHANGED_JOBS)]

    count = 0

    def report_all() -> None:
        nonlocal count
        began_s = time.monotonic()
        while not stop.wait(max(0.0, began_s + count / CHANGES_PER_S - time.monotonic())):
            status = "running" if count // CHANGED_JOBS % 2 == 0 else "pending"
            reporter.report(allocations[count % CHANGED_JOBS], status)
            count += 1

    thread = threading.Thread(target=report_all)
    thread.start()
    try:
        yield lambda: count
    finally:
        stop.set()
        thread.join()


class Viewers:
    """A process of `page_viewers`. Its constructor returns when all pages are open."""

    def __init__(self, port: int, count: int, path: str) -> None:
        command = [sys.executable, "-m", "benchmarks.page_viewers", str(port), str(count), path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "open\n", "the pages could not be opened"

    def close(self) -> dict[str, Any]:
        """Close the pages, and return what they received."""
        counts: dict[str, Any] = json.loads(self._process.communicate()[0])
        return counts


def measure_viewers(cluster: PlacingCluster) -> Figures:
    """Measure what 1,000 open pages cost an api process, and what they cost placements."""
    pids = cluster.server.list_pids_of_role("api")
    with changing(cluster) as count_changes:
        alone = _measure_cores(pids)
        viewers = Viewers(cluster.server.port, VIEWERS, "/ui/jobs")
        time.sleep(SETTLE_S)
        began_s, changes = time.perf_counter(), count_changes()
        with_pages = _measure_cores(pids)
        duration_s, changes = time.perf_counter() - began_s, count_changes() - changes
        counts = viewers.close()
    note = (
        f"{alone:.2f} without the pages; {changes / duration_s:.0f} changes/s, {counts['updates'] / (duration_s + SETTLE_S):.0f} "
        f"updates/s of {counts['bytes'] / max(1, counts['updates']) / 1_000:.1f} kB, 95th percentile {counts['p95_ms']:.0f} ms"
    )
    name = f"{VIEWERS:,} open pages, {CHANGES_PER_S} changes/s: api process, with these changes"
    figures = {name: Figure(value=with_pages, unit="cores", at_most=0.5, note=note)}
    return figures | _measure_placement(cluster)


def _measure_cores(pids: list[int]) -> float:
    before_s, began_s = measure_cpu_s(pids), time.perf_counter()
    time.sleep(MEASURED_S)
    return (measure_cpu_s(pids) - before_s) / (time.perf_counter() - began_s)


def _measure_placement(cluster: PlacingCluster) -> Figures:
    """Compare the processor time of the scheduler for placements with and without open pages. It depends less on other load."""
    pids = cluster.server.list_pids_of_role("brain")

    def place(name: str) -> tuple[float, float]:
        before_s, existing = measure_cpu_s(pids), cluster.count_allocations()
        duration_s, _ = cluster.place_jobs([make_job(name, PLACED)], count=existing + PLACED)
        return PLACED / duration_s, (measure_cpu_s(pids) - before_s) / PLACED * 1e6

    def place_with_pages(name: str) -> tuple[float, float]:
        viewers = Viewers(cluster.server.port, VIEWERS, "/ui/jobs")
        time.sleep(SETTLE_S)
        try:
            return place(name)
        finally:
            viewers.close()

    place("placed-first")
    alone, with_pages = [], []
    for number in range(PLACEMENT_ROUNDS):  # By turns, because the cluster grows, and other programs disturb.
        alone.append(place(f"placed-alone-{number}"))
        with_pages.append(place_with_pages(f"placed-with-pages-{number}"))
    rate, used_us = map(statistics.median, zip(*alone, strict=True))
    rate_with_pages, used_with_pages_us = map(statistics.median, zip(*with_pages, strict=True))
    ratios = ", ".join(
        f"{pages_us / alone_us:.2f}" for (_, alone_us), (_, pages_us) in zip(alone, with_pages, strict=True)
    )
    note = (
        f"medians; ratios of the rounds {ratios}; {rate_with_pages:,.0f} allocations/s with the pages, {rate:,.0f} without; all on "
        "the same cores"
    )
    return {
        f"{VIEWERS:,} open pages: scheduler, for each placement": Figure(
            value=used_with_pages_us, unit="us of a core", baseline=used_us, at_most=1.1, note=note
        )
    }


def measure_change_latency(cluster: PlacingCluster, browser: Any) -> Figures:
    """Measure the time from the reply to a change until an open page shows it, at 100 changes a second."""
    reporter = AllocationReporter(cluster)
    allocation = reporter.find_allocation("job-1000")
    page = browser.new_page()
    page.goto(f"{cluster.server.url}/ui/jobs/job-1000")
    times_ms = []
    with changing(cluster):
        for number in range(LATENCY_SAMPLES):
            status = ("running", "pending")[number % 2]
            reporter.report(allocation, status)
            began_s = time.perf_counter()
            text = {"running": "1 of 1 running", "pending": "1 starting"}[status]
            page.evaluate(SHOWN_SCRIPT, text)
            times_ms.append((time.perf_counter() - began_s) * 1_000)
            time.sleep(0.37 + 0.1 * (number % 7))  # Not at the same phase of the second.
    page.close()
    times_ms.sort()
    note = f"median {times_ms[LATENCY_SAMPLES // 2]:.0f} ms"
    p95_ms = times_ms[int(LATENCY_SAMPLES * 0.95) - 1]
    return {
        f"change to the open page, {CHANGES_PER_S} changes/s, p95": Figure(
            value=p95_ms, unit="ms", at_most=1_000, note=note
        )
    }


def measure_tabs(cluster: PlacingCluster, browser: Any) -> Figures:
    """Open twelve tabs at once, and count those that show a change."""
    reporter = AllocationReporter(cluster)
    allocation = reporter.find_allocation("job-1001")
    context = browser.new_context()
    tabs = [context.new_page() for _ in range(TABS)]
    for tab in tabs:
        tab.goto(f"{cluster.server.url}/ui/jobs/job-1001", wait_until="commit")
    for tab in tabs:
        tab.wait_for_load_state()
    time.sleep(SETTLE_S)
    reporter.report(allocation, "running")
    live = 0
    for tab in tabs:
        tab.bring_to_front()
        tab.get_by_text("1 of 1 running").first.wait_for(timeout=TABS_TIMEOUT_MS)
        live += 1
    context.close()
    return {f"{TABS} tabs at once: live": Figure(value=live, unit="tabs", at_least=TABS)}


class WatchedTab:
    """A tab that is open while a cluster is filled, to measure how its memory grows."""

    def __init__(self, cluster: PlacingCluster, browser: Any) -> None:
        self._page = browser.new_page()
        self._page.goto(f"{cluster.server.url}/ui/jobs")
        time.sleep(SETTLE_S)
        self._session = self._page.context.new_cdp_session(self._page)
        self._before_mb = self._measure_mb()

    def _measure_mb(self) -> float:
        self._session.send("HeapProfiler.collectGarbage")
        return float(self._session.send("Runtime.getHeapUsage")["usedSize"]) / 1_000_000

    def close(self, events: int) -> Figures:
        """Return the growth of the tab's memory."""
        after_mb = self._measure_mb()
        self._page.close()
        note = f"from {self._before_mb:.1f} to {after_mb:.1f} MB of the script"
        name = f"a tab that is open for {events:,} events: growth"
        return {name: Figure(value=after_mb - self._before_mb, unit="MB", at_most=20, note=note)}
