"""Metrics of a server, collected on request: as JSON for one interval, or for Prometheus since the process started."""

import asyncio
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from wharf.cluster.api.handlers.agents.health import check_engine_health
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, EncodedBody
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
from wharf.cluster.server.rpc.handlers.agents import GET_SERVER_METRICS, ServerMetrics
from wharf.cluster.server.rpc.method import EmptyMessage
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import EVALUATIONS_BY_STATUS
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found
from wharf.contract.model.times import SECOND
from wharf.contract.wire import agents as agents_wire

COLLECT_TIMEOUT_S: Final = 2.0
"""Gauges that cannot be collected within this time are omitted."""


class GaugeValue(msgspec.Struct, frozen=True):
    """A gauge with its current value. The name has no prefix."""

    name: str
    value: float
    labels: dict[str, str] = {}


async def collect_gauges(server: Server) -> list[GaugeValue]:
    """Return all gauges of this server, ordered by name and labels.

    Gauges that the brain or the log do not report within `COLLECT_TIMEOUT_S` are omitted.
    """
    brain, index_lag, health = await asyncio.gather(
        _read_brain_metrics(server), _read_index_lag(server), check_engine_health(server)
    )
    gauges = [*_build_replica_gauges(server), *_build_process_gauges(measure_process(), "api")]
    if brain is not None:
        gauges += [*_build_brain_gauges(server, brain), *_build_process_gauges(brain.process, "brain")]
    if index_lag is not None:
        gauges.append(GaugeValue("replica.index_behind", index_lag))
    gauges += [
        GaugeValue("log.writable", float(health.writable)),
        GaugeValue("log.size_bytes", health.size_bytes),
        GaugeValue("log.quota_bytes", health.quota_bytes),
    ]
    gauges += [GaugeValue(name, value, {"sink": sink}) for name, value, sink in server.list_sink_gauges()]
    return sorted(gauges, key=lambda gauge: (gauge.name, sorted(gauge.labels.items())))


def _build_replica_gauges(server: Server) -> list[GaugeValue]:
    """Return the gauges of the replica and of blocking queries."""
    replica, reader = server.replica, server.reader
    is_leader = server.is_leader()
    contact_ms = reader.last_contact_ms()
    gauges = [
        GaugeValue("raft.appliedIndex", replica.index),
        GaugeValue("raft.state.leader", float(is_leader)),
        GaugeValue("raft.state.follower", float(not is_leader)),
        GaugeValue("state.snapshotIndex", replica.index),
        GaugeValue("state.known_leader", float(reader.has_leader())),
        GaugeValue("http.blocked_queries", reader.waiter_count),
    ]
    if contact_ms is not None:
        gauges.append(GaugeValue("raft.leader.lastContact", contact_ms))
    return gauges + [
        GaugeValue("state.records", replica.count_records(table), {"table": name})
        for name, table in replica.tables.items()
    ]


def _build_brain_gauges(server: Server, metrics: ServerMetrics) -> list[GaugeValue]:
    """Return the gauges of the scheduler process. They exist only on the leader."""
    brain = metrics.brain
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


def _build_process_gauges(process: ProcessMetrics, name: str) -> list[GaugeValue]:
    """Return the gauges of one process of this server."""
    labels = {"process": name}
    return [
        GaugeValue("runtime.resident_bytes", process.resident_bytes, labels),
        GaugeValue("runtime.peak_bytes", process.peak_bytes, labels),
        GaugeValue("runtime.cpu_seconds", process.cpu_s, labels),
        GaugeValue("runtime.open_files", process.open_files, labels),
    ]


async def _read_brain_metrics(server: Server) -> ServerMetrics | None:
    """Return the metrics of this server's scheduler process, or `None` if it does not reply in time."""
    try:
        async with asyncio.timeout(COLLECT_TIMEOUT_S):
            return await server.leader.call_member(server.identity.member_id, GET_SERVER_METRICS, EmptyMessage())
    except (Refusal, TimeoutError):
        return None


async def _read_index_lag(server: Server) -> int | None:
    """Return by how many indexes the replica is behind the log, or `None` if the log does not reply in time."""
    index = server.replica.index
    try:
        async with asyncio.timeout(COLLECT_TIMEOUT_S):
            return max(0, await server.engine.barrier() - index)
    except (LogUnavailable, TimeoutError):
        return None


METRIC_PREFIX: Final = "wharf"
REQUESTS_METRIC: Final = "http.requests"
DURATIONS_METRIC: Final = "http.request_ms"
PROMETHEUS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
INVALID_NAME_CHARACTER: Final = re.compile(r"[^a-zA-Z0-9_:]")


