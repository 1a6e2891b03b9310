"""The command group `wharf alloc`: show, stop, restart and signal allocations; their resource use and health checks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.options import allocation_argument, detach_option
from wharf.cli.common.rendering import render_sparkline
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.lazy_group import NOT_SUPPORTED_BY_NODES, CommandEntry, LazyGroup
from wharf.world.addresses import format_host_and_port

if TYPE_CHECKING:
    from wharf.contract.model.allocations.allocation import NetworkStatus
    from wharf.contract.model.allocations.resources import AllocatedPort
    from wharf.contract.model.allocations.task_states import TaskEventView
    from wharf.contract.wire.allocations.messages import AllocationView

MODULE: Final = "wharf.cli.alloc.group"
COMMANDS: Final = {
    "status": CommandEntry(MODULE, "status", "Show an allocation: its node, its tasks and their events."),
    "explain": CommandEntry(MODULE, "explain", "Explain why an allocation is on its node, and what it waits for."),
    "stop": CommandEntry(MODULE, "stop", "Stop an allocation; the scheduler replaces it."),
    "restart": CommandEntry(MODULE, "restart", "Restart the tasks of an allocation in place."),
    "signal": CommandEntry(MODULE, "send_signal", "Send a signal to the tasks of an allocation."),
    "logs": CommandEntry("wharf.cli.alloc.logs", "logs", "Print the log of a task."),
    "exec": CommandEntry(
        "wharf.cli.alloc.exec", "execute", "Run a command in a task: with its user, environment and working directory."
    ),
    "fs": CommandEntry("wharf.cli.alloc.files", "fs", "Read the files of an allocation."),
    "stats": CommandEntry(MODULE, "stats", "Show the CPU and memory use of the tasks of an allocation."),
    "checks": CommandEntry(MODULE, "checks", "Show the results of the health checks of an allocation."),
}


UNAVAILABLE_COMMANDS: Final = {"pause": NOT_SUPPORTED_BY_NODES}
UNAVAILABLE_COMMANDS["list"] = "use `wharf job allocs JOB`"


@click.group(cls=LazyGroup, entries=COMMANDS, unavailable=UNAVAILABLE_COMMANDS)
def alloc() -> None:
    """Show, stop and restart allocations; read their logs and files."""


@click.command(cls=ServerCommand)
@allocation_argument
def status(session: Session, alloc_id: str) -> None:
    """Show an allocation: its node, its tasks and their events.

    wharf alloc status 1a2b3c4d
    """
    show_allocation(session, alloc_id)


@click.command(cls=ServerCommand)
@allocation_argument
def explain(session: Session, alloc_id: str) -> None:
    """Explain why an allocation is on its node, and what it waits for.

    wharf alloc explain 1a2b3c4d
    """
    from wharf.cli.common.explanations import render_allocation_explanation
    from wharf.cli.common.lookup import find_allocation

    found = find_allocation(session, alloc_id)
    explanation = session.client.allocations.explain(found.id, namespace=found.namespace).value
    session.print_result(explanation, lambda: render_allocation_explanation(session, explanation))


@click.command(cls=ServerCommand)
@allocation_argument
@detach_option
@click.option("--no-shutdown-delay", is_flag=True, help="Ignore the shutdown delay of the group.")
def stop(session: Session, alloc_id: str, detach: bool, no_shutdown_delay: bool) -> None:
    """Stop an allocation; the scheduler replaces it.

    wharf alloc stop 1a2b3c4d
    """
    from wharf.cli.common.lookup import find_allocation
    from wharf.cli.job.change_report import ChangeReport
    from wharf.cli.job.follower import finish_change

    found = find_allocation(session, alloc_id)
    response = session.client.allocations.stop(found.id, no_shutdown_delay=no_shutdown_delay, namespace=found.namespace)
    session.print_text(f"stopped {found.name} ({session.shorten_id(found.id)})")
    report = ChangeReport(found.job_id, found.namespace, response.eval_id, more={"ID": found.id, "Name": found.name})
    finish_change(session, report, should_detach=detach)


@click.command(cls=ServerCommand)
@allocation_argument
@click.argument("task", required=False)
@click.option("--task", "task_option", default="", help="The same as TASK.")
@click.option("--all-tasks", is_flag=True, help="Also tasks that have ended.")
def restart(session: Session, alloc_id: str, task: str | None, task_option: str, all_tasks: bool) -> None:
    """Restart the tasks of an allocation in place.

    Without TASK, all running tasks are restarted.

    wharf alloc restart 1a2b3c4d
    """
    from wharf.cli.common.lookup import find_allocation

    if all_tasks and (task or task_option):
        raise CliError("TASK and --all-tasks exclude each other: give only one")
    found = find_allocation(session, alloc_id)
    session.client.allocations.restart(
        found.id, task=task or task_option, all_tasks=all_tasks, namespace=found.namespace
    )
    session.print_change(
        f"restarted {found.name} ({session.shorten_id(found.id)})",
        ID=found.id,
        Name=found.name,
        Namespace=found.namespace,
    )


def show_allocation(session: Session, alloc_id: str) -> None:
    """Print the status of one allocation."""
    from wharf.cli.common.lookup import find_allocation

    found = find_allocation(session, alloc_id)
    allocation = session.client.allocations.read(found.id, namespace=found.namespace).value
    session.print_result(allocation, lambda: _render_allocation(session, allocation))


def _render_allocation(session: Session, allocation: "AllocationView") -> str:
    """Return the status of an allocation: main fields, resources, ports, tasks with events, and (verbose) scores."""
    from wharf.cli.common.node_reasons import count_nodes
    from wharf.cli.common.rendering import render_pairs, render_section, render_table
    from wharf.contract.model.allocations.placement_reasons import list_placement_failures

    job = allocation.job
    deployment_status = allocation.deployment_status
    health = (
        ""
        if deployment_status is None
        else {None: "not known yet", True: "healthy", False: "unhealthy"}[deployment_status.healthy]
    )
    desired = (allocation.desired_status, _in_parentheses(allocation.desired_description))
    parts = [
        render_pairs(
            [
                ("ID", allocation.id),
                ("Name", allocation.name),
                ("Status", allocation.client_status),
                ("", allocation.client_description),
                ("Desired", " ".join(text for text in desired if text)),
                ("Job", f"{allocation.job_id}, version {job.version}" if job else allocation.job_id),
                ("Element", _describe_element(allocation)),
                ("Item", allocation.array_item),
                ("Namespace", allocation.namespace),
                ("Node", f"{allocation.node_name} ({session.shorten_id(allocation.node_id)})"),
                ("Address", _format_network(allocation.network_status)),
                ("Deployment", session.shorten_id(allocation.deployment_id)),
                ("Health", health + (" (canary)" if deployment_status and deployment_status.canary else "")),
                ("Evaluation", session.shorten_id(allocation.eval_id)),
                ("Replaces", session.shorten_id(allocation.previous_allocation)),
                ("Replaced by", session.shorten_id(allocation.next_allocation)),
                ("Created", session.format_time(allocation.create_time)),
                ("Modified", session.format_time(allocation.modify_time)),
            ]
        )
    ]
    if failure := _render_failure(session, allocation):
        parts.append(render_section("Failed", failure))
    resources = allocation.allocated_resources
    if resources is not None:
        rows = [
            (name, task.cpu.cpu_shares, task.memory.memory_mb) for name, task in sorted((resources.tasks or {}).items())
        ]
        parts.append(render_section("Allocated", render_table(("Task", "CPU MHz", "Memory MB"), rows)))
        if ports := list_ports(resources.shared.ports or (), allocation.network_status):
            parts.append(render_section("Ports", render_table(("Label", "Address", "Target"), ports)))
    for name, state in sorted((allocation.task_states or {}).items()):
        restarts = f"{state.restarts} restart{'' if state.restarts == 1 else 's'}"
        heading = f"Task {name}: {state.state}{', failed' if state.failed else ''}, {restarts}"
        events = [(session.format_time(event.time), event.type, format_event(event)) for event in state.events or ()]
        body = (
            render_table(("Time", "Event", "Message"), reversed(events), indent="  ") if events else "  no events yet"
        )
        parts.append(render_section(heading, body))
    metrics = allocation.metrics
    if metrics is not None and session.is_verbose:
        scores: Sequence[Any] = metrics.score_meta_data or ()
        rows_of_scores = [(session.shorten_id(score.node_id), f"{score.norm_score:.3f}") for score in scores]
        lines = [f"{count_nodes(metrics.nodes_evaluated)} considered, {metrics.nodes_filtered} excluded"]
        lines += list_placement_failures(metrics) if metrics.nodes_filtered or metrics.nodes_exhausted else []
        parts.append(render_section("Placement", "\n".join([*lines, render_table(("Node", "Score"), rows_of_scores)])))
    return "\n".join(parts)


def _describe_element(allocation: "AllocationView") -> str:
    """Return which element of an array the allocation runs, such as `17, attempt 2, failed`; empty without an array."""
    from wharf.contract.model.allocations.names import parse_index

    if not allocation.array_attempt:
        return ""
    result = f", {allocation.array_result}" if allocation.array_result else ""
    return f"{parse_index(allocation.name)}, attempt {allocation.array_attempt}{result}"


def _render_failure(session: Session, allocation: "AllocationView") -> str:
    """Return why the allocation failed, and the end of the log of its failed task; empty if it has not failed."""
    from wharf.cli.common.failures import list_failures, render_failures

    return render_failures(session, list_failures([allocation]))


def format_event(event: "TaskEventView") -> str:
    """Return the text of a task event; says if the kernel ended the task for lack of memory."""
    from wharf.contract.model.allocations.task_event_messages import describe_event

    return describe_event(event)


def list_ports(ports: "Sequence[AllocatedPort]", network: "NetworkStatus | None") -> list[tuple[str, str, str]]:
    """Return (label, host address, target address) of each port; the target is in the allocation's own network."""
    network_address = network.address if network is not None else ""
    return [
        (
            port.label,
            format_host_and_port(port.host_ip, port.value),
            format_host_and_port(network_address, max(port.to, 0) or port.value) if network_address else "",
        )
        for port in ports
    ]


