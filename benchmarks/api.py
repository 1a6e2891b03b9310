"""The HTTP API of a real server on SQLite: writes, reads, lists, filters, blocking queries and memory.

The load generator uses the same cores. If the baseline is a bare application, both run alternately, and their medians are
compared.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from benchmarks.agent_process import AgentProcess, measure_cpu_s, measure_memory_mb, run_agent
from benchmarks.engines_sqlite import run_bare_loop
from benchmarks.figures import Figure, Figures
from benchmarks.http_bare import RecordedReply
from benchmarks.http_load import HttpCaller, WaiterProcess, run_bare, run_wrk

JOB_COUNT: Final = 10_000
ROUND_COUNT: Final = 3
ROUND_S: Final = 3.0
BLOCKED_QUERY_COUNT: Final = 8_000
IDLE_QUERY_COUNT: Final = 10_000
IDLE_S: Final = 15.0
SETTLE_S: Final = 4.0
KNOWN_JOB_ID: Final = "web-1000000"
"""The job that the benchmarks read and change."""

REGISTER_SCRIPT: Final = """
local count = 0
wrk.method = "PUT"
wrk.headers["Content-Type"] = "application/json"
function request()
  count = count + 1
  return wrk.format(nil, "/v1/jobs", nil, string.gsub([[BODY]], "NUMBER", tostring(FIRST + count)))
end
"""


def measure() -> Figures:
    """Run each part with a new server, so that no part sees the data of another one."""
    figures: Figures = {"load average at the start": Figure(value=os.getloadavg()[0], unit="runnable processes")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with run_agent() as server:
            figures |= measure_registrations(server, folder)
        with run_agent() as server:
            register_jobs(server, folder)
            figures |= measure_memory(server)
            figures |= measure_reads(server, folder)
            figures |= measure_lists(server)
            figures |= measure_filters(server)
            figures |= measure_wakes(server)
        with run_agent(acl=True) as server:
            figures |= measure_authorized_reads(server, folder)
        for processes in (1, 2):
            figures |= measure_shared_port(processes, folder)
        figures |= measure_idle_queries(folder)
    return figures


# -- jobs --------------------------------------------------------------------------------------------------------------


def make_job(name: str) -> dict[str, Any]:
    """Return a job with a unique variable, because the replica stores equal parts of jobs only once."""
    task = {
        "Name": "web",
        "Driver": "exec",
        "Config": {"command": "/usr/bin/web", "args": ["--port", "8080"]},
        "Env": {"MODE": "production", "SITE": f"{name}.example"},
        "Resources": {"CPU": 100, "MemoryMB": 128},
    }
    group = {"Name": "web", "Count": 1, "Tasks": [task]}
    return {
        "Job": {
            "ID": name,
            "Type": "service",
            "Datacenters": ["dc1"],
            "Meta": {"team": "payments"},
            "TaskGroups": [group],
        }
    }


def write_register_script(folder: Path, *, first: int) -> Path:
    """Write a script for `wrk` in which each request registers another job. Return its path."""
    body = _encode(make_job("web-NUMBER"))
    path = folder / "register.lua"
    path.write_text(REGISTER_SCRIPT.replace("BODY", body).replace("FIRST", str(first)), "utf-8")
    return path


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def register_jobs(server: AgentProcess, folder: Path) -> None:
    """Register `JOB_COUNT` jobs, and wait until they are evaluated."""
    caller = HttpCaller(server.port)
    caller.send_request("PUT", "/v1/jobs", make_job(KNOWN_JOB_ID))
    first, rate = 2_000_000, 0.0
    while (missing := JOB_COUNT - count_jobs(caller)) > max(1_000, 2 * rate):
        script = write_register_script(folder, first=first)
        rate = run_wrk(f"{server.url}/v1/jobs", callers=8, seconds=1, script=script)
        first += 100_000
    for number in range(missing):
        caller.send_request("PUT", "/v1/jobs", make_job(f"web-{first + number}"))
    wait_until_idle(server)


def count_jobs(caller: HttpCaller) -> int:
    return len(msgspec.json.decode(caller.send_request("GET", "/v1/jobs").body))


def wait_until_idle(server: AgentProcess) -> None:
    """Wait until the server uses less than 5 % of a core, for at most two minutes."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        before = measure_cpu_s(server.list_pids())
        time.sleep(1)
        if measure_cpu_s(server.list_pids()) - before < 0.05:
            return


