"""The commands that change jobs. Each follows what it began, on a terminal to its end, unless it is told to detach."""

import re
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.completing import complete_jobs
from wharf.cli.failing import Failed
from wharf.cli.speaking import Quiet, Talk

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

    from wharf.cli.job_files import JobFile
    from wharf.wire.shapes import JobStub

INTERRUPTED: Final = 130
_COUNT_OF_WARNINGS: Final = re.compile(r"\d+ warnings?:")
detachable = click.option("--detach", is_flag=True, help="Return as soon as the servers have it.")
followable = click.option("--follow", is_flag=True, help="Follow it to its end, also where the output is no terminal.")
a_job = click.argument("job_id", metavar="JOB", shell_complete=complete_jobs)


@click.command(cls=Quiet)
@click.argument("file", type=click.Path(allow_dash=True))
@detachable
@followable
@click.option("--check-index", type=click.IntRange(0), help="Only over this JobModifyIndex; 0: only if it is new.")
@click.option("--preserve-counts", is_flag=True, help="Keep the counts that groups have now.")
@click.option("--eval-priority", type=click.IntRange(1, 100), default=None, help="Of this evaluation.")
@click.option("--output", is_flag=True, help="Print what would be submitted, as JSON, and submit nothing.")
def run(
    talk: Talk,
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
    from wharf.cli.job_files import read_job_file
    from wharf.wire.shapes import JobSource

    job = read_job_file(file)
    if output:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode({"Job": job.document}), indent=2).decode())
        return
    namespace = namespace_of(talk, job.document)
    with placing(talk, job):
        answer = talk.client.jobs.register(
            job.document,
            enforce_index=check_index,
            submission=JobSource(source=job.source, format=job.format),
            preserve_counts=preserve_counts,
            eval_priority=eval_priority or 0,
            namespace=namespace,
        )
    tell_warnings(answer.warnings, job)
    # What is submitted as it is already changes nothing, and has the index of when it was changed.
    is_as_it_was = 0 < answer.job_modify_index < answer.eval_create_index
    click.echo(f"{job.id} {'is as it was' if is_as_it_was else f'is submitted, at index {answer.job_modify_index}'}")
    launches = answer.next_periodic_launches
    if isinstance(launches, tuple):
        click.echo(launches_told(talk, launches))
    if not answer.eval_id:
        if not isinstance(launches, tuple):
            click.echo(f"It runs when it is dispatched: wharf job dispatch {job.id}")
        return
    see_through(talk, job.id, answer.eval_id, namespace=namespace, detach=detach, to_the_end=follow)


