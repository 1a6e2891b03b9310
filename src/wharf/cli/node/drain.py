"""`wharf node drain`: starts, follows and cancels the drain of a node, and sums up what became of its allocations."""

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.options import INTERRUPTED_EXIT_CODE, confirm, detach_option, node_argument
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.common.times import format_utc_time

if TYPE_CHECKING:
    from wharf.contract.wire.allocations.messages import AllocationView
    from wharf.contract.wire.nodes.messages import NodeChangeResponse, NodeListStub, NodeView

DRAIN_WAIT_S: Final = 2.0
"""How long one blocking query waits while a drain is followed."""
DRAIN_NOTICE_S: Final = 10.0
"""A drain from which no allocation has left for this long says which allocations remain."""
MAX_REMAINING_SHOWN: Final = 5
"""Limit of the allocations in that line; keeps it readable."""


@click.command(cls=ServerCommand)
@node_argument
@click.option("--enable", is_flag=True, help="Start a drain.")
@click.option("--disable", is_flag=True, help="Cancel the drain.")
@click.option("--deadline", default="1h", show_default=True, help="Stop the remaining allocations after this time.")
@click.option("--no-deadline", is_flag=True, help="Wait as long as the allocations need.")
@click.option("--force", is_flag=True, help="Stop all allocations at once.")
@click.option("--ignore-system", is_flag=True, help="Do not stop system jobs.")
@click.option("--keep-ineligible", is_flag=True, help="With --disable: place no new allocations on the node.")
@click.option("-m", "--message", default="", help="Reason, stored with the node.")
@detach_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def drain(
    session: Session,
    node_id: str,
    enable: bool,
    disable: bool,
    deadline: str,
    no_deadline: bool,
    force: bool,
    ignore_system: bool,
    keep_ineligible: bool,
    message: str,
    detach: bool,
    yes: bool,
) -> None:
    """Move all allocations off a node, or cancel that.

    On a terminal the command asks for confirmation if the node runs allocations. It waits until the node is empty;
    Ctrl-C lets the drain continue.

    wharf node drain --enable --deadline 30m node-3
    """
    from wharf.cli.common.lookup import find_node
    from wharf.contract.model.times import DurationError, parse_duration_ns
    from wharf.contract.wire.nodes.messages import DrainSpec

    if enable == disable:
        raise CliError("give either --enable or --disable")
    found = find_node(session, node_id)
    meta = {"message": message} if message else None
    if disable:
        response = session.client.nodes.drain(found.id, None, mark_eligible=not keep_ineligible, meta=meta)
        outcome, text = describe_end_of_drain(found, is_kept_ineligible=keep_ineligible)
        _print_drain(session, found, response, outcome, text)
        return
    try:
        deadline_ns = -1 if force else 0 if no_deadline else parse_duration_ns(deadline)
    except DurationError:
        raise CliError(f'--deadline: expected a duration such as 30m or 1h30m, got "{deadline}"') from None
    spec = DrainSpec(deadline=deadline_ns, ignore_system_jobs=ignore_system)
    has_terminal = sys.stdin is not None and sys.stdin.isatty()
    asks = has_terminal and not yes and not found.drain
    before = session.client.nodes.allocations(found.id).value if asks or not detach else ()
    initial_ids = {allocation.id for allocation in before if not allocation.client_status.is_terminal}
    if asks and initial_ids:
        count = f"{len(initial_ids):,} allocation{'' if len(initial_ids) == 1 else 's'}"
        confirm(f"Drain {found.name}, which stops {count} there?")
    response = session.client.nodes.drain(found.id, spec, meta=meta)
    text = f"drain of {found.name} started"
    if detach:
        _print_drain(session, found, response, "started", text)
        return
    session.print_text(text)
    result = _follow_drain(session, found.id, found.name, initial_ids, is_forced=force)
    _print_drain(session, found, response, "complete", result)


def describe_end_of_drain(node: "NodeListStub", *, is_kept_ineligible: bool) -> tuple[str, str]:
    """Return the outcome of `--disable` and its text. `node` is the node before the command."""
    if node.drain:
        return "canceled", f"drain of {node.name} canceled" + (
            "; the node stays ineligible" if is_kept_ineligible else ""
        )
    if not is_kept_ineligible and node.scheduling_eligibility == "ineligible":
        return "eligible", f"{node.name} was not draining; it is eligible again"
    return "unchanged", f"no change: {node.name} is not draining and stays {node.scheduling_eligibility}"


def _print_drain(
    session: Session, node: "NodeListStub", response: "NodeChangeResponse", outcome: str, text: str
) -> None:
    session.print_change(
        text,
        ID=node.id,
        Name=node.name,
        NodeModifyIndex=response.node_modify_index,
        EvalIDs=response.eval_ids or (),
        Outcome=outcome,
        OutcomeDescription=text,
    )


