"""The pages of a server with 10,000 jobs, 5,000 nodes and 110,000 allocations: server part, bytes, first paint, and open pages.

One job has 100,000 of the allocations. The nodes only register, so all allocations wait to be started. `python -m
benchmarks.pages [NODES JOBS ALLOCATIONS]` sets the size. Figures of Chromium are left out where it is not installed.
"""

import http.client
import http.server
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from benchmarks.agent_process import DEFAULT_MAX_COUNT, measure_cpu_s
from benchmarks.figures import Figure, Figures, print_table
from benchmarks.pages_browser import open_page, run_chromium
from benchmarks.pages_live import AllocationReporter, WatchedTab, measure_change_latency, measure_tabs, measure_viewers
from benchmarks.pages_logs import measure_logs
from benchmarks.placing_cluster import PlacingCluster, make_job, make_node_id, run_placing_cluster

NODES: Final = 5_000
JOBS: Final = 10_000
ALLOCATIONS: Final = 110_000
SMALL_JOB_ALLOCATIONS: Final = 1
REQUESTS: Final = 40
"""Requests of each page; the 95th percentile is the third slowest."""
MAX_PAGE_S: Final = 10.0
"""How long one page is requested, if it is slow."""
PAINTS: Final = 7
LARGE_JOB: Final = "large"
SETTLE_S: Final = 3.0
MAX_ELEMENTS: Final = 3_000
BARE_PAGE: Final = b"<!doctype html><title>bare</title><p>bare</p>"


class MeasuredPage(msgspec.Struct, frozen=True):
    """A page with its targets."""

    name: str
    path: str
    max_ms: float
    max_kb: float


def list_pages() -> list[MeasuredPage]:
    return [
        MeasuredPage("overview", "/ui", 30, 15),
        MeasuredPage("jobs", "/ui/jobs", 30, 15),
        MeasuredPage("a small job", "/ui/jobs/job-7", 30, 15),
        MeasuredPage("a job with 100,000 allocations", f"/ui/jobs/{LARGE_JOB}", 500, 15),
        MeasuredPage("timeline of 1,000 bars", f"/ui/jobs/{LARGE_JOB}/timeline?rows=1000", 400, 100),
        MeasuredPage("nodes", "/ui/nodes", 30, 15),
        MeasuredPage("node", f"/ui/nodes/{make_node_id(7)}", 30, 15),
        MeasuredPage("fleet", "/ui/fleet", 1_000, 40),
        MeasuredPage("fleet by job", "/ui/fleet?by=job", 1_000, 40),
    ]


def measure(nodes: int = NODES, jobs: int = JOBS, allocations: int = ALLOCATIONS) -> Figures:
    """Generate a cluster, request each page, open some in Chromium, and open many while the cluster changes."""
    figures: Figures = {}
    with run_chromium() as browser:
        with run_placing_cluster(nodes, max_count=max(allocations, DEFAULT_MAX_COUNT)) as cluster:
            tab = WatchedTab(cluster, browser) if browser is not None else None
            fill(cluster, jobs, allocations)
            if tab is not None:
                figures |= tab.close(allocations)
            for page in list_pages():
                figures |= measure_page(cluster, page)
            figures |= measure_first_request(cluster)
            figures |= measure_first_page(cluster.server.port)
            if browser is not None:
                figures |= measure_paints(browser, cluster.server.url)
                figures |= measure_change_latency(cluster, browser)
                figures |= measure_tabs(cluster, browser)
            figures |= measure_viewers(cluster)
        return figures | measure_logs(browser)


def fill(cluster: PlacingCluster, jobs: int, allocations: int) -> None:
    """Place one large job and many small ones, and wait until all have their allocations."""
    small = (jobs - 1) * SMALL_JOB_ALLOCATIONS
    large = max(1, allocations - small)
    work = [
        make_job(LARGE_JOB, large),
        *(make_job(f"job-{number}", SMALL_JOB_ALLOCATIONS) for number in range(jobs - 1)),
    ]
    cluster.place_jobs(work, count=large + small)
    time.sleep(SETTLE_S)


@contextmanager
def connected(port: int) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        yield connection
    finally:
        connection.close()


def fetch(connection: http.client.HTTPConnection, path: str) -> tuple[float, int]:
    """Return the milliseconds until a page has arrived, and the bytes of its body, compressed."""
    started_s = time.perf_counter()
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    reply = connection.getresponse()
    body = reply.read()
    assert reply.status == 200, (path, reply.status, body[:200])
    return (time.perf_counter() - started_s) * 1_000, len(body)


