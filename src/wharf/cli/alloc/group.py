"""`wharf alloc`: one group of a job on one node.

What an allocation uses of its node, and signals to its tasks.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.options import allocation_argument
from wharf.cli.common.rendering import render_sparkline
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.completion import complete_allocations
from wharf.cli.lazy_group import NOT_SUPPORTED_BY_NODES, CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.model.allocations.allocation import NetworkStatus
    from wharf.contract.model.allocations.resources import AllocatedPort
    from wharf.contract.model.allocations.task_states import TaskEventView
    from wharf.contract.wire.allocations.messages import AllocationView

MODULE: Final = "wharf.cli.alloc.group"
COMMANDS: Final = {
    "status": CommandEntry(MODULE, "status", "Show an allocation: where it is, its tasks and what happened to them."),
    "explain": CommandEntry(
        MODULE, "explain", "Say why an allocation is where it is, what it waits for and what led to it."
    ),
    "stop": CommandEntry(MODULE, "stop", "Stop an allocation; its job gets another in its place."),
    "restart": CommandEntry(MODULE, "restart", "Restart the tasks of an allocation where they are."),
    "signal": CommandEntry("wharf.cli.alloc.group", "send_signal", "Send a signal to the tasks of an allocation."),
    "logs": CommandEntry("wharf.cli.alloc.logs", "logs", "Write out what a task prints."),
    "exec": CommandEntry(
        "wharf.cli.alloc.exec",
        "execute",
        "Run a command beside a task: with its user, its variables and in its folder.",
    ),
    "fs": CommandEntry("wharf.cli.alloc.files", "fs", "Read the files of an allocation."),
    "stats": CommandEntry(
        "wharf.cli.alloc.group", "stats", "Show what the tasks of an allocation use of processors and memory."
    ),
    "checks": CommandEntry("wharf.cli.alloc.group", "checks", "Show how the checks of an allocation go."),
}


UNAVAILABLE_COMMANDS: Final = {"pause": NOT_SUPPORTED_BY_NODES}
UNAVAILABLE_COMMANDS["list"] = "`wharf job allocs JOB` lists those of a job"


@click.group(cls=LazyGroup, entries=COMMANDS, missing=UNAVAILABLE_COMMANDS)
def alloc() -> None:
    """Show allocations, stop and restart them, and look into their tasks."""


@click.command(cls=ServerCommand)
@allocation_argument
def status(session: Session, alloc_id: str) -> None:
    """Show an allocation: where it is, its tasks and what happened to them.

    wharf alloc status 1a2b3c4d
    """
    show_allocation(session, alloc_id)


@click.command(cls=ServerCommand)
@allocation_argument
def explain(session: Session, alloc_id: str) -> None:
    """Say why an allocation is where it is, what it waits for and what led to it.

    wharf alloc explain 1a2b3c4d
    """
    from wharf.cli.common.explanations import render_allocation_explanation
    from wharf.cli.common.lookup import find_allocation

    found = find_allocation(session, alloc_id)
    explanation = session.client.allocations.explain(found.id, namespace=found.namespace).value
    session.print_result(explanation, lambda: render_allocation_explanation(session, explanation))


@click.command(cls=QuietServerCommand)
@allocation_argument
@click.option("--detach", is_flag=True, help="Return as soon as the servers have it.")
@click.option("--no-shutdown-delay", is_flag=True, help="At once, without the group's delay.")
def stop(session: Session, alloc_id: str, detach: bool, no_shutdown_delay: bool) -> None:
    """Stop an allocation; its job gets another in its place.

    wharf alloc stop 1a2b3c4d
    """
    from wharf.cli.common.lookup import find_allocation
    from wharf.cli.job.follower import report_evaluation

    found = find_allocation(session, alloc_id)
    answer = session.client.allocations.stop(found.id, no_shutdown_delay=no_shutdown_delay, namespace=found.namespace)
    click.echo(f"{found.name} ({session.shorten_id(found.id)}) is being stopped")
    if not detach:
        report_evaluation(session, answer.eval_id, found.namespace)


@click.command(cls=QuietServerCommand)
@allocation_argument
@click.argument("task", required=False)
@click.option("--task", "task_option", default="", help="The same as TASK.")
@click.option("--all-tasks", is_flag=True, help="Also those that ended.")
def restart(session: Session, alloc_id: str, task: str | None, task_option: str, all_tasks: bool) -> None:
    """Restart the tasks of an allocation where they are.

    Without TASK all that run.

    wharf alloc restart 1a2b3c4d
    """
    from wharf.cli.common.lookup import find_allocation

    if all_tasks and (task or task_option):
        raise CliError("say one of TASK and --all-tasks")
    found = find_allocation(session, alloc_id)
    session.client.allocations.restart(
        found.id, task=task or task_option, all_tasks=all_tasks, namespace=found.namespace
    )
    click.echo(f"{found.name} ({session.shorten_id(found.id)}) is restarted")


def show_allocation(session: Session, alloc_id: str) -> None:
    from wharf.cli.common.lookup import find_allocation

    found = find_allocation(session, alloc_id)
    one = session.client.allocations.read(found.id, namespace=found.namespace).value
    session.print_result(one, lambda: _told(session, one))


def _told(session: Session, one: "AllocationView") -> str:
    from wharf.cli.common.failures import list_placement_failures
    from wharf.cli.common.rendering import render_pairs, render_section, render_table

    job = one.job
    part = one.deployment_status
    health = "" if part is None else {None: "not known yet", True: "healthy", False: "unhealthy"}[part.healthy]
    parts = [
        render_pairs(
            [
                ("ID", one.id),
                ("Name", one.name),
                ("Status", one.client_status),
                ("", one.client_description),
                ("Desired", " ".join(text for text in (one.desired_status, _said(one.desired_description)) if text)),
                ("Job", f"{one.job_id}, version {job.version}" if job else one.job_id),
                ("Namespace", one.namespace),
                ("Node", f"{one.node_name} ({session.shorten_id(one.node_id)})"),
                ("Address", _address_inside(one.network_status)),
                ("Deployment", session.shorten_id(one.deployment_id)),
                ("Health", health + (" (canary)" if part and part.canary else "")),
                ("Evaluation", session.shorten_id(one.eval_id)),
                ("In place of", session.shorten_id(one.previous_allocation)),
                ("Replaced by", session.shorten_id(one.next_allocation)),
                ("Created", session.format_time(one.create_time)),
                ("Modified", session.format_time(one.modify_time)),
            ]
        )
    ]
    resources = one.allocated_resources
    if resources is not None:
        rows = [
            (name, task.cpu.cpu_shares, task.memory.memory_mb) for name, task in sorted((resources.tasks or {}).items())
        ]
        parts.append(render_section("Allotted", render_table(("Task", "CPU MHz", "Memory MB"), rows)))
        if ports := list_ports(resources.shared.ports or (), one.network_status):
            parts.append(render_section("Ports", render_table(("Label", "Address", "Leads to"), ports)))
    for name, state in sorted((one.task_states or {}).items()):
        said = f"{state.state}{', failed' if state.failed else ''}, {state.restarts} restart{'' if state.restarts == 1 else 's'}"
        events = [(session.format_time(event.time), event.type, format_event(event)) for event in state.events or ()]
        body = (
            render_table(("When", "What", "Said"), reversed(events), indent="  ")
            if events
            else "  nothing is told of it"
        )
        parts.append(render_section(f"Task {name}: {said}", body))
    metrics = one.metrics
    if metrics is not None and session.is_verbose:
        scores: Sequence[Any] = metrics.score_meta_data or ()
        rows_of_scores = [(session.shorten_id(score.node_id), f"{score.norm_score:.3f}") for score in scores]
        lines = [f"{metrics.nodes_evaluated} nodes looked at, {metrics.nodes_filtered} kept out"]
        lines += list_placement_failures(metrics) if metrics.nodes_filtered or metrics.nodes_exhausted else []
        parts.append(render_section("Placed", "\n".join([*lines, render_table(("Node", "Score"), rows_of_scores)])))
    return "\n".join(parts)


def format_event(event: "TaskEventView") -> str:
    """A signal alone does not tell that the kernel sent it, for want of memory."""
    said = event.display_message or event.message
    return f"{said} (out of memory)" if (event.details or {}).get("oom_killed") == "true" else said


def list_ports(ports: "Sequence[AllocatedPort]", network: "NetworkStatus | None") -> list[tuple[str, str, str]]:
    """Each with where others reach it, and where that leads in a network of the allocation's own."""
    inside = network.address if network is not None else ""
    return [
        (
            port.label,
            format_address(port.host_ip, port.value),
            format_address(inside, max(port.to, 0) or port.value) if inside else "",
        )
        for port in ports
    ]


