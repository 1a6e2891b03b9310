"""`wharf node`: the machines, what runs on them, and emptying them.

What a node measures of its machine, for people.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.options import node_argument
from wharf.cli.common.record_tables import render_nodes
from wharf.cli.common.rendering import render_bar, render_section, render_sparkline
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.completion import complete_nodes
from wharf.cli.lazy_group import NOT_SUPPORTED_BY_NODES, CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.wire.allocations.messages import AllocationView
    from wharf.contract.wire.nodes.messages import NodeView

MODULE: Final = "wharf.cli.node.group"
COMMANDS: Final = {
    "status": CommandEntry(MODULE, "status", "List nodes, or show one."),
    "drain": CommandEntry(MODULE, "drain", "Move everything off a node, or call that off."),
    "eligibility": CommandEntry(MODULE, "eligibility", "Say whether new work may come to a node."),
    "intro": CommandEntry("wharf.cli.node.identity", "intro", "Introduce new nodes, where access control is on."),
    "identity": CommandEntry("wharf.cli.node.identity", "identity", "What nodes prove about themselves to others."),
    "meta": CommandEntry("wharf.cli.node.meta", "meta", "What is said about nodes, for jobs to choose by."),
    "pool": CommandEntry("wharf.cli.node.pool", "pool", "Show and make the pools that nodes are in."),
}
DRAIN_WAIT_S: Final = 2.0


ALIASES: Final = {"list": CommandEntry(MODULE, "status", "wharf node status")}
UNAVAILABLE_COMMANDS: Final = {"config": NOT_SUPPORTED_BY_NODES}


@click.group(cls=LazyGroup, entries=COMMANDS, also=ALIASES, missing=UNAVAILABLE_COMMANDS)
def node() -> None:
    """Show machines, and empty them."""


@click.command(cls=ServerCommand)
@click.argument("node_id", metavar="[NODE]", required=False, shell_complete=complete_nodes)
@click.option("--filter", "expression", default="", help='Only nodes that match, as `Status == "ready"`.')
@click.option("--node-pool", default="", help="Only nodes of this pool.")
@click.option("--self", "is_self", is_flag=True, help="The node of the agent that is asked.")
@click.option("--stats", is_flag=True, help="What is in use of its machine, too.")
def status(session: Session, node_id: str | None, expression: str, node_pool: str, is_self: bool, stats: bool) -> None:
    """List nodes, or show one.

    NODE is an id, the beginning of one, or a name.

    wharf node status
    """
    if node_id is None and not is_self:
        nodes = session.client.nodes.list(filter=expression).value
        nodes = [one for one in nodes if node_pool in ("", one.node_pool)]
        session.print_result(nodes, lambda: render_nodes(session, nodes, is_filtered=bool(expression or node_pool)))
        return
    show_node(session, node_id or "self", should_include_stats=stats)


@click.command(cls=QuietServerCommand)
@node_argument
@click.option("--enable", is_flag=True, help="Begin to move everything off it.")
@click.option("--disable", is_flag=True, help="Call it off.")
@click.option("--deadline", default="1h", show_default=True, help="After this all of it is stopped.")
@click.option("--no-deadline", is_flag=True, help="However long it takes.")
@click.option("--force", is_flag=True, help="Everything at once.")
@click.option("--ignore-system", is_flag=True, help="Leave system jobs where they are.")
@click.option("--keep-ineligible", is_flag=True, help="With --disable: nothing new comes to it all the same.")
@click.option("-m", "--message", default="", help="Why; it is kept with the node.")
@click.option("--detach", is_flag=True, help="Return as soon as the servers have it.")
@click.option("--yes", is_flag=True, hidden=True)
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
    yes: bool,  # noqa: ARG001  # Scripts give it.
) -> None:
    """Move everything off a node, or call that off.

    It is followed until the node is empty; Ctrl-C lets it go on.

    wharf node drain --enable --deadline 30m node-3
    """
    from wharf.cli.common.lookup import find_node
    from wharf.contract.wire.nodes.messages import DrainSpec
    from wharf.contract.wire.times import DurationError, parse_duration_ns

    if enable == disable:
        raise CliError("say one of --enable and --disable")
    found = find_node(session, node_id)
    meta = {"message": message} if message else None
    if disable:
        session.client.nodes.drain(found.id, None, mark_eligible=not keep_ineligible, meta=meta)
        click.echo(f"{found.name} is drained no more" + ("; nothing new comes to it" if keep_ineligible else ""))
        return
    try:
        deadline_ns = -1 if force else 0 if no_deadline else parse_duration_ns(deadline)
    except DurationError:
        raise CliError(f"--deadline {deadline}: expected a length of time, as 30m or 1h30m") from None
    spec = DrainSpec(deadline=deadline_ns, ignore_system_jobs=ignore_system)
    session.client.nodes.drain(found.id, spec, meta=meta)
    click.echo(f"{found.name} is being drained")
    if not detach:
        _follow_drain(session, found.id, found.name)


def _follow_drain(session: Session, node_id: str, name: str) -> None:
    last = -1
    try:
        while True:
            answer = session.client.nodes.read(node_id)
            found = session.client.nodes.allocations(node_id)
            left = [one for one in found.value if not one.client_status.is_terminal]
            if len(left) != last and left:
                click.echo(f"  {len(left)} allocation{'' if len(left) == 1 else 's'} left")
            last = len(left)
            if answer.value.drain:
                session.client.nodes.read(node_id, index=answer.index, wait_s=DRAIN_WAIT_S)
            elif said := format_drain_result(name, left):
                click.echo(said)
                return
            else:
                session.client.nodes.allocations(node_id, index=found.index, wait_s=DRAIN_WAIT_S)
    except KeyboardInterrupt:
        click.echo(f"the drain of {name} goes on without you; `wharf node status {name}` shows how it stands", err=True)
        raise click.exceptions.Exit(130) from None


def format_drain_result(name: str, remaining: Sequence["AllocationView"]) -> str:
    """Once the drain is over; nothing while some of what it stopped has not ended yet."""
    from wharf.contract.model.allocations.allocation import DesiredStatus

    if any(one.desired_status is not DesiredStatus.RUN for one in remaining):
        return ""
    return f"{name} is drained" + (f"; {len(remaining)} of system jobs stay" if remaining else "")


@click.command(cls=QuietServerCommand)
@node_argument
@click.option("--enable", is_flag=True, help="New work may come.")
@click.option("--disable", is_flag=True, help="No new work comes; what runs stays.")
def eligibility(session: Session, node_id: str, enable: bool, disable: bool) -> None:
    """Say whether new work may come to a node.

    wharf node eligibility --disable node-3
    """
    from wharf.cli.common.lookup import find_node

    if enable == disable:
        raise CliError("say one of --enable and --disable")
    found = find_node(session, node_id)
    session.client.nodes.set_eligibility(found.id, eligible=enable)
    click.echo(f"{found.name} is {'eligible' if enable else 'ineligible: nothing new comes to it'}")


# -- what is told


def show_node(session: Session, node_id: str, *, should_include_stats: bool = False) -> None:
    from wharf.cli.common.lookup import find_node

    found = find_node(session, node_id)
    one = session.client.nodes.read(found.id).value
    allocations = session.client.nodes.allocations(found.id).value
    figures = session.client.nodes.stats(found.id, history=STATS_HISTORY) if should_include_stats else None
    page = _node_told(session, one, allocations)
    session.print_result(one, lambda: f"{page}\n{render_stats(figures)}" if figures else page)


def _node_told(session: Session, one: "NodeView", allocations: "Sequence[AllocationView]") -> str:
    from wharf.cli.common.rendering import render_pairs, render_section, render_table

    drivers = sorted(name for name, driver in (one.drivers or {}).items() if driver.detected and driver.healthy)
    strategy = one.drain_strategy
    parts = [
        render_pairs(
            [
                ("ID", one.id),
                ("Name", one.name),
                ("Status", one.status),
                ("Eligibility", one.scheduling_eligibility),
                ("Drain", f"until {session.format_time(strategy.force_deadline)}" if strategy and strategy.force_deadline else
                 "yes" if one.drain else ""),
                ("Pool", one.node_pool),
                ("Datacenter", one.datacenter),
                ("Class", one.node_class),
                ("Address", one.http_addr),
                ("Drivers", ", ".join(drivers)),
                ("Since", session.format_time(one.status_updated_at * 1_000_000_000)),
                ("Description", one.status_description),
            ]
        )
    ]  # fmt: skip
    running = [record for record in allocations if not record.client_status.is_terminal]
    parts.append(render_section("Allotted", _allotted(one, running)))
    if running:
        rows = [
            (
                session.shorten_id(record.id),
                record.name,
                record.job.version if record.job else "-",
                record.client_status,
                session.format_time(record.modify_time),
            )
            for record in sorted(running, key=lambda record: record.name)
        ]
        names = () if session.is_verbose else ("Name",)
        parts.append(
            render_section(
                "Allocations",
                render_table(("ID", "Name", "Version", "Status", "Modified"), rows, shortenable_columns=names),
            )
        )
    events = list(one.events or ())[-8:]
    if events:
        told = [(session.format_time(event.timestamp), event.subsystem, event.message) for event in reversed(events)]
        parts.append(render_section("Events", render_table(("When", "Of", "What"), told)))
    return "\n".join(parts)


def _allotted(one: "NodeView", running: "Sequence[AllocationView]") -> str:
    from wharf.cli.common.rendering import render_bar

    used_cpu = used_mb = 0
    for record in running:
        for task in ((record.allocated_resources.tasks if record.allocated_resources else None) or {}).values():
            used_cpu += task.cpu.cpu_shares
            used_mb += task.memory.memory_mb
    resources = one.node_resources
    if resources is None:
        return "The node has not told what it has."
    cpu, memory_mb = resources.cpu.cpu_shares, resources.memory.memory_mb
    return "\n".join(
        f"{name:<9}{render_bar(used, total)}  {used:,}/{total:,} {unit}"
        for name, used, total, unit in (("CPU", used_cpu, cpu, "MHz"), ("Memory", used_mb, memory_mb, "MB"))
    )


BYTES_PER_GB: Final = 1 << 30
STATS_HISTORY: Final = "5m"


def render_stats(stats: Mapping[str, Any]) -> str:
    """As a section of a page."""
    memory, disk, past = stats["Memory"], stats["AllocDirStats"], stats.get("History") or ()
    cpus = stats["CPU"]
    percent = sum(cpu["TotalPercent"] for cpu in cpus) / max(1, len(cpus))
    lines = [
        f"{'CPU':<9}{render_bar(round(percent), 100)}  {percent:.0f} % of {len(cpus)}  {render_sparkline([one['Percent'] for one in past], max_value=100)}",
        f"{'Memory':<9}{render_bar(memory['Used'], memory['Total'])}  {memory['Used'] / BYTES_PER_GB:.1f}/{memory['Total'] / BYTES_PER_GB:.1f} GB  "
        + render_sparkline([one["Memory"] for one in past], max_value=float(memory["Total"])),
        f"{'Disk':<9}{render_bar(disk['Used'], disk['Size'])}  {disk['Used'] / BYTES_PER_GB:.1f}/{disk['Size'] / BYTES_PER_GB:.1f} GB  "
        f"{disk['InodesUsedPercent']:.0f} % of inodes",
    ]
    return render_section(f"In use, and in the last {STATS_HISTORY}", "\n".join(line.rstrip() for line in lines))
