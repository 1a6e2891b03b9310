"""The commands that change jobs. Each follows the change until it is complete, or returns at once with `--detach`."""

import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.options import (
    FollowOptions,
    detach_option,
    follow_options,
    job_argument,
    parse_key_values,
)
from wharf.cli.common.sentences import iterate_warnings, print_notice
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_jobs
from wharf.cli.job.change_report import ChangeReport
from wharf.cli.job.follower import await_evaluation, fetch_explanation_text, finish_change, follow_submission
from wharf.cli.job.variables import VariableOptions, variable_options

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO

    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.wire.jobs.messages import JobStub
    from wharf.job_files.job_file import JobFile

MAX_RESCHEDULED_SHOWN: Final = 20
"""Limit of the allocations that `job eval --force-reschedule` lists; keeps the output readable."""
MAX_NAMED_STEPS: Final = 3
"""Steps that the advice to run an ended run again names."""
MAX_LISTED_VERSIONS: Final = 3
"""Earlier versions that an error lists, the newest ones."""


@click.command(cls=ServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
@follow_options
@variable_options
@click.option(
    "--check-index", type=click.IntRange(0), help="Fail unless the job has this JobModifyIndex; 0: unless it is new."
)
@click.option("--preserve-counts", is_flag=True, help="Keep the current counts of the groups.")
@click.option("--eval-priority", type=click.IntRange(1, 100), default=None, help="Priority of the evaluation.")
@click.option("--output", is_flag=True, help="Print the request as JSON and do not submit it.")
def run(
    session: Session,
    file: str,
    following: FollowOptions,
    values: tuple[tuple[str, str], ...],
    value_files: tuple[str, ...],
    is_strict: bool,
    check_index: int | None,
    preserve_counts: bool,
    eval_priority: int | None,
    output: bool,
) -> None:
    """Submit a job and follow it to its end.

    FILE is HCL, YAML, JSON or TOML; `-` reads standard input. On a terminal, the command shows the rollout (or the progress of a
    batch job) until it is complete; Ctrl-C leaves the job running. Exit code 0: success, 1: failure, 2: not everything
    was placed, 3: no progress for --progress-timeout; if all tasks of a batch job failed with the same exit code: that
    code.

    wharf job run --var image=web:2 web.hcl
    """
    from wharf.cli.job.files import read_job_file

    job = read_job_file(file, VariableOptions(values, value_files, is_strict), session.world)
    if output:
        import msgspec

        if job.parsed.sensitive_paths:
            print_notice("note: the request contains the values of sensitive variables")
        click.echo(msgspec.json.format(msgspec.json.encode({"Job": job.document}), indent=2).decode())
        return
    namespace = choose_namespace(session, job.document)
    with locate_errors(session, job):
        response = session.client.jobs.register(
            job.document,
            enforce_index=check_index,
            submission=job.build_submission(),
            preserve_counts=preserve_counts,
            eval_priority=eval_priority or 0,
            namespace=namespace,
        )
    print_warnings(response.warnings, job)
    # If the job did not change, the server returns the index of its last change, older than the new evaluation.
    is_unchanged = 0 < response.job_modify_index < response.eval_create_index
    session.print_text(
        f"no change: {job.id} is already at this version{_describe_repetition(session, job.id, namespace)}"
        if is_unchanged
        else f"submitted job {job.id} (index {response.job_modify_index})"
    )
    launches = response.next_periodic_launches
    if isinstance(launches, tuple):
        session.print_text(render_launches(session, launches))
    if not response.eval_id and not isinstance(launches, tuple):
        session.print_text(f"The job runs when it is dispatched: wharf job dispatch {job.id}")
    follow_submission(
        session,
        ChangeReport(job.id, namespace, response.eval_id, response.job_modify_index),
        following,
    )


def _describe_repetition(session: Session, job_id: str, namespace: str) -> str:
    """Return how to run an ended run or array again, because a submission without a change does not; else an empty text."""
    from wharf.contract.model.jobs.array_attempts import format_indexes
    from wharf.contract.model.refusal import Refusal

    try:
        job = session.client.jobs.read(job_id, namespace=namespace).value
        if job.is_periodic or job.is_parameterized:
            return ""
        if job.is_run:
            if not session.client.flows.read_run(job_id, namespace=namespace).value.status.has_ended:
                return ""
            first = [group.name for group in job.groups if not group.depends and not group.final]
            steps = " ".join(f"--from {name}" for name in first) if len(first) <= MAX_NAMED_STEPS else "--from STEP"
            return f"; it has ended: `wharf flow retry {job_id} {steps}` runs it again"
        array = job.groups[0].array if len(job.groups) == 1 else None
        if array is None:
            return ""
        views = session.client.jobs.arrays(job_id, namespace=namespace).value.arrays
    except Refusal:
        return ""  # The caller may submit the job, but not read it.
    if not views or any(each.counts.waiting or each.counts.starting or each.counts.running for each in views):
        return ""
    indexes = format_indexes(range(array.element_count))
    return f"; it has ended: `wharf job rerun {job_id} --index {indexes}` runs it again"


@click.command(cls=ServerCommand)
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@detach_option
@click.option("--purge", is_flag=True, help="Delete the job and its history.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--no-shutdown-delay", is_flag=True, help="Ignore the shutdown delays of the groups.")
@click.option("--index", "indexes", default="", help="Stop only these elements of an array, such as 3 or 3,7-9.")
@click.option("--group", default="", help="The group of --index, if the job has several arrays.")
@click.option("--global", "everywhere", is_flag=True, hidden=True)
def stop(
    session: Session,
    job_ids: tuple[str, ...],
    detach: bool,
    purge: bool,
    yes: bool,
    no_shutdown_delay: bool,
    indexes: str,
    group: str,
    everywhere: bool,
) -> None:
    """Stop one or more jobs, or elements of an array.

    JOB may be a unique prefix of an id; the command then asks for confirmation. If one of several jobs does not exist,
    no job is stopped.

    wharf job stop web

    wharf job stop sweep --index 3,7-9
    """
    if indexes or group:
        if not indexes or len(job_ids) != 1 or purge or no_shutdown_delay:
            raise CliError("stop elements of one job: `wharf job stop JOB --index 3,7-9`, without --purge")
        _stop_elements(session, job_ids[0], indexes, group, detach=detach, is_confirmed=yes)
        return
    jobs = [_find_job_to_stop(session, job_id, is_confirmed=yes) for job_id in job_ids]
    reports: list[ChangeReport] = []
    for job in jobs:
        response = session.client.jobs.deregister(
            job.id, purge=purge, no_shutdown_delay=no_shutdown_delay, everywhere=everywhere, namespace=job.namespace
        )
        if purge:
            session.print_text(f"purged job {job.id}")
        else:
            session.print_text(f"job {job.id} is already stopped" if job.stop else f"stopped job {job.id}")
        eval_id = "" if job.stop else response.eval_id
        index = session.client.write_index
        reports.append(ChangeReport(job.id, job.namespace, eval_id, response.job_modify_index, index))
    code = 0
    if not detach and not purge:
        code = max((await_evaluation(session, report) for report in reports if report.eval_id), default=0)
    if session.is_machine_readable:
        session.print_result([report.build_document() for report in reports], str)
    if code:
        raise click.exceptions.Exit(code)


def _stop_elements(
    session: Session, job_id: str, indexes: str, group: str, *, detach: bool, is_confirmed: bool
) -> None:
    """Stop elements of an array, and wait for the evaluation that stops their allocations unless `detach`."""
    job = _find_job_to_stop(session, job_id, is_confirmed=is_confirmed)
    response = session.client.jobs.stop_elements(job.id, indexes, group=group, namespace=job.namespace)
    count = response.element_count
    if count:
        session.print_text(f"stopped {count} {'element' if count == 1 else 'elements'} of {job.id}")
    else:
        session.print_text(f"all of these elements of {job.id} have ended; nothing to stop")
    report = ChangeReport(
        job.id, job.namespace, response.eval_id, response.job_modify_index, response.index, more={"ElementCount": count}
    )
    code = await_evaluation(session, report) if response.eval_id and not detach else 0
    if session.is_machine_readable:
        session.print_result([report.build_document()], str)
    if code:
        raise click.exceptions.Exit(code)


def _find_job_to_stop(session: Session, job_id: str, *, is_confirmed: bool) -> "JobStub":
    """Find a job. If `job_id` is only a prefix of its id, ask for confirmation, or fail without a terminal."""
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    if found.id != job_id and not is_confirmed:
        if not sys.stdin.isatty():
            raise CliError(f"{job_id} is only a prefix of {found.id}: give the whole id, or --yes")
        click.confirm(f"Stop {found.id}?", abort=True, err=True)
    return found


@click.command(cls=ServerCommand)
@job_argument
@follow_options
def start(session: Session, job_id: str, following: FollowOptions) -> None:
    """Start a stopped job again.

    wharf job start web
    """
    import msgspec

    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    job = session.client.jobs.read(found.id, namespace=found.namespace).value
    if not job.stop:
        raise CliError(f"job {found.id} is not stopped; `wharf job status {found.id}` shows its state")
    started = msgspec.structs.replace(job, stop=False)
    response = session.client.jobs.register(started, enforce_index=job.job_modify_index, namespace=found.namespace)
    session.print_text(f"started job {found.id}")
    follow_submission(
        session,
        ChangeReport(found.id, found.namespace, response.eval_id, response.job_modify_index),
        following,
    )


@click.command(cls=ServerCommand)
@job_argument
@click.argument("version", default="")
@follow_options
def revert(session: Session, job_id: str, version: str, following: FollowOptions) -> None:
    """Return a job to an earlier version.

    VERSION is a number or a tag; `wharf job history` lists both. Without it, the last stable version before the current
    one. The earlier version is registered as a new version.

    wharf job revert web

    wharf job revert web 3
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    if not version:
        number = _find_stable_version(session, found.id, found.namespace)
    elif version.isdigit():
        number = int(version)
    else:
        number = _find_tagged_version(session, found.id, found.namespace, version)
    response = session.client.jobs.revert(found.id, number, namespace=found.namespace)
    session.print_text(f"reverted job {found.id} to version {number}")
    follow_submission(
        session,
        ChangeReport(found.id, found.namespace, response.eval_id, response.job_modify_index),
        following,
    )


@click.command(cls=ServerCommand)
@job_argument
@click.argument("payload", type=click.File("rb"), required=False)
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Meta value; may be repeated.")
@click.option("--id-prefix-template", default="", help="Text that the child's id has after the id of its parent.")
@click.option("--idempotency-token", default="", help="Dispatch no second child while one with this token exists.")
@click.option(
    "--priority",
    type=click.IntRange(1, 100),
    default=None,
    help="Priority of the dispatched job; by default that of its parent.",
)
@follow_options
def dispatch(
    session: Session,
    job_id: str,
    payload: "BinaryIO | None",
    meta: tuple[str, ...],
    id_prefix_template: str,
    idempotency_token: str,
    priority: int | None,
    following: FollowOptions,
) -> None:
    """Run a parameterized job once, with a payload and meta values.

    PAYLOAD is a file; `-` reads standard input.

    wharf job dispatch --meta name=holiday.mp4 encode job.bin
    """
    from wharf.cli.common.lookup import find_job
    from wharf.contract.client.errors import RequestRefused
    from wharf.contract.model.refusal import RefusalReason

    found = find_job(session, job_id)
    if not found.parameterized_job:
        other = f"; `wharf job periodic force {found.id}` launches it" if found.periodic else ""
        raise CliError(f"job {found.id} cannot be dispatched: it has no parameterized block{other}")
    try:
        response = session.client.jobs.dispatch(
            found.id,
            payload=payload.read() if payload is not None else None,
            meta=parse_key_values(meta, "--meta"),
            id_prefix_template=id_prefix_template,
            idempotency_token=idempotency_token,
            priority=priority or 0,
            namespace=found.namespace,
        )
    except RequestRefused as error:
        if error.reason is not RefusalReason.DISPATCH_INPUT:
            raise
        raise CliError(
            f"{error.text}: {_explain_dispatch(session, found, parse_key_values(meta, '--meta') or {})}"
        ) from error
    session.print_text(f"dispatched job {response.dispatched_job_id}")
    follow_submission(
        session,
        ChangeReport(
            response.dispatched_job_id,
            found.namespace,
            response.eval_id,
            more={"DispatchedJobID": response.dispatched_job_id},
        ),
        following,
    )


@click.command(cls=ServerCommand)
@job_argument
@click.argument("group_or_count")
@click.argument("count", type=click.IntRange(0), required=False)
@click.option("--message", default="", help="Reason, stored with the scaling events of the job.")
@follow_options
def scale(
    session: Session,
    job_id: str,
    group_or_count: str,
    count: int | None,
    message: str,
    following: FollowOptions,
) -> None:
    """Change the count of a group.

    The group may be omitted if the job has only one: `wharf job scale web 5`.

    wharf job scale web api 5
    """
    from wharf.cli.common.lookup import find_job
    from wharf.contract.client.errors import RequestRefused
    from wharf.contract.model.refusal import RefusalReason

    found = find_job(session, job_id)
    group = group_or_count
    if count is None:
        if group_or_count.removeprefix("-").isdigit() and not group_or_count.isdigit():
            raise CliError(f"count {group_or_count}: expected 0 or more")
        if not group_or_count.isdigit():
            raise CliError(f"missing count: `wharf job scale {job_id} {group_or_count} 5`")
        groups = [group.name for group in session.client.jobs.read(found.id, namespace=found.namespace).value.groups]
        if len(groups) != 1:
            raise CliError(f"job {found.id} has several groups ({', '.join(groups)}): name one before the count")
        group, count = groups[0], int(group_or_count)
    try:
        response = session.client.jobs.scale(found.id, group, count, message=message, namespace=found.namespace)
    except RequestRefused as error:
        if error.reason is not RefusalReason.ACTIVE_DEPLOYMENT:
            raise
        raise CliError(
            f"{error.text} (`wharf deployment status {found.id}`): wait until it is complete, promote its canaries "
            f"(`wharf deployment promote {found.id}`), or fail it (`wharf deployment fail {found.id}`)"
        ) from error
    session.print_text(f"scaled {found.id}/{group} to {count}")
    follow_submission(
        session,
        ChangeReport(found.id, found.namespace, response.eval_id, response.job_modify_index),
        following,
    )


@click.command(cls=ServerCommand)
@job_argument
@click.option("--group", "groups", multiple=True, help="Promote only this group; may be repeated.")
@follow_options
def promote(session: Session, job_id: str, groups: tuple[str, ...], following: FollowOptions) -> None:
    """Promote the canaries of a job's latest deployment.

    wharf job promote web
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    deployment = session.client.jobs.deployment(found.id, namespace=found.namespace).value
    if deployment is None:
        raise CliError(f"job {found.id} has no deployment")
    response = session.client.deployments.promote(deployment.id, groups, namespace=found.namespace)
    session.print_text(f"promoted the canaries of job {found.id}")
    follow_submission(
        session,
        ChangeReport(found.id, found.namespace, response.eval_id, deployment_id=deployment.id),
        following,
    )


@click.command(cls=ServerCommand)
@job_argument
@click.option("--force-reschedule", is_flag=True, help="Replace failed allocations without waiting for their delay.")
@detach_option
def evaluate(session: Session, job_id: str, force_reschedule: bool, detach: bool) -> None:
    """Create an evaluation of a job, so that the scheduler processes it again.

    wharf job eval web
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    failed = _list_unreplaced_failures(session, found.id, found.namespace) if force_reschedule else []
    response = session.client.jobs.evaluate(found.id, force_reschedule=force_reschedule, namespace=found.namespace)
    session.print_text(f"created evaluation {session.shorten_id(response.eval_id)} of job {found.id}")
    report = ChangeReport(found.id, found.namespace, response.eval_id)
    code = 0 if detach else await_evaluation(session, report)
    if force_reschedule and not detach:
        report.more = {"Rescheduled": _report_rescheduling(session, found.id, found.namespace, failed)}
    report.print_result(session)
    if code:
        raise click.exceptions.Exit(code)


def _list_unreplaced_failures(session: Session, job_id: str, namespace: str) -> "list[AllocationStub]":
    """Return the failed allocations of a job that should run and have no replacement."""
    allocations = session.client.jobs.allocations(job_id, namespace=namespace).value
    return [
        each
        for each in allocations
        if each.client_status == "failed" and each.desired_status == "run" and not each.next_allocation
    ]


def _report_rescheduling(
    session: Session, job_id: str, namespace: str, failed: "list[AllocationStub]"
) -> list[dict[str, str]]:
    """Print which failed allocations were replaced, or why none was, and return the ids of those that were."""
    allocations = {each.id: each for each in session.client.jobs.allocations(job_id, namespace=namespace).value}
    replacements = {each.id: allocations[each.id].next_allocation for each in failed if each.id in allocations}
    replaced = [{"ID": id, "NextAllocation": replacement} for id, replacement in replacements.items() if replacement]
    lines = [
        f"replaced {each.name}: {session.shorten_id(each.id)} by {session.shorten_id(replacements[each.id])}"
        if replacements.get(each.id)
        else f"did not replace {each.name} ({session.shorten_id(each.id)})"
        for each in failed
    ]
    for line in lines[:MAX_RESCHEDULED_SHOWN]:
        session.print_text(line)
    if len(lines) > MAX_RESCHEDULED_SHOWN:
        session.print_text(f"… {len(replaced)} of {len(failed)} failed allocations were replaced")
    if len(replaced) < len(failed):
        session.print_text(fetch_explanation_text(session, job_id, namespace) or "no node can take them now")
    if not failed:
        live = sum(not each.client_status.is_terminal for each in allocations.values())
        session.print_text(f"nothing to replace: no failed allocation of {job_id} lacks a replacement; {live} are live")
    return replaced


@click.command(cls=ServerCommand)
@job_argument
@detach_option
def force(session: Session, job_id: str, detach: bool) -> None:
    """Launch a periodic job now.

    wharf job periodic force nightly
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    if not found.periodic:
        other = f"; `wharf job dispatch {found.id}` runs it" if found.parameterized_job else ""
        raise CliError(f"job {found.id} cannot be launched: it has no periodic block{other}")
    response = session.client.jobs.force_periodic(found.id, namespace=found.namespace)
    child_id = _find_evaluated_job(session, response.eval_id)
    session.print_text(f"launched periodic job {found.id}" + (f" as {child_id}" if child_id else ""))
    report = ChangeReport(found.id, found.namespace, response.eval_id)
    finish_change(session, report, should_detach=detach)


def _find_evaluated_job(session: Session, eval_id: str) -> str:
    """Return the ID of the job of an evaluation; empty if there is no such evaluation, or the token may not read it."""
    from wharf.contract.client.errors import RequestRefused

    try:
        return session.client.evaluations.read(eval_id).value.job_id if eval_id else ""
    except RequestRefused:
        return ""


# -- helpers that several commands share


@contextmanager
def locate_errors(session: Session, job: "JobFile") -> "Iterator[None]":
    """In the block, turn the server's validation errors into a CliError with the line and column of each problem.

    Warnings are printed first: a misspelled field name, which is only a warning, often explains a missing field.
    """
    from wharf.contract.client.errors import InvalidRequest, RequestRefused

    try:
        yield
    except InvalidRequest as error:
        namespace = choose_namespace(session, job.document)
        with suppress(RequestRefused):  # The document cannot be decoded at all; the error below says so.
            print_warnings(session.client.jobs.validate(job.document, namespace=namespace).warnings, job)
        raise CliError(job.format_errors(error.text)) from error


def print_warnings(warnings: str, job: "JobFile") -> None:
    """Print the warnings about a job to standard error, one line each, with positions in the file if known."""
    for warning in job.list_warnings():
        print_notice(f"note: {job.parsed.hidden.hide(warning)}")
    for text in iterate_warnings(warnings):
        print_notice(f"note: {job.parsed.hidden.hide(job.format_warning(text))}")


def render_launches(session: Session, launches: "Iterable[datetime.datetime]") -> str:
    """Return the next launch times of a periodic job as lines of text."""
    from wharf.cli.common.times import format_relative_time, format_utc_time

    lines = [f"  {format_utc_time(time)}  {format_relative_time(time, session.now_ns())}" for time in launches]
    return (
        "\n".join(["Next launches:", *lines])
        if lines
        else "No automatic launches: all its times are in the past, or the periodic block is disabled."
    )


def choose_namespace(session: Session, document: dict[str, object]) -> str:
    """Return the namespace of the options or the environment; if there is none, that of the job file."""
    return session.settings.namespace or str(document.get("Namespace") or "default")


def _explain_dispatch(session: Session, found: "JobStub", meta: "Mapping[str, str]") -> str:
    """Return the command that dispatches a parameterized job, with the meta values and the payload that it takes."""
    from wharf.contract.model.jobs.job import PayloadRequirement
    from wharf.languages.suggestions import find_nearest_name

    template = session.client.jobs.read(found.id, namespace=found.namespace).value.parameterized_job
    assert template is not None, "another job refuses every input"
    words = ["wharf job dispatch", *(f"--meta {key}=VALUE" for key in template.meta_required or ()), found.id]
    payloads: dict[str, str] = {
        PayloadRequirement.REQUIRED: "FILE is the payload, and - is standard input",
        PayloadRequirement.FORBIDDEN: "it takes no payload",
    }
    notes = [payloads.get(template.payload, "a file with a payload may follow")]
    words += ["FILE"] if template.payload == PayloadRequirement.REQUIRED else []
    if template.meta_optional:
        notes.append(f"further keys of --meta may be {', '.join(template.meta_optional)}")
    known = (*(template.meta_required or ()), *(template.meta_optional or ()))
    nearest_names = [(key, find_nearest_name(key, known)) for key in meta if key not in known]
    typos = [f'did you mean "{nearest}" instead of "{key}"? ' for key, nearest in nearest_names if nearest is not None]
    return f"{''.join(typos)}use `{' '.join(words)}`; {'; '.join(notes)}"


def _find_tagged_version(session: Session, job_id: str, namespace: str, tag: str) -> int:
    """Return the version of a job that has a tag. Raises CliError."""
    versions = session.client.jobs.versions(job_id, namespace=namespace).value.versions
    for job in versions:
        if job.version_tag is not None and job.version_tag.name == tag:
            return job.version
    raise CliError(f"job {job_id} has no version with tag {tag}; `wharf job history {job_id}` lists its versions")


def _find_stable_version(session: Session, job_id: str, namespace: str) -> int:
    """Return the newest stable version of a job before its current one. Raises CliError if there is none."""
    _, *earlier = session.client.jobs.versions(job_id, namespace=namespace).value.versions
    stable = next((job.version for job in earlier if job.stable), None)
    if stable is not None:
        return stable
    if not earlier:
        raise CliError(f"job {job_id} has no earlier version")
    commands = ", ".join(f"`wharf job revert {job_id} {job.version}`" for job in earlier[:MAX_LISTED_VERSIONS])
    raise CliError(
        f"job {job_id} has no earlier stable version; choose one: {commands}; `wharf job history {job_id}` lists all"
    )
