"""The HTTP API of a real server on SQLite: writes, reads, lists, filters, blocked queries, memory; beside a bare application.

The load generator has the same cores. Where a bare application is named, the two take turns, and medians are compared.
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

from benchmarks.agent_process import AgentProcess, agent, cpu_s, own_mb
from benchmarks.figures import Figure, Figures
from benchmarks.http_bare import Recorded
from benchmarks.http_load import OneCaller, Waiters, bare, wrk

JOBS: Final = 10_000
ROUNDS: Final = 3
SECONDS: Final = 3.0
BLOCKED: Final = 8_000
IDLE: Final = 10_000
IDLE_S: Final = 15.0
SETTLE_S: Final = 4.0
SHOWN: Final = "web-1000000"
"""The job that is read, and waited for."""

REGISTER: Final = """
local count = 0
wrk.method = "PUT"
wrk.headers["Content-Type"] = "application/json"
function request()
  count = count + 1
  return wrk.format(nil, "/v1/jobs", nil, string.gsub([[BODY]], "NUMBER", tostring(FIRST + count)))
end
"""


def measure() -> Figures:
    figures: Figures = {"load when this began": Figure(value=os.getloadavg()[0], unit="processes that want a core")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with agent() as server:
            figures |= registrations(server, folder)
        with agent() as server:
            fill(server, folder)
            figures |= memory(server)
            figures |= reads(server, folder)
            figures |= lists(server)
            figures |= filters(server)
            figures |= wakes(server)
        with agent(acl=True) as server:
            figures |= reads_with_access_control(server, folder)
        for processes in (1, 2):
            figures |= shared_port(processes, folder)
        figures |= idle(folder)
    return figures


# -- jobs --------------------------------------------------------------------------------------------------------------


def a_job(name: str) -> dict[str, Any]:
    """No two of them say the same: what recurs in jobs is held once, and theirs does not."""
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


def registering(folder: Path, *, first: int) -> Path:
    """A script for `wrk`: every request registers another job."""
    body = _text(a_job("web-NUMBER"))
    path = folder / "register.lua"
    path.write_text(REGISTER.replace("BODY", body).replace("FIRST", str(first)), "utf-8")
    return path


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def fill(server: AgentProcess, folder: Path) -> None:
    """`JOBS` jobs are registered. Waits until their evaluations are through."""
    caller = OneCaller(server.port)
    caller.ask("PUT", "/v1/jobs", a_job(SHOWN))
    first, rate = 2_000_000, 0.0
    while (missing := JOBS - count_jobs(caller)) > max(1_000, 2 * rate):
        script = registering(folder, first=first)
        rate = wrk(f"{server.url}/v1/jobs", callers=8, seconds=1, script=script)
        first += 100_000
    for number in range(missing):
        caller.ask("PUT", "/v1/jobs", a_job(f"web-{first + number}"))
    wait_for_rest(server)


def count_jobs(caller: OneCaller) -> int:
    return len(msgspec.json.decode(caller.ask("GET", "/v1/jobs").body))


def wait_for_rest(server: AgentProcess) -> None:
    """Until it uses less than a twentieth of a core."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        before = cpu_s(server.pids())
        time.sleep(1)
        if cpu_s(server.pids()) - before < 0.05:
            return


# -- what is measured --------------------------------------------------------------------------------------------------


def registrations(server: AgentProcess, folder: Path) -> Figures:
    rates = []
    before = {role: cpu_s(server.pids_of(role)) for role in ("store", "api", "brain")}
    for number in range(ROUNDS):
        script = registering(folder, first=(number + 1) * 1_000_000)
        rates.append(wrk(f"{server.url}/v1/jobs", callers=8, seconds=SECONDS, script=script))
    jobs = sum(rates) * SECONDS
    used = ", ".join(f"{role} {(cpu_s(server.pids_of(role)) - was) / jobs * 1e6:.0f}" for role, was in before.items())
    return {
        "register a job, 8 callers, durable": Figure(
            value=statistics.median(rates),
            unit="/s",
            at_least=2_000,
            note=f"processor time of each, µs: {used}; the peer: 730/s",
        )
    }


def memory(server: AgentProcess) -> Figures:
    pids = server.pids()
    caller = OneCaller(server.port)
    before = own_mb(pids)
    for encoding in ("identity", "gzip"):
        caller.ask("GET", "/v1/jobs", accept_encoding=encoding)
    parts = ", ".join(f"{role} {own_mb(server.pids_of(role)):.0f}" for role in ("store", "api", "brain"))
    return {
        "memory with 10,000 jobs, all processes": Figure(
            value=own_mb(pids),
            unit="MB",
            at_most=400,
            note=f"{parts}; {before:.0f} before the first list; the peer: 1,200 MB",
        )
    }


