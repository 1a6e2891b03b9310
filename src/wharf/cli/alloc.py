"""`wharf alloc`: one group of a job on one node."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from wharf.cli.completing import complete_allocations
from wharf.cli.failing import Failed
from wharf.cli.lazy import NOT_YET, Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

if TYPE_CHECKING:
    from wharf.model.allocated_resources import AllocatedPort
    from wharf.model.allocation import NetworkStatus
    from wharf.model.task_state import ShownTaskEvent
    from wharf.wire.work_shapes import AllocationShown

HERE: Final = "wharf.cli.alloc"
COMMANDS: Final = {
    "status": Entry(HERE, "status", "Show an allocation: where it is, its tasks and what happened to them."),
    "explain": Entry(HERE, "explain", "Say why an allocation is where it is, what it waits for and what led to it."),
    "stop": Entry(HERE, "stop", "Stop an allocation; its job gets another in its place."),
    "restart": Entry(HERE, "restart", "Restart the tasks of an allocation where they are."),
    "signal": Entry("wharf.cli.alloc_acts", "send_signal", "Send a signal to the tasks of an allocation."),
    "logs": Entry("wharf.cli.alloc_files", "logs", "Write out what a task prints."),
    "exec": Entry(
        "wharf.cli.alloc_exec",
        "execute",
        "Run a command beside a task: with its user, its variables and in its folder.",
    ),
    "fs": Entry("wharf.cli.alloc_files", "fs", "Read the files of an allocation."),
    "stats": Entry(
        "wharf.cli.alloc_acts", "stats", "Show what the tasks of an allocation use of processors and memory."
    ),
    "checks": Entry("wharf.cli.alloc_acts", "checks", "Show how the checks of an allocation go."),
}
an_allocation = click.argument("alloc_id", metavar="ALLOC", shell_complete=complete_allocations)


MISSING: Final = {"pause": NOT_YET}
MISSING["list"] = "`wharf job allocs JOB` lists those of a job"


@click.group(cls=LazyGroup, entries=COMMANDS, missing=MISSING)
def alloc() -> None:
    """Show allocations, stop and restart them, and look into their tasks."""


@click.command(cls=Speaking)
@an_allocation
def status(talk: Talk, alloc_id: str) -> None:
    """Show an allocation: where it is, its tasks and what happened to them.

    wharf alloc status 1a2b3c4d
    """
    show_allocation(talk, alloc_id)


@click.command(cls=Speaking)
@an_allocation
def explain(talk: Talk, alloc_id: str) -> None:
    """Say why an allocation is where it is, what it waits for and what led to it.

    wharf alloc explain 1a2b3c4d
    """
    from wharf.cli.explaining import allocation_told
    from wharf.cli.finding import find_allocation

    found = find_allocation(talk, alloc_id)
    explanation = talk.client.allocations.explain(found.id, namespace=found.namespace).value
    talk.show(explanation, lambda: allocation_told(talk, explanation))


@click.command(cls=Quiet)
@an_allocation
@click.option("--detach", is_flag=True, help="Return as soon as the servers have it.")
@click.option("--no-shutdown-delay", is_flag=True, help="At once, without the group's delay.")
def stop(talk: Talk, alloc_id: str, detach: bool, no_shutdown_delay: bool) -> None:
    """Stop an allocation; its job gets another in its place.

    wharf alloc stop 1a2b3c4d
    """
    from wharf.cli.finding import find_allocation
    from wharf.cli.job_changes import see_evaluation

    found = find_allocation(talk, alloc_id)
    answer = talk.client.allocations.stop(found.id, no_shutdown_delay=no_shutdown_delay, namespace=found.namespace)
    click.echo(f"{found.name} ({talk.short(found.id)}) is being stopped")
    if not detach:
        see_evaluation(talk, answer.eval_id, found.namespace)


@click.command(cls=Quiet)
@an_allocation
@click.argument("task", required=False)
@click.option("--task", "task_option", default="", help="The same as TASK.")
@click.option("--all-tasks", is_flag=True, help="Also those that ended.")
def restart(talk: Talk, alloc_id: str, task: str | None, task_option: str, all_tasks: bool) -> None:
    """Restart the tasks of an allocation where they are.

    Without TASK all that run.

    wharf alloc restart 1a2b3c4d
    """
    from wharf.cli.finding import find_allocation

    if all_tasks and (task or task_option):
        raise Failed("say one of TASK and --all-tasks")
    found = find_allocation(talk, alloc_id)
    talk.client.allocations.restart(found.id, task=task or task_option, all_tasks=all_tasks, namespace=found.namespace)
    click.echo(f"{found.name} ({talk.short(found.id)}) is restarted")


def show_allocation(talk: Talk, alloc_id: str) -> None:
    from wharf.cli.finding import find_allocation

    found = find_allocation(talk, alloc_id)
    one = talk.client.allocations.read(found.id, namespace=found.namespace).value
    talk.show(one, lambda: _told(talk, one))


def _told(talk: Talk, one: "AllocationShown") -> str:
    from wharf.cli.reasons import why_not_placed
    from wharf.cli.tables import pairs, section, table

    job = one.job
    part = one.deployment_status
    health = "" if part is None else {None: "not known yet", True: "healthy", False: "unhealthy"}[part.healthy]
    parts = [
        pairs(
            [
                ("ID", one.id),
                ("Name", one.name),
                ("Status", one.client_status),
                ("", one.client_description),
                ("Desired", " ".join(text for text in (one.desired_status, _said(one.desired_description)) if text)),
                ("Job", f"{one.job_id}, version {job.version}" if job else one.job_id),
                ("Namespace", one.namespace),
                ("Node", f"{one.node_name} ({talk.short(one.node_id)})"),
                ("Address", _address_inside(one.network_status)),
                ("Deployment", talk.short(one.deployment_id)),
                ("Health", health + (" (canary)" if part and part.canary else "")),
                ("Evaluation", talk.short(one.eval_id)),
                ("In place of", talk.short(one.previous_allocation)),
                ("Replaced by", talk.short(one.next_allocation)),
                ("Created", talk.when(one.create_time)),
                ("Modified", talk.when(one.modify_time)),
            ]
        )
    ]
    resources = one.allocated_resources
    if resources is not None:
        rows = [
            (name, task.cpu.cpu_shares, task.memory.memory_mb) for name, task in sorted((resources.tasks or {}).items())
        ]
        parts.append(section("Allotted", table(("Task", "CPU MHz", "Memory MB"), rows)))
        if ports := ports_of(resources.shared.ports or (), one.network_status):
            parts.append(section("Ports", table(("Label", "Address", "Leads to"), ports)))
    for name, state in sorted((one.task_states or {}).items()):
        said = f"{state.state}{', failed' if state.failed else ''}, {state.restarts} restart{'' if state.restarts == 1 else 's'}"
        events = [(talk.when(event.time), event.type, said_of(event)) for event in state.events or ()]
        body = table(("When", "What", "Said"), reversed(events), indent="  ") if events else "  nothing is told of it"
        parts.append(section(f"Task {name}: {said}", body))
    metrics = one.metrics
    if metrics is not None and talk.verbose:
        scores: Sequence[Any] = metrics.score_meta_data or ()
        rows_of_scores = [(talk.short(score.node_id), f"{score.norm_score:.3f}") for score in scores]
        lines = [f"{metrics.nodes_evaluated} nodes looked at, {metrics.nodes_filtered} kept out"]
        lines += why_not_placed(metrics) if metrics.nodes_filtered or metrics.nodes_exhausted else []
        parts.append(section("Placed", "\n".join([*lines, table(("Node", "Score"), rows_of_scores)])))
    return "\n".join(parts)


def said_of(event: "ShownTaskEvent") -> str:
    """A signal alone does not tell that the kernel sent it, for want of memory."""
    said = event.display_message or event.message
    return f"{said} (out of memory)" if (event.details or {}).get("oom_killed") == "true" else said


def ports_of(ports: "Sequence[AllocatedPort]", network: "NetworkStatus | None") -> list[tuple[str, str, str]]:
    """Each with where others reach it, and where that leads in a network of the allocation's own."""
    inside = network.address if network is not None else ""
    return [
        (
            port.label,
            place_of(port.host_ip, port.value),
            place_of(inside, max(port.to, 0) or port.value) if inside else "",
        )
        for port in ports
    ]


def place_of(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _address_inside(network: "NetworkStatus | None") -> str:
    if network is None:
        return ""
    interface = f"({network.interface_name})" if network.interface_name else ""
    return " ".join(text for text in (network.address, network.address_ipv6, interface) if text)


def _said(text: str) -> str:
    return f"({text})" if text else ""
