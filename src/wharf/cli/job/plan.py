"""`wharf job plan` and `wharf job validate`: check a job file against the servers without submitting it."""

import difflib
import shlex
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.common.terminal import style
from wharf.cli.job.variables import VariableOptions, list_environment_values, variable_options

if TYPE_CHECKING:
    from wharf.contract.model.jobs.plan import FieldDiff, JobDiff, ObjectDiff, TaskDiff, TaskGroupDiff
    from wharf.contract.wire.jobs.messages import JobPlanResponse
    from wharf.languages.hcl.diagnostics import HiddenValues

T = TypeVar("T")

CHANGES_EXIT_CODE: Final = 1
UNKNOWN_EXIT_CODE: Final = 255
HIDDEN_VALUE: Final = "..."
"""What the printed command has instead of the value of a variable with the name of a secret."""
ADDED: Final = "Added"
DELETED: Final = "Deleted"
OUTLINE_UNITS: Final = {"CPU": "MHz", "Cores": "cores", "MemoryMB": "MB"}
"""The resources that the one-line outline of a new task shows, with their units."""
DIFF_SIGNS: Final = {"Added": ("+", "green"), "Deleted": ("-", "red"), "Edited": ("±", "yellow"), "None": (" ", None)}
CONTEXT_LINES: Final = 3
"""The unchanged lines before and after a changed line of a text."""
MAX_SHOWN_LINES: Final = 200
"""The changed lines of a text that are shown. More are rather read in the file."""
MAX_COMPARED_LINES: Final = 10_000
"""The lines of both texts of a field. The comparison of many equal lines takes quadratic time."""
_TYPES_BY_SIGN: Final = {"+": ADDED, "-": DELETED, " ": "None"}
UPDATE_LABELS: Final = {
    "place": "to place", "stop": "to stop", "migrate": "to migrate", "destructive_update": "to replace",
    "in_place_update": "to update in place", "canary": "to place as canary", "preemptions": "to preempt",
    "reschedule_now": "to reschedule now", "reschedule_later": "to reschedule later", "disconnect": "disconnected",
    "reconnect": "reconnected", "ignore": "unchanged",
}  # fmt: skip
"""Fields of the planned updates of a group, with their labels."""
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

    job = read_job_file(file, VariableOptions(values, value_files, is_strict), session.world)
    with locate_errors(session, job):
        response = session.client.jobs.validate(job.document, namespace=choose_namespace(session, job.document))
    print_warnings(response.warnings, job)
    if response.validation_errors or response.error:
        if session.is_machine_readable:
            session.print_result(hide_values(response, job.parsed.hidden), str)
        errors = response.validation_errors or (response.error,)
        raise CliError("\n".join(job.format_errors(error) for error in errors))
    session.print_result(response, lambda: f"{job.name} is valid (job {job.id})")


def hide_values(reply: T, hidden: "HiddenValues | None" = None) -> T:
    """Return a reply without the values of sensitive variables, and of environment variables with the names of secrets.

    A changed field that contains one shows neither its old nor its new value: the old one is often the earlier secret.
    """
    import msgspec

    from wharf.contract.model.jobs.plan import FieldDiff
    from wharf.contract.model.jobs.sensitive_fields import hide_text

    def hide_text_part(text: str) -> str:
        return hidden.hide(text) if hidden is not None else text

    def hide(value: Any) -> Any:  # Any part of a reply.
        if isinstance(value, tuple | list):
            return type(value)([hide(item) for item in value])
        if isinstance(value, dict):
            return {hide(key): hide(item) for key, item in value.items()}
        if isinstance(value, FieldDiff) and (
            _is_secret_environment(value.name)
            or hide_text_part(value.old) != value.old
            or hide_text_part(value.new) != value.new
        ):
            return msgspec.structs.replace(value, old=hide_text(value.old), new=hide_text(value.new))
        if isinstance(value, msgspec.Struct):
            return msgspec.structs.replace(
                value, **{name: hide(getattr(value, name)) for name in value.__struct_fields__}
            )
        return hide_text_part(value) if type(value) is str else value

    result: T = hide(reply)
    return result