# -- measurements -----------------------------------------------------------------------------------------------------


def measure_registrations(server: AgentProcess, folder: Path) -> Figures:
    """Measure the rate of durable registrations, and the CPU time of each process for them.

    A bare loop of durable SQLite commits runs alternately, because disks and their load differ.
    """
    figures: Figures = {}
    first = 0
    for callers in (8, 1):
        rates, bare_rates = [], []
        before = {role: measure_cpu_s(server.list_pids_of_role(role)) for role in ("store", "api", "brain")}
        for _ in range(ROUND_COUNT):
            first += 1_000_000
            bare_rates.append(run_bare_loop(folder / f"bare-{first}.db"))
            script = write_register_script(folder, first=first)
            rates.append(run_wrk(f"{server.url}/v1/jobs", callers=callers, seconds=ROUND_S, script=script))
        jobs = sum(rates) * ROUND_S
        used = ", ".join(
            f"{role} {(measure_cpu_s(server.list_pids_of_role(role)) - before_s) / jobs * 1e6:.0f}"
            for role, before_s in before.items()
        )
        ratio = statistics.median(rates) / statistics.median(bare_rates)
        note = f"CPU time for each job, µs: {used}; {ratio:.2f} of the commits of a bare SQLite loop"
        if callers == 1:
            figures["register a job, one caller, durable"] = Figure(
                value=statistics.median(rates), unit="/s", note=note
            )
        else:
            figures[f"register a job, {callers} callers, durable"] = Figure(
                value=statistics.median(rates), unit="/s", at_least=1_500, note=f"{note}; Nomad: 730/s"
            )
    return figures


def measure_memory(server: AgentProcess) -> Figures:
    """Measure the memory of all processes after a list was read with and without compression."""
    pids = server.list_pids()
    caller = HttpCaller(server.port)
    before = measure_memory_mb(pids)
    for encoding in ("identity", "gzip"):
        caller.send_request("GET", "/v1/jobs", accept_encoding=encoding)
    parts = ", ".join(
        f"{role} {measure_memory_mb(server.list_pids_of_role(role)):.0f}" for role in ("store", "api", "brain")
    )
    return {
        "memory with 10,000 jobs, all processes": Figure(
            value=measure_memory_mb(pids),
            unit="MB",
            at_most=400,
            note=f"{parts}; {before:.0f} before the first list; Nomad: 1,200 MB",
        )
    }


def measure_reads(server: AgentProcess, folder: Path) -> Figures:
    """Measure reads of a job and of a page of jobs."""
    return {
        "read one job": compare_with_bare(
            server, folder, f"/v1/job/{KNOWN_JOB_ID}", at_least=0.6, note="Nomad: 13,000/s"
        ),
        "the same, stale": compare_with_bare(server, folder, f"/v1/job/{KNOWN_JOB_ID}?stale"),
        "a page of 50 jobs": compare_with_bare(
            server, folder, "/v1/jobs?per_page=50", at_least=0.4, note="Nomad: 2,600/s"
        ),
    }  # fmt: skip


def measure_authorized_reads(server: AgentProcess, folder: Path) -> Figures:
    """Measure reads of a job with access control and a client token."""
    caller = HttpCaller(server.port)
    management = {"x_cluster_token": _secret(caller.send_request("PUT", "/v1/acl/bootstrap"))}
    caller.send_request("PUT", "/v1/jobs", make_job(KNOWN_JOB_ID), **management)
    caller.send_request(
        "PUT",
        "/v1/acl/policy/reader",
        {"Name": "reader", "Rules": 'namespace "default" { policy = "read" }'},
        **management,
    )
    client = {"Name": "reader", "Type": "client", "Policies": ["reader"]}
    secret = _secret(caller.send_request("PUT", "/v1/acl/token", client, **management))
    return {
        "read one job, access control on": compare_with_bare(
            server, folder, f"/v1/job/{KNOWN_JOB_ID}", headers=(f"X-Cluster-Token: {secret}",), at_least=0.6
        )
    }


def _secret(reply: RecordedReply) -> str:
    secret: str = msgspec.json.decode(reply.body)["SecretID"]
    return secret


