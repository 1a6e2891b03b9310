"""What is judged is what is served: at each entry point of the limiter, with each treatment of segments.

The entry points are the gateway and the check endpoint over sockets, both middlewares as their servers call them, and the
simulation.
"""

import asyncio
import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits.builders import build_rules_text
from tests.limits.decision_services import AsgiCaller, make_decision_service
from tests.limits.gateway.running_gateway import RunningGateway, run_gateway
from tests.limits.serving.checking import running_check
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.config.settings import DecisionLogSettings, LimiterSettings, StoreSettings
from wharf.limits.core.paths import BadPath, normalize_path
from wharf.limits.core.rule import PathRules, SegmentTreatment
from wharf.limits.decisions import DecisionService
from wharf.limits.rate_limiter import RateLimiter
from wharf.limits.rules import read_rules
from wharf.limits.serving.check_server import CheckServer
from wharf.limits.simulation.access_log import AccessLogReader
from wharf.limits.simulation.replay import Replay
from wharf.limits.wsgi import Environ, StartResponse
from wharf.limits.wsgi import LimitsMiddleware as WsgiMiddleware
from wharf.world import RealWorld

REFUSED = "refused"
TREATMENTS = list(itertools.product(SegmentTreatment, SegmentTreatment))
"""All pairs of `dot_segments` and `empty_segments`."""
targets = st.lists(
    st.sampled_from(
        [
            *"aA/;.!,&=+(~",
            "..",
            "//",
            "/./",
            "/../",
            "%2e",
            "%2F",
            "%5C",
            "%61",
            "%25",
            "%252e",
            "%40",
            "%3F",
            "%20",
            "%C3%A9",
            "%ff",
            "%00",
            "%3b",
        ]
    ),
    max_size=10,
).map(lambda parts: "/" + "".join(parts))


class Judged(NamedTuple):
    """What an entry point did with a request."""

    path: str
    """The path that was judged, in normal form, or `REFUSED` if the request got 400."""
    served: bytes = b""
    """The decoded path that the service used."""


class EntryPoint(Protocol):
    def judge(self, target: str) -> Judged: ...
    def close(self) -> None: ...


def write_rules(dot_segments: SegmentTreatment, empty_segments: SegmentTreatment) -> str:
    paths = f'[paths]\ndot_segments = "{dot_segments.value}"\nempty_segments = "{empty_segments.value}"\n'
    return build_rules_text() + paths


def get_running_path(service: DecisionService) -> str:
    """Return the path by which the only running request was judged."""
    (running,) = service.running_requests.values()
    return running.path


