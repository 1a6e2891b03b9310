"""The commands that change jobs. Each follows what it began, on a terminal to its end, unless it is told to detach."""

import re
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.options import detach_option, follow_option, job_argument, parse_key_values
from wharf.cli.common.server_commands import QuietServerCommand, Session
from wharf.cli.completion import complete_jobs
from wharf.cli.job.follower import follow_submission, report_evaluation

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

    from wharf.cli.job.files import JobFile
    from wharf.contract.wire.jobs.messages import JobStub

_COUNT_OF_WARNINGS: Final = re.compile(r"\d+ warnings?:")


@click.command(cls=QuietServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
@detach_option
@follow_option
@click.option("--check-index", type=click.IntRange(0), help="Only over this JobModifyIndex; 0: only if it is new.")
@click.option("--preserve-counts", is_flag=True, help="Keep the counts that groups have now.")
@click.option("--eval-priority", type=click.IntRange(1, 100), default=None, help="Of this evaluation.")
@click.option("--output", is_flag=True, help="Print what would be submitted, as JSON, and submit nothing.")
def run(
    session: Session,
    file: str,
    detach: bool,
    follow: bool,
    check_index: int | None,
    preserve_counts: bool,
    eval_priority: int | None,
    output: bool,
) -> None:
    """Submit a job, and follow it to its end.

    FILE is JSON or YAML; `-` reads what is piped in. On a terminal it shows the rollout, or the work of a batch job,
    until that is over; Ctrl-C leaves the job running. Exit code 0: it went well, 1: it failed, 2: not all of it was placed;
    of batch work whose tasks all failed with the same code: that one.

    wharf job run web.yaml
    """
    from wharf.cli.job.files import read_job_file
    from wharf.contract.wire.jobs.messages import JobSource

    job = read_job_file(file)
    if output:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode({"Job": job.document}), indent=2).decode())
        return
    namespace = choose_namespace(session, job.document)
    with locate_errors(session, job):
        answer = session.client.jobs.register(
            job.document,
            enforce_index=check_index,
            submission=JobSource(source=job.source, format=job.format),
            preserve_counts=preserve_counts,
            eval_priority=eval_priority or 0,
            namespace=namespace,
        )
    print_warnings(answer.warnings, job)
    # What is submitted as it is already changes nothing, and has the index of when it was changed.
    is_as_it_was = 0 < answer.job_modify_index < answer.eval_create_index
    click.echo(f"{job.id} {'is as it was' if is_as_it_was else f'is submitted, at index {answer.job_modify_index}'}")
    launches = answer.next_periodic_launches
    if isinstance(launches, tuple):
        click.echo(render_launches(session, launches))
    if not answer.eval_id:
        if not isinstance(launches, tuple):
            click.echo(f"It runs when it is dispatched: wharf job dispatch {job.id}")
        return
    follow_submission(session, job.id, answer.eval_id, namespace=namespace, should_detach=detach, should_follow=follow)


@click.command(cls=QuietServerCommand)
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@detach_option
@click.option("--purge", is_flag=True, help="Forget it altogether, with its history.")
@click.option("--yes", is_flag=True, help="Do not ask. Without a terminal nobody is asked.")
@click.option("--no-shutdown-delay", is_flag=True, help="Stop at once, without the delays of its groups.")
@click.option("--global", "everywhere", is_flag=True, hidden=True)
def stop(
    session: Session,
    job_ids: tuple[str, ...],
    detach: bool,
    purge: bool,
    yes: bool,
    no_shutdown_delay: bool,
    everywhere: bool,
) -> None:
    """Stop a job, or several.

    JOB may be the beginning of its id, and then it is asked whether that one was meant. Where one of several is not
    there, none is stopped.

    wharf job stop web
    """
    jobs = [_job_to_stop(session, job_id, is_sure=yes) for job_id in job_ids]
    evaluations = []
    for job in jobs:
        answer = session.client.jobs.deregister(
            job.id, purge=purge, no_shutdown_delay=no_shutdown_delay, everywhere=everywhere, namespace=job.namespace
        )
        click.echo(f"{job.id} is {'purged' if purge else 'stopped already' if job.stop else 'being stopped'}")
        evaluations += [(answer.eval_id, job.namespace)] if answer.eval_id and not job.stop else []
    if not detach and not purge:
        for eval_id, namespace in evaluations:
            report_evaluation(session, eval_id, namespace)