def reads(server: AgentProcess, folder: Path) -> Figures:
    return {
        "read one job": beside(
            server, folder, f"/v1/job/{SHOWN}", at_least=0.6, note="the peer: 13,000/s"
        ),
        "the same, stale": beside(server, folder, f"/v1/job/{SHOWN}?stale"),
        "a page of 50 jobs": beside(
            server, folder, "/v1/jobs?per_page=50", at_least=0.4, note="the peer: 2,600/s"
        ),
    }  # fmt: skip


def reads_with_access_control(server: AgentProcess, folder: Path) -> Figures:
    caller = OneCaller(server.port)
    management = {"x_cluster_token": _secret(caller.ask("PUT", "/v1/acl/bootstrap"))}
    caller.ask("PUT", "/v1/jobs", a_job(SHOWN), **management)
    caller.ask(
        "PUT",
        "/v1/acl/policy/reader",
        {"Name": "reader", "Rules": 'namespace "default" { policy = "read" }'},
        **management,
    )
    client = {"Name": "reader", "Type": "client", "Policies": ["reader"]}
    secret = _secret(caller.ask("PUT", "/v1/acl/token", client, **management))
    return {
        "read one job, access control on": beside(
            server, folder, f"/v1/job/{SHOWN}", headers=(f"X-Cluster-Token: {secret}",), at_least=0.6
        )
    }


def _secret(reply: Recorded) -> str:
    secret: str = msgspec.json.decode(reply.body)["SecretID"]
    return secret


def beside(
    server: AgentProcess, folder: Path, target: str, *, headers: tuple[str, ...] = (), processes: int = 1, **figure: Any
) -> Figure:  # fmt: skip
    """Requests a second, beside the bare application that sends the same bytes, turn by turn."""
    given = {name.replace("-", "_"): value for name, _, value in (header.partition(": ") for header in headers)}
    reply = OneCaller(server.port).ask("GET", target, **given)
    with bare(folder, {target: reply}, processes=processes) as app:
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(wrk(server.url + target, callers=16, seconds=SECONDS, headers=headers))
            theirs.append(wrk(app.url + target, callers=16, seconds=SECONDS, headers=headers))
    return Figure(value=statistics.median(ours), unit="/s", baseline=statistics.median(theirs), **figure)


def lists(server: AgentProcess) -> Figures:
    url = f"{server.url}/v1/jobs"
    size = len(OneCaller(server.port).ask("GET", "/v1/jobs").body)
    gzip = ("Accept-Encoding: gzip",)
    plain_note = f"{size / 1e6:.1f} MB; the peer: 10.7/s"
    figures = {
        "the list of 10,000 jobs": Figure(
            value=wrk(url, callers=4, seconds=SECONDS), unit="/s", at_least=60, note=plain_note
        ),
        "the list of 10,000 jobs, gzip": Figure(
            value=wrk(url, callers=4, seconds=SECONDS, headers=gzip), unit="/s", at_least=10, note="the peer: 2 to 3/s"
        ),
    }
    caller = OneCaller(server.port)
    api = server.pids_of("api")
    for name, encoding, at_least in (("", "identity", 60), (", gzip", "gzip", 10)):
        used: list[float] = []

        def after_a_write(encoding: str = encoding, used: list[float] = used) -> float:
            changed = a_job(SHOWN)
            changed["Job"]["Meta"]["seen"] = str(time.monotonic_ns())
            caller.ask("PUT", "/v1/jobs", changed)
            began, before_s = time.perf_counter(), cpu_s(api)
            caller.ask("GET", "/v1/jobs", accept_encoding=encoding)
            used.append(cpu_s(api) - before_s)
            return time.perf_counter() - began

        figures[f"the list{name}, after a write each time"] = Figure(
            value=1 / statistics.median(after_a_write() for _ in range(40)),
            unit="/s",
            at_least=at_least,
            note=f"one caller; {statistics.mean(used) * 1_000:.1f} ms of the api's processor time",
        )
    return figures


def filters(server: AgentProcess) -> Figures:
    caller, api = OneCaller(server.port), server.pids_of("api")
    before_s, asked = cpu_s(api), 40

    def filtered(number: int) -> float:
        """Another filter each time: nothing that was kept answers it."""
        text = f'Status == "dead" and "dc1" in Datacenters and Priority != {number}'
        began = time.perf_counter()
        caller.ask("GET", f"/v1/jobs?filter={quote(text)}")
        return (time.perf_counter() - began) * 1_000

    value = statistics.median(map(filtered, range(asked)))
    note = f"{(cpu_s(api) - before_s) / asked * 1_000:.1f} ms of the api's processor time; the peer: 120 ms"
    return {"a new filter with three terms over 10,000 jobs": Figure(value=value, unit="ms", at_most=15, note=note)}