def measure_page(cluster: PlacingCluster, page: MeasuredPage) -> Figures:
    """Request a page many times over one connection. The first request finds no cached list."""
    with connected(cluster.server.port) as connection:
        first_ms, _ = fetch(connection, page.path)
        began_s, replies = time.perf_counter(), [fetch(connection, page.path)]
        while len(replies) < REQUESTS and time.perf_counter() - began_s < MAX_PAGE_S:
            replies.append(fetch(connection, page.path))
    times_ms = sorted(ms for ms, _ in replies)
    p95_ms = times_ms[max(0, int(len(times_ms) * 0.95) - 1)]
    note = f"median {statistics.median(times_ms):.1f} ms, first {first_ms:.0f} ms"
    return {
        f"{page.name}: server part, p95": Figure(value=p95_ms, unit="ms", at_most=page.max_ms, note=note),
        f"{page.name}: compressed": Figure(value=replies[0][1] / 1_000, unit="kB", at_most=page.max_kb),
    }


def measure_first_page(port: int) -> Figures:
    """Return the bytes of the first page with all files that it loads, compressed."""
    with connected(port) as connection:
        connection.request("GET", "/ui/jobs")
        text = connection.getresponse().read().decode()
        files = {part.partition('"')[0] for part in text.split('="')[1:] if part.startswith("/ui/static/")}
        total = sum(fetch(connection, path)[1] for path in ("/ui/jobs", *sorted(files)))
    return {"first page with its files, compressed": Figure(value=total / 1_000, unit="kB", at_most=60)}


def measure_first_request(cluster: PlacingCluster) -> Figures:
    """Request the page of the large job after each of some changes of it, so that nothing about it is cached."""
    reporter, times_ms = AllocationReporter(cluster), []
    allocation = reporter.find_allocation(LARGE_JOB)
    pids = {role: cluster.server.list_pids_of_role(role) for role in ("brain", "api")}
    before_s = {role: measure_cpu_s(found, with_children=True) for role, found in pids.items()}
    with connected(cluster.server.port) as connection:
        for number in range(PAINTS):
            reporter.report(allocation, ("running", "pending")[number % 2])
            time.sleep(SETTLE_S)  # The brain forks a copy of itself for each explanation, which is paced.
            times_ms.append(fetch(connection, f"/ui/jobs/{LARGE_JOB}")[0])
    used_ms = {
        role: (measure_cpu_s(found, with_children=True) - before_s[role]) / PAINTS * 1_000
        for role, found in pids.items()
    }
    note = ", ".join(f"{role} {ms:.0f} ms of a core" for role, ms in used_ms.items())
    name = "a job with 100,000 allocations: request after a change"
    return {name: Figure(value=statistics.median(times_ms), unit="ms", at_most=500, note=note)}


def measure_paints(browser: Any, url: str) -> Figures:
    """Open pages in Chromium: the list of jobs with and without cached files, and the pictures.

    A bare page is opened in turn: Chromium and other programs need this time for every page.
    """
    cold_ms: list[float] = []
    warm_ms: list[float] = []
    bare_ms: list[float] = []
    elements = 0
    with serve_bare_page() as bare_url:
        for _ in range(PAINTS):
            context = browser.new_context()
            page = context.new_page()
            bare_ms.append(open_page(page, bare_url))
            cold_ms.append(open_page(page, f"{url}/ui/jobs"))
            warm_ms.append(open_page(page, f"{url}/ui/jobs?rows=100"))
            elements = page.evaluate("document.getElementsByTagName('*').length")
            context.close()
    note = f"a bare page {statistics.median(bare_ms):.0f} ms; fastest {{:.0f}} ms"
    page = browser.new_context(viewport={"width": 1_400, "height": 900}).new_page()
    timeline_ms = [open_page(page, f"{url}/ui/jobs/{LARGE_JOB}/timeline?rows=1000") for _ in range(PAINTS)]
    timeline_elements = page.evaluate("document.getElementsByTagName('*').length")
    fleet_ms = [open_picture(page, f"{url}/ui/fleet?by=job") for _ in range(PAINTS)]
    page.close()
    return {
        "jobs: first paint, nothing cached": Figure(
            value=statistics.median(cold_ms), unit="ms", at_most=300, note=note.format(min(cold_ms))
        ),
        "jobs: first paint, files cached": Figure(
            value=statistics.median(warm_ms), unit="ms", at_most=150, note=note.format(min(warm_ms))
        ),
        "jobs: elements": Figure(value=elements, unit="elements", at_most=MAX_ELEMENTS),
        "timeline of 1,000 bars: first paint": Figure(value=statistics.median(timeline_ms), unit="ms", at_most=400),
        "timeline of 1,000 bars: elements": Figure(value=timeline_elements, unit="elements", at_most=MAX_ELEMENTS),
        "fleet: picture is drawn": Figure(value=statistics.median(fleet_ms), unit="ms", at_most=1_000),
    }


class _BarePageHandler(http.server.BaseHTTPRequestHandler):
    """Sends the smallest page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(BARE_PAGE)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serve_bare_page() -> Iterator[str]:
    """Serve a page with one line, and yield its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _BarePageHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def open_picture(page: Any, url: str) -> float:
    """Open the fleet and return the milliseconds until its picture is drawn."""
    started_s = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_selector("#fleet-picture:not([hidden])")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return (time.perf_counter() - started_s) * 1_000


if __name__ == "__main__":
    print_table(measure(*map(int, sys.argv[1:])))
