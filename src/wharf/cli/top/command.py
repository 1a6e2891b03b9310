"""`wharf top`: reads the use of the cluster again and again, and handles keys. `screen` lays it out."""

import sys
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.top.keys import NO_KEYS, Key, open_keys
from wharf.cli.top.measurements import MeasuredNodes
from wharf.cli.top.screen import Section, TopState, get_shown_nodes, render_screen, render_snapshot

if TYPE_CHECKING:
    from wharf.cli.common.live_text import LiveText
    from wharf.cli.top.keys import KeySource
    from wharf.contract.model.usage import ClusterUsage

DEFAULT_INTERVAL_S: Final = 3.0
MAX_LISTED: Final = 100
"""Limit of the nodes, jobs and waiting jobs of one reply. Bounds the reply in a cluster with thousands of nodes."""
SNAPSHOT_ROWS: Final = 20
"""Default of `--limit`: nodes, jobs and waiting jobs of a snapshot."""
ORDERS: Final = ("cpu", "memory", "allocations", "name")
ORDER_BY_KEY: Final = {"c": "cpu", "m": "memory", "a": "allocations", "n": "name"}


@click.command(cls=ServerCommand)
@click.option("--sort", "order", type=click.Choice(ORDERS), default="cpu", show_default=True, help="Order of the rows.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(1, 3600),
    default=DEFAULT_INTERVAL_S,
    show_default=True,
    help="Seconds between two reads.",
)
@click.option("--once", is_flag=True, help="Print the current state and exit, as without a terminal.")
@click.option(
    "--limit",
    type=click.IntRange(1, 500),
    default=SNAPSHOT_ROWS,
    show_default=True,
    help="Rows of each table, if printed.",
)
def top(session: Session, order: str, interval_s: float, once: bool, limit: int) -> None:
    """Show the use of nodes, the largest jobs, and what waits, live on a terminal.

    On a terminal, the display is live. Keys: Tab and arrows select, Enter opens, c, m, a and n sort, q quits.
    For each node and job it shows what its allocations request, and for nodes also what is in use.

    wharf top --sort memory
    """
    if once or session.is_machine_readable or not session.is_terminal:
        usage = _fetch_usage(session, order, limit)
        measured = MeasuredNodes(session)
        if not session.is_machine_readable:
            measured.measure(usage.nodes)
        session.print_result(usage, lambda: render_snapshot(usage, measured, session.now_ns()))
        return
    from wharf.cli.common.live_text import LiveText

    with open_keys(sys.stdin) as keys, LiveText(is_full_screen=True) as live:
        run_live(session, keys, live, TopState(order=order), interval_s=interval_s)


def run_live(session: Session, keys: "KeySource", live: "LiveText", state: TopState, *, interval_s: float) -> None:
    """Show the use of the cluster until the user quits. Raises CliError if the servers do not reply for too long."""
    from wharf.cli.common.outages import Outage

    outage = Outage(session, "the cluster goes on")
    measured = MeasuredNodes(session)
    try:
        while True:
            order = state.order
            usage = outage.call(lambda order=order: _fetch_usage(session, order, MAX_LISTED))  # type: ignore[misc]
            measured.measure(get_shown_nodes(usage, state))
            deadline_s = session.world.monotonic_s() + interval_s
            while True:
                live.update(render_screen(usage, measured, state, session.now_ns()))
                remaining_s = deadline_s - session.world.monotonic_s()
                if remaining_s <= 0:
                    break
                key = keys.read_key(remaining_s)
                if key == NO_KEYS:
                    session.pause(remaining_s)
                elif not _handle_key(session, key, usage, state):
                    return
                elif state.order != order:
                    break
    except KeyboardInterrupt:
        return


def _fetch_usage(session: Session, order: str, limit: int) -> "ClusterUsage":
    return session.client.usage.read(order=order, limit=limit).value


def _handle_key(session: Session, key: str, usage: "ClusterUsage", state: TopState) -> bool:
    """Change the state as the key says. Return whether the display goes on."""
    if state.page is not None:
        if key in (Key.UP, Key.DOWN):
            state.scroll(1 if key == Key.DOWN else -1)
        elif key in ("q", Key.ESCAPE, Key.ENTER):
            state.page = None
        return True
    if key in ("q", Key.ESCAPE):
        return False
    if key == Key.TAB:
        state.select_next_section()
    elif key in (Key.UP, Key.DOWN):
        state.move_selection(usage, 1 if key == Key.DOWN else -1)
    elif key == Key.ENTER:
        state.open_page(_render_selected(session, usage, state))
    elif key in ORDER_BY_KEY:
        state.order = ORDER_BY_KEY[key]
    return True


def _render_selected(session: Session, usage: "ClusterUsage", state: TopState) -> str:
    """Return the page of the selected node or job; a sentence if it cannot be read."""
    from wharf.cli.common.explanations import render_job_explanation
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    position = state.get_position(usage)
    try:
        if state.section is Section.NODES and usage.nodes:
            from wharf.cli.node.group import render_node_page

            return render_node_page(session, usage.nodes[position].id)
        if state.section is Section.JOBS and usage.jobs:
            job = usage.jobs[position]
            return render_job_explanation(session, session.client.jobs.explain(job.id, namespace=job.namespace).value)
        if state.section is Section.WAITING and usage.waiting:
            waiting = usage.waiting[position]
            explanation = session.client.jobs.explain(waiting.job_id, namespace=waiting.namespace).value
            return render_job_explanation(session, explanation)
    except (Refusal, Unreachable) as error:
        return str(error)
    return "nothing is selected"