def compare_with_bare(
    server: AgentProcess, folder: Path, target: str, *, headers: tuple[str, ...] = (), processes: int = 1, **figure: Any
) -> Figure:  # fmt: skip
    """Return the requests per second. The baseline is a bare application that sends the same bytes, run alternately."""
    header_fields = {name.replace("-", "_"): value for name, _, value in (header.partition(": ") for header in headers)}
    reply = HttpCaller(server.port).send_request("GET", target, **header_fields)
    with run_bare(folder, {target: reply}, processes=processes) as app:
        rates, bare_rates = [], []
        for _ in range(ROUND_COUNT):
            rates.append(run_wrk(server.url + target, callers=16, seconds=ROUND_S, headers=headers))
            bare_rates.append(run_wrk(app.url + target, callers=16, seconds=ROUND_S, headers=headers))
    return Figure(value=statistics.median(rates), unit="/s", baseline=statistics.median(bare_rates), **figure)


def measure_lists(server: AgentProcess) -> Figures:
    """Measure lists of all jobs: unchanged ones from the cache, and new ones after each write."""
    url = f"{server.url}/v1/jobs"
    size = len(HttpCaller(server.port).send_request("GET", "/v1/jobs").body)
    gzip = ("Accept-Encoding: gzip",)
    plain_note = f"{size / 1e6:.1f} MB; Nomad: 10.7/s"
    figures = {
        "the list of 10,000 jobs": Figure(
            value=run_wrk(url, callers=4, seconds=ROUND_S), unit="/s", at_least=60, note=plain_note
        ),
        "the list of 10,000 jobs, gzip": Figure(
            value=run_wrk(url, callers=4, seconds=ROUND_S, headers=gzip),
            unit="/s",
            at_least=10,
            note="Nomad: 2 to 3/s",
        ),
    }
    caller = HttpCaller(server.port)
    api = server.list_pids_of_role("api")
    for name, encoding, at_least in (("", "identity", 60), (", gzip", "gzip", 10)):
        used: list[float] = []

        def measure_after_write(encoding: str = encoding, used: list[float] = used) -> float:
            """Change a job and list all jobs. Return the seconds that the list took."""
            changed = make_job(KNOWN_JOB_ID)
            changed["Job"]["Meta"]["changed"] = str(time.monotonic_ns())
            caller.send_request("PUT", "/v1/jobs", changed)
            started_s, before_s = time.perf_counter(), measure_cpu_s(api)
            caller.send_request("GET", "/v1/jobs", accept_encoding=encoding)
            used.append(measure_cpu_s(api) - before_s)
            return time.perf_counter() - started_s

        figures[f"the list of 10,000 jobs{name}, after a write each time"] = Figure(
            value=1 / statistics.median(measure_after_write() for _ in range(40)),
            unit="/s",
            at_least=at_least,
            note=f"one caller; {statistics.mean(used) * 1_000:.1f} ms of CPU time of the api process",
        )
    return figures


def measure_filters(server: AgentProcess) -> Figures:
    """Measure lists with a new filter each time."""
    caller, api = HttpCaller(server.port), server.list_pids_of_role("api")
    before_s, request_count = measure_cpu_s(api), 40

    def measure_filter_ms(number: int) -> float:
        """Send a request with a new filter, so that no cached result is used."""
        text = f'Status == "dead" and "dc1" in Datacenters and Priority != {number}'
        started_s = time.perf_counter()
        caller.send_request("GET", f"/v1/jobs?filter={quote(text)}")
        return (time.perf_counter() - started_s) * 1_000

    value = statistics.median(map(measure_filter_ms, range(request_count)))
    note = f"{(measure_cpu_s(api) - before_s) / request_count * 1_000:.1f} ms of CPU time of the api process; Nomad: 120 ms"
    return {"a new filter with three terms over 10,000 jobs": Figure(value=value, unit="ms", at_most=15, note=note)}


def measure_wakes(server: AgentProcess) -> Figures:
    """Measure the delay from a write to the replies of many blocking queries on the same job."""
    medians_s: list[float] = []
    maxima_s: list[float] = []
    writes_s: list[float] = []
    caller = HttpCaller(server.port)
    for _ in range(ROUND_COUNT):
        index = caller.read_index(f"/v1/job/{KNOWN_JOB_ID}")
        with WaiterProcess(
            server.port, BLOCKED_QUERY_COUNT, f"/v1/job/{KNOWN_JOB_ID}?index={index}&wait=5m"
        ) as waiters:
            wait_for_blocked(caller, BLOCKED_QUERY_COUNT)
            wait_until_idle(server)
            job = make_job(KNOWN_JOB_ID)
            job["Job"]["Priority"] = 40 + len(medians_s)
            started_s = time.monotonic()
            caller.send_request("PUT", "/v1/jobs", job)
            writes_s.append(time.monotonic() - started_s)
            delays_s = sorted(reply_s - started_s for reply_s in waiters.read_reply_times())
        medians_s.append(statistics.median(delays_s))
        maxima_s.append(delays_s[-1])
    note = f"slowest {statistics.median(maxima_s):.2f} s; the write itself {statistics.median(writes_s) * 1_000:.0f} ms; Nomad: 0.77 s"
    return {
        "8,000 blocked queries on one job woken by one write, median": Figure(
            value=statistics.median(medians_s), unit="s", at_most=0.3, note=note
        )
    }