def _job_to_stop(session: Session, job_id: str, *, is_sure: bool) -> "JobStub":
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    if found.id != job_id and not is_sure:
        if not sys.stdin.isatty():
            raise CliError(f"{job_id} is the beginning of {found.id}: give the whole id, or --yes")
        click.confirm(f"Stop {found.id}?", abort=True, err=True)
    return found


@click.command(cls=QuietServerCommand)
@job_argument
@detach_option
@follow_option
def start(session: Session, job_id: str, detach: bool, follow: bool) -> None:
    """Run a stopped job again.

    wharf job start web
    """
    import msgspec

    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    job = session.client.jobs.read(found.id, namespace=found.namespace).value
    if not job.stop:
        raise CliError(f"{found.id} is not stopped; `wharf job status {found.id}` shows it")
    again = msgspec.structs.replace(job, stop=False)
    answer = session.client.jobs.register(again, enforce_index=job.job_modify_index, namespace=found.namespace)
    click.echo(f"{found.id} is started")
    follow_submission(
        session, found.id, answer.eval_id, namespace=found.namespace, should_detach=detach, should_follow=follow
    )


@click.command(cls=QuietServerCommand)
@job_argument
@click.argument("version")
@detach_option
@follow_option
def revert(session: Session, job_id: str, version: str, detach: bool, follow: bool) -> None:
    """Run an earlier version again.

    VERSION is a number, or the tag of a version; `wharf job history` lists them. It comes back as a new version.

    wharf job revert web 3
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    number = int(version) if version.isdigit() else _tagged(session, found.id, found.namespace, version)
    answer = session.client.jobs.revert(found.id, number, namespace=found.namespace)
    click.echo(f"{found.id} goes back to version {number}")
    follow_submission(
        session, found.id, answer.eval_id, namespace=found.namespace, should_detach=detach, should_follow=follow
    )


@click.command(cls=QuietServerCommand)
@job_argument
@click.argument("payload", type=click.File("rb"), required=False)
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="May be given several times.")
@click.option("--id-prefix-template", default="", help="What the child's id has behind that of its parent.")
@click.option("--idempotency-token", default="", help="While a child with this token is there, no second one is made.")
@click.option("--priority", type=click.IntRange(1, 100), default=None)
@detach_option
@follow_option
def dispatch(
    session: Session,
    job_id: str,
    payload: "BinaryIO | None",
    meta: tuple[str, ...],
    id_prefix_template: str,
    idempotency_token: str,
    priority: int | None,
    detach: bool,
    follow: bool,
) -> None:
    """Run a parameterized job once, with a payload and meta.

    PAYLOAD is a file; `-` reads what is piped in.

    wharf job dispatch --meta name=holiday.mp4 encode job.bin
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    answer = session.client.jobs.dispatch(
        found.id,
        payload=payload.read() if payload is not None else None,
        meta=parse_key_values(meta, "--meta"),
        id_prefix_template=id_prefix_template,
        idempotency_token=idempotency_token,
        priority=priority or 0,
        namespace=found.namespace,
    )
    click.echo(f"{answer.dispatched_job_id} is dispatched")
    if answer.eval_id:
        follow_submission(
            session,
            answer.dispatched_job_id,
            answer.eval_id,
            namespace=found.namespace,
            should_detach=detach,
            should_follow=follow,
        )


@click.command(cls=QuietServerCommand)
@job_argument
@click.argument("group_or_count")
@click.argument("count", type=click.IntRange(0), required=False)
@click.option("--message", default="", help="Why; it is kept with the job's scaling events.")
@detach_option
@follow_option
def scale(
    session: Session, job_id: str, group_or_count: str, count: int | None, message: str, detach: bool, follow: bool
) -> None:
    """Change how many of a group run.

    A job of one group needs no name of it: `wharf job scale web 5`.

    wharf job scale web api 5
    """
    from wharf.cli.common.lookup import find_job
    from wharf.contract.client.errors import RequestRefused

    found = find_job(session, job_id)
    group = group_or_count
    if count is None:
        if not group_or_count.isdigit():
            raise CliError(f"how many of {group_or_count}? `wharf job scale {job_id} {group_or_count} 5`")
        groups = [group.name for group in session.client.jobs.read(found.id, namespace=found.namespace).value.groups]
        if len(groups) != 1:
            raise CliError(f"{found.id} has the groups {', '.join(groups)}: name one before the count")
        group, count = groups[0], int(group_or_count)
    try:
        answer = session.client.jobs.scale(found.id, group, count, message=message, namespace=found.namespace)
    except RequestRefused as error:
        if "active deployment" not in error.text:
            raise
        raise CliError(
            f"{error.text}: `wharf deployment status {found.id}` shows it; wait until it is over, promote its canaries "
            f"(`wharf deployment promote {found.id}`), or end it (`wharf deployment fail {found.id}`)"
        ) from error
    click.echo(f"{group} of {found.id} is to run {count} times")
    if answer.eval_id:
        follow_submission(
            session, found.id, answer.eval_id, namespace=found.namespace, should_detach=detach, should_follow=follow
        )