def wakes(server: AgentProcess) -> Figures:
    medians: list[float] = []
    lasts: list[float] = []
    writes: list[float] = []
    caller = OneCaller(server.port)
    for _ in range(ROUNDS):
        index = caller.index(f"/v1/job/{SHOWN}")
        with Waiters(server.port, BLOCKED, f"/v1/job/{SHOWN}?index={index}&wait=5m") as waiters:
            wait_for_blocked(caller, BLOCKED)
            wait_for_rest(server)
            job = a_job(SHOWN)
            job["Job"]["Priority"] = 40 + len(medians)
            began = time.monotonic()
            caller.ask("PUT", "/v1/jobs", job)
            writes.append(time.monotonic() - began)
            taken = sorted(at - began for at in waiters.answers())
        medians.append(statistics.median(taken))
        lasts.append(taken[-1])
    note = f"last {statistics.median(lasts):.2f} s; the write itself {statistics.median(writes) * 1_000:.0f} ms; the peer: 0.77 s"
    return {
        "8,000 blocked queries on one job woken by one write, median": Figure(
            value=statistics.median(medians), unit="s", at_most=0.3, note=note
        )
    }


def wait_for_blocked(caller: OneCaller, count: int) -> None:
    deadline = time.monotonic() + 60
    while blocked(caller) < count:
        assert time.monotonic() < deadline, f"{blocked(caller)} of {count} wait"
        time.sleep(0.2)


def blocked(caller: OneCaller) -> int:
    gauges = msgspec.json.decode(caller.ask("GET", "/v1/metrics").body)["Gauges"]
    return next(int(gauge["Value"]) for gauge in gauges if gauge["Name"].endswith("http.blocked_queries"))


def shared_port(processes: int, folder: Path) -> Figures:
    with agent(api_processes=processes) as server:
        OneCaller(server.port).ask("PUT", "/v1/jobs", a_job(SHOWN))
        wait_for_rest(server)
        before = [cpu_s([pid]) for pid in server.pids_of("api")]
        figure = beside(server, folder, f"/v1/job/{SHOWN}", processes=processes)
        used = [cpu_s([pid]) - was for pid, was in zip(server.pids_of("api"), before, strict=True)]
    note = "processor time of each: " + ", ".join(f"{each:.1f} s" for each in used)
    return {f"read one job, {processes} api processes on the port": msgspec.structs.replace(figure, note=note)}


# -- idle callers ------------------------------------------------------------------------------------------------------


def idle(folder: Path) -> Figures:
    with agent() as server:
        caller = OneCaller(server.port)
        caller.ask("PUT", "/v1/jobs", a_job(SHOWN))
        wait_for_rest(server)
        index = caller.index(f"/v1/job/{SHOWN}")
        ours, cpu, whole = at_rest(
            server.port,
            server.pids_of("api"),
            f"/v1/job/{SHOWN}?index={index}&wait=10m",
            lambda: wait_for_blocked(caller, IDLE),
        )
    reply = Recorded([(b"content-type", b"application/json"), (b"content-length", b"2")], b"{}")
    with bare(folder, {"/": reply, "/wait": reply}) as app:
        theirs, _, theirs_whole = at_rest(app.port, [app.process.pid], "/wait", lambda: None)
    return {
        "10,000 idle blocked queries, memory of their own": Figure(
            value=ours, unit="MB", baseline=theirs, at_most=1.8, note=f"{ours / IDLE * 1_000:.1f} kB each"
        ),
        "10,000 idle blocked queries, the whole process": Figure(
            value=whole, unit="MB", baseline=theirs_whole, at_most=1.8
        ),
        "10,000 idle blocked queries, CPU of the api process": Figure(value=cpu, unit="% of a core", at_most=2.0),
    }


def at_rest(port: int, pids: list[int], target: str, all_wait: Callable[[], None]) -> tuple[float, float, float]:
    """How much memory the waiters cost, what of a core they use, and the memory of the whole."""
    before = own_mb(pids)
    with Waiters(port, IDLE, target):
        all_wait()
        time.sleep(SETTLE_S)
        used = cpu_s(pids)
        time.sleep(IDLE_S)
        used = cpu_s(pids) - used
        whole = own_mb(pids)
    return whole - before, 100 * used / IDLE_S, whole