@click.command(cls=Quiet)
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@detachable
@click.option("--purge", is_flag=True, help="Forget it altogether, with its history.")
@click.option("--yes", is_flag=True, help="Do not ask. Without a terminal nobody is asked.")
@click.option("--no-shutdown-delay", is_flag=True, help="Stop at once, without the delays of its groups.")
@click.option("--global", "everywhere", is_flag=True, hidden=True)
def stop(
    talk: Talk,
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
    jobs = [_job_to_stop(talk, job_id, is_sure=yes) for job_id in job_ids]
    evaluations = []
    for job in jobs:
        answer = talk.client.jobs.deregister(
            job.id, purge=purge, no_shutdown_delay=no_shutdown_delay, everywhere=everywhere, namespace=job.namespace
        )
        click.echo(f"{job.id} is {'purged' if purge else 'stopped already' if job.stop else 'being stopped'}")
        evaluations += [(answer.eval_id, job.namespace)] if answer.eval_id and not job.stop else []
    if not detach and not purge:
        for eval_id, namespace in evaluations:
            see_evaluation(talk, eval_id, namespace)


def _job_to_stop(talk: Talk, job_id: str, *, is_sure: bool) -> "JobStub":
    from wharf.cli.finding import find_job

    found = find_job(talk, job_id)
    if found.id != job_id and not is_sure:
        if not sys.stdin.isatty():
            raise Failed(f"{job_id} is the beginning of {found.id}: give the whole id, or --yes")
        click.confirm(f"Stop {found.id}?", abort=True, err=True)
    return found


@click.command(cls=Quiet)
@a_job
@detachable
@followable
def start(talk: Talk, job_id: str, detach: bool, follow: bool) -> None:
    """Run a stopped job again.

    wharf job start web
    """
    import msgspec

    from wharf.cli.finding import find_job

    found = find_job(talk, job_id)
    job = talk.client.jobs.read(found.id, namespace=found.namespace).value
    if not job.stop:
        raise Failed(f"{found.id} is not stopped; `wharf job status {found.id}` shows it")
    again = msgspec.structs.replace(job, stop=False)
    answer = talk.client.jobs.register(again, enforce_index=job.job_modify_index, namespace=found.namespace)
    click.echo(f"{found.id} is started")
    see_through(talk, found.id, answer.eval_id, namespace=found.namespace, detach=detach, to_the_end=follow)


@click.command(cls=Quiet)
@a_job
@click.argument("version")
@detachable
@followable
def revert(talk: Talk, job_id: str, version: str, detach: bool, follow: bool) -> None:
    """Run an earlier version again.

    VERSION is a number, or the tag of a version; `wharf job history` lists them. It comes back as a new version.

    wharf job revert web 3
    """
    from wharf.cli.finding import find_job

    found = find_job(talk, job_id)
    number = int(version) if version.isdigit() else _tagged(talk, found.id, found.namespace, version)
    answer = talk.client.jobs.revert(found.id, number, namespace=found.namespace)
    click.echo(f"{found.id} goes back to version {number}")
    see_through(talk, found.id, answer.eval_id, namespace=found.namespace, detach=detach, to_the_end=follow)


@click.command(cls=Quiet)
@a_job
@click.argument("payload", type=click.File("rb"), required=False)
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="May be given several times.")
@click.option("--id-prefix-template", default="", help="What the child's id has behind that of its parent.")
@click.option("--idempotency-token", default="", help="While a child with this token is there, no second one is made.")
@click.option("--priority", type=click.IntRange(1, 100), default=None)
@detachable
@followable
def dispatch(
    talk: Talk,
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
    from wharf.cli.finding import find_job

    found = find_job(talk, job_id)
    answer = talk.client.jobs.dispatch(
        found.id,
        payload=payload.read() if payload is not None else None,
        meta=keys_and_values(meta, "--meta"),
        id_prefix_template=id_prefix_template,
        idempotency_token=idempotency_token,
        priority=priority or 0,
        namespace=found.namespace,
    )
    click.echo(f"{answer.dispatched_job_id} is dispatched")
    if answer.eval_id:
        see_through(
            talk, answer.dispatched_job_id, answer.eval_id, namespace=found.namespace, detach=detach, to_the_end=follow
        )


@click.command(cls=Quiet)
@a_job
@click.argument("group_or_count")
@click.argument("count", type=click.IntRange(0), required=False)
@click.option("--message", default="", help="Why; it is kept with the job's scaling events.")
@detachable
@followable
def scale(
    talk: Talk, job_id: str, group_or_count: str, count: int | None, message: str, detach: bool, follow: bool
) -> None:
    """Change how many of a group run.

    A job of one group needs no name of it: `wharf job scale web 5`.

    wharf job scale web api 5
    """
    from wharf.cli.finding import find_job
    from wharf.client.errors import Refused

    found = find_job(talk, job_id)
    group = group_or_count
    if count is None:
        if not group_or_count.isdigit():
            raise Failed(f"how many of {group_or_count}? `wharf job scale {job_id} {group_or_count} 5`")
        groups = [group.name for group in talk.client.jobs.read(found.id, namespace=found.namespace).value.groups]
        if len(groups) != 1:
            raise Failed(f"{found.id} has the groups {', '.join(groups)}: name one before the count")
        group, count = groups[0], int(group_or_count)
    try:
        answer = talk.client.jobs.scale(found.id, group, count, message=message, namespace=found.namespace)
    except Refused as error:
        if "active deployment" not in error.text:
            raise
        raise Failed(
            f"{error.text}: `wharf deployment status {found.id}` shows it; wait until it is over, promote its canaries "
            f"(`wharf deployment promote {found.id}`), or end it (`wharf deployment fail {found.id}`)"
        ) from error
    click.echo(f"{group} of {found.id} is to run {count} times")
    if answer.eval_id:
        see_through(talk, found.id, answer.eval_id, namespace=found.namespace, detach=detach, to_the_end=follow)


@click.command(cls=Quiet)
@a_job
@click.option("--group", "groups", multiple=True, help="Only this group. May be given several times.")
@detachable
@followable
def promote(talk: Talk, job_id: str, groups: tuple[str, ...], detach: bool, follow: bool) -> None:
    """Promote the canaries of a job's latest deployment.

    wharf job promote web
    """
    from wharf.cli.finding import find_job

    found = find_job(talk, job_id)
    deployment = talk.client.jobs.deployment(found.id, namespace=found.namespace).value
    if deployment is None:
        raise Failed(f"{found.id} has no deployment")
    answer = talk.client.deployments.promote(deployment.id, groups, namespace=found.namespace)
    click.echo(f"the canaries of {found.id} are promoted")
    see_through(talk, found.id, answer.eval_id, namespace=found.namespace, detach=detach, to_the_end=follow)


@click.command(cls=Quiet)
@a_job
@click.option("--force-reschedule", is_flag=True, help="Also what failed and waits for its time.")
@detachable
def evaluate(talk: Talk, job_id: str, force_reschedule: bool, detach: bool) -> None:
    """Have the scheduler look at a job again.

    wharf job eval web
    """
    from wharf.cli.finding import find_job

    found = find_job(talk, job_id)
    answer = talk.client.jobs.evaluate(found.id, force_reschedule=force_reschedule, namespace=found.namespace)
    click.echo(f"evaluation {talk.short(answer.eval_id)} looks at {found.id}")
    if not detach:
        see_evaluation(talk, answer.eval_id, found.namespace)


@click.command(cls=Quiet)
@a_job
@detachable
def force(talk: Talk, job_id: str, detach: bool) -> None:
    """Launch a periodic job now.

    wharf job periodic force nightly
    """
    from wharf.cli.finding import find_job

    found = find_job(talk, job_id)
    answer = talk.client.jobs.force_periodic(found.id, namespace=found.namespace)
    click.echo(f"{found.id} is launched")
    if answer.eval_id and not detach:
        see_evaluation(talk, answer.eval_id, found.namespace)


# -- what they share


@contextmanager
def placing(talk: Talk, job: "JobFile") -> "Iterator[None]":
    """Inside, what servers find wrong with the job is told with its place in the file. A misspelled field is as a rule
    why something else is missing, so what was ignored is told too.
    """
    from wharf.client.errors import Invalid, Refused

    try:
        yield
    except Invalid as error:
        namespace = namespace_of(talk, job.document)
        with suppress(Refused):  # Then it cannot be read at all, which is what is told below.
            tell_warnings(talk.client.jobs.validate(job.document, namespace=namespace).warnings, job)
        raise Failed(job.placed(error.text)) from error


def see_through(talk: Talk, job_id: str, eval_id: str, *, namespace: str, detach: bool, to_the_end: bool) -> None:
    """Ends the command with the code that tells how it went."""
    from wharf.cli.following import LeftRunning, follow

    if detach:
        if eval_id:
            click.echo(f"evaluation {talk.short(eval_id)}")
        return
    if not to_the_end and not talk.is_terminal:
        see_evaluation(talk, eval_id, namespace)
        return
    version = talk.client.jobs.read(job_id, namespace=namespace).value.version
    try:
        code = follow(talk, job_id, namespace, version)
    except LeftRunning:
        click.echo(f"{job_id} goes on without you; `wharf job status {job_id}` shows how it stands", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    if code:
        raise click.exceptions.Exit(code)


def see_evaluation(talk: Talk, eval_id: str, namespace: str) -> None:
    """Until the scheduler has decided. What it could not place is told, and is exit code 2."""
    from wharf.cli.following import Exit, follow_evaluation
    from wharf.cli.reasons import unplaced_lines

    if not eval_id:
        return
    try:
        evaluation = follow_evaluation(talk, eval_id, namespace)
    except KeyboardInterrupt:
        click.echo(f"evaluation {talk.short(eval_id)} goes on without you", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    click.echo(f"evaluation {talk.short(eval_id)} is {evaluation.status}")
    if evaluation.failed_tg_allocs:
        click.echo("Not placed, until there is room:")
        for line in unplaced_lines(evaluation.failed_tg_allocs):
            click.echo(f"  {line}")
        raise click.exceptions.Exit(Exit.NOT_PLACED)
    if evaluation.status == "failed":
        raise Failed(f"evaluation {talk.short(eval_id)} failed: {evaluation.status_description}")


def tell_warnings(warnings: str, job: "JobFile") -> None:
    for remark in job.remarks():
        click.echo(f"note: {remark}", err=True)
    for line in warnings.splitlines():
        text = line.strip().removeprefix("* ")
        if text and not _COUNT_OF_WARNINGS.fullmatch(text):
            click.echo(f"note: {job.noted(text)}", err=True)


def launches_told(talk: Talk, launches: "Iterable[datetime.datetime]") -> str:
    from wharf.cli.moments import say_date, say_when

    lines = [f"  {say_date(time)}  {say_when(time, talk.now_ns())}" for time in launches]
    return (
        "\n".join(["Its next launches:", *lines])
        if lines
        else "Nothing launches it by itself: its times are over, or it is not enabled."
    )


def namespace_of(talk: Talk, document: dict[str, object]) -> str:
    """That of the options or the environment; else the file's."""
    return talk.settings.namespace or str(document.get("Namespace") or "default")


def keys_and_values(given: "Iterable[str]", option: str) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise Failed(f"{option} {text}: expected KEY=VALUE")
        found[key] = value
    return found or None


def _tagged(talk: Talk, job_id: str, namespace: str, tag: str) -> int:
    versions = talk.client.jobs.versions(job_id, namespace=namespace).value.versions
    for job in versions:
        if job.version_tag is not None and job.version_tag.name == tag:
            return job.version
    raise Failed(f"{job_id} has no version with the tag {tag}; `wharf job history {job_id}` lists them")
