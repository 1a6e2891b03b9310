"""`wharf submit`: runs a script or a command as a batch job, without a job file."""

import os
from typing import TYPE_CHECKING, Any

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.options import DurationInSeconds, parse_key_values
from wharf.cli.common.sentences import iterate_warnings, print_notice
from wharf.cli.common.server_commands import ServerCommand, Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.contract.client.batch.array_indexes import ArrayIndexes
    from wharf.contract.client.batch.job_builder import BatchRequest, Script


class ArrayType(click.ParamType["ArrayIndexes"]):
    """The type of `--array`: indexes such as `0-499%20`."""

    name = "indexes"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> "ArrayIndexes":
        """Return the indexes. Fails for a text that is no list of indexes."""
        from wharf.contract.client.batch.array_indexes import ArrayError, ArrayIndexes, parse_array

        if isinstance(value, ArrayIndexes):
            return value
        try:
            return parse_array(str(value))
        except ArrayError as error:
            self.fail(str(error), param, context)


class MemoryType(click.ParamType[int]):
    """The type of `--mem`: an amount such as `4G`; the command receives MiB."""

    name = "amount"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        """Return the amount in MiB. Fails for a text that is no amount."""
        from wharf.contract.client.batch.amounts import AmountError, parse_memory_mb

        if isinstance(value, int):
            return value
        try:
            return parse_memory_mb(str(value))
        except AmountError as error:
            self.fail(str(error), param, context)


class TimeType(click.ParamType[int]):
    """The type of `--time`: a duration such as `2h`; the command receives nanoseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        """Return the duration in nanoseconds. Fails for a text that is no duration, or not above 0."""
        from wharf.contract.client.batch.amounts import AmountError, parse_time_ns

        if isinstance(value, int):
            return value
        try:
            return parse_time_ns(str(value))
        except AmountError as error:
            self.fail(str(error), param, context)


class SubmitCommand(ServerCommand):
    """A server command whose last arguments are a program with its own options.

    Options of the command stand before the script, or before `--` and the command. Behind `--` a file is no script.
    """

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Parse the arguments, and note whether the program stands behind `--`."""
        words = super().parse_args(context, arguments)
        program = list(context.params.get("program") or ())
        cut = len(arguments) - len(program) - 1
        context.params["is_command"] = bool(program) and cut >= 0 and arguments[cut] == "--"
        return words


@click.command(cls=SubmitCommand, context_settings={"allow_interspersed_args": False})
@click.argument("program", metavar="SCRIPT|-- COMMAND ARGUMENTS...", nargs=-1)
@click.option(
    "--array", "array", type=ArrayType(), help="Run once for each index, such as 0-499, or 0-499%20 for 20 at a time."
)
@click.option(
    "--cores", type=click.IntRange(0, 1_000_000), default=1, show_default=True, help="Cores for each run; 0: shared."
)
@click.option("--mem", "memory_mb", type=MemoryType(), default="1G", show_default=True, help="Memory for each run.")
@click.option("--time", "time_ns", type=TimeType(), default=None, help="End each run after this time, such as 2h.")
@click.option("--gpus", type=click.IntRange(0, 1_000_000), default=0, help="Devices of the type gpu for each run.")
@click.option("--name", default="", help="Name of the job; by default that of the script or command.")
@click.option(
    "--env", multiple=True, metavar="KEY[=VALUE]", help="Variable; without a value, that of your shell. Repeatable."
)
@click.option("--chdir", "work_folder", default="", help="Working folder: a path on the nodes.")
@click.option("--pool", default="", help="Node pool.")
@click.option("--priority", type=click.IntRange(1, 100), default=None, help="Priority; servers use 50 by default.")
@click.option(
    "--driver", default="auto", show_default=True, help="Driver, such as raw_exec or exec; auto: what the nodes have."
)
@click.option("--fail-fast", is_flag=True, help="Stop an array when one of its runs has failed.")
@click.option(
    "--after",
    multiple=True,
    metavar="JOB[:WHEN]",
    help="Begin after this job has succeeded; or failed, ended, any for WHEN. Repeatable.",
)
@click.option(
    "--wait", is_flag=True, help="Follow the job to its end, and exit with the exit code of the script or command."
)
@click.option(
    "--progress-timeout",
    "progress_timeout_s",
    type=DurationInSeconds(),
    default="0",
    show_default=True,
    help="With --wait, stop after this time without progress; 0: never.",
)
@click.option("--print", "should_print", is_flag=True, help="Print the job as JSON, and do not submit it.")
def submit(
    session: Session,
    program: tuple[str, ...],
    is_command: bool,
    array: "ArrayIndexes | None",
    cores: int,
    memory_mb: int,
    time_ns: int | None,
    gpus: int,
    name: str,
    env: tuple[str, ...],
    work_folder: str,
    pool: str,
    priority: int | None,
    driver: str,
    fail_fast: bool,
    after: tuple[str, ...],
    wait: bool,
    progress_timeout_s: float,
    should_print: bool,
) -> None:
    """Run a script or a command on the cluster, without a job file.

    SCRIPT is a file that begins with `#!`; it travels with the job. A command stands behind `--` and must be on the nodes.
    Arguments follow. Each run begins in an empty folder of its node. `wharf job logs` prints the output, and `wharf job
    fetch JOB main/local/FILE` brings files. With --wait, the exit code is that of the script or command.

    wharf submit --array 0-9 --mem 2G --time 1h train.sh --epochs 5
    """
    from wharf.contract.client.batch.job_builder import (
        BatchRequest,
        ScriptError,
        build_job_name,
        choose_script_name,
        split_command,
    )
    from wharf.contract.client.batch.needs import NeedError, parse_needs
    from wharf.contract.client.batch.submission import build_meta, choose_driver, create_suffix

    if not program:
        raise CliError("missing script or command: `wharf submit SCRIPT`, or `wharf submit -- COMMAND ARGUMENTS`")
    if fail_fast and array is None:
        raise CliError("--fail-fast needs --array")
    try:
        script = None if is_command else read_script_file(program[0])
        words = program[1:] if script is not None else split_command(program)
        if script is not None and (note := describe_misplaced_options(program, click.get_current_context().command)):
            print_notice(f"note: {note}")
        name = build_job_name(name or (choose_script_name(program[0]) if script is not None else words[0]))
        request = BatchRequest(
            id=f"{name}-{create_suffix(session.world)}",
            name=name,
            script=script,
            arguments=words,
            driver=choose_driver(session.client, driver, pool),
            cores=cores,
            memory_mb=memory_mb,
            time_ns=time_ns or 0,
            env=collect_env(env),
            node_pool=pool,
            priority=priority or 0,
            array=array,
            fail_fast=fail_fast,
            devices=({"Name": "gpu", "Count": gpus},) if gpus else (),
            work_folder=check_work_folder(work_folder),
            meta=build_meta(),
            depends=parse_needs(after),
        )
        if not work_folder:
            warn_of_local_file(words, is_command=script is None)
        submit_request(
            session, request, should_print=should_print, should_wait=wait, progress_timeout_s=progress_timeout_s
        )
    except ScriptError as error:
        raise CliError(f"{program[0]}: {error}") from error
    except NeedError as error:
        raise CliError(f"--after {error}") from error