def format_address(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _address_inside(network: "NetworkStatus | None") -> str:
    if network is None:
        return ""
    interface = f"({network.interface_name})" if network.interface_name else ""
    return " ".join(text for text in (network.address, network.address_ipv6, interface) if text)


def _said(text: str) -> str:
    return f"({text})" if text else ""


BYTES_PER_MB: Final = 1 << 20
MAX_OUTPUT_CHARS: Final = 100
STATS_HISTORY: Final = "5m"
STATS_COLUMNS: Final = ("Task", "CPU %", "MHz", "Memory MB", "Processes", f"CPU, {STATS_HISTORY}")
allocation_argument = click.argument("alloc_id", metavar="ALLOC", shell_complete=complete_allocations)


@click.command(cls=QuietServerCommand)
@allocation_argument
@click.argument("task", required=False)
@click.option("-s", "--signal", default="SIGKILL", show_default=True, help="Its name, as SIGHUP.")
@click.option("--task", "task_option", default="", help="The same as TASK.")
def send_signal(session: Session, alloc_id: str, task: str | None, signal: str, task_option: str) -> None:
    """Send a signal to the tasks of an allocation.

    Without TASK to all that run.

    wharf alloc signal -s SIGHUP 1a2b3c4d
    """
    from wharf.cli.common.lookup import find_allocation, require_task

    found = find_allocation(session, alloc_id)
    given = task or task_option
    name = require_task(found, given) if given else ""
    signal = signal.upper() if signal.upper().startswith("SIG") else f"SIG{signal.upper()}"
    session.client.allocations.signal(found.id, signal, task=name, namespace=found.namespace)
    click.echo(f"{signal} was sent to {f'{name} of ' if name else ''}{found.name} ({session.shorten_id(found.id)})")


@click.command(cls=ServerCommand)
@allocation_argument
@click.option("--task", default="", help="Of one task only.")
def stats(session: Session, alloc_id: str, task: str) -> None:
    """Show what the tasks of an allocation use of processors and memory.

    wharf alloc stats 1a2b3c4d
    """
    from wharf.cli.common.lookup import find_allocation
    from wharf.cli.common.rendering import render_table

    found = find_allocation(session, alloc_id)
    figures = session.client.allocations.stats(found.id, task=task, history=STATS_HISTORY, namespace=found.namespace)
    rows = [_row(name, of_task) for name, of_task in sorted((figures.get("Tasks") or {}).items())]
    nothing = f"{found.name} uses nothing that is measured: it does not run, or its driver does not tell"
    session.print_result(figures, lambda: render_table(STATS_COLUMNS, rows) if rows else nothing)


def _row(name: str, of_task: Mapping[str, Any]) -> tuple[str, str, str, str, int, str]:
    usage = of_task["ResourceUsage"]
    cpu, memory = usage["CpuStats"], usage["MemoryStats"]
    return (
        name,
        f"{cpu['Percent']:.1f}",
        f"{cpu['TotalTicks']:.0f}",
        f"{(memory['Usage'] or memory['RSS']) / BYTES_PER_MB:.1f}",
        len(of_task.get("Pids") or {}),
        render_sparkline([sample["Percent"] for sample in of_task.get("History") or ()], max_value=100.0),
    )


@click.command(cls=ServerCommand)
@allocation_argument
def checks(session: Session, alloc_id: str) -> None:
    """Show how the checks of an allocation go.

    wharf alloc checks 1a2b3c4d
    """
    from wharf.cli.common.lookup import find_allocation
    from wharf.cli.common.rendering import render_table

    found = find_allocation(session, alloc_id)
    results = session.client.allocations.checks(found.id, namespace=found.namespace)
    rows = [
        (each.get("Service", ""), each.get("Check", ""), each.get("Status", ""), format_check_output(each))
        for each in (results or {}).values()
    ]
    session.print_result(
        results, lambda: render_table(("Service", "Check", "Status", "Output"), rows) if rows else "it has no checks"
    )


def format_check_output(result: Mapping[str, Any]) -> str:
    """What an HTTP check was answered is often a page: its status says more than its markup. `-json` has all of it."""
    output = " ".join(str(result.get("Output", "")).split())
    shown = output if len(output) <= MAX_OUTPUT_CHARS else f"{output[:MAX_OUTPUT_CHARS]}…"
    code = result.get("StatusCode")
    return f"{code}: {shown}" if code and result.get("Status") != "success" else shown