def _follow_drain(session: Session, node_id: str, name: str, initial_ids: set[str], *, is_forced: bool) -> str:
    """Print the number of remaining allocations until the drain is complete. Ctrl-C lets the drain continue.

    Prints which allocations remain if none has left for a while. Returns what became of them. Raises CliError if the drain
    is canceled, or if the servers do not reply for too long.
    """
    from wharf.cli.common.outages import Outage

    client = session.client
    outage = Outage(session, f"the drain of {name} continues (`wharf node status {name}` shows its state)")
    # The count before the drain: a short drain may be complete before the first request below.
    _print_remaining(session, len(initial_ids))
    last_count, changed_s, notice = len(initial_ids), session.world.monotonic_s(), ""
    try:
        while True:
            node = outage.call(lambda: client.nodes.read(node_id))
            allocations = outage.call(lambda: client.nodes.allocations(node_id))
            remaining = [allocation for allocation in allocations.value if not allocation.client_status.is_terminal]
            if len(remaining) != last_count:
                changed_s = session.world.monotonic_s()
                _print_remaining(session, len(remaining))
            last_count = len(remaining)
            if session.world.monotonic_s() - changed_s >= DRAIN_NOTICE_S:
                new_notice = _format_drain_notice(session, node.value, remaining)
                if new_notice != notice:
                    print_notice(new_notice)
                notice = new_notice
            if node.value.drain:
                outage.call(partial(client.nodes.read, node_id, index=node.index, wait_s=DRAIN_WAIT_S))
            elif _is_canceled(node.value):
                raise CliError(f"another request canceled the drain of {name}, with {len(remaining)} left on the node")
            elif result := summarize_drain(node.value, initial_ids, allocations.value, is_forced=is_forced):
                return result
            else:
                outage.call(partial(client.nodes.allocations, node_id, index=allocations.index, wait_s=DRAIN_WAIT_S))
    except KeyboardInterrupt:
        print_notice(f"stopped watching; the drain of {name} continues (`wharf node status {name}` shows its state)")
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE) from None


def _print_remaining(session: Session, count: int) -> None:
    if count:
        session.print_text(f"  {count} allocation{'' if count == 1 else 's'} left")


def _is_canceled(node: "NodeView") -> bool:
    from wharf.contract.model.nodes.node import DrainStatus

    return node.last_drain is not None and node.last_drain.status is DrainStatus.CANCELED


def _format_drain_notice(session: Session, node: "NodeView", remaining: Sequence["AllocationView"]) -> str:
    """Return what a drain waits for: the allocations that remain, and when the drain stops them."""
    names = [f"{allocation.name} ({session.shorten_id(allocation.id)})" for allocation in remaining]
    more = f" and {len(names) - MAX_REMAINING_SHOWN} more" if len(names) > MAX_REMAINING_SHOWN else ""
    text = f"waiting for {', '.join(names[:MAX_REMAINING_SHOWN]) or 'the servers to complete the drain'}{more}"
    if node.status != "ready":
        text += f"; node {node.name} is {node.status}"
    deadline = node.drain_strategy.force_deadline if node.drain and node.drain_strategy else None
    if deadline:
        return f"{text}; the drain stops what remains at {format_utc_time(deadline)}"
    return f"{text}; Ctrl-C stops watching" + (" (the drain has no deadline)" if node.drain else "")


def summarize_drain(
    node: "NodeView", initial_ids: Collection[str], allocations: Sequence["AllocationView"], *, is_forced: bool
) -> str:
    """Return what became of the allocations after the drain of a node; empty while some of them still stop.

    `initial_ids` are the allocations that ran on the node when the drain began, `allocations` are all of the node now.
    `is_forced`: the drain had no waiting time.
    """
    from wharf.contract.model.allocations.allocation import DesiredStatus

    remaining = [allocation for allocation in allocations if not allocation.client_status.is_terminal]
    if any(allocation.desired_status is not DesiredStatus.RUN for allocation in remaining):
        return ""
    counts = Counter(_describe_end(each) for each in allocations if each.id in initial_ids and each not in remaining)
    parts = [", ".join(f"{count} {end}" for end, count in sorted(counts.items())) or "no allocation had to leave"]
    if unplaced := sorted({each.job_id for each in allocations if each.id in initial_ids and _is_unplaced(each)}):
        commands = ", ".join(f"`wharf job explain {job_id}`" for job_id in unplaced[:MAX_REMAINING_SHOWN])
        parts.append(f"{commands} shows why no replacement runs")
    if is_forced and counts:
        parts.append("all were stopped at once")
    elif _has_reached_deadline(node):
        parts.append("the deadline was reached before all had stopped")
    system_count = sum(_is_system(each) for each in remaining)
    for count, kind in ((system_count, "of system jobs"), (len(remaining) - system_count, "of other jobs")):
        if count:
            parts.append(
                f"{count} allocation{'' if count == 1 else 's'} {kind} still run{'s' if count == 1 else ''} here"
            )
    return f"drain of {node.name} complete: {'; '.join(parts)}"


def _describe_end(allocation: "AllocationView") -> str:
    """Return what became of an allocation that no longer runs on the node."""
    from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus

    if allocation.next_allocation:
        return "replaced on other nodes"
    if allocation.client_status is ClientStatus.LOST:
        return "lost"
    if allocation.desired_status is DesiredStatus.RUN:
        return "ended"
    if _is_system(allocation):
        return "stopped (system job)"
    if _is_finite(allocation):
        return "stopped (batch job, not run again)"
    if allocation.deployment_status is not None and allocation.deployment_status.canary:
        # A new canary names no allocation before it.
        return "stopped (canary; an active deployment places another)"
    return "stopped without a replacement"


def _is_unplaced(allocation: "AllocationView") -> bool:
    """Return whether a service lost this allocation without a replacement."""
    return allocation.client_status.is_terminal and _describe_end(allocation) in (
        "stopped without a replacement",
        "lost",
    )


def _is_system(allocation: "AllocationView") -> bool:
    return allocation.job is not None and allocation.job.type in ("system", "sysbatch")


def _is_finite(allocation: "AllocationView") -> bool:
    return allocation.job is not None and allocation.job.type == "batch"


def _has_reached_deadline(node: "NodeView") -> bool:
    """Return whether the last drain of the node ended because of its deadline, as its event records."""
    events = [event for event in node.events or () if event.subsystem == "Drain"]
    return bool(events) and (events[-1].details or {}).get("deadline_reached") == "true"
