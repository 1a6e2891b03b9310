"""`wharf node`: the machines, what runs on them, and emptying them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.completing import complete_nodes
from wharf.cli.failing import Failed
from wharf.cli.lazy import NOT_YET, Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

if TYPE_CHECKING:
    from wharf.wire.node_shapes import NodeListStub, NodeShown
    from wharf.wire.work_shapes import AllocationShown

HERE: Final = "wharf.cli.node"
COMMANDS: Final = {
    "status": Entry(HERE, "status", "List nodes, or show one."),
    "drain": Entry(HERE, "drain", "Move everything off a node, or call that off."),
    "eligibility": Entry(HERE, "eligibility", "Say whether new work may come to a node."),
    "intro": Entry("wharf.cli.node_intro", "intro", "Introduce new nodes, where access control is on."),
    "identity": Entry("wharf.cli.node_identity", "identity", "What nodes prove about themselves to others."),
    "meta": Entry("wharf.cli.node_meta", "meta", "What is said about nodes, for jobs to choose by."),
    "pool": Entry("wharf.cli.node_pool", "pool", "Show and make the pools that nodes are in."),
}
a_node = click.argument("node_id", metavar="NODE", shell_complete=complete_nodes)
DRAIN_WAIT_S: Final = 2.0


ALSO: Final = {"list": Entry(HERE, "status", "wharf node status")}
MISSING: Final = {"config": NOT_YET}


@click.group(cls=LazyGroup, entries=COMMANDS, also=ALSO, missing=MISSING)
def node() -> None:
    """Show machines, and empty them."""


@click.command(cls=Speaking)
@click.argument("node_id", metavar="[NODE]", required=False, shell_complete=complete_nodes)
@click.option("--filter", "expression", default="", help='Only nodes that match, as `Status == "ready"`.')
@click.option("--node-pool", default="", help="Only nodes of this pool.")
@click.option("--self", "is_self", is_flag=True, help="The node of the agent that is asked.")
@click.option("--stats", is_flag=True, help="What is in use of its machine, too.")
def status(talk: Talk, node_id: str | None, expression: str, node_pool: str, is_self: bool, stats: bool) -> None:
    """List nodes, or show one.

    NODE is an id, the beginning of one, or a name.

    wharf node status
    """
    if node_id is None and not is_self:
        nodes = talk.client.nodes.list(filter=expression).value
        nodes = [one for one in nodes if node_pool in ("", one.node_pool)]
        talk.show(nodes, lambda: nodes_told(talk, nodes, is_chosen=bool(expression or node_pool)))
        return
    show_node(talk, node_id or "self", with_figures=stats)


@click.command(cls=Quiet)
@a_node
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
    talk: Talk,
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
    from wharf.cli.finding import find_node
    from wharf.wire.go_duration import DurationError, parse_duration_ns
    from wharf.wire.node_shapes import DrainSpec

    if enable == disable:
        raise Failed("say one of --enable and --disable")
    found = find_node(talk, node_id)
    meta = {"message": message} if message else None
    if disable:
        talk.client.nodes.drain(found.id, None, mark_eligible=not keep_ineligible, meta=meta)
        click.echo(f"{found.name} is drained no more" + ("; nothing new comes to it" if keep_ineligible else ""))
        return
    try:
        deadline_ns = -1 if force else 0 if no_deadline else parse_duration_ns(deadline)
    except DurationError:
        raise Failed(f"--deadline {deadline}: expected a length of time, as 30m or 1h30m") from None
    spec = DrainSpec(deadline=deadline_ns, ignore_system_jobs=ignore_system)
    talk.client.nodes.drain(found.id, spec, meta=meta)
    click.echo(f"{found.name} is being drained")
    if not detach:
        _follow_drain(talk, found.id, found.name)


def _follow_drain(talk: Talk, node_id: str, name: str) -> None:
    last = -1
    try:
        while True:
            answer = talk.client.nodes.read(node_id)
            found = talk.client.nodes.allocations(node_id)
            left = [one for one in found.value if not one.client_status.is_terminal]
            if len(left) != last and left:
                click.echo(f"  {len(left)} allocation{'' if len(left) == 1 else 's'} left")
            last = len(left)
            if answer.value.drain:
                talk.client.nodes.read(node_id, index=answer.index, wait_s=DRAIN_WAIT_S)
            elif said := say_drained(name, left):
                click.echo(said)
                return
            else:
                talk.client.nodes.allocations(node_id, index=found.index, wait_s=DRAIN_WAIT_S)
    except KeyboardInterrupt:
        click.echo(f"the drain of {name} goes on without you; `wharf node status {name}` shows how it stands", err=True)
        raise click.exceptions.Exit(130) from None


def say_drained(name: str, left: Sequence["AllocationShown"]) -> str:
    """Once the drain is over; nothing while some of what it stopped has not ended yet."""
    from wharf.model.allocation import DesiredStatus

    if any(one.desired_status is not DesiredStatus.RUN for one in left):
        return ""
    return f"{name} is drained" + (f"; {len(left)} of system jobs stay" if left else "")


@click.command(cls=Quiet)
@a_node
@click.option("--enable", is_flag=True, help="New work may come.")
@click.option("--disable", is_flag=True, help="No new work comes; what runs stays.")
def eligibility(talk: Talk, node_id: str, enable: bool, disable: bool) -> None:
    """Say whether new work may come to a node.

    wharf node eligibility --disable node-3
    """
    from wharf.cli.finding import find_node

    if enable == disable:
        raise Failed("say one of --enable and --disable")
    found = find_node(talk, node_id)
    talk.client.nodes.set_eligibility(found.id, eligible=enable)
    click.echo(f"{found.name} is {'eligible' if enable else 'ineligible: nothing new comes to it'}")


# -- what is told


def nodes_told(talk: Talk, nodes: "Sequence[NodeListStub]", *, is_chosen: bool = False) -> str:
    from wharf.cli.tables import in_order, nothing, table

    if not nodes:
        return nothing("nodes", is_chosen=is_chosen)
    titles = ("ID", "Name", "Pool", "Datacenter", "Class", "Drain", "Eligibility", "Status")
    rows = [
        (
            talk.short(one.id), one.name, one.node_pool, one.datacenter, one.node_class or "-",
            "draining" if one.drain else "-", one.scheduling_eligibility, one.status,
        )
        for one in sorted(nodes, key=lambda one: in_order(one.name))
    ]  # fmt: skip
    return table(titles, rows, spare=("Class", "Datacenter"), names=() if talk.verbose else ("Name",))


def show_node(talk: Talk, node_id: str, *, with_figures: bool = False) -> None:
    from wharf.cli.finding import find_node
    from wharf.cli.node_figures import HISTORY, figures_told

    found = find_node(talk, node_id)
    one = talk.client.nodes.read(found.id).value
    allocations = talk.client.nodes.allocations(found.id).value
    figures = talk.client.nodes.stats(found.id, history=HISTORY) if with_figures else None
    page = _node_told(talk, one, allocations)
    talk.show(one, lambda: f"{page}\n{figures_told(figures)}" if figures else page)


def _node_told(talk: Talk, one: "NodeShown", allocations: "Sequence[AllocationShown]") -> str:
    from wharf.cli.tables import pairs, section, table

    drivers = sorted(name for name, driver in (one.drivers or {}).items() if driver.detected and driver.healthy)
    strategy = one.drain_strategy
    parts = [
        pairs(
            [
                ("ID", one.id),
                ("Name", one.name),
                ("Status", one.status),
                ("Eligibility", one.scheduling_eligibility),
                ("Drain", f"until {talk.when(strategy.force_deadline)}" if strategy and strategy.force_deadline else
                 "yes" if one.drain else ""),
                ("Pool", one.node_pool),
                ("Datacenter", one.datacenter),
                ("Class", one.node_class),
                ("Address", one.http_addr),
                ("Drivers", ", ".join(drivers)),
                ("Since", talk.when(one.status_updated_at * 1_000_000_000)),
                ("Description", one.status_description),
            ]
        )
    ]  # fmt: skip
    running = [record for record in allocations if not record.client_status.is_terminal]
    parts.append(section("Allotted", _allotted(one, running)))
    if running:
        rows = [
            (
                talk.short(record.id),
                record.name,
                record.job.version if record.job else "-",
                record.client_status,
                talk.when(record.modify_time),
            )
            for record in sorted(running, key=lambda record: record.name)
        ]
        names = () if talk.verbose else ("Name",)
        parts.append(section("Allocations", table(("ID", "Name", "Version", "Status", "Modified"), rows, names=names)))
    events = list(one.events or ())[-8:]
    if events:
        told = [(talk.when(event.timestamp), event.subsystem, event.message) for event in reversed(events)]
        parts.append(section("Events", table(("When", "Of", "What"), told)))
    return "\n".join(parts)


def _allotted(one: "NodeShown", running: "Sequence[AllocationShown]") -> str:
    from wharf.cli.tables import bar

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
        f"{name:<9}{bar(used, total)}  {used:,}/{total:,} {unit}"
        for name, used, total, unit in (("CPU", used_cpu, cpu, "MHz"), ("Memory", used_mb, memory_mb, "MB"))
    )