def _is_secret_environment(name: str) -> bool:
    """Return whether a field of a difference is an environment variable with the name of a secret, such as `Env[API_KEY]`."""
    from wharf.languages.hcl.diagnostics import is_secret_name

    return name.startswith("Env[") and is_secret_name(name)


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

    if response.diff is not None:
        yield from render_job_diff(response.diff, is_full=session.is_verbose)
        yield ""
    updates = (response.annotations.desired_tg_updates if response.annotations else None) or {}
    yield render_heading("Planned changes")
    if not updates:
        yield "  none"
    for group, update in sorted(updates.items()):
        counts = [(getattr(update, name), label) for name, label in UPDATE_LABELS.items()]
        text = ", ".join(f"{count} {label}" for count, label in counts if count) or "none"
        yield f"  {group}: {text}"
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
    yield f"  wharf job run --check-index {response.job_modify_index} {shlex.join(words)}"
    if secrets:
        yield f"  with the same environment: {', '.join(secrets)}"
    if any(word.endswith(f"={HIDDEN_VALUE}") for word in words):
        yield f"  with the values of the variables instead of {HIDDEN_VALUE}"


def _render_unplaced(response: "JobPlanResponse") -> Iterator[str]:
    """Yield the groups that would not be placed now; those that preempt others are placed when these have stopped."""
    from wharf.cli.common.failures import lacks_capacity, render_unplaced_groups

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
    """Yield the lines of a diff. `is_full`: with all fields of groups and tasks that are added or removed."""
    if diff.type == "None":
        yield f"Job {diff.id} is unchanged"
        return
    if diff.type == ADDED and not is_full:
        fields = _get_new_values(diff.fields)
        yield _format_diff_line(0, ADDED, f"Job {diff.id}, new: a {fields.get('Type', 'service')} job")
    else:
        yield _format_diff_line(0, diff.type, f"Job {diff.id}")
        yield from _render_fields(1, diff.fields, diff.objects)
    for group in diff.task_groups or ():
        if group.type != "None" or group.updates:
            yield from _render_group_diff(group, is_full=is_full)


def _render_group_diff(group: "TaskGroupDiff", *, is_full: bool) -> Iterator[str]:
    """Yield the lines of a group's diff, with its tasks."""
    counts = ", ".join(f"{count} {name}" for name, count in sorted((group.updates or {}).items()))
    heading = f"Group {group.name}" + (f" ({counts})" if counts else "")
    if group.type == DELETED and not is_full:
        yield _format_diff_line(1, DELETED, heading)
        return
    if group.type == ADDED and not is_full:
        yield _format_diff_line(1, ADDED, heading)
    else:
        yield _format_diff_line(1, group.type, heading)
        yield from _render_fields(2, group.fields, group.objects)
    for task in group.tasks or ():
        if task.type != "None":
            yield from _render_task_diff(task, is_full=is_full)


def _render_task_diff(task: "TaskDiff", *, is_full: bool) -> Iterator[str]:
    """Yield the lines of a task's diff; a task that is added or removed is one line unless `is_full`."""
    if task.type == DELETED and not is_full:
        yield _format_diff_line(2, DELETED, f"Task {task.name}")
        return
    if task.type == ADDED and not is_full:
        yield _format_diff_line(2, ADDED, f"Task {task.name}: {_format_task_outline(task)}")
        return
    notes = f" ({', '.join(task.annotations)})" if task.annotations else ""
    yield _format_diff_line(2, task.type, f"Task {task.name}{notes}")
    yield from _render_fields(3, task.fields, task.objects)


def _format_task_outline(task: "TaskDiff") -> str:
    """Return driver and main resources of a new task, such as `raw_exec, 100 MHz, 64 MB`."""
    resources = {
        name: value
        for object_diff in task.objects or ()
        if object_diff.name == "Resources"
        for name, value in _get_new_values(object_diff.fields).items()
    }
    parts = [_get_new_values(task.fields).get("Driver", "")]
    parts += [f"{resources[name]} {unit}" for name, unit in OUTLINE_UNITS.items() if resources.get(name, "0") != "0"]
    return ", ".join(part for part in parts if part)


def _get_new_values(fields: "tuple[FieldDiff, ...] | None") -> dict[str, str]:
    return {field.name: field.new for field in fields or ()}


def _render_fields(
    depth: int, fields: "tuple[FieldDiff, ...] | None", objects: "tuple[ObjectDiff, ...] | None"
) -> Iterator[str]:
    """Yield a line for each changed field, then the changed nested objects, indented by `depth`."""
    changed = [field for field in fields or () if field.type != "None"]
    width = max((len(field.name) for field in changed), default=0)
    for field in changed:
        if "\n" in field.old.rstrip("\n") or "\n" in field.new.rstrip("\n"):
            yield from _render_lines(depth, field)
            continue
        match field.type:
            case "Added":
                text = _format_value(field.name, field.new)
            case "Deleted":
                text = _format_value(field.name, field.old)
            case _:
                text = f"{_format_value(field.name, field.old)} → {_format_value(field.name, field.new)}"
        notes = f" ({', '.join(field.annotations)})" if field.annotations else ""
        yield _format_diff_line(depth, field.type, f"{field.name:<{width}}  {text}{notes}")
    for object_diff in _pair_objects(objects or ()):
        if object_diff.type != "None":
            yield _format_diff_line(depth, object_diff.type, object_diff.name)
            yield from _render_fields(depth + 1, object_diff.fields, object_diff.objects)


