"""The timeline of a job: one bar for each allocation in a picture, and the same in a table."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from wharf.contract.model.timelines import JobTimeline, PhaseName, TimelineAllocation
from wharf.contract.model.times import SECOND
from wharf.web.rendering import build_link, count_noun, format_span
from wharf.web.views.allocations import SHORT_ID_CHARS
from wharf.web.views.states import ALLOCATION_STATES, State

WIDTH: Final = 1_000
LABEL_WIDTH: Final = 170
AXIS_HEIGHT: Final = 26
TALL_ROW: Final = 16
LOW_ROW: Final = 5
"""The height of a bar without a label, where many bars are shown."""
MAX_LABELED_ROWS: Final = 200
MAX_TABLE_ROWS: Final = 400
"""A page has at most 3,000 elements; a row of the table has seven."""
MAX_LABEL_CHARS: Final = 26
AXIS_STEPS: Final = 5
TICK_HEIGHT: Final = 6
ENDED: Final = "ended"
WINDOWS_S: Final = {"10m": 600, "1h": 3_600, "6h": 21_600, "1d": 86_400, "7d": 604_800}
"""The windows that a page offers, besides the whole time."""
LEGEND: Final[tuple[str, ...]] = (*(str(each) for each in PhaseName), ENDED)
"""The phases, in their order, as the legend lists them."""
SIZES: Final = (100, 200, 500, 1_000)


class PhaseBars(msgspec.Struct, frozen=True):
    """The bars of all allocations in one phase, as one path. So a picture of 1,000 bars has few elements."""

    phase: str
    path: str


class AxisMark(msgspec.Struct, frozen=True):
    """A time below the picture."""

    x: int
    text: str


class Label(msgspec.Struct, frozen=True):
    """The name of an allocation beside its bar."""

    y: int
    text: str


class TimelinePicture(msgspec.Struct, frozen=True):
    """The picture, in its own units."""

    width: int
    height: int
    bars: tuple[PhaseBars, ...]
    ticks: str
    """A path with a line for each evaluation."""
    labels: tuple[Label, ...]
    axis: tuple[AxisMark, ...]


class TimelineRow(msgspec.Struct, frozen=True):
    """An allocation in the table."""

    key: str
    url: str
    name: str
    state: State
    durations: str
    """How long each phase took, in words."""
    node_name: str
    node_url: str


class EvaluationRow(msgspec.Struct, frozen=True):
    """An evaluation in the table."""

    short_id: str
    reason: str
    status: str
    age: str
    at_ns: int


class TimelineView(msgspec.Struct, frozen=True):
    """The page."""

    job_id: str
    job_url: str
    namespace: str
    total: int
    picture: TimelinePicture | None
    rows: tuple[TimelineRow, ...]
    hidden_rows: int
    evaluations: tuple[EvaluationRow, ...]
    hidden_evaluations: int
    windows: tuple[tuple[str, str, bool], ...]
    """Text, address and whether it is the one that is shown, of each window."""
    sizes: tuple[tuple[str, str, bool], ...]
    first_url: str
    next_url: str
    previous_url: str
    """Always empty: a page of a timeline leads to the first and the next page only."""
    legend: tuple[str, ...]


MAX_EVALUATION_ROWS: Final = 20


def build_timeline_view(
    timeline: JobTimeline, job_id: str, namespace: str, query: Mapping[str, str], now_ns: int
) -> TimelineView:
    """Return the page for a part of the timeline. `query` are the parameters of the page."""
    window, size = query.get("window", ""), query.get("rows", "")

    def link(**changes: str) -> str:
        parameters = {"window": window, "rows": size, "before": "", "namespace": query.get("namespace", ""), **changes}
        return build_link("jobs", job_id, "timeline", **parameters)

    shown = timeline.allocations[:MAX_TABLE_ROWS]
    return TimelineView(
        job_id=job_id,
        job_url=build_link("jobs", job_id, namespace=query.get("namespace")),
        namespace=namespace,
        total=timeline.total,
        picture=_draw(timeline, WINDOWS_S.get(window, 0), now_ns) if timeline.allocations else None,
        rows=tuple(_build_row(each, now_ns) for each in shown),
        hidden_rows=len(timeline.allocations) - len(shown),
        evaluations=tuple(
            EvaluationRow(
                each.id[:SHORT_ID_CHARS],
                str(each.triggered_by).replace("-", " "),
                str(each.status),
                format_span(now_ns - each.create_time),
                each.create_time,
            )
            for each in timeline.evaluations[:MAX_EVALUATION_ROWS]
        ),
        hidden_evaluations=max(0, len(timeline.evaluations) - MAX_EVALUATION_ROWS),
        windows=(
            ("all", link(window=""), not window),
            *((name, link(window=name), name == window) for name in WINDOWS_S),
        ),
        sizes=tuple((str(each), link(rows=str(each)), str(each) == (size or "200")) for each in SIZES),
        first_url=link() if query.get("before") else "",
        next_url=link(before=timeline.next_token) if timeline.next_token else "",
        previous_url="",
        legend=LEGEND,
    )


def read_timeline_size(text: str) -> int:
    """Return the number of bars that the address asks for, if it is one that is offered."""
    return int(text) if text in map(str, SIZES) else 200


def _draw(timeline: JobTimeline, window_s: int, now_ns: int) -> TimelinePicture:
    """Return the picture of the allocations, from the earliest phase to the latest end, or of the window before it."""
    allocations = timeline.allocations
    end_ns = max(each.ended or now_ns for each in allocations)
    first_ns = min((phase.start for each in allocations for phase in each.phases), default=end_ns)
    start_ns = max(first_ns, end_ns - window_s * 1_000_000_000) if window_s else first_ns
    scale = _Scale(start_ns, max(end_ns, start_ns + 1))
    is_labeled = len(allocations) <= MAX_LABELED_ROWS
    row_height = TALL_ROW if is_labeled else LOW_ROW
    paths: dict[str, list[str]] = {}
    for position, each in enumerate(allocations):
        y = AXIS_HEIGHT + position * row_height
        for phase, begin_ns, stop_ns in _list_spans(each, now_ns):
            if stop_ns >= start_ns:
                left, right = scale.place(begin_ns), scale.place(stop_ns)
                width = max(1, right - left)
                paths.setdefault(phase, []).append(f"M{left} {y + 1}h{width}v{row_height - 2}h-{width}z")
    height = AXIS_HEIGHT + len(allocations) * row_height
    marks = [start_ns + (scale.end_ns - start_ns) * step // AXIS_STEPS for step in range(AXIS_STEPS + 1)]
    return TimelinePicture(
        width=WIDTH,
        height=height,
        bars=tuple(PhaseBars(phase, "".join(parts)) for phase, parts in paths.items()),
        ticks="".join(
            f"M{scale.place(each.create_time)} {AXIS_HEIGHT - TICK_HEIGHT}V{height}"
            for each in timeline.evaluations
            if start_ns <= each.create_time <= end_ns
        ),
        labels=tuple(
            Label(AXIS_HEIGHT + position * row_height + row_height - 4, _shorten(each.name))
            for position, each in enumerate(allocations)
        )
        if is_labeled
        else (),
        axis=tuple(
            AxisMark(scale.place(at_ns), text) for at_ns, text in zip(marks, format_marks(marks, now_ns), strict=True)
        ),
    )


class _Scale(msgspec.Struct, frozen=True):
    """Places times in the picture."""

    start_ns: int
    end_ns: int

    def place(self, at_ns: int) -> int:
        """Return the horizontal place of a time, within the picture."""
        at_ns = min(max(at_ns, self.start_ns), self.end_ns)
        return LABEL_WIDTH + (WIDTH - LABEL_WIDTH) * (at_ns - self.start_ns) // (self.end_ns - self.start_ns)


def _list_spans(allocation: TimelineAllocation, now_ns: int) -> Iterable[tuple[str, int, int]]:
    """Yield each phase with its begin and its end. A failed allocation has a mark at its end."""
    end_ns = allocation.ended or now_ns
    phases = allocation.phases
    for phase, stop_ns in zip(phases, [*(each.start for each in phases[1:]), end_ns], strict=True):
        yield str(phase.name), phase.start, max(phase.start, stop_ns)
    if allocation.ended:
        yield ENDED, end_ns, end_ns


def _build_row(allocation: TimelineAllocation, now_ns: int) -> TimelineRow:
    return TimelineRow(
        key=allocation.id,
        url=build_link("allocations", allocation.id),
        name=allocation.name,
        state=ALLOCATION_STATES[allocation.client_status],
        durations=_describe_durations(allocation, now_ns),
        node_name=allocation.node_name,
        node_url=build_link("nodes", allocation.node_id) if allocation.node_id else "",
    )


def _describe_durations(allocation: TimelineAllocation, now_ns: int) -> str:
    """Return how long each phase took, such as "waiting 2s, preparing 0.3s, healthy 4m10s, ended"."""
    parts = [
        f"{phase} {format_span(stop_ns - begin_ns)}"
        for phase, begin_ns, stop_ns in _list_spans(allocation, now_ns)
        if phase != ENDED
    ]
    if allocation.restarts:
        parts.append(count_noun(allocation.restarts, "restart", "restarts"))
    if allocation.ended:
        parts.append(f"ended {format_span(now_ns - allocation.ended)} ago")
    return ", ".join(parts)


def format_marks(marks: Sequence[int], now_ns: int) -> list[str]:
    """Return the texts of the axis: how long ago each mark was, or its time of day if such texts would be the same."""
    texts = [_format_mark(at_ns, now_ns) for at_ns in marks]
    if len(set(texts)) == len(texts):
        return texts
    return [datetime.fromtimestamp(at_ns / SECOND, UTC).strftime("%H:%M:%S") for at_ns in marks]


def _format_mark(at_ns: int, now_ns: int) -> str:
    return "now" if at_ns >= now_ns else f"{format_span(now_ns - at_ns)} ago"


def _shorten(name: str) -> str:
    """Return a name that fits beside the bar: its end distinguishes allocations, so the beginning is cut."""
    return name if len(name) <= MAX_LABEL_CHARS else "…" + name[1 - MAX_LABEL_CHARS :]
