"""`wharf job`: what to run, and what became of it."""

from typing import Final

import click

from wharf.cli.lazy import Entry, LazyGroup

RUN: Final = "wharf.cli.job_changes"
SEE: Final = "wharf.cli.job_views"
COMMANDS: Final = {
    "run": Entry(RUN, "run", "Submit a job, and follow it to its end."),
    "init": Entry("wharf.cli.job_init", "init", "Write an example of a job file, to begin with."),
    "plan": Entry("wharf.cli.job_plan", "plan", "Show what submitting a job would change, and change nothing."),
    "status": Entry(SEE, "status", "List jobs, or show one."),
    "stop": Entry(RUN, "stop", "Stop a job."),
    "start": Entry(RUN, "start", "Run a stopped job again."),
    "validate": Entry("wharf.cli.job_plan", "validate", "Say what is wrong with a job file, and submit nothing."),
    "inspect": Entry(SEE, "inspect", "Print a job as servers keep it."),
    "history": Entry(SEE, "history", "List a job's versions, and what changed between them."),
    "revert": Entry(RUN, "revert", "Run an earlier version again."),
    "dispatch": Entry(RUN, "dispatch", "Run a parameterized job once, with a payload and meta."),
    "scale": Entry(RUN, "scale", "Change how many of a group run."),
    "explain": Entry(SEE, "explain", "Say where a job's work is, and why the rest of it is nowhere."),
    "logs": Entry("wharf.cli.job_logs", "logs", "Write out what all tasks of a job print."),
    "restart": Entry(
        "wharf.cli.job_restart", "restart", "Restart the tasks of a job where they are, one allocation after the other."
    ),
    "allocs": Entry(SEE, "allocs", "List a job's allocations."),
    "deployments": Entry(SEE, "deployments", "List a job's deployments."),
    "promote": Entry(RUN, "promote", "Promote the canaries of a job's latest deployment."),
    "eval": Entry(RUN, "evaluate", "Have the scheduler look at a job again."),
    "tag": Entry("wharf.cli.job_tag", "tag", "Name versions of a job, so that they are kept and found."),
    "action": Entry("wharf.cli.job_action", "action", "Run a command that a job offers, or list them."),
    "periodic": Entry("wharf.cli.job", "periodic", "Launch a periodic job now."),
}
PERIODIC: Final = {"force": Entry(RUN, "force", "Launch a periodic job now.")}


ALSO: Final = {"list": Entry(SEE, "status", "wharf job status")}


@click.group(cls=LazyGroup, entries=COMMANDS, also=ALSO)
def job() -> None:
    """Submit jobs, watch them and change them."""


@click.group(cls=LazyGroup, entries=PERIODIC)
def periodic() -> None:
    """Launch a periodic job now."""