@click.command(cls=QuietServerCommand)
@job_argument
@click.option("--group", "groups", multiple=True, help="Only this group. May be given several times.")
@detach_option
@follow_option
def promote(session: Session, job_id: str, groups: tuple[str, ...], detach: bool, follow: bool) -> None:
    """Promote the canaries of a job's latest deployment.

    wharf job promote web
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    deployment = session.client.jobs.deployment(found.id, namespace=found.namespace).value
    if deployment is None:
        raise CliError(f"{found.id} has no deployment")
    answer = session.client.deployments.promote(deployment.id, groups, namespace=found.namespace)
    click.echo(f"the canaries of {found.id} are promoted")
    follow_submission(
        session, found.id, answer.eval_id, namespace=found.namespace, should_detach=detach, should_follow=follow
    )


@click.command(cls=QuietServerCommand)
@job_argument
@click.option("--force-reschedule", is_flag=True, help="Also what failed and waits for its time.")
@detach_option
def evaluate(session: Session, job_id: str, force_reschedule: bool, detach: bool) -> None:
    """Have the scheduler look at a job again.

    wharf job eval web
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    answer = session.client.jobs.evaluate(found.id, force_reschedule=force_reschedule, namespace=found.namespace)
    click.echo(f"evaluation {session.shorten_id(answer.eval_id)} looks at {found.id}")
    if not detach:
        report_evaluation(session, answer.eval_id, found.namespace)


@click.command(cls=QuietServerCommand)
@job_argument
@detach_option
def force(session: Session, job_id: str, detach: bool) -> None:
    """Launch a periodic job now.

    wharf job periodic force nightly
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    answer = session.client.jobs.force_periodic(found.id, namespace=found.namespace)
    click.echo(f"{found.id} is launched")
    if answer.eval_id and not detach:
        report_evaluation(session, answer.eval_id, found.namespace)


# -- what they share


@contextmanager
def locate_errors(session: Session, job: "JobFile") -> "Iterator[None]":
    """Inside, what servers find wrong with the job is told with its place in the file. A misspelled field is as a rule
    why something else is missing, so what was ignored is told too.
    """
    from wharf.contract.client.errors import InvalidRequest, RequestRefused

    try:
        yield
    except InvalidRequest as error:
        namespace = choose_namespace(session, job.document)
        with suppress(RequestRefused):  # Then it cannot be read at all, which is what is told below.
            print_warnings(session.client.jobs.validate(job.document, namespace=namespace).warnings, job)
        raise CliError(job.format_errors(error.text)) from error


def print_warnings(warnings: str, job: "JobFile") -> None:
    for remark in job.find_unitless_durations():
        click.echo(f"note: {remark}", err=True)
    for line in warnings.splitlines():
        text = line.strip().removeprefix("* ")
        if text and not _COUNT_OF_WARNINGS.fullmatch(text):
            click.echo(f"note: {job.format_warning(text)}", err=True)


def render_launches(session: Session, launches: "Iterable[datetime.datetime]") -> str:
    from wharf.cli.common.times import format_relative_time, format_utc_time

    lines = [f"  {format_utc_time(time)}  {format_relative_time(time, session.now_ns())}" for time in launches]
    return (
        "\n".join(["Its next launches:", *lines])
        if lines
        else "Nothing launches it by itself: its times are over, or it is not enabled."
    )


def choose_namespace(session: Session, document: dict[str, object]) -> str:
    """That of the options or the environment; else the file's."""
    return session.settings.namespace or str(document.get("Namespace") or "default")


def _tagged(session: Session, job_id: str, namespace: str, tag: str) -> int:
    versions = session.client.jobs.versions(job_id, namespace=namespace).value.versions
    for job in versions:
        if job.version_tag is not None and job.version_tag.name == tag:
            return job.version
    raise CliError(f"{job_id} has no version with the tag {tag}; `wharf job history {job_id}` lists them")
