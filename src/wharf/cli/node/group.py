"""The command group `wharf node`: list and show nodes, drain them and set their eligibility."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.options import node_argument
from wharf.cli.common.record_tables import render_nodes
from wharf.cli.common.rendering import render_section, render_sparkline, render_usage_bar
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.common.times import NS_PER_SECOND
from wharf.cli.completion import complete_nodes
from wharf.cli.lazy_group import NOT_SUPPORTED_BY_NODES, CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.wire.allocations.messages import AllocationView
    from wharf.contract.wire.nodes.messages import NodeView

MODULE: Final = "wharf.cli.node.group"
COMMANDS: Final = {
    "status": CommandEntry(MODULE, "status", "List nodes, or show one."),
    "drain": CommandEntry("wharf.cli.node.drain", "drain", "Move all allocations off a node, or cancel that."),
    "eligibility": CommandEntry(MODULE, "eligibility", "Set whether new allocations may be placed on a node."),
    "intro": CommandEntry(
        "wharf.cli.node.identity", "intro", "Create introduction tokens, with which new nodes register."
    ),
    "identity": CommandEntry("wharf.cli.node.identity", "identity", "Show and renew the signed identities of nodes."),
    "meta": CommandEntry("wharf.cli.node.meta", "meta", "Show and change the metadata of nodes."),
    "pool": CommandEntry("wharf.cli.node.pool", "pool", "Show and change node pools."),
}


ALIASES: Final = {"list": CommandEntry(MODULE, "status", "wharf node status")}
UNAVAILABLE_COMMANDS: Final = {"config": NOT_SUPPORTED_BY_NODES}


@click.group(cls=LazyGroup, entries=COMMANDS, aliases=ALIASES, unavailable=UNAVAILABLE_COMMANDS)
def node() -> None:
    """Show nodes and drain them."""


@click.command(cls=ServerCommand)
@click.argument("node_id", metavar="[NODE]", required=False, shell_complete=complete_nodes)
@click.option("--filter", "expression", default="", help='Only nodes that match, such as `Status == "ready"`.')
@click.option("--node-pool", default="", help="Only nodes of this pool.")
@click.option("--self", "is_self", is_flag=True, help="The node of the agent that replies.")
@click.option("--stats", is_flag=True, help="Also show the CPU, memory and disk in use.")
def status(session: Session, node_id: str | None, expression: str, node_pool: str, is_self: bool, stats: bool) -> None:
    """List nodes, or show one.

    NODE is an id, a unique prefix of an id, or a name.

    wharf node status
    """
    if node_id is None and not is_self:
        nodes = session.client.nodes.list(filter=expression).value
        nodes = [node for node in nodes if node_pool in ("", node.node_pool)]
        session.print_result(nodes, lambda: render_nodes(session, nodes, is_filtered=bool(expression or node_pool)))
        return
    show_node(session, node_id or "self", should_include_stats=stats)


@click.command(cls=ServerCommand)
@node_argument
@click.option("--enable", is_flag=True, help="Allow new allocations.")
@click.option("--disable", is_flag=True, help="Place no new allocations; running ones stay.")
def eligibility(session: Session, node_id: str, enable: bool, disable: bool) -> None:
    """Set whether new allocations may be placed on a node.

    wharf node eligibility --disable node-3
    """
    from wharf.cli.common.lookup import find_node

    if enable == disable:
        raise CliError("give either --enable or --disable")
    found = find_node(session, node_id)
    response = session.client.nodes.set_eligibility(found.id, eligible=enable)
    session.print_change(
        f"{found.name} is {'eligible' if enable else 'ineligible: no new allocations are placed on it'}",
        ID=found.id,
        Name=found.name,
        Eligibility="eligible" if enable else "ineligible",
        NodeModifyIndex=response.node_modify_index,
        EvalIDs=response.eval_ids or (),
    )


# -- rendering of `wharf node status NODE`


def show_node(session: Session, node_id: str, *, should_include_stats: bool = False) -> None:
    """Print the status of one node, if requested with the resources in use."""
    from wharf.cli.common.lookup import find_node

    found = find_node(session, node_id)
    node = session.client.nodes.read(found.id).value
    allocations = session.client.nodes.allocations(found.id).value
    stats = session.client.nodes.stats(found.id, history=STATS_HISTORY) if should_include_stats else None
    page = _render_node(session, node, allocations)
    session.print_result(node, lambda: f"{page}\n{render_stats(stats)}" if stats else page)


def render_node_page(session: Session, node_id: str) -> str:
    """Return the status of the node with this id as text."""
    node = session.client.nodes.read(node_id).value
    return _render_node(session, node, session.client.nodes.allocations(node_id).value)


def _render_node(session: Session, node: "NodeView", allocations: "Sequence[AllocationView]") -> str:
    """Return the status of a node: main fields, allocated resources, allocations and its last events."""
    from wharf.cli.common.rendering import render_pairs, render_section, render_table

    drivers = sorted(name for name, driver in (node.drivers or {}).items() if driver.detected and driver.healthy)
    strategy = node.drain_strategy
    drain = "yes" if node.drain else ""
    if strategy and strategy.force_deadline:
        drain = f"until {session.format_time(strategy.force_deadline)}"
    parts = [
        render_pairs(
            [
                ("ID", node.id),
                ("Name", node.name),
                ("Status", node.status),
                ("Eligibility", node.scheduling_eligibility),
                ("Drain", drain),
                ("Pool", node.node_pool),
                ("Datacenter", node.datacenter),
                ("Class", node.node_class),
                ("Address", node.http_addr),
                ("Drivers", ", ".join(drivers)),
                ("Since", session.format_time(node.status_updated_at * NS_PER_SECOND)),
                ("Description", node.status_description),
            ]
        )
    ]
    running = [record for record in allocations if not record.client_status.is_terminal]
    parts.append(render_section("Allocated", _render_allocated_resources(node, running)))
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
        shortenable = () if session.is_verbose else ("Name",)
        parts.append(
            render_section(
                "Allocations",
                render_table(
                    ("ID", "Name", "Version", "Status", "Modified"),
                    rows,
                    optional_columns=("Version", "Modified"),
                    shortenable_columns=shortenable,
                ),
            )
        )
    events = list(node.events or ())[-8:]
    if events:
        event_rows = [
            (session.format_time(event.timestamp), event.subsystem, event.message) for event in reversed(events)
        ]
        parts.append(
            render_section(
                "Events", render_table(("Time", "Subsystem", "Message"), event_rows, optional_columns=("Subsystem",))
            )
        )
    return "\n".join(parts)


def _render_allocated_resources(node: "NodeView", running: "Sequence[AllocationView]") -> str:
    """Return bars of the CPU and memory that running allocations reserve, out of the node's totals."""
    used_cpu = used_mb = 0
    for record in running:
        for task in ((record.allocated_resources.tasks if record.allocated_resources else None) or {}).values():
            used_cpu += task.cpu.cpu_shares
            used_mb += task.memory.memory_mb
    resources = node.node_resources
    if resources is None:
        return "The node has not reported its resources."
    cpu, memory_mb = resources.cpu.cpu_shares, resources.memory.memory_mb
    return "\n".join(
        f"{name:<9}{render_usage_bar(used, total)}  {used:,}/{total:,} {unit}"
        for name, used, total, unit in (("CPU", used_cpu, cpu, "MHz"), ("Memory", used_mb, memory_mb, "MB"))
    )


