"""`wharf sbatch`: submits a script with `#SBATCH` lines, and prints what each option became."""

import os
import socket
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import Session
from wharf.cli.slurm.command import SlurmCommand, get_last_values
from wharf.cli.slurm.option_parser import Occurrence
from wharf.cli.slurm.sbatch_options import REFUSED, SBATCH_OPTIONS, WITHOUT_EFFECT

if TYPE_CHECKING:
    from wharf.contract.client.batch.job_builder import BatchRequest

FIRST_NUMBER_S: Final = 1_767_225_600
"""The time from which ids of jobs are counted: 2026-01-01."""
NUMBERS_PER_S: Final = 10
MAX_ATTEMPTS: Final = 20
"""Ids that are tried if other users submit in the same tenth of a second."""
ID_IN_USE_TEXT: Final = "job already exists"
"""The end of the refusal of a job whose id is in use."""
WRAP_NAME: Final = "wrap"


class SbatchCommand(SlurmCommand):
    """The command `sbatch`: its options stand before the script.

    Options that are refused later are read too, so that the error names the reason.
    """

    slurm_options = SBATCH_OPTIONS
    help_sections = (
        ("Options of Slurm", tuple(each for each in SBATCH_OPTIONS if each.name not in REFUSED | WITHOUT_EFFECT)),
        ("Options without an effect", tuple(each for each in SBATCH_OPTIONS if each.name in WITHOUT_EFFECT)),
        (
            "Options that are refused, with what to do instead",
            tuple(each for each in SBATCH_OPTIONS if each.name in REFUSED),
        ),
    )
    stops_at_argument = True


@click.command(cls=SbatchCommand)
@click.argument("words", metavar="SCRIPT [ARGUMENTS...]", nargs=-1)
def sbatch(session: Session, words: tuple[str, ...], occurrences: tuple[Occurrence, ...]) -> None:
    """Submit a script of Slurm.

    Options stand in `#SBATCH` lines of the script, or before it. Standard error shows what each became. An option that
    would change the work and cannot be translated is refused, with its line and what to do instead; docs/from-slurm.md
    lists all.

    wharf sbatch --time=30 train.sh
    """
    from wharf.cli.slurm.directives import find_srun_lines, read_directives
    from wharf.cli.slurm.translation import Submitter, TranslationErrors, translate
    from wharf.cli.submission.submit import read_script_file
    from wharf.contract.client.batch.job_builder import ScriptError, read_script
    from wharf.contract.client.batch.submission import AUTOMATIC, choose_driver, get_user_name

    values = get_last_values(occurrences)
    arguments: tuple[str, ...] = ()
    try:
        if "wrap" in values:
            if words:
                raise CliError("--wrap and a script exclude each other: remove one")
            script = read_script(WRAP_NAME, f"#!/bin/sh\n{values['wrap']}\n".encode())
        else:
            script = read_script_file(words[0] if words else "-")
            arguments = words[1:]
    except ScriptError as error:
        raise CliError(f"{words[0] if words else 'standard input'}: {error}") from error
    file = words[0] if words else script.name
    directives = read_directives(script.text, file)
    for note in directives.notes:
        print_notice(f"note: {note}")
    submitter = Submitter(
        job_id=str(_get_number(session)),
        user=get_user_name(),
        host=socket.gethostname(),
        environment=os.environ,
    )
    try:
        submission = translate((*directives.occurrences, *occurrences), submitter, script, arguments)
    except TranslationErrors as error:
        raise CliError("\n".join((*directives.errors, str(error)))) from error
    if directives.errors:
        raise CliError("\n".join(directives.errors))
    for note in submission.notes:
        print_notice(f"note: {note}")
    for number in list(find_srun_lines(script.text))[:1]:
        click.echo(
            f"note: {file}:{number}: srun is a program of Slurm: nodes do not have it, unless you install one: remove the "
            "word srun, because the script runs once, with all its cores",
            err=True,
        )
    import msgspec

    driver = choose_driver(session.client, AUTOMATIC, submission.request.node_pool)
    if submission.request.work_folder and driver != "raw_exec":
        click.echo(
            f"note: --chdir: the nodes have the driver {driver}, whose tasks see only their own folders", err=True
        )
    _submit(session, msgspec.structs.replace(submission.request, driver=driver), submission.flags)


def _get_number(session: Session) -> int:
    """Return a number that grows with time: the id of a job. Scripts read numbers in the output of `sbatch`."""
    return (session.now_ns() // (1_000_000_000 // NUMBERS_PER_S)) - FIRST_NUMBER_S * NUMBERS_PER_S


def _submit(session: Session, request: "BatchRequest", flags: frozenset[str]) -> None:
    """Submit the job under the next free number, or print it."""
    import msgspec

    from wharf.cli.common.options import FollowOptions
    from wharf.cli.job.change_report import ChangeReport
    from wharf.cli.job.follower import follow_submission
    from wharf.cli.submission.submit import print_job, print_warnings
    from wharf.contract.client.batch.job_builder import ScriptError, build_batch_job
    from wharf.contract.client.errors import InvalidRequest

    first = int(request.id)
    needed = {each["On"] for each in request.depends}
    for number in range(first, first + MAX_ATTEMPTS):
        if str(number) in needed:
            continue  # The id is in use, by a job that was submitted in the same tenth of a second.
        try:
            document = build_batch_job(msgspec.structs.replace(request, id=str(number)))
        except ScriptError as error:
            raise CliError(str(error)) from error
        if "test-only" in flags:
            print_job(document)
            return
        try:
            response = session.client.jobs.register(document, enforce_index=0, namespace=session.namespace)
        except InvalidRequest as error:
            if ID_IN_USE_TEXT not in error.text:
                raise
            continue
        print_warnings(response.warnings)
        click.echo(str(number) if "parsable" in flags else f"Submitted batch job {number}")
        if "wait" in flags:
            follow_submission(
                session,
                ChangeReport(str(number), session.namespace, response.eval_id, response.job_modify_index),
                FollowOptions(detach=False, follow=True, progress_timeout_s=0.0),
            )
        return
    raise CliError(f"the ids {first} to {first + MAX_ATTEMPTS - 1} are all in use: repeat the command")
