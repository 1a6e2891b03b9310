"""The command group `wharf flow`."""

from typing import Final

import click

from wharf.cli.lazy_group import CommandEntry, LazyGroup

CHANGES_MODULE: Final = "wharf.cli.flow.changes"
COMMANDS: Final = {
    "list": CommandEntry("wharf.cli.flow.lists", "list_", "List flows, and the newest runs."),
    "status": CommandEntry(
        "wharf.cli.flow.status", "status", "Show the steps of a run in layers, what each waits for or how it ended."
    ),
    "approve": CommandEntry(CHANGES_MODULE, "approve", "Approve or reject the gate of a step."),
    "cancel": CommandEntry(CHANGES_MODULE, "cancel", "Cancel a run."),
    "retry": CommandEntry(CHANGES_MODULE, "retry", "Run steps of a run again, in a new attempt."),
    "backfill": CommandEntry(CHANGES_MODULE, "backfill", "Launch the runs of past slots of a flow's schedule."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def flow() -> None:
    """Watch runs of jobs with steps, and answer, cancel and repeat them."""
