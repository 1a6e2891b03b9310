"""The page of one step of a run: its state, its gate, the texts and files that it left, and its earlier attempts."""

import shlex
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.run_views import RunView, StepView
from wharf.contract.model.jobs.step_outputs import ElementOutputs, StepOutputsView
from wharf.web.rendering import build_link, format_age
from wharf.web.views.allocations import AllocationRow
from wharf.web.views.files import show_text
from wharf.web.views.runs import (
    MAX_SHOWN_NEEDS,
    describe_step,
    describe_step_text,
    format_step_counts,
    format_step_duration,
)
from wharf.web.views.states import State
from wharf.web.views.step_outputs import OutputText

MAX_OUTPUT_TEXTS: Final = 200
"""Outputs on one page of a step. An element has at most 100, so a page has at least two elements."""
MAX_EARLIER_ATTEMPTS: Final = 20


class ElementRow(msgspec.Struct, frozen=True):
    """The outputs of one element of a step."""

    index: int
    texts: tuple[OutputText, ...]
    problem: str
    """Why texts of the program are missing."""


class KeptPath(msgspec.Struct, frozen=True):
    """A file or a folder that the step keeps after its end."""

    path: str
    url: str
    """The page that shows it; empty if the step has several allocations, or none."""


class LinkedStep(msgspec.Struct, frozen=True):
    """Another step of the run."""

    name: str
    url: str


class AttemptRow(msgspec.Struct, frozen=True):
    """How the step ended in an earlier attempt."""

    number: int
    state: State
    text: str
    ended_ns: int
    age: str


class StepPageView(msgspec.Struct, frozen=True):
    """The page of a step."""

    job_id: str
    job_url: str
    name: str
    state: State
    text: str
    facts: tuple[str, ...]
    question: str
    """What its gate asks; empty if it has none."""
    is_gate_open: bool
    policy: str
    """The policy that a person needs to answer; empty: none."""
    condition: str
    needs: tuple[LinkedStep, ...]
    followers: tuple[LinkedStep, ...]
    hidden_followers: int
    declares_texts: bool
    has_ended: bool
    is_array: bool
    outputs: tuple[ElementRow, ...]
    next_url: str
    """The page with the outputs of further elements."""
    first_url: str
    kept_paths: tuple[KeptPath, ...]
    fetch_command: str
    attempts: tuple[AttemptRow, ...]
    allocations: tuple[AllocationRow, ...]
    timeline_url: str
    retry_url: str
    """The page that asks whether to run the step again; empty if its run has not ended."""


def build_step_page(
    run: RunView,
    step: StepView,
    group: TaskGroup,
    outputs: StepOutputsView | None,
    allocations: Sequence[AllocationRow],
    namespace: str,
    first_index: int,
    now_ns: int,
) -> StepPageView:
    """Return the page of a step. `namespace` is that of the address of the page; outputs begin at element `first_index`."""
    rows, next_index = _select_outputs(outputs.elements if outputs is not None else (), group, first_index)
    declared = group.outputs.text if group.outputs is not None else None
    followers = [each.name for each in run.steps if step.name in each.needs]
    page = ("jobs", run.job_id, "steps", step.name)
    return StepPageView(
        job_id=run.job_id,
        job_url=build_link("jobs", run.job_id, namespace=namespace),
        name=step.name,
        state=describe_step(step.status),
        text=describe_step_text(run, step),
        facts=tuple(_iter_facts(run, step, now_ns)),
        question=step.gate.ask if step.gate is not None else "",
        is_gate_open=step.gate is not None and step.gate.is_open,
        policy=step.gate.policy if step.gate is not None else "",
        condition=group.condition,
        needs=_link_steps(run, step.needs, namespace),
        followers=_link_steps(run, followers[:MAX_SHOWN_NEEDS], namespace),
        hidden_followers=max(0, len(followers) - MAX_SHOWN_NEEDS),
        declares_texts=bool(declared),
        has_ended=bool(step.ended_at),
        is_array=step.is_array,
        outputs=rows,
        next_url=build_link(*page, namespace=namespace, element=next_index) if next_index else "",
        first_url=build_link(*page, namespace=namespace) if first_index else "",
        kept_paths=_list_kept(group, allocations, is_array=step.is_array),
        fetch_command=_build_fetch_command(run, group),
        attempts=_list_attempts(run, step, now_ns),
        allocations=tuple(allocations),
        timeline_url=build_link("jobs", run.job_id, "timeline", namespace=namespace),
        retry_url=build_link("jobs", run.job_id, "retry", step=step.name, namespace=namespace)
        if run.status.has_ended
        else "",
    )