class MetricActions:
    """Reads the metrics of this server. The configured filter selects which are published."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def read_metrics(self, request: Request) -> ActionResult:
        """Return the metrics as JSON or, with `format=prometheus`, as text.

        Raises `Refusal` if Prometheus is not enabled.
        """
        if request.get_text("format") != "prometheus":
            return ActionResult(await self._build_json(ago_s=request.get_number("ago") / SECOND))
        if not self._server.agent.info.is_prometheus_enabled:
            # Nomad replies 415; the specification has no such status (0068).
            code = RefusalCode.UNSUPPORTED if self._server.agent.info.is_nomad_compatible else RefusalCode.INVALID
            raise Refusal(code, "Prometheus is not enabled")
        totals = (
            self._server.meter.list_totals() if self._filter.is_published(f"{METRIC_PREFIX}.{DURATIONS_METRIC}") else ()
        )
        return ActionResult(
            EncodedBody(render_prometheus(await self._collect_published(), totals).encode(), PROMETHEUS_CONTENT_TYPE)
        )

    @property
    def _filter(self) -> MetricFilter:
        return self._server.agent.info.metric_filter

    async def _collect_published(self) -> list[GaugeValue]:
        """Return the gauges that the filter publishes."""
        metric_filter = self._filter
        return [
            GaugeValue(gauge.name, gauge.value, metric_filter.add_host_label(gauge.labels))
            for gauge in await collect_gauges(self._server)
            if metric_filter.is_published(f"{METRIC_PREFIX}.{gauge.name}")
        ]

    async def _build_json(self, *, ago_s: float) -> agents_wire.Metrics:
        """Return the metrics of the interval that was the last finished one `ago_s` seconds ago.

        Raises `Refusal` if it is gone.
        """
        meter, metric_filter = self._server.meter, self._filter
        interval = meter.find_interval(ago_s) if ago_s else meter.last_interval()
        if interval is None:
            raise not_found(
                f"no metrics of {ago_s:g} s ago: they are retained for telemetry.in_memory_retention_period"
            )
        gauges = [
            agents_wire.Gauge(name=f"{METRIC_PREFIX}.{gauge.name}", value=gauge.value, labels=gauge.labels)
            for gauge in await self._collect_published()
        ]
        summaries = sorted(interval.summaries.items(), key=lambda item: item[0])
        counted = summaries if metric_filter.is_published(f"{METRIC_PREFIX}.{REQUESTS_METRIC}") else []
        timed = summaries if metric_filter.is_published(f"{METRIC_PREFIX}.{DURATIONS_METRIC}") else []
        return agents_wire.Metrics(
            timestamp=datetime.fromtimestamp(interval.began_ns // SECOND, tz=UTC).strftime(
                "%Y-%m-%d %H:%M:%S +0000 UTC"
            ),
            gauges=gauges,
            points=[],
            counters=[_build_counter(series, summary, meter.interval_s) for series, summary in counted],
            samples=[_build_sample(series, summary, meter.interval_s) for series, summary in timed],
        )


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {"metrics.read": MetricActions(server).read_metrics}


def _build_labels(series: RequestSeries) -> dict[str, str]:
    return {"noun": series.noun, "kind": series.kind, "status": series.status}


def _build_counter(series: RequestSeries, summary: DurationSummary, interval_s: float) -> agents_wire.MetricSample:
    """Return the number of requests of the series. Every request counts one, so minimum, maximum and mean are 1."""
    count = summary.count
    return agents_wire.MetricSample(
        name=f"{METRIC_PREFIX}.{REQUESTS_METRIC}", count=count, rate=count / interval_s, sum=count, min=1, max=1, mean=1, stddev=0,
        labels=_build_labels(series),
    )  # fmt: skip


def _build_sample(series: RequestSeries, summary: DurationSummary, interval_s: float) -> agents_wire.MetricSample:
    """Return the summary of how long the requests of the series took, in milliseconds."""
    return agents_wire.MetricSample(
        name=f"{METRIC_PREFIX}.{DURATIONS_METRIC}",
        count=summary.count,
        rate=summary.sum_ms / interval_s,
        sum=summary.sum_ms,
        min=summary.min_ms if summary.count else 0.0,
        max=summary.max_ms,
        mean=summary.mean_ms,
        stddev=summary.deviation_ms,
        labels=_build_labels(series),
    )


# -- Prometheus ----------------------------------------------------------------------------------------------------


def render_prometheus(gauges: Iterable[GaugeValue], totals: Iterable[tuple[RequestSeries, DurationHistogram]]) -> str:
    """Return the metrics in Prometheus' text format 0.0.4. Durations are in milliseconds."""
    return "".join(f"{line}\n" for line in (*_iterate_gauge_lines(gauges), *_iterate_histogram_lines(totals)))


def _iterate_gauge_lines(gauges: Iterable[GaugeValue]) -> Iterator[str]:
    """Yield the lines of the gauges, with one TYPE line for each name."""
    last = ""
    for gauge in gauges:
        name = _format_name(gauge.name)
        if name != last:
            yield f"# TYPE {name} gauge"
            last = name
        yield f"{name}{_format_labels(gauge.labels)} {_format_number(gauge.value)}"


def _iterate_histogram_lines(totals: Iterable[tuple[RequestSeries, DurationHistogram]]) -> Iterator[str]:
    """Yield the lines of the duration histograms of all series.

    As Prometheus requires, each bucket line counts all requests up to its limit, not only those of that bucket.
    """
    name = _format_name(DURATIONS_METRIC)
    is_first = True
    for series, histogram in totals:
        if is_first:
            yield f"# TYPE {name} histogram"
            is_first = False
        labels, total = _build_labels(series), 0
        for bound, count in zip((*map(_format_number, BUCKET_LIMITS_MS), "+Inf"), histogram.buckets, strict=True):
            total += count
            yield f"{name}_bucket{_format_labels({**labels, 'le': bound})} {total}"
        yield f"{name}_sum{_format_labels(labels)} {_format_number(histogram.sum_ms)}"
        yield f"{name}_count{_format_labels(labels)} {histogram.count}"


def _format_name(name: str) -> str:
    return f"{METRIC_PREFIX}_{INVALID_NAME_CHARACTER.sub('_', name)}"


def _format_labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape_label(value)}"' for name, value in sorted(labels.items())) + "}"


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format_number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(round(value, 6))
