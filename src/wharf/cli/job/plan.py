"""`wharf job plan` and `wharf job validate`: check a job file against the servers without submitting it."""

import shlex
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.program import get_program_name
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.common.terminal import style
from wharf.cli.job.variables import VariableOptions, list_environment_values, variable_options

if TYPE_CHECKING:
    from wharf.contract.model.jobs.plan import JobDiff
    from wharf.contract.wire.jobs.messages import JobPlanResponse

T = TypeVar("T")

CHANGES_EXIT_CODE: Final = 1
UNKNOWN_EXIT_CODE: Final = 255
HIDDEN_VALUE: Final = "..."
"""What the printed command has instead of the value of a variable with the name of a secret."""
DIFF_COLOURS: Final = {"Added": "green", "Deleted": "red", "Edited": "yellow"}
CHANGING_UPDATES: Final = ("place", "stop", "migrate", "destructive_update", "canary", "reschedule_now")
"""The updates that place or stop an allocation."""


class PlanCommand(ServerCommand):
    """Exits with code 255 on any failure, because 1 says that the job would change."""

    failure_exit_code = UNKNOWN_EXIT_CODE


@click.command(cls=PlanCommand)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--diff/--no-diff", default=True, help="Show the changes of the job's fields.")
@variable_options
def plan(
    session: Session,
    file: str,
    diff: bool,
    values: tuple[tuple[str, str], ...],
    value_files: tuple[str, ...],
    is_strict: bool,
) -> None:
    """Show what submitting a job would change, without submitting it.

    Groups and tasks that are added or removed are shown in outline; --verbose shows all their fields.

    Exit code 0: no allocation would be placed or stopped, 1: some would be, 255: the plan failed.

    wharf job plan web.yaml
    """
    from wharf.cli.job.changes import choose_namespace, locate_errors, print_warnings
    from wharf.cli.job.files import read_job_file
    from wharf.job_files.secret_values import hide_values

    options = VariableOptions(values, value_files, is_strict)
    job = read_job_file(file, options, session.world)
    namespace = choose_namespace(session, job.document)
    with locate_errors(session, job):
        response = session.client.jobs.plan(
            job.id, job.document, diff=diff, sensitive_fields=job.sensitive_fields or None, namespace=namespace
        )
    print_warnings(response.warnings, job)
    hidden = job.parsed.hidden
    response = hide_values(response, hidden)
    found_values, secrets = list_environment_values(job.inputs, job.parsed.variables, hidden.names)
    options = replace(options, values=(*found_values, *options.values))
    words = [*session.connection_words, *options.list_words(job.parsed.variables.keys() - hidden.names), file]
    session.print_result(response, lambda: "\n".join(render_plan(session, words, response, secrets)))
    if has_changes(response):
        raise click.exceptions.Exit(CHANGES_EXIT_CODE)