def _format_network(network: "NetworkStatus | None") -> str:
    """Return the addresses of the allocation's own network and its interface; empty if it has none."""
    if network is None:
        return ""
    interface = f"({network.interface_name})" if network.interface_name else ""
    return " ".join(text for text in (network.address, network.address_ipv6, interface) if text)


def _in_parentheses(text: str) -> str:
    return f"({text})" if text else ""


BYTES_PER_MB: Final = 1 << 20
MAX_OUTPUT_CHARS: Final = 100
"""Limit of the output of a check in a table; the whole output is in `-json`."""
STATS_HISTORY: Final = "5m"
STATS_COLUMNS: Final = ("Task", "CPU %", "MHz", "Memory MB", "Processes", f"CPU, {STATS_HISTORY}")


@click.command(cls=ServerCommand)
@allocation_argument
@click.argument("task", required=False)
@click.option("-s", "--signal", default="SIGKILL", show_default=True, help="Name of the signal, such as SIGHUP.")
@click.option("--task", "task_option", default="", help="The same as TASK.")
def send_signal(session: Session, alloc_id: str, task: str | None, signal: str, task_option: str) -> None:
    """Send a signal to the tasks of an allocation.

    Without TASK, all running tasks receive it.

    wharf alloc signal -s SIGHUP 1a2b3c4d
    """
    from wharf.cli.common.lookup import find_allocation, require_task

    found = find_allocation(session, alloc_id)
    task_name = task or task_option
    name = require_task(found, task_name) if task_name else ""
    signal = signal.upper() if signal.upper().startswith("SIG") else f"SIG{signal.upper()}"
    session.client.allocations.signal(found.id, signal, task=name, namespace=found.namespace)
    session.print_change(
        f"sent {signal} to {f'{name} of ' if name else ''}{found.name} ({session.shorten_id(found.id)})",
        ID=found.id,
        Name=found.name,
        Namespace=found.namespace,
        Signal=signal,
    )


