"""What a server can say in figures, gathered at the moment somebody asks: gauges with names and labels.

Endpoints of figures: as JSON over the last interval, as text for Prometheus over the whole life of the process.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from wharf.cluster.api.handlers.agents.health import check_engine_health
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, EncodedBody, ReadHandler
from wharf.cluster.engines.port import LogUnavailable
from wharf.cluster.server.metrics import (
    BUCKET_LIMITS_MS,
    DurationHistogram,
    DurationSummary,
    MetricFilter,
    ProcessMetrics,
    RequestSeries,
    measure_process,
)
from wharf.cluster.server.rpc.handlers.agents import GET_SERVER_METRICS, EmptyMessage, ServerMetrics
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import EVALUATIONS_BY_STATUS, LEADER
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found
from wharf.contract.model.times import SECOND
from wharf.contract.wire import agents as agents_wire

COLLECT_TIMEOUT_S: Final = 2.0
"""Whoever collects figures asks often: what does not answer in time is left out this time."""


class GaugeValue(msgspec.Struct, frozen=True):
    name: str
    value: float
    labels: dict[str, str] = {}


async def collect_gauges(server: Server) -> list[GaugeValue]:
    """In order of name. What the brain or the log does not tell in time is missing, never made up."""
    told, behind, health = await asyncio.gather(_brain(server), _behind(server), check_engine_health(server.engine))
    found = [*_of_replica(server), *_of_process(measure_process(), "api")]
    if told is not None:
        found += [*_of_brain(server, told), *_of_process(told.process, "brain")]
    if behind is not None:
        found.append(GaugeValue("replica.index_behind", behind))
    found += [
        GaugeValue("log.writable", float(health.writable)),
        GaugeValue("log.size_bytes", health.size_bytes),
        GaugeValue("log.quota_bytes", health.quota_bytes),
    ]
    return sorted(found, key=lambda figure: (figure.name, sorted(figure.labels.items())))


def _of_replica(server: Server) -> list[GaugeValue]:
    replica, reader = server.replica, server.reader
    leader = replica.get(LEADER)
    leads = leader is not None and leader.member_id == server.identity.member_id
    contact_ms = reader.last_contact_ms()
    found = [
        GaugeValue("raft.appliedIndex", replica.index),
        GaugeValue("raft.state.leader", float(leads)),
        GaugeValue("raft.state.follower", float(not leads)),
        GaugeValue("state.snapshotIndex", replica.index),
        GaugeValue("state.known_leader", float(reader.has_leader())),
        GaugeValue("http.blocked_queries", reader.waiter_count),
    ]
    if contact_ms is not None:
        found.append(GaugeValue("raft.leader.lastContact", contact_ms))
    return found + [
        GaugeValue("state.records", replica.count_records(table), {"table": name})
        for name, table in replica.tables.items()
    ]


def _of_brain(server: Server, told: ServerMetrics) -> list[GaugeValue]:
    brain = told.brain
    if not brain.is_leading:
        return []
    return [
        GaugeValue("broker.total_ready", brain.ready),
        GaugeValue("broker.total_pending", brain.behind),
        GaugeValue("broker.total_unacked", brain.busy),
        GaugeValue("broker.unsettled_jobs", brain.unsettled_jobs),
        GaugeValue(
            "blocked_evals.total_blocked",
            server.replica.count_by_index(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED),
        ),
        GaugeValue("heartbeat.active", brain.nodes_expected),
        GaugeValue("heartbeat.silent", brain.silent_nodes),
    ]


def _of_process(process: ProcessMetrics, name: str) -> list[GaugeValue]:
    labels = {"process": name}
    return [
        GaugeValue("runtime.resident_bytes", process.resident_bytes, labels),
        GaugeValue("runtime.peak_bytes", process.peak_bytes, labels),
        GaugeValue("runtime.cpu_seconds", process.cpu_s, labels),
        GaugeValue("runtime.open_files", process.open_files, labels),
    ]


async def _brain(server: Server) -> ServerMetrics | None:
    try:
        async with asyncio.timeout(COLLECT_TIMEOUT_S):
            return await server.leader.call_member(server.identity.member_id, GET_SERVER_METRICS, EmptyMessage())
    except (Refusal, TimeoutError):
        return None


async def _behind(server: Server) -> int | None:
    """By how many indexes the replica was behind the log when it was asked; None: the log did not say."""
    index = server.replica.index
    try:
        async with asyncio.timeout(COLLECT_TIMEOUT_S):
            return max(0, await server.engine.barrier() - index)
    except (LogUnavailable, TimeoutError):
        return None


READ_HANDLERS: Final[dict[str, ReadHandler]] = {}

METRIC_PREFIX: Final = "wharf"
REQUESTS_METRIC: Final = "http.requests"
DURATIONS_METRIC: Final = "http.request_ms"
PROMETHEUS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
INVALID_NAME_CHARACTER: Final = re.compile(r"[^a-zA-Z0-9_:]")


class MetricActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def read_metrics(self, request: Request) -> ActionResult:
        if request.get_text("format") != "prometheus":
            return ActionResult(await self._as_json(ago_s=request.get_number("ago") / SECOND))
        if not self._server.agent.info.is_prometheus_enabled:
            raise Refusal(RefusalCode.UNSUPPORTED, "Prometheus is not enabled")
        totals = (
            self._server.meter.list_totals()
            if self._published.is_published(f"{METRIC_PREFIX}.{DURATIONS_METRIC}")
            else ()
        )
        return ActionResult(
            EncodedBody(render_prometheus(await self._figures(), totals).encode(), PROMETHEUS_CONTENT_TYPE)
        )

    @property
    def _published(self) -> MetricFilter:
        return self._server.agent.info.metric_filter

    async def _figures(self) -> list[GaugeValue]:
        published = self._published
        return [
            GaugeValue(figure.name, figure.value, published.add_host_label(figure.labels))
            for figure in await collect_gauges(self._server)
            if published.is_published(f"{METRIC_PREFIX}.{figure.name}")
        ]

    async def _as_json(self, *, ago_s: float) -> agents_wire.Metrics:
        meter, published = self._server.meter, self._published
        interval = meter.find_interval(ago_s) if ago_s else meter.last_interval()
        if interval is None:
            raise not_found(
                f"no interval of {ago_s:g} s ago is kept: telemetry.in_memory_retention_period tells how many are"
            )
        gauges = [
            agents_wire.Gauge(name=f"{METRIC_PREFIX}.{figure.name}", value=figure.value, labels=figure.labels)
            for figure in await self._figures()
        ]
        answers = sorted(interval.summaries.items(), key=lambda item: item[0])
        counted = answers if published.is_published(f"{METRIC_PREFIX}.{REQUESTS_METRIC}") else []
        measured = answers if published.is_published(f"{METRIC_PREFIX}.{DURATIONS_METRIC}") else []
        return agents_wire.Metrics(
            timestamp=datetime.fromtimestamp(interval.began_ns // SECOND, tz=UTC).strftime(
                "%Y-%m-%d %H:%M:%S +0000 UTC"
            ),
            gauges=gauges,
            points=[],
            counters=[_counted(series, summed, meter.interval_s) for series, summed in counted],
            samples=[_sampled(series, summed, meter.interval_s) for series, summed in measured],
        )


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {"metrics.read": MetricActions(server).read_metrics}


def _labels(series: RequestSeries) -> dict[str, str]:
    return {"noun": series.noun, "kind": series.kind, "status": series.status}


def _counted(series: RequestSeries, summed: DurationSummary, interval_s: float) -> agents_wire.MetricSample:
    """A counter: every answer counts one."""
    count = summed.count
    return agents_wire.MetricSample(
        name=f"{METRIC_PREFIX}.{REQUESTS_METRIC}", count=count, rate=count / interval_s, sum=count, min=1, max=1, mean=1, stddev=0,
        labels=_labels(series),
    )  # fmt: skip


def _sampled(series: RequestSeries, summed: DurationSummary, interval_s: float) -> agents_wire.MetricSample:
    return agents_wire.MetricSample(
        name=f"{METRIC_PREFIX}.{DURATIONS_METRIC}",
        count=summed.count,
        rate=summed.sum_ms / interval_s,
        sum=summed.sum_ms,
        min=summed.min_ms if summed.count else 0.0,
        max=summed.max_ms,
        mean=summed.mean_ms,
        stddev=summed.deviation_ms,
        labels=_labels(series),
    )


# -- Prometheus ----------------------------------------------------------------------------------------------------


def render_prometheus(gauges: Iterable[GaugeValue], totals: Iterable[tuple[RequestSeries, DurationHistogram]]) -> str:
    """The text form, version 0.0.4: names with underscores, one TYPE line a name, durations in milliseconds."""
    return "".join(f"{line}\n" for line in (*_gauge_lines(gauges), *_histogram_lines(totals)))


def _gauge_lines(figures: Iterable[GaugeValue]) -> Iterator[str]:
    last = ""
    for figure in figures:
        name = _name(figure.name)
        if name != last:
            yield f"# TYPE {name} gauge"
            last = name
        yield f"{name}{_braces(figure.labels)} {_number(figure.value)}"


def _histogram_lines(totals: Iterable[tuple[RequestSeries, DurationHistogram]]) -> Iterator[str]:
    name = _name(DURATIONS_METRIC)
    is_first = True
    for series, histogram in totals:
        if is_first:
            yield f"# TYPE {name} histogram"
            is_first = False
        labels, total = _labels(series), 0
        for bound, count in zip((*map(_number, BUCKET_LIMITS_MS), "+Inf"), histogram.buckets, strict=True):
            total += count
            yield f"{name}_bucket{_braces({**labels, 'le': bound})} {total}"
        yield f"{name}_sum{_braces(labels)} {_number(histogram.sum_ms)}"
        yield f"{name}_count{_braces(labels)} {histogram.count}"


def _name(name: str) -> str:
    return f"{METRIC_PREFIX}_{INVALID_NAME_CHARACTER.sub('_', name)}"


def _braces(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(round(value, 6))