def describe_misplaced_options(program: tuple[str, ...], command: click.Command) -> str:
    """Return a note about arguments of a script that look like options of the command; empty if there are none.

    Arguments after `--` are meant for the script.
    """
    script, *words = program
    words = words[: words.index("--")] if "--" in words else words
    known = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    found = list(dict.fromkeys(name for word in words if (name := word.partition("=")[0]) in known))
    if not found:
        return ""
    verb = "is passed" if len(found) == 1 else "are passed"
    return (
        f"{', '.join(found)} {verb} to {script}; options of submit stand before the script: "
        f"`wharf submit {found[0]} … {script}`"
    )


def submit_request(
    session: Session, request: "BatchRequest", *, should_print: bool, should_wait: bool, progress_timeout_s: float
) -> None:
    """Submit the job of a request, or print it. Follows it if requested. Raises CliError and `ScriptError`."""
    from wharf.cli.common.options import FollowOptions
    from wharf.cli.job.change_report import ChangeReport
    from wharf.cli.job.follower import follow_submission
    from wharf.contract.client.batch.job_builder import build_batch_job

    document = build_batch_job(request)
    if should_print:
        print_job(document)
        return
    namespace = session.namespace
    # The id is new, so a job that has it is another one: it is not changed.
    response = session.client.jobs.register(document, enforce_index=0, namespace=namespace)
    print_warnings(response.warnings)
    session.print_text(f"submitted job {request.id} (index {response.job_modify_index})")
    if not should_wait:
        session.print_text(f"`wharf job logs {request.id}` prints its output")
    follow_submission(
        session,
        ChangeReport(request.id, namespace, response.eval_id if should_wait else "", response.job_modify_index),
        FollowOptions(detach=not should_wait, follow=should_wait, progress_timeout_s=progress_timeout_s),
    )


def print_job(document: "dict[str, Any]") -> None:
    """Print a job as the JSON of the request that would submit it."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode({"Job": document}), indent=2).decode())


def print_warnings(warnings: str) -> None:
    """Print the warnings of servers about a job, one line each."""
    for text in iterate_warnings(warnings):
        print_notice(f"note: {text}")


def warn_of_local_file(words: "Sequence[str]", *, is_command: bool) -> None:
    """Print a note if a word of a command is a file of the current folder, which does not travel with the job."""
    local = next((word for word in words if not word.startswith(("/", "-")) and os.path.isfile(word)), None)
    if local is not None:
        remedy = f"`wharf submit {local}` sends a script that begins with #!; " if is_command else ""
        print_notice(
            f"note: {local} is a file of this folder and does not travel with the job: {remedy}"
            "--chdir names a folder that the nodes share"
        )


def read_script_file(path: str) -> "Script":
    """Return the script in a file; `-` is standard input. Raises CliError and `ScriptError`."""
    import sys

    from wharf.contract.client.batch.job_builder import MAX_SCRIPT_BYTES, read_script

    if path == "-":
        return read_script("script", sys.stdin.buffer.read(MAX_SCRIPT_BYTES + 1))
    try:
        with open(path, "rb") as file:
            return read_script(os.path.basename(path), file.read(MAX_SCRIPT_BYTES + 1))
    except FileNotFoundError:
        raise CliError(
            f"{path}: no such file: check the path, or write `wharf submit -- {path}` to run a command of the nodes"
        ) from None
    except OSError as error:
        raise CliError(f"{path}: cannot read the script: {error.strerror}") from error


def collect_env(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return the variables of `--env`. One without a value has that of the user's shell. Raises CliError."""
    complete = []
    for pair in pairs:
        if "=" not in pair:
            if pair not in os.environ:
                raise CliError(f"--env {pair}: your shell has no variable of this name: write --env {pair}=VALUE")
            pair = f"{pair}={os.environ[pair]}"
        complete.append(pair)
    return parse_key_values(complete, "--env") or {}


def check_work_folder(folder: str) -> str:
    """Return a working folder on the nodes. Raises CliError if it is not an absolute path."""
    if folder and not folder.startswith("/"):
        raise CliError(f"--chdir {folder}: expected an absolute path, because it is a folder of the nodes")
    return folder