BYTES_PER_GB: Final = 1 << 30
STATS_HISTORY: Final = "5m"


def render_stats(stats: Mapping[str, Any]) -> str:
    """Return a section with the CPU, memory and disk in use, and their history."""
    memory, disk, history = stats["Memory"], stats["AllocDirStats"], stats.get("History") or ()
    cpus = stats["CPU"]
    percent = sum(cpu["TotalPercent"] for cpu in cpus) / max(1, len(cpus))
    cpu_history = render_sparkline([sample["Percent"] for sample in history], max_value=100)
    memory_history = render_sparkline([sample["Memory"] for sample in history], max_value=float(memory["Total"]))
    lines = [
        f"{'CPU':<9}{render_usage_bar(round(percent), 100)}  {percent:.0f} % of {len(cpus)}  {cpu_history}",
        f"{'Memory':<9}{render_usage_bar(memory['Used'], memory['Total'])}  "
        f"{memory['Used'] / BYTES_PER_GB:.1f}/{memory['Total'] / BYTES_PER_GB:.1f} GB  {memory_history}",
        f"{'Disk':<9}{render_usage_bar(disk['Used'], disk['Size'])}  "
        f"{disk['Used'] / BYTES_PER_GB:.1f}/{disk['Size'] / BYTES_PER_GB:.1f} GB  "
        f"{disk['InodesUsedPercent']:.0f} % of inodes",
    ]
    return render_section(f"In use, now and in the last {STATS_HISTORY}", "\n".join(line.rstrip() for line in lines))
