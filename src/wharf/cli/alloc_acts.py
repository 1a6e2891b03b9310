"""What an allocation uses of its node, and signals to its tasks."""

from collections.abc import Mapping
from typing import Any, Final

import click

from wharf.cli.completing import complete_allocations
from wharf.cli.drawing import drawn
from wharf.cli.speaking import Quiet, Speaking, Talk

MB: Final = 1 << 20
OUTPUT_MAX: Final = 100
HISTORY: Final = "5m"
COLUMNS: Final = ("Task", "CPU %", "MHz", "Memory MB", "Processes", f"CPU, {HISTORY}")
an_allocation = click.argument("alloc_id", metavar="ALLOC", shell_complete=complete_allocations)


@click.command(cls=Quiet)
@an_allocation
@click.argument("task", required=False)
@click.option("-s", "--signal", default="SIGKILL", show_default=True, help="Its name, as SIGHUP.")
@click.option("--task", "task_option", default="", help="The same as TASK.")
def send_signal(talk: Talk, alloc_id: str, task: str | None, signal: str, task_option: str) -> None:
    """Send a signal to the tasks of an allocation.

    Without TASK to all that run.

    wharf alloc signal -s SIGHUP 1a2b3c4d
    """
    from wharf.cli.finding import find_allocation
    from wharf.cli.tasks import the_task

    found = find_allocation(talk, alloc_id)
    given = task or task_option
    name = the_task(found, given) if given else ""
    signal = signal.upper() if signal.upper().startswith("SIG") else f"SIG{signal.upper()}"
    talk.client.allocations.signal(found.id, signal, task=name, namespace=found.namespace)
    click.echo(f"{signal} was sent to {f'{name} of ' if name else ''}{found.name} ({talk.short(found.id)})")


@click.command(cls=Speaking)
@an_allocation
@click.option("--task", default="", help="Of one task only.")
def stats(talk: Talk, alloc_id: str, task: str) -> None:
    """Show what the tasks of an allocation use of processors and memory.

    wharf alloc stats 1a2b3c4d
    """
    from wharf.cli.finding import find_allocation
    from wharf.cli.tables import table

    found = find_allocation(talk, alloc_id)
    figures = talk.client.allocations.stats(found.id, task=task, history=HISTORY, namespace=found.namespace)
    rows = [_row(name, of_task) for name, of_task in sorted((figures.get("Tasks") or {}).items())]
    nothing = f"{found.name} uses nothing that is measured: it does not run, or its driver does not tell"
    talk.show(figures, lambda: table(COLUMNS, rows) if rows else nothing)


def _row(name: str, of_task: Mapping[str, Any]) -> tuple[str, str, str, str, int, str]:
    usage = of_task["ResourceUsage"]
    cpu, memory = usage["CpuStats"], usage["MemoryStats"]
    return (
        name,
        f"{cpu['Percent']:.1f}",
        f"{cpu['TotalTicks']:.0f}",
        f"{(memory['Usage'] or memory['RSS']) / MB:.1f}",
        len(of_task.get("Pids") or {}),
        drawn([sample["Percent"] for sample in of_task.get("History") or ()], top=100.0),
    )


@click.command(cls=Speaking)
@an_allocation
def checks(talk: Talk, alloc_id: str) -> None:
    """Show how the checks of an allocation go.

    wharf alloc checks 1a2b3c4d
    """
    from wharf.cli.finding import find_allocation
    from wharf.cli.tables import table

    found = find_allocation(talk, alloc_id)
    results = talk.client.allocations.checks(found.id, namespace=found.namespace)
    rows = [
        (each.get("Service", ""), each.get("Check", ""), each.get("Status", ""), output_shown(each))
        for each in (results or {}).values()
    ]
    talk.show(results, lambda: table(("Service", "Check", "Status", "Output"), rows) if rows else "it has no checks")


def output_shown(result: Mapping[str, Any]) -> str:
    """What an HTTP check was answered is often a page: its status says more than its markup. `-json` has all of it."""
    output = " ".join(str(result.get("Output", "")).split())
    shown = output if len(output) <= OUTPUT_MAX else f"{output[:OUTPUT_MAX]}…"
    code = result.get("StatusCode")
    return f"{code}: {shown}" if code and result.get("Status") != "success" else shown
