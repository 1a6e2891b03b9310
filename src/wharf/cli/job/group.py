"""The command group `wharf job`."""

from typing import Final

import click

from wharf.cli.lazy_group import CommandEntry, LazyGroup

CHANGES_MODULE: Final = "wharf.cli.job.changes"
VIEWS_MODULE: Final = "wharf.cli.job.views"
COMMANDS: Final = {
    "run": CommandEntry(CHANGES_MODULE, "run", "Submit a job and follow it to its end."),
    "init": CommandEntry("wharf.cli.job.init", "init", "Write an example job file."),
    "plan": CommandEntry(
        "wharf.cli.job.plan", "plan", "Show what submitting a job would change, without submitting it."
    ),
    "status": CommandEntry("wharf.cli.job.status", "status", "List jobs, or show one."),
    "stop": CommandEntry(CHANGES_MODULE, "stop", "Stop one or more jobs."),
    "start": CommandEntry(CHANGES_MODULE, "start", "Start a stopped job again."),
    "validate": CommandEntry("wharf.cli.job.plan", "validate", "Check a job file without submitting it."),
    "convert": CommandEntry("wharf.cli.job.convert", "convert", "Print a job file in another language."),
    "fmt": CommandEntry(
        "wharf.cli.job.convert",
        "format_files",
        "Format job files in HCL and YAML, and print the names of those that changed.",
    ),
    "inspect": CommandEntry(VIEWS_MODULE, "inspect", "Print a job as JSON."),
    "history": CommandEntry(VIEWS_MODULE, "history", "List a job's versions, and what changed between them."),
    "revert": CommandEntry(CHANGES_MODULE, "revert", "Return a job to an earlier version."),
    "dispatch": CommandEntry(
        CHANGES_MODULE, "dispatch", "Run a parameterized job once, with a payload and meta values."
    ),
    "scale": CommandEntry(CHANGES_MODULE, "scale", "Change the count of a group."),
    "explain": CommandEntry(VIEWS_MODULE, "explain", "Explain where a job runs, and why parts of it are not placed."),
    "explain-field": CommandEntry("wharf.cli.job.explain_field", "explain_field", "Explain a field of the job file."),
    "logs": CommandEntry("wharf.cli.job.logs", "logs", "Print the logs of all tasks of a job."),
    "fetch": CommandEntry("wharf.cli.job.fetch", "fetch", "Bring files of a job's allocations from their nodes."),
    "restart": CommandEntry(
        "wharf.cli.job.restart", "restart", "Restart the tasks of a job in place, a few allocations at a time."
    ),
    "rerun": CommandEntry("wharf.cli.job.rerun", "rerun", "Run elements of an array again, in a new attempt."),
    "allocs": CommandEntry(VIEWS_MODULE, "allocs", "List a job's allocations."),
    "deployments": CommandEntry(VIEWS_MODULE, "deployments", "List a job's deployments."),
    "promote": CommandEntry(CHANGES_MODULE, "promote", "Promote the canaries of a job's latest deployment."),
    "eval": CommandEntry(
        CHANGES_MODULE, "evaluate", "Create an evaluation of a job, so that the scheduler processes it again."
    ),
    "tag": CommandEntry("wharf.cli.job.tag", "tag", "Tag versions of a job, so that they are retained."),
    "action": CommandEntry("wharf.cli.job.action", "action", "Run an action of a job, or list its actions."),
    "periodic": CommandEntry("wharf.cli.job.group", "periodic", "Launch a periodic job now."),
}
PERIODIC_COMMANDS: Final = {"force": CommandEntry(CHANGES_MODULE, "force", "Launch a periodic job now.")}


ALIASES: Final = {"list": CommandEntry("wharf.cli.job.status", "status", "wharf job status")}


@click.group(cls=LazyGroup, entries=COMMANDS, aliases=ALIASES)
def job() -> None:
    """Submit jobs, watch them and change them."""


@click.group(cls=LazyGroup, entries=PERIODIC_COMMANDS)
def periodic() -> None:
    """Launch a periodic job now."""
