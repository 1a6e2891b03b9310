"""Endpoints of figures: as JSON over the last interval, as text for Prometheus over the whole life of the process."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from wharf.api.answers import Act, Done, Packed, Reading
from wharf.api.endpoints.figures import Figure, gather_figures
from wharf.api.request import Request
from wharf.model.durations import SECOND
from wharf.model.refusal import Code, Refusal, unknown
from wharf.server.meter import BOUNDS_MS, Histogram, Series, Summed
from wharf.server.published import Published
from wharf.server.server import Server
from wharf.wire import agent_shapes as shapes

READS: Final[dict[str, Reading]] = {}

PREFIX: Final = "wharf"
REQUESTS: Final = "http.requests"
DURATIONS: Final = "http.request_ms"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_:]")


class Figures:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def read(self, request: Request) -> Done:
        if request.text("format") != "prometheus":
            return Done(await self._as_json(ago_s=request.number("ago") / SECOND))
        if not self._server.agent.facts.is_prometheus_enabled:
            raise Refusal(Code.UNSUPPORTED, "Prometheus is not enabled")
        totals = self._server.meter.totals() if self._published.has(f"{PREFIX}.{DURATIONS}") else ()
        return Done(Packed(prometheus_text(await self._figures(), totals).encode(), PROMETHEUS))

    @property
    def _published(self) -> Published:
        return self._server.agent.facts.published

    async def _figures(self) -> list[Figure]:
        published = self._published
        return [
            Figure(figure.name, figure.value, published.labels(figure.labels))
            for figure in await gather_figures(self._server)
            if published.has(f"{PREFIX}.{figure.name}")
        ]

    async def _as_json(self, *, ago_s: float) -> shapes.Metrics:
        meter, published = self._server.meter, self._published
        interval = meter.interval_ago(ago_s) if ago_s else meter.interval()
        if interval is None:
            raise unknown(
                f"no interval of {ago_s:g} s ago is kept: telemetry.in_memory_retention_period tells how many are"
            )
        gauges = [
            shapes.Gauge(name=f"{PREFIX}.{figure.name}", value=figure.value, labels=figure.labels)
            for figure in await self._figures()
        ]
        answers = sorted(interval.answers.items(), key=lambda item: item[0])
        counted = answers if published.has(f"{PREFIX}.{REQUESTS}") else []
        measured = answers if published.has(f"{PREFIX}.{DURATIONS}") else []
        return shapes.Metrics(
            timestamp=datetime.fromtimestamp(interval.began_ns // SECOND, tz=UTC).strftime(
                "%Y-%m-%d %H:%M:%S +0000 UTC"
            ),
            gauges=gauges,
            points=[],
            counters=[_counted(series, summed, meter.interval_s) for series, summed in counted],
            samples=[_sampled(series, summed, meter.interval_s) for series, summed in measured],
        )


def acts_of(server: Server) -> dict[str, Act]:
    return {"metrics.read": Figures(server).read}


def _labels(series: Series) -> dict[str, str]:
    return {"noun": series.noun, "kind": series.kind, "status": series.status}


def _counted(series: Series, summed: Summed, interval_s: float) -> shapes.Sampled:
    """A counter: every answer counts one."""
    count = summed.count
    return shapes.Sampled(
        name=f"{PREFIX}.{REQUESTS}", count=count, rate=count / interval_s, sum=count, min=1, max=1, mean=1, stddev=0,
        labels=_labels(series),
    )  # fmt: skip


def _sampled(series: Series, summed: Summed, interval_s: float) -> shapes.Sampled:
    return shapes.Sampled(
        name=f"{PREFIX}.{DURATIONS}",
        count=summed.count,
        rate=summed.sum_ms / interval_s,
        sum=summed.sum_ms,
        min=summed.least_ms if summed.count else 0.0,
        max=summed.most_ms,
        mean=summed.mean_ms,
        stddev=summed.deviation_ms,
        labels=_labels(series),
    )


# -- Prometheus ----------------------------------------------------------------------------------------------------


def prometheus_text(figures: Iterable[Figure], totals: Iterable[tuple[Series, Histogram]]) -> str:
    """The text form, version 0.0.4: names with underscores, one TYPE line a name, durations in milliseconds."""
    return "".join(f"{line}\n" for line in (*_gauge_lines(figures), *_histogram_lines(totals)))


def _gauge_lines(figures: Iterable[Figure]) -> Iterator[str]:
    last = ""
    for figure in figures:
        name = _name(figure.name)
        if name != last:
            yield f"# TYPE {name} gauge"
            last = name
        yield f"{name}{_braces(figure.labels)} {_number(figure.value)}"


def _histogram_lines(totals: Iterable[tuple[Series, Histogram]]) -> Iterator[str]:
    name = _name(DURATIONS)
    is_first = True
    for series, histogram in totals:
        if is_first:
            yield f"# TYPE {name} histogram"
            is_first = False
        labels, total = _labels(series), 0
        for bound, count in zip((*map(_number, BOUNDS_MS), "+Inf"), histogram.buckets, strict=True):
            total += count
            yield f"{name}_bucket{_braces({**labels, 'le': bound})} {total}"
        yield f"{name}_sum{_braces(labels)} {_number(histogram.sum_ms)}"
        yield f"{name}_count{_braces(labels)} {histogram.count}"


def _name(name: str) -> str:
    return f"{PREFIX}_{NOT_IN_NAMES.sub('_', name)}"


def _braces(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(round(value, 6))
