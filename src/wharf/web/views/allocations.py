"""Allocations in lists, and the page of one allocation."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from wharf.contract.model.allocations.allocation import AllocationStub, DesiredStatus
from wharf.contract.model.allocations.failure_reasons import describe_failure
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import AllocatedTaskResources
from wharf.contract.model.allocations.task_event_messages import describe_event
from wharf.contract.model.allocations.task_states import TaskStateView
from wharf.contract.model.explanations import AllocationExplanation
from wharf.contract.wire.allocations.messages import AllocationView
from wharf.web.rendering import build_link, count_noun, format_age
from wharf.web.views.charts import Chart, build_chart, read_map
from wharf.web.views.logs import LineView
from wharf.web.views.states import ListedAllocation, State, Tone, describe_allocation

SHORT_ID_CHARS = 8
BYTES_PER_MB = 1024 * 1024
MAX_SCORES = 5


class AllocationRow(msgspec.Struct, frozen=True):
    """An allocation in a list."""

    key: str
    url: str
    short_id: str
    name: str
    state: State
    reason: str
    """What its last event says, if it did not end well."""
    node_name: str
    node_url: str
    version: int
    age: str
    changed_ns: int


class TaskEventRow(msgspec.Struct, frozen=True):
    """Something that happened to a task."""

    at_ns: int
    age: str
    type: str
    text: str


class TaskView(msgspec.Struct, frozen=True):
    """A task of an allocation, with its events, the newest first."""

    name: str
    state: State
    restarts: int
    events: tuple[TaskEventRow, ...]
    charts: tuple[Chart, ...]
    is_running: bool


class ScoreRow(msgspec.Struct, frozen=True):
    """A node that was compared for the placement."""

    name: str
    url: str
    is_chosen: bool
    score: str
    parts: str
    """The scores of which it is the mean, by the rule that computed each."""


class PlacementView(msgspec.Struct, frozen=True):
    """Why the allocation is on its node."""

    sentence: str
    scores: tuple[ScoreRow, ...]


class AllocationPageView(msgspec.Struct, frozen=True):
    """The page of an allocation."""

    id: str
    name: str
    job_id: str
    job_url: str
    namespace: str
    state: State
    sentence: str
    story: tuple[str, ...]
    node_name: str
    node_url: str
    placement: PlacementView | None
    """`None` if the servers do not know how the node was chosen, or it had no choice."""
    tasks: tuple[TaskView, ...]
    last_lines: tuple[LineView, ...]
    """What it printed last, if it failed."""
    age: str
    is_running: bool


def build_allocation_row(allocation: ListedAllocation, now_ns: int) -> AllocationRow:
    """Return an allocation as lists show it."""
    state = describe_allocation(allocation)
    return AllocationRow(
        key=allocation.id,
        url=build_link("allocations", allocation.id),
        short_id=allocation.id[:SHORT_ID_CHARS],
        name=allocation.name,
        state=state,
        reason=describe_failure(allocation) if state.tone is Tone.BAD else "",
        node_name=allocation.node_name or allocation.node_id[:SHORT_ID_CHARS],
        node_url=build_link("nodes", allocation.node_id) if allocation.node_id else "",
        version=_get_job_version(allocation),
        age=format_age(allocation.modify_time, now_ns),
        changed_ns=allocation.modify_time,
    )


def _get_job_version(allocation: ListedAllocation) -> int:
    """Return the version of the job that the allocation runs. The long form has the job itself."""
    if isinstance(allocation, AllocationStub):
        return allocation.job_version
    return allocation.job.version if allocation.job is not None else 0


def build_allocation_page(
    allocation: AllocationView,
    explanation: AllocationExplanation | None,
    figures: Mapping[str, Any],
    last_lines: Sequence[LineView],
    now_ns: int,
    *,
    node_names: Mapping[str, str] | None = None,
) -> AllocationPageView:
    """Return the page of an allocation. `node_names` are those of the nodes with scores, as far as they are known."""
    states = allocation.task_states or {}
    resources = (allocation.allocated_resources.tasks if allocation.allocated_resources else None) or {}
    usage = read_map(figures.get("Tasks"))
    return AllocationPageView(
        id=allocation.id,
        name=allocation.name,
        job_id=allocation.job_id,
        job_url=build_link("jobs", allocation.job_id, namespace=allocation.namespace),
        namespace=allocation.namespace,
        state=describe_allocation(allocation),
        sentence=explanation.text if explanation else allocation.client_description,
        story=explanation.story if explanation else (),
        node_name=allocation.node_name or allocation.node_id[:SHORT_ID_CHARS],
        node_url=build_link("nodes", allocation.node_id) if allocation.node_id else "",
        placement=build_placement(
            allocation.metrics, allocation.node_id, {**(node_names or {}), allocation.node_id: allocation.node_name}
        ),
        tasks=tuple(
            _build_task_view(name, state, _build_charts(usage.get(name), resources.get(name)), now_ns)
            for name, state in states.items()
        ),
        last_lines=tuple(last_lines),
        age=format_age(allocation.create_time, now_ns),
        is_running=allocation.desired_status is DesiredStatus.RUN and not allocation.client_status.is_terminal,
    )


def _build_charts(figures: object, resources: AllocatedTaskResources | None) -> tuple[Chart, ...]:
    """Return the charts of the use of one task, with what it requests; none if its node measures nothing."""
    history = read_map(figures).get("History")
    requested = resources or AllocatedTaskResources()
    charts = (
        build_chart("CPU", history, "TotalTicks", unit="MHz", requested=requested.cpu.cpu_shares),
        build_chart("Memory", history, "Memory", unit="MB", divisor=BYTES_PER_MB, requested=requested.memory.memory_mb),
    )
    return tuple(chart for chart in charts if chart is not None)


def list_scored_nodes(metrics: AllocMetric | None) -> tuple[str, ...]:
    """Return the IDs of the nodes whose scores a page shows."""
    scores = (metrics.score_meta_data or ()) if metrics is not None else ()
    return tuple(each.node_id for each in scores[:MAX_SCORES])


def build_placement(metrics: AllocMetric | None, node_id: str, node_names: Mapping[str, str]) -> PlacementView | None:
    """Return why the allocation is on this node; `None` if only one node was scored, or none."""
    scores = (metrics.score_meta_data or ()) if metrics is not None else ()
    if metrics is None or len(scores) < 2:
        return None
    parts = [f"{count_noun(metrics.nodes_evaluated, 'node was', 'nodes were')} compared"]
    if metrics.nodes_filtered:
        parts.append(f"{metrics.nodes_filtered:,} excluded by constraints")
    if metrics.nodes_exhausted:
        parts.append(f"{metrics.nodes_exhausted:,} too full")
    ordered = sorted(scores, key=lambda each: (each.node_id != node_id, -each.norm_score))
    return PlacementView(
        sentence=f"{', '.join(parts)}. These had the highest scores:",
        scores=tuple(
            ScoreRow(
                name=node_names.get(each.node_id) or each.node_id[:SHORT_ID_CHARS],
                url=build_link("nodes", each.node_id),
                is_chosen=each.node_id == node_id,
                score=f"{each.norm_score:.2f}",
                parts=", ".join(f"{rule} {value:.2f}" for rule, value in sorted((each.scores or {}).items()) if value),
            )
            for each in ordered[:MAX_SCORES]
        ),
    )


def _build_task_view(name: str, state: TaskStateView, charts: tuple[Chart, ...], now_ns: int) -> TaskView:
    if state.failed:
        words = State("failed", Tone.BAD)
    elif state.state == "running":
        words = State("running", Tone.GOOD)
    elif state.state == "dead":
        words = State("ended", Tone.IDLE)
    else:
        words = State("starting", Tone.BUSY)
    events = tuple(
        TaskEventRow(event.time, format_age(event.time, now_ns), event.type, describe_event(event))
        for event in reversed(state.events or ())
    )
    return TaskView(name, words, state.restarts, events, charts, state.state == "running")