@click.command(cls=ServerCommand)
@allocation_argument
@click.option("--task", default="", help="Only this task.")
def stats(session: Session, alloc_id: str, task: str) -> None:
    """Show the CPU and memory use of the tasks of an allocation.

    wharf alloc stats 1a2b3c4d
    """
    from wharf.cli.common.lookup import find_allocation
    from wharf.cli.common.rendering import render_table

    found = find_allocation(session, alloc_id)
    response = session.client.allocations.stats(found.id, task=task, history=STATS_HISTORY, namespace=found.namespace)
    rows = [_build_stats_row(name, task_stats) for name, task_stats in sorted((response.get("Tasks") or {}).items())]
    no_stats_text = f"No statistics: {found.name} is not running, or its driver does not measure its tasks."
    session.print_result(response, lambda: render_table(STATS_COLUMNS, rows) if rows else no_stats_text)


def _build_stats_row(name: str, task_stats: Mapping[str, Any]) -> tuple[str, str, str, str, int, str]:
    """Return the table row with the resource use of a task."""
    usage = task_stats["ResourceUsage"]
    cpu, memory = usage["CpuStats"], usage["MemoryStats"]
    return (
        name,
        f"{cpu['Percent']:.1f}",
        f"{cpu['TotalTicks']:.0f}",
        f"{(memory['Usage'] or memory['RSS']) / BYTES_PER_MB:.1f}",
        len(task_stats.get("Pids") or {}),
        render_sparkline([sample["Percent"] for sample in task_stats.get("History") or ()], max_value=100.0),
    )


@click.command(cls=ServerCommand)
@allocation_argument
def checks(session: Session, alloc_id: str) -> None:
    """Show the results of the health checks of an allocation.

    wharf alloc checks 1a2b3c4d
    """
    from wharf.cli.common.lookup import find_allocation
    from wharf.cli.common.rendering import render_table

    found = find_allocation(session, alloc_id)
    results = session.client.allocations.checks(found.id, namespace=found.namespace)
    rows = [
        (result.get("Service", ""), result.get("Check", ""), result.get("Status", ""), format_check_output(result))
        for result in (results or {}).values()
    ]
    session.print_result(
        results,
        lambda: (
            render_table(("Service", "Check", "Status", "Output"), rows) if rows else "The allocation has no checks."
        ),
    )


def format_check_output(result: Mapping[str, Any]) -> str:
    """Return the start of a check's output on one line. A failed HTTP check begins with its status code."""
    output = " ".join(str(result.get("Output", "")).split())
    shown = output if len(output) <= MAX_OUTPUT_CHARS else f"{output[:MAX_OUTPUT_CHARS]}…"
    code = result.get("StatusCode")
    return f"{code}: {shown}" if code and result.get("Status") != "success" else shown