class GatewayEntry:
    """A gateway on sockets, in front of a service that uses the path that it receives."""

    def __init__(self, folder: Path, rules: str) -> None:
        self.judged = Judged("")
        self.runner = asyncio.Runner()
        self.context = run_gateway(folder, rules=rules)
        self.running: RunningGateway = self.runner.run(self.context.__aenter__())
        self.running.service.handler = self.handle

    async def handle(self, request: Any, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = request.line.split(" ")[1]
        self.judged = Judged(get_running_path(self.running.decision_service), unquote_to_bytes(target))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    def judge(self, target: str) -> Judged:
        async def send() -> int:
            caller = await self.running.connect()
            try:
                return (await caller.request(target)).status
            finally:
                caller.close()

        return Judged(REFUSED) if self.runner.run(send()) == 400 else self.judged

    def close(self) -> None:
        self.runner.run(self.context.__aexit__(None, None, None))
        self.runner.close()


class CheckEntry:
    """A check endpoint on sockets. Its proxy forwards the target of an admitted request as its caller sent it."""

    def __init__(self, folder: Path, rules: str) -> None:
        self.runner = asyncio.Runner()
        self.context = running_check(folder, rules=rules, decisions=DecisionLogSettings(one_in=1))
        self.server: CheckServer = self.runner.run(self.context.__aenter__())

    def judge(self, target: str) -> Judged:
        async def send() -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
            lines = ["GET /check HTTP/1.1", "Host: limits", "X-Forwarded-Method: GET", f"X-Forwarded-Uri: {target}"]
            writer.write("\r\n".join([*lines, "X-Forwarded-For: 192.0.2.7", "", ""]).encode())
            status = int((await reader.readline()).split()[1])
            writer.close()
            return status

        if self.runner.run(send()) == 400:
            return Judged(REFUSED)
        newest = next(iter(self.server.decision_service.decision_log.list_recent()))
        return Judged(newest.path, unquote_to_bytes(target))

    def close(self) -> None:
        self.runner.run(self.context.__aexit__(None, None, None))
        self.runner.close()


class AsgiEntry:
    """The ASGI middleware around an application that selects its handlers by the decoded path, or by the raw one."""

    def __init__(self, _folder: Path, rules: str, *, routes_raw_paths: bool = False) -> None:
        self.judged = Judged("")
        self.routes_raw_paths = routes_raw_paths
        self.service = make_decision_service(rules)
        self.middleware = LimitsMiddleware(self.serve, self.service, routes_raw_paths=routes_raw_paths)

    async def serve(self, scope: Any, _receive: Any, send: Any) -> None:
        served = unquote_to_bytes(scope["raw_path"]) if self.routes_raw_paths else scope["path"].encode()
        self.judged = Judged(get_running_path(self.service), served)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def judge(self, target: str) -> Judged:
        caller = AsgiCaller(unquote(target))  # As uvicorn decodes a target.
        caller.scope["raw_path"] = target.encode()
        return Judged(REFUSED) if asyncio.run(caller.call(self.middleware)).status == 400 else self.judged

    def close(self) -> None: ...


class RawAsgiEntry(AsgiEntry):
    def __init__(self, folder: Path, rules: str) -> None:
        super().__init__(folder, rules, routes_raw_paths=True)


class WsgiEntry:
    """The WSGI middleware around an application that selects its handlers by `SCRIPT_NAME` and `PATH_INFO`."""

    def __init__(self, folder: Path, rules: str) -> None:
        self.judged = Judged("")
        (folder / "rules.toml").write_text(rules)
        settings = LimiterSettings(
            rules_file=folder / "rules.toml", data_folder=folder / "data", store=StoreSettings(is_saved=False)
        )
        self.limiter = RateLimiter(settings, RealWorld())
        self.middleware = WsgiMiddleware(self.serve, lambda: self.limiter)

    def serve(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        served = (environ["SCRIPT_NAME"] + environ["PATH_INFO"]).encode("latin-1")
        running = list(self.limiter.decision_service.running_requests.values())
        self.judged = Judged(running[-1].path, served)
        start_response("200 OK", [])
        return []

    def judge(self, target: str) -> Judged:
        statuses: list[str] = []
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "GET",
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote_to_bytes(target).decode("latin-1"),
            "REMOTE_ADDR": "192.0.2.7",
            "wsgi.input": io.BytesIO(),
        }

        def start_response(status: str, *_: object) -> Callable[[bytes], object]:
            statuses.append(status)
            return lambda _: None

        parts = self.middleware(environ, start_response)
        getattr(parts, "close", lambda: None)()
        return Judged(REFUSED) if statuses[0].startswith("400") else self.judged

    def close(self) -> None:
        self.middleware.close()


ENTRY_POINTS = {
    "gateway": GatewayEntry,
    "check endpoint": CheckEntry,
    "ASGI": AsgiEntry,
    "ASGI by raw path": RawAsgiEntry,
    "WSGI": WsgiEntry,
}


@pytest.fixture(scope="module", params=TREATMENTS, ids=lambda pair: f"dots {pair[0].value}, empty {pair[1].value}")
def treatments(request: pytest.FixtureRequest) -> tuple[SegmentTreatment, SegmentTreatment]:
    pair: tuple[SegmentTreatment, SegmentTreatment] = request.param
    return pair


@pytest.fixture(scope="module", params=ENTRY_POINTS)
def entry(
    request: pytest.FixtureRequest,
    treatments: tuple[SegmentTreatment, SegmentTreatment],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EntryPoint]:
    opened: EntryPoint = ENTRY_POINTS[request.param](tmp_path_factory.mktemp("limits"), write_rules(*treatments))
    yield opened
    opened.close()


@given(targets)
def test_the_judged_path_is_the_path_that_the_service_uses(entry: EntryPoint, target: str) -> None:
    judged = entry.judge(target)

    assert judged.path == REFUSED or unquote_to_bytes(judged.path) == judged.served


@pytest.mark.parametrize("target", ["/a/../b", "/a/./b", "/a/%2e%2E/b", "/a//b", "//a", "/a/.."])
def test_only_the_gateway_removes_segments_because_only_it_forwards_the_result(
    entry: EntryPoint, treatments: tuple[SegmentTreatment, SegmentTreatment], target: str
) -> None:
    treatment = treatments["//" in target]
    is_forwarding = isinstance(entry, GatewayEntry)
    is_admitted = treatment is SegmentTreatment.KEEP or (treatment is SegmentTreatment.REMOVE and is_forwarding)

    assert (entry.judge(target).path != REFUSED) is is_admitted


def judge_in_simulation(target: str, rules: str) -> str:
    line = f'192.0.2.7 - - [21/Nov/2026:12:00:00 +0000] "GET {target} HTTP/1.1" 200 1\n'
    record = AccessLogReader().read_line(line.encode())
    assert record is not None
    replay = Replay(read_rules(rules), has_durations=False)
    replay.replay_record(record)
    return replay._paths.get(record.path, REFUSED)


def normalize(target: str, treatments: tuple[SegmentTreatment, SegmentTreatment]) -> str:
    dot_segments, empty_segments = treatments
    try:
        return normalize_path(target, PathRules(dot_segments=dot_segments, empty_segments=empty_segments))
    except BadPath:
        return REFUSED


@given(targets)
def test_the_simulation_judges_what_the_gateway_judges(
    treatments: tuple[SegmentTreatment, SegmentTreatment], target: str
) -> None:
    assert judge_in_simulation(target, write_rules(*treatments)) == normalize(target, treatments)


def replace_removal(treatment: SegmentTreatment) -> SegmentTreatment:
    return SegmentTreatment.REFUSE if treatment is SegmentTreatment.REMOVE else treatment


@given(targets.filter(lambda target: "%2F" not in target and "%ff" not in target))
def test_all_entry_points_judge_the_same_path_apart_from_removed_segments(
    entry: EntryPoint, treatments: tuple[SegmentTreatment, SegmentTreatment], target: str
) -> None:
    """Except after `%2F`, which a server decodes to a separator, and bytes that are no text, which it replaces."""
    dots, empties = treatments
    is_forwarding = isinstance(entry, GatewayEntry)
    expected = normalize(target, treatments if is_forwarding else (replace_removal(dots), replace_removal(empties)))

    judged = entry.judge(target).path
    assert (judged == REFUSED) == (expected == REFUSED)
    assert unquote_to_bytes(judged) == unquote_to_bytes(expected)