def _select_outputs(
    elements: Iterable[ElementOutputs], group: TaskGroup, first_index: int
) -> tuple[tuple[ElementRow, ...], int]:
    """Return the outputs of elements from an index on, and the index with which the next page begins; 0: there is none.

    A text that the step declares and its program did not write is empty.
    """
    declared = (group.outputs.text or ()) if group.outputs is not None else ()
    rows: list[ElementRow] = []
    count = 0
    for element in elements:
        if element.index < first_index:
            continue
        count += len(declared)
        if count > MAX_OUTPUT_TEXTS:
            return tuple(rows), element.index
        texts = tuple(OutputText(name, show_text(element.texts.get(name, ""), is_multiline=True)) for name in declared)
        rows.append(ElementRow(element.index, texts, element.problem))
    return tuple(rows), 0


def _iter_facts(run: RunView, step: StepView, now_ns: int) -> Iterable[str]:
    yield f"layer {step.layer + 1} of {run.layer_count}"
    if counts := format_step_counts(step):
        yield f"elements: {counts}"
    if duration := format_step_duration(step, now_ns):
        yield f"took {duration}" if step.ended_at else f"takes {duration}"
    if step.attempt_count > 1:
        yield f"attempt {step.attempt}"
    if step.final:
        yield "final"
    if step.may_fail:
        yield "may fail"
    if step.is_critical:
        yield "on the critical path"


def _link_steps(run: RunView, names: Iterable[str], namespace: str) -> tuple[LinkedStep, ...]:
    return tuple(LinkedStep(name, build_link("jobs", run.job_id, "steps", name, namespace=namespace)) for name in names)


def _list_kept(group: TaskGroup, allocations: Sequence[AllocationRow], *, is_array: bool) -> tuple[KeptPath, ...]:
    paths = (group.outputs.keep or ()) if group.outputs is not None else ()
    alloc_id = allocations[0].key if allocations and not is_array else ""
    return tuple(
        KeptPath(path, build_link("allocations", alloc_id, "files", path=f"/alloc/{path}") if alloc_id else "")
        for path in paths
    )


def _build_fetch_command(run: RunView, group: TaskGroup) -> str:
    """Return the command that fetches the first kept path; empty if there is none."""
    paths = (group.outputs.keep or ()) if group.outputs is not None else ()
    words = ["wharf", "job", "fetch", run.job_id, f"alloc/{paths[0]}" if paths else "", "--group", group.name]
    return shlex.join(words) if paths else ""


def _list_attempts(run: RunView, step: StepView, now_ns: int) -> tuple[AttemptRow, ...]:
    """Return how the step ended in earlier attempts, the newest first."""
    rows = [
        AttemptRow(
            number=attempt.attempt,
            state=describe_step(result.status),
            text=result.text.removeprefix(str(result.status)).lstrip(",;: "),
            ended_ns=result.ended_at,
            age=format_age(result.ended_at, now_ns),
        )
        for attempt in run.attempts
        for result in attempt.results
        if result.name == step.name and attempt.attempt != step.attempt
    ]
    return tuple(rows[::-1][:MAX_EARLIER_ATTEMPTS])