def wait_for_blocked(caller: HttpCaller, count: int) -> None:
    deadline = time.monotonic() + 60
    while count_blocked(caller) < count:
        assert time.monotonic() < deadline, f"only {count_blocked(caller)} of {count} queries are blocked"
        time.sleep(0.2)


def count_blocked(caller: HttpCaller) -> int:
    gauges = msgspec.json.decode(caller.send_request("GET", "/v1/metrics").body)["Gauges"]
    return next(int(gauge["Value"]) for gauge in gauges if gauge["Name"].endswith("http.blocked_queries"))


def measure_shared_port(processes: int, folder: Path) -> Figures:
    """Measure reads with several api processes on one port, and how the load is divided among them."""
    with run_agent(api_processes=processes) as server:
        HttpCaller(server.port).send_request("PUT", "/v1/jobs", make_job(KNOWN_JOB_ID))
        wait_until_idle(server)
        before = [measure_cpu_s([pid]) for pid in server.list_pids_of_role("api")]
        figure = compare_with_bare(server, folder, f"/v1/job/{KNOWN_JOB_ID}", processes=processes)
        used = [
            measure_cpu_s([pid]) - before_s
            for pid, before_s in zip(server.list_pids_of_role("api"), before, strict=True)
        ]
    note = "CPU time of each: " + ", ".join(f"{cpu_s:.1f} s" for cpu_s in used)
    return {f"read one job, {processes} api processes on the port": msgspec.structs.replace(figure, note=note)}


# -- idle queries ------------------------------------------------------------------------------------------------------


def measure_idle_queries(folder: Path) -> Figures:
    """Measure the memory and CPU time of many idle blocking queries."""
    with run_agent() as server:
        caller = HttpCaller(server.port)
        caller.send_request("PUT", "/v1/jobs", make_job(KNOWN_JOB_ID))
        wait_until_idle(server)
        index = caller.read_index(f"/v1/job/{KNOWN_JOB_ID}")
        added_mb, cpu, total_mb = measure_waiters(
            server.port,
            server.list_pids_of_role("api"),
            f"/v1/job/{KNOWN_JOB_ID}?index={index}&wait=10m",
            lambda: wait_for_blocked(caller, IDLE_QUERY_COUNT),
        )
    reply = RecordedReply([(b"content-type", b"application/json"), (b"content-length", b"2")], b"{}")
    with run_bare(folder, {"/": reply, "/wait": reply}) as app:
        bare_added_mb, _, bare_total_mb = measure_waiters(app.port, [app.process.pid], "/wait", lambda: None)
    return {
        "10,000 idle blocked queries, added memory": Figure(
            value=added_mb,
            unit="MB",
            baseline=bare_added_mb,
            at_most=1.8,
            note=f"{added_mb / IDLE_QUERY_COUNT * 1_000:.1f} kB each",
        ),
        "10,000 idle blocked queries, memory of the process": Figure(
            value=total_mb, unit="MB", baseline=bare_total_mb, at_most=1.8
        ),
        "10,000 idle blocked queries, CPU of the api process": Figure(value=cpu, unit="% of a core", at_most=2.0),
    }


def measure_waiters(
    port: int, pids: list[int], target: str, wait_until_blocked: Callable[[], None]
) -> tuple[float, float, float]:
    """Return the memory in MB that idle queries add, their CPU in percent of a core, and the total memory in MB."""
    before = measure_memory_mb(pids)
    with WaiterProcess(port, IDLE_QUERY_COUNT, target):
        wait_until_blocked()
        time.sleep(SETTLE_S)
        used = measure_cpu_s(pids)
        time.sleep(IDLE_S)
        used = measure_cpu_s(pids) - used
        total_mb = measure_memory_mb(pids)
    return total_mb - before, 100 * used / IDLE_S, total_mb
