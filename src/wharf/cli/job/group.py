"""`wharf job`: what to run, and what became of it."""

from typing import Final

import click

from wharf.cli.lazy_group import CommandEntry, LazyGroup

CHANGES_MODULE: Final = "wharf.cli.job.changes"
VIEWS_MODULE: Final = "wharf.cli.job.views"
COMMANDS: Final = {
    "run": CommandEntry(CHANGES_MODULE, "run", "Submit a job, and follow it to its end."),
    "init": CommandEntry("wharf.cli.job.init", "init", "Write an example of a job file, to begin with."),
    "plan": CommandEntry("wharf.cli.job.plan", "plan", "Show what submitting a job would change, and change nothing."),
    "status": CommandEntry(VIEWS_MODULE, "status", "List jobs, or show one."),
    "stop": CommandEntry(CHANGES_MODULE, "stop", "Stop a job."),
    "start": CommandEntry(CHANGES_MODULE, "start", "Run a stopped job again."),
    "validate": CommandEntry(
        "wharf.cli.job.plan", "validate", "Say what is wrong with a job file, and submit nothing."
    ),
    "inspect": CommandEntry(VIEWS_MODULE, "inspect", "Print a job as servers keep it."),
    "history": CommandEntry(VIEWS_MODULE, "history", "List a job's versions, and what changed between them."),
    "revert": CommandEntry(CHANGES_MODULE, "revert", "Run an earlier version again."),
    "dispatch": CommandEntry(CHANGES_MODULE, "dispatch", "Run a parameterized job once, with a payload and meta."),
    "scale": CommandEntry(CHANGES_MODULE, "scale", "Change how many of a group run."),
    "explain": CommandEntry(VIEWS_MODULE, "explain", "Say where a job's work is, and why the rest of it is nowhere."),
    "logs": CommandEntry("wharf.cli.job.logs", "logs", "Write out what all tasks of a job print."),
    "restart": CommandEntry(
        "wharf.cli.job.restart", "restart", "Restart the tasks of a job where they are, one allocation after the other."
    ),
    "allocs": CommandEntry(VIEWS_MODULE, "allocs", "List a job's allocations."),
    "deployments": CommandEntry(VIEWS_MODULE, "deployments", "List a job's deployments."),
    "promote": CommandEntry(CHANGES_MODULE, "promote", "Promote the canaries of a job's latest deployment."),
    "eval": CommandEntry(CHANGES_MODULE, "evaluate", "Have the scheduler look at a job again."),
    "tag": CommandEntry("wharf.cli.job.tag", "tag", "Name versions of a job, so that they are kept and found."),
    "action": CommandEntry("wharf.cli.job.action", "action", "Run a command that a job offers, or list them."),
    "periodic": CommandEntry("wharf.cli.job.group", "periodic", "Launch a periodic job now."),
}
PERIODIC_COMMANDS: Final = {"force": CommandEntry(CHANGES_MODULE, "force", "Launch a periodic job now.")}


ALIASES: Final = {"list": CommandEntry(VIEWS_MODULE, "status", "wharf job status")}


@click.group(cls=LazyGroup, entries=COMMANDS, also=ALIASES)
def job() -> None:
    """Submit jobs, watch them and change them."""


@click.group(cls=LazyGroup, entries=PERIODIC_COMMANDS)
def periodic() -> None:
    """Launch a periodic job now."""