def _pair_objects(objects: "Sequence[ObjectDiff]") -> "list[ObjectDiff]":
    """Return the objects, with a deleted and an added one with similar texts of several lines as one that is edited.

    The API compares the items of a list, such as templates, as wholes.
    """
    paired = list(objects)
    for deleted in [each for each in objects if each.type == DELETED and _has_lines(each, "old")]:
        candidates = [
            each for each in paired if each.type == ADDED and each.name == deleted.name and _has_lines(each, "new")
        ]
        added = max(candidates, key=lambda each: _count_equal_fields(deleted, each), default=None)
        if added is not None and _count_equal_fields(deleted, added):
            paired[paired.index(deleted)] = _join_objects(deleted, added)
            paired.remove(added)
    return paired


def _has_lines(diff: "ObjectDiff", side: str) -> bool:
    return any("\n" in getattr(field, side).rstrip("\n") for field in diff.fields or ())


def _count_equal_fields(deleted: "ObjectDiff", added: "ObjectDiff") -> int:
    new = _get_new_values(added.fields)
    return sum(1 for field in deleted.fields or () if field.old and new.get(field.name) == field.old)


def _join_objects(deleted: "ObjectDiff", added: "ObjectDiff") -> "ObjectDiff":
    """Return the difference between a deleted and an added object."""
    from wharf.contract.model.jobs.plan import DiffType, FieldDiff, ObjectDiff

    old = {field.name: field.old for field in deleted.fields or ()}
    new = _get_new_values(added.fields)
    fields: list[FieldDiff] = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, ""), new.get(name, "")
        change = DiffType.EDITED if before and after else DiffType.ADDED if after else DiffType.DELETED
        if before != after:
            fields.append(FieldDiff(type=change, name=name, old=before, new=after))
    inner = [*(deleted.objects or ()), *(added.objects or ())]
    changed = [each for each in inner if not any(_is_reverse(each, other) for other in inner)]
    return ObjectDiff(type=DiffType.EDITED, name=added.name, fields=tuple(fields), objects=tuple(changed))


def _is_reverse(diff: "ObjectDiff", other: "ObjectDiff") -> bool:
    """Return whether one object was deleted and an equal one was added."""
    old = {field.name: (field.old, field.new) for field in diff.fields or ()}
    new = {field.name: (field.new, field.old) for field in other.fields or ()}
    return diff is not other and diff.name == other.name and diff.type != other.type and old == new


def _render_lines(depth: int, field: "FieldDiff") -> Iterator[str]:
    """Yield the name of a field with a text of several lines, and its changed lines with the lines around them."""
    from wharf.cli.common.rendering import style_dim

    notes = f" ({', '.join(field.annotations)})" if field.annotations else ""
    yield _format_diff_line(depth, field.type, f"{field.name}{notes}")
    old, new = field.old.splitlines(), field.new.splitlines()
    if len(old) + len(new) > MAX_COMPARED_LINES:
        yield _format_diff_line(depth + 1, "None", f"{len(old):,} lines → {len(new):,} lines")
        return
    changes = list(difflib.unified_diff(old, new, n=CONTEXT_LINES, lineterm=""))[2:]
    if not changes:
        yield _format_diff_line(depth + 1, "None", "only the ends of lines differ")
    for line in changes[:MAX_SHOWN_LINES]:
        if line.startswith("@@"):
            yield f"{'  ' * (depth + 1)}{style_dim(line)}"
        else:
            yield _format_diff_line(depth + 1, _TYPES_BY_SIGN[line[:1]], line[1:])
    if len(changes) > MAX_SHOWN_LINES:
        yield _format_diff_line(depth + 1, "None", f"... and {len(changes) - MAX_SHOWN_LINES:,} more lines")


def _format_value(name: str, value: str) -> str:
    """Return a value in quotes. Durations, which the API has in nanoseconds, become texts such as `1m30s`."""
    from wharf.contract.model.times import format_duration
    from wharf.job_files.fields import DURATION_FIELDS

    is_duration = name in DURATION_FIELDS and value.removeprefix("-").isdecimal()
    return f'"{format_duration(int(value))}"' if is_duration else f'"{value}"'


def _format_diff_line(depth: int, type: str, text: str) -> str:
    sign, colour = DIFF_SIGNS[type]
    return f"{'  ' * depth}{style(f'{sign} {text}', fg=colour) if colour else f'{sign} {text}'}"
