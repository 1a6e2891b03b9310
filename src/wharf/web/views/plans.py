"""Plans and differences of jobs."""

from typing import Final

import msgspec

from wharf.contract.model.explanations import GroupExplanation
from wharf.contract.model.jobs.plan import JobDiff
from wharf.contract.wire.jobs.messages import JobPlanResponse
from wharf.job_files.diff_lines import (
    SIGNS,
    DiffLine,
    count_failed,
    describe_updates,
    list_added_needs,
    list_diff_lines,
    list_replaced_groups,
)
from wharf.job_files.secret_values import hide_values
from wharf.languages.hcl.diagnostics import HiddenValues

MAX_DIFF_LINES: Final = 400
"""The lines of a difference that a page shows. Limits its elements."""
MAX_LAUNCHES: Final = 5


class DiffRow(msgspec.Struct, frozen=True):
    """A line of a difference."""

    depth: int
    kind: str
    """The class of its color: `added`, `deleted`, `edited` or `none`."""
    sign: str
    text: str


class DiffView(msgspec.Struct, frozen=True):
    """A difference of two versions of a job."""

    rows: tuple[DiffRow, ...]
    hidden: int
    """How many further lines are not shown."""


class GroupPlan(msgspec.Struct, frozen=True):
    """What the scheduler would do with a group."""

    name: str
    text: str
    problem: str
    advice: str


class PlanView(msgspec.Struct, frozen=True):
    """What registering a job would change."""

    diff: DiffView | None
    groups: tuple[GroupPlan, ...]
    preempted: tuple[str, ...]
    warnings: tuple[str, ...]
    launches: tuple[str, ...]
    index: int
    """The index that the stored job has. A registration with it is refused if the job changes in the meantime."""


def build_diff_view(diff: JobDiff, hidden: HiddenValues | None = None) -> DiffView:
    """Return a difference as lines, without values of `hidden` variables and of environment variables with names of secrets."""
    lines = list(list_diff_lines(hide_values(diff, hidden), is_full=False))
    return DiffView(tuple(build_diff_row(line) for line in lines[:MAX_DIFF_LINES]), max(0, len(lines) - MAX_DIFF_LINES))


def build_diff_row(line: DiffLine) -> DiffRow:
    return DiffRow(
        min(line.depth, 8),
        str(line.type).lower(),
        "" if line.is_note else SIGNS[line.type],
        _use_plain_words(line.text),
    )


def _use_plain_words(text: str) -> str:
    """Return a line of a difference with plain words for the notes of Nomad about what a change does to allocations."""
    for words, plain in PLAIN_WORDS.items():
        text = text.replace(words, plain)
    return text


PLAIN_WORDS: Final = {
    "forces create/destroy update": "replaces allocations",
    "forces in-place update": "changes allocations in place",
    "forces create": "creates allocations",
    "forces destroy": "ends allocations",
}
"""Longer notes come first, because they contain shorter ones."""


def build_plan_view(plan: JobPlanResponse, hidden: HiddenValues | None = None) -> PlanView:
    """Return what registering a job would change, and which groups would wait. The texts contain no `hidden` values."""
    updates = (plan.annotations.desired_tg_updates if plan.annotations else None) or {}
    explanations = plan.explanations if isinstance(plan.explanations, dict) else {}
    unplaced = plan.failed_tg_allocs or {}
    replaced, needs = list_replaced_groups(plan.diff), list_added_needs(plan.diff)
    groups = tuple(
        GroupPlan(
            name,
            describe_updates(
                *count_failed(update, unplaced.get(name), explanations.get(name)),
                is_replaced=name in replaced,
                needs=needs.get(name, ()),
            ),
            _leave_out_advice(explanations[name]) if name in unplaced and name in explanations else "",
            explanations[name].smallest_change if name in unplaced and name in explanations else "",
        )
        for name, update in sorted(updates.items())
    )
    preempted = (plan.annotations.preempted_allocs if plan.annotations else None) or ()
    launches = plan.next_periodic_launches if isinstance(plan.next_periodic_launches, tuple) else ()
    return PlanView(
        diff=None if plan.diff is None else build_diff_view(plan.diff, hidden),
        groups=groups,
        preempted=tuple(each.name for each in preempted),
        warnings=list_warnings(plan.warnings),
        launches=tuple(each.strftime("%Y-%m-%d %H:%M:%S UTC") for each in launches[:MAX_LAUNCHES]),
        index=plan.job_modify_index,
    )


def _leave_out_advice(explanation: GroupExplanation) -> str:
    """Return why a group cannot be placed, without what would help, which the page shows apart."""
    advice = explanation.smallest_change
    return explanation.text.removesuffix(f"; {advice}") if advice else explanation.text


def list_warnings(text: str) -> tuple[str, ...]:
    """Return the warnings of a reply one by one, without the line that counts them."""
    lines = [line.strip().removeprefix("* ") for line in text.splitlines()]
    return tuple(line for line in lines if line and not line.endswith(("warning:", "warnings:")))
