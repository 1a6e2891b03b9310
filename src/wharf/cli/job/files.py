"""Reads job files for commands, with the values of their variables."""

from typing import TYPE_CHECKING

from wharf.cli.common.documents import STDIN, read_utf8_text
from wharf.cli.common.errors import CliError
from wharf.cli.job.variables import VariableOptions, read_inputs
from wharf.job_files.job_file import (
    JOB_FILE_SUFFIXES,
    JobFile,
    OpenedFile,
    detect_format,
    open_job_text,
    read_opened_file,
)
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.diagnostics import DocumentErrors, SourceFile

if TYPE_CHECKING:
    from wharf.job_files.conversion import Conversion
    from wharf.world import World


def read_job_file(path: str, options: VariableOptions, world: "World") -> JobFile:
    """Read a job file; `-` is standard input. Raises CliError with all errors of the file.

    Errors are those of syntax, variables and names: fields, and options of drivers. Servers check the values.
    """
    opened = _open_file(path, options, world)
    try:
        return read_opened_file(opened)
    except DocumentErrors as errors:
        raise CliError(_describe_errors(errors, opened.text, opened.name)) from errors


def convert_file(path: str, target: str, options: VariableOptions, world: "World", *, evaluates: bool) -> "Conversion":
    """Return a job file in another language; `-` is standard input. Raises CliError."""
    from wharf.job_files.conversion import JobFormat, convert_data_job, convert_hcl_job
    from wharf.job_files.data_writer import UnwritableValue

    try:
        opened = _open_file(path, options, world)
        if opened.markup is not None:
            source = SourceFile(opened.name, opened.text)
            return convert_data_job(
                source, JobFormat(opened.format), JobFormat(target), opened.inputs, opened.ports, evaluates=evaluates
            )
        assert opened.document is not None, "a file is a document of one of the languages"
        return convert_hcl_job(opened.document, JobFormat(target), opened.inputs, opened.ports, evaluates=evaluates)
    except DocumentErrors as errors:
        raise CliError(errors.text) from errors
    except UnwritableValue as error:
        raise CliError(f"{describe_file(path)}: {error}") from error


def describe_file(path: str) -> str:
    """Return the name of a file in messages."""
    return "standard input" if path == STDIN else path


def _open_file(path: str, options: VariableOptions, world: "World") -> OpenedFile:
    """Return a file and the values for its variables. Errors of its syntax hide those of values files.

    Raises CliError.
    """
    from wharf.cli.job.local_files import LocalFiles

    name = describe_file(path)
    text = read_utf8_text(path, name)
    try:
        return open_job_text(
            text,
            name,
            detect_format(path, text),
            FunctionPorts(_RandomBytes(world), LocalFiles()),
            lambda names, can_use: read_inputs(path, options, names, reads_automatic_files=can_use),
            has_values=bool(options.values or options.files),
        )
    except DocumentErrors as errors:
        raise CliError(_describe_errors(errors, text, name)) from errors


def _describe_errors(errors: DocumentErrors, text: str, name: str) -> str:
    """Return the errors of a file. A script is named as such: its lines are not errors of a job file."""
    if not text.startswith("#!") or name.endswith(JOB_FILE_SUFFIXES):
        return errors.text
    return f"{name}: this is a script, not a job file: run it with `wharf submit {name}`, or `wharf sbatch {name}`"


class _RandomBytes:
    """The random bytes of functions of job files."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def draw_bytes(self, count: int) -> bytes:
        return self._world.token_bytes(count)