@click.command(cls=ServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
@variable_options
def validate(
    session: Session, file: str, values: tuple[tuple[str, str], ...], value_files: tuple[str, ...], is_strict: bool
) -> None:
    """Check a job file without submitting it.

    wharf job validate web.yaml
    """
    from wharf.cli.job.changes import choose_namespace, locate_errors, print_warnings
    from wharf.cli.job.files import read_job_file
    from wharf.job_files.secret_values import hide_values

    job = read_job_file(file, VariableOptions(values, value_files, is_strict), session.world)
    with locate_errors(session, job):
        response = session.client.jobs.validate(job.document, namespace=choose_namespace(session, job.document))
    print_warnings(response.warnings, job)
    if response.validation_errors or response.error:
        if session.is_machine_readable:
            session.print_result(hide_values(response, job.parsed.hidden), str)
        errors = response.validation_errors or (response.error,)
        raise CliError(job.format_errors(*errors))
    session.print_result(response, lambda: f"{job.name} is valid (job {job.id})")


def has_changes(response: "JobPlanResponse") -> bool:
    """Return whether a plan places or stops any allocation."""
    updates = (response.annotations.desired_tg_updates if response.annotations else None) or {}
    return any(getattr(update, name) for update in updates.values() for name in CHANGING_UPDATES)


def render_plan(
    session: Session, words: Sequence[str], response: "JobPlanResponse", secrets: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the lines of a plan: diff, updates, preemptions, unplaced groups and the command to submit it.

    `words` are the arguments of that command: its options, and the file. `secrets` are the variables of the environment that
    it needs and that are not among its options.
    """
    from wharf.cli.common.rendering import render_heading
    from wharf.cli.job.changes import render_launches
    from wharf.job_files.diff_lines import count_failed, describe_updates, list_added_needs, list_replaced_groups

    if response.diff is not None:
        yield from render_job_diff(response.diff, is_full=session.is_verbose)
        yield ""
    updates = (response.annotations.desired_tg_updates if response.annotations else None) or {}
    yield render_heading("Planned changes")
    if not updates:
        yield "  none"
    unplaced = response.failed_tg_allocs or {}
    explanations = response.explanations if isinstance(response.explanations, dict) else {}
    replaced, needs = list_replaced_groups(response.diff), list_added_needs(response.diff)
    for group, update in sorted(updates.items()):
        counts, failed = count_failed(update, unplaced.get(group), explanations.get(group))
        yield f"  {group}: {describe_updates(counts, failed, is_replaced=group in replaced, needs=needs.get(group, ()))}"
    if response.annotations is not None and response.annotations.preempted_allocs:
        yield ""
        yield render_heading("Allocations to preempt")
        yield from (f"  {stub.id[:8]}  {stub.name}" for stub in response.annotations.preempted_allocs)
    yield from _render_unplaced(response)
    launches = response.next_periodic_launches
    if isinstance(launches, tuple):
        yield ""
        yield render_launches(session, launches)
    yield ""
    yield "To submit this version only if the job does not change in the meantime:"
    yield f"  {get_program_name()} job run --check-index {response.job_modify_index} {shlex.join(words)}"
    if secrets:
        yield f"  with the same environment: {', '.join(secrets)}"
    if any(word.endswith(f"={HIDDEN_VALUE}") for word in words):
        yield f"  with the values of the variables instead of {HIDDEN_VALUE}"


def _render_unplaced(response: "JobPlanResponse") -> Iterator[str]:
    """Yield the groups that would not be placed now; those that preempt others are placed when these have stopped."""
    from wharf.cli.common.failures import render_unplaced_groups
    from wharf.contract.model.allocations.placement_reasons import lacks_capacity

    updates = (response.annotations.desired_tg_updates if response.annotations else None) or {}
    unplaced = response.failed_tg_allocs or {}
    explanations = response.explanations if isinstance(response.explanations, dict) else {}

    def render_groups(names: "Set[str]") -> list[str]:
        return render_unplaced_groups({name: unplaced[name] for name in names}, explanations)

    preempting = {name for name in unplaced if name in updates and updates[name].preemptions}
    short = {name for name in unplaced.keys() - preempting if lacks_capacity(unplaced[name])}
    for title, names in (
        ("Not placed until the preempted allocations have stopped", preempting),
        ("Not placed: not enough capacity", short),
        ("Not placed: no node is suitable", unplaced.keys() - preempting - short),
    ):
        if names:
            yield ""
            yield style(title, fg="yellow")
            yield from (f"  {line}" for line in render_groups(names))


def render_job_diff(diff: "JobDiff", *, is_full: bool) -> Iterator[str]:
    """Yield the lines of a diff for a terminal. `is_full`: with all fields of groups and tasks that are added or removed."""
    from wharf.cli.common.rendering import style_dim
    from wharf.job_files.diff_lines import list_diff_lines

    for line in list_diff_lines(diff, is_full=is_full):
        colour = DIFF_COLOURS.get(line.type)
        if line.is_note:
            text = style_dim(line.text)
        else:
            text = style(line.signed_text, fg=colour) if colour else line.signed_text
        yield f"{'  ' * line.depth}{text}"
