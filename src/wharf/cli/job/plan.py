"""`wharf job plan` and `validate`: a job file against the servers, without a trace."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import ServerCommand, Session

if TYPE_CHECKING:
    from wharf.contract.model.jobs.plan import FieldDiff, JobDiff, ObjectDiff, TaskDiff, TaskGroupDiff
    from wharf.contract.wire.jobs.messages import JobPlanResponse

CHANGES_EXIT_CODE: Final = 1
UNKNOWN_EXIT_CODE: Final = 255
ADDED: Final = "Added"
DELETED: Final = "Deleted"
OUTLINE_UNITS: Final = {"CPU": "MHz", "Cores": "cores", "MemoryMB": "MB"}
"""What a task asks for, by which it is known at a glance."""
DIFF_SIGNS: Final = {"Added": ("+", "green"), "Deleted": ("-", "red"), "Edited": ("±", "yellow"), "None": (" ", None)}
UPDATE_LABELS: Final = {
    "place": "to place", "stop": "to stop", "migrate": "to move", "destructive_update": "to replace",
    "in_place_update": "to update in place", "canary": "to place as canary", "preemptions": "to push aside",
    "reschedule_now": "to place again now", "reschedule_later": "to place again later", "disconnect": "out of contact",
    "reconnect": "back in contact", "ignore": "unchanged",
}  # fmt: skip
CHANGING_UPDATES: Final = ("place", "stop", "migrate", "destructive_update", "canary", "reschedule_now")
"""What places or stops an allocation."""


class PlanCommand(ServerCommand):
    """Any failure is 255: 1 says that something would change."""

    failure_exit_code = UNKNOWN_EXIT_CODE


@click.command(cls=PlanCommand)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--diff/--no-diff", default=True, help="What would change in the job's text.")
def plan(session: Session, file: str, diff: bool) -> None:
    """Show what submitting a job would change, and change nothing.

    Of what is new or goes only the outline is shown; with --verbose all of it, defaults too.

    Exit code 0: no allocation would be placed or stopped, 1: some would, 255: it could not be told.

    wharf job plan web.yaml
    """
    from wharf.cli.job.changes import choose_namespace, locate_errors, print_warnings
    from wharf.cli.job.files import read_job_file

    job = read_job_file(file)
    namespace = choose_namespace(session, job.document)
    with locate_errors(session, job):
        answer = session.client.jobs.plan(job.id, job.document, diff=diff, namespace=namespace)
    print_warnings(answer.warnings, job)
    session.print_result(answer, lambda: "\n".join(render_plan(session, file, answer)))
    if has_changes(answer):
        raise click.exceptions.Exit(CHANGES_EXIT_CODE)


@click.command(cls=ServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
def validate(session: Session, file: str) -> None:
    """Say what is wrong with a job file, and submit nothing.

    wharf job validate web.yaml
    """
    from wharf.cli.job.changes import choose_namespace, locate_errors, print_warnings
    from wharf.cli.job.files import read_job_file

    job = read_job_file(file)
    with locate_errors(session, job):
        answer = session.client.jobs.validate(job.document, namespace=choose_namespace(session, job.document))
    print_warnings(answer.warnings, job)
    if answer.validation_errors or answer.error:
        if session.is_machine_readable:
            session.print_result(answer, str)
        wrong = answer.validation_errors or (answer.error,)
        raise CliError("\n".join(job.format_errors(line) for line in wrong))
    session.print_result(answer, lambda: f"{job.name} is right: {job.id} can be submitted")


def has_changes(response: "JobPlanResponse") -> bool:
    updates = (response.annotations.desired_tg_updates if response.annotations else None) or {}
    return any(getattr(update, name) for update in updates.values() for name in CHANGING_UPDATES)


def render_plan(session: Session, file: str, response: "JobPlanResponse") -> Iterator[str]:
    from wharf.cli.common.rendering import render_heading
    from wharf.cli.job.changes import render_launches

    if response.diff is not None:
        yield from render_job_diff(response.diff, is_full=session.is_verbose)
        yield ""
    updates = (response.annotations.desired_tg_updates if response.annotations else None) or {}
    yield render_heading("The scheduler would have")
    if not updates:
        yield "  nothing to do"
    for group, update in sorted(updates.items()):
        counts = [(getattr(update, name), verb) for name, verb in UPDATE_LABELS.items()]
        said = ", ".join(f"{count} {verb}" for count, verb in counts if count) or "nothing to do"
        yield f"  {group}: {said}"
    if response.annotations is not None and response.annotations.preempted_allocs:
        yield ""
        yield render_heading("It would push aside")
        yield from (f"  {one.id[:8]}  {one.name}" for one in response.annotations.preempted_allocs)
    yield from _without_room(response)
    launches = response.next_periodic_launches
    if isinstance(launches, tuple):
        yield ""
        yield render_launches(session, launches)
    yield ""
    yield "To submit exactly this, only if nobody changes the job before:"
    yield f"  wharf job run --check-index {response.job_modify_index} {file}"


def _without_room(answer: "JobPlanResponse") -> Iterator[str]:
    """Where others are pushed aside there is no room yet, and will be when those have ended."""
    from wharf.cli.common.failures import render_unplaced_groups

    updates = (answer.annotations.desired_tg_updates if answer.annotations else None) or {}
    unplaced = answer.failed_tg_allocs or {}
    making_room = {name for name in unplaced if name in updates and updates[name].preemptions}
    for title, names in (
        ("There is no room, until what is pushed aside has ended, for", making_room),
        ("There is no room for", unplaced.keys() - making_room),
    ):
        if names:
            yield ""
            yield click.style(title, fg="yellow")
            yield from (f"  {line}" for line in render_unplaced_groups({name: unplaced[name] for name in names}))


def render_job_diff(diff: "JobDiff", *, is_full: bool) -> Iterator[str]:
    """`whole`: also each field of what is new or goes, where the defaults are most of it."""
    if diff.type == "None":
        yield f"Job {diff.id} is the same"
        return
    if diff.type == ADDED and not is_full:
        fields = _new_values(diff.fields)
        yield _line(0, ADDED, f"Job {diff.id}, new: a {fields.get('Type', 'service')} job")
    else:
        yield _line(0, diff.type, f"Job {diff.id}")
        yield from _inside(1, diff.fields, diff.objects)
    for group in diff.task_groups or ():
        if group.type != "None" or group.updates:
            yield from _group(group, whole=is_full)


def _group(group: "TaskGroupDiff", *, whole: bool) -> Iterator[str]:
    counts = ", ".join(f"{count} {name}" for name, count in sorted((group.updates or {}).items()))
    said = f"Group {group.name}" + (f" ({counts})" if counts else "")
    if group.type == DELETED and not whole:
        yield _line(1, DELETED, said)
        return
    if group.type == ADDED and not whole:
        yield _line(1, ADDED, said)
    else:
        yield _line(1, group.type, said)
        yield from _inside(2, group.fields, group.objects)
    for task in group.tasks or ():
        if task.type != "None":
            yield from _task(task, whole=whole)


def _task(task: "TaskDiff", *, whole: bool) -> Iterator[str]:
    if task.type == DELETED and not whole:
        yield _line(2, DELETED, f"Task {task.name}")
        return
    if task.type == ADDED and not whole:
        yield _line(2, ADDED, f"Task {task.name}: {_outline(task)}")
        return
    notes = f" ({', '.join(task.annotations)})" if task.annotations else ""
    yield _line(2, task.type, f"Task {task.name}{notes}")
    yield from _inside(3, task.fields, task.objects)


def _outline(task: "TaskDiff") -> str:
    asked = {
        name: value
        for one in task.objects or ()
        if one.name == "Resources"
        for name, value in _new_values(one.fields).items()
    }
    parts = [_new_values(task.fields).get("Driver", "")]
    parts += [f"{asked[name]} {unit}" for name, unit in OUTLINE_UNITS.items() if asked.get(name, "0") != "0"]
    return ", ".join(part for part in parts if part)


def _new_values(fields: "tuple[FieldDiff, ...] | None") -> dict[str, str]:
    return {field.name: field.new for field in fields or ()}


def _inside(
    depth: int, fields: "tuple[FieldDiff, ...] | None", objects: "tuple[ObjectDiff, ...] | None"
) -> Iterator[str]:
    changed = [field for field in fields or () if field.type != "None"]
    width = max((len(field.name) for field in changed), default=0)
    for field in changed:
        match field.type:
            case "Added":
                said = _value(field.name, field.new)
            case "Deleted":
                said = _value(field.name, field.old)
            case _:
                said = f"{_value(field.name, field.old)} → {_value(field.name, field.new)}"
        notes = f" ({', '.join(field.annotations)})" if field.annotations else ""
        yield _line(depth, field.type, f"{field.name:<{width}}  {said}{notes}")
    for one in objects or ():
        if one.type != "None":
            yield _line(depth, one.type, one.name)
            yield from _inside(depth + 1, one.fields, one.objects)


def _value(name: str, value: str) -> str:
    """In quotes; a length of time, which the wire counts in nanoseconds, as people write it."""
    from wharf.cli.job.files import DURATION_FIELDS
    from wharf.contract.model.times import format_duration

    is_length = name in DURATION_FIELDS and value.removeprefix("-").isdecimal()
    return f'"{format_duration(int(value))}"' if is_length else f'"{value}"'


def _line(depth: int, type: str, text: str) -> str:
    sign, colour = DIFF_SIGNS[type]
    return f"{'  ' * depth}{click.style(f'{sign} {text}', fg=colour) if colour else f'{sign} {text}'}"
