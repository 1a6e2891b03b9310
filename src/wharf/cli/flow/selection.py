"""Finds the run that a user means by its ID, a prefix of it, or the name of its flow."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice
from wharf.cli.completion import complete_jobs

if TYPE_CHECKING:
    from wharf.cli.common.server_commands import Session
    from wharf.contract.model.jobs.run_views import RunStub
    from wharf.contract.wire.jobs.messages import JobStub

MAX_LISTED_RUNS: Final = 12
"""Candidates that the error for a flow with several fitting runs lists."""
MAX_READ_RUNS: Final = 50
"""Runs of a flow whose gates are read to find the one that waits; each is a request."""

run_argument = click.argument("run_id", metavar="RUN", shell_complete=complete_jobs)
yes_option = click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask for confirmation.")


class RunChoice(NamedTuple):
    """Which run of a flow a change concerns, if the user names only the flow."""

    verb: str
    """What the command does with the run, such as `cancel`."""
    description: str
    """What fits, as in `no run of nightly has failed`."""
    fits: "Callable[[RunStub], bool]"
    step: str = ""
    """The step whose gate must be open; empty if none must."""


def find_run(session: "Session", query: str) -> tuple[str, str]:
    """Return the ID and the namespace of the run to show: of a flow the one with the latest slot. Raises CliError."""
    from wharf.cli.common.lookup import find_job

    found = find_job(session, query)
    if not _is_flow(found):
        return found.id, found.namespace
    newest = sort_runs(_list_runs(session, found))[0]
    kind = "run with the latest slot" if found.periodic else "newest run"
    print_notice(f"the {kind} of {found.id} is {newest.job_id}")
    return newest.job_id, newest.namespace


def find_run_to_change(session: "Session", query: str, choice: RunChoice, *, is_confirmed: bool) -> tuple[str, str]:
    """Return the ID and the namespace of the run to change. Raises CliError.

    Of a flow it is the only run that fits. If `query` is only a prefix of an ID, the user must confirm the change.
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, query)
    run_id, namespace = found.id, found.namespace
    if _is_flow(found):
        run = _require_single_run(session, found.id, _list_runs(session, found), choice)
        run_id, namespace = run.job_id, run.namespace
    if found.id != query and not is_confirmed:
        if not sys.stdin.isatty():
            raise CliError(f"{query} is only a prefix of {found.id}: give the whole ID, or --yes")
        click.confirm(f"{choice.verb.capitalize()} {run_id}?", abort=True, err=True)
    elif _is_flow(found):
        print_notice(f"the only run of {found.id} that {choice.description} is {run_id}")
    return run_id, namespace


def sort_runs(runs: "Sequence[RunStub]") -> "list[RunStub]":
    """Return runs with the latest slot first. Runs without a slot count from their creation."""
    return sorted(runs, key=lambda run: (-run.due_at, -run.create_index))


def _has_open_gate(session: "Session", run: "RunStub", step: str) -> bool:
    """Return whether a run waits for an answer to the gate of this step."""
    view = session.client.flows.read_run(run.job_id, namespace=run.namespace).value
    return any(each.name == step and each.gate is not None and each.gate.is_open for each in view.steps)


def _is_flow(job: "JobStub") -> bool:
    return bool(job.periodic or job.parameterized_job)


def _list_runs(session: "Session", flow: "JobStub") -> "Sequence[RunStub]":
    """Return the runs of a flow. Raises CliError if it has none."""
    runs = session.client.flows.list_runs(flow=flow.id, namespace=flow.namespace).value
    if not runs:
        raise CliError(f"{flow.id} has no runs yet; {_name_launch(flow)} launches one")
    return runs


def _name_launch(flow: "JobStub") -> str:
    return f"`wharf job periodic force {flow.id}`" if flow.periodic else f"`wharf job dispatch {flow.id}`"


def _require_single_run(session: "Session", flow_id: str, runs: "Sequence[RunStub]", choice: RunChoice) -> "RunStub":
    """Return the only run that fits. Raises CliError, which lists the candidates."""
    fitting = [run for run in sort_runs(runs) if choice.fits(run)]
    if choice.step and len(fitting) <= MAX_READ_RUNS:
        fitting = [run for run in fitting if _has_open_gate(session, run, choice.step)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise CliError(f"no run of {flow_id} {choice.description}; `wharf flow list {flow_id}` lists its runs")
    lines = [f"{len(fitting)} runs of {flow_id} fit; name the one to {choice.verb}:"]
    lines += [f"  {run.job_id}  {run.text or run.status}" for run in fitting[:MAX_LISTED_RUNS]]
    if len(fitting) > MAX_LISTED_RUNS:
        lines.append(f"  … and {len(fitting) - MAX_LISTED_RUNS} more")
    raise CliError("\n".join(lines))
