"""`wharf job convert` and `wharf job fmt`: job files in another language, and with a normalized format."""

from pathlib import Path
from typing import Final

import click

from wharf.cli.common.documents import STDIN, read_utf8_text
from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import CommandEnvironment, RealCommandEnvironment
from wharf.cli.job.variables import VariableOptions, variable_options
from wharf.cli.lazy_group import add_second_dash

UNFORMATTED_EXIT_CODE: Final = 1
LANGUAGES: Final = ("hcl", "yaml", "json", "toml")


class LocalCommand(click.Command):
    """A command that calls no server. Long options with one dash are accepted, as in commands that call one."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        return super().parse_args(context, add_second_dash(arguments, self.params))


@click.command(cls=LocalCommand)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--to", "target", type=click.Choice(LANGUAGES), required=True, help="Language of the result.")
@click.option(
    "--evaluate",
    "evaluates",
    is_flag=True,
    help="Replace variables and local values by their values.",
)
@variable_options
@click.pass_context
def convert(
    context: click.Context,
    file: str,
    target: str,
    evaluates: bool,
    values: tuple[tuple[str, str], ...],
    value_files: tuple[str, ...],
    is_strict: bool,
) -> None:
    """Print a job file in another language.

    Variables, local values and comments stay, if the language has them. A variable needs a value only for the dynamic blocks
    that depend on it, because HCL alone has such blocks, and with --evaluate. Notes on standard error say what the result does
    not have.

    wharf job convert web.hcl --to yaml
    """
    from wharf.cli.job.files import convert_file, describe_file

    environment: CommandEnvironment = context.find_root().obj or RealCommandEnvironment()
    options = VariableOptions(values, value_files, is_strict)
    conversion = convert_file(file, target, options, environment.world, evaluates=evaluates)
    for note in [*conversion.warnings, *(f"{describe_file(file)}: {loss}" for loss in conversion.losses)]:
        print_notice(f"note: {note}")
    click.echo(conversion.text, nl=False)


@click.command(name="fmt", cls=LocalCommand)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option("--check", is_flag=True, help="Change no file; exit with 1 if one would change.")
def format_files(files: tuple[str, ...], check: bool) -> None:
    """Format job files in HCL and YAML, and print the names of those that changed.

    HCL gets two blanks for each level, the = of neighbouring arguments below each other, one blank around signs, and one empty
    line between blocks. `-` formats standard input and prints the result.

    wharf job fmt --check web.hcl worker.yaml
    """
    from wharf.cli.job.files import describe_file

    changed: list[str] = []
    failures: list[str] = []
    for file in files:
        try:
            if _format_file(file, is_check=check):
                changed.append(file)
        except CliError as error:
            failures.append(error.message)
    for file in changed:
        if check or file != STDIN:
            click.echo(describe_file(file))
    if failures:
        raise CliError("\n".join(failures))
    if check and changed:
        raise click.exceptions.Exit(UNFORMATTED_EXIT_CODE)


def _format_file(file: str, *, is_check: bool) -> bool:
    """Format a file in place, or standard input to standard output. Return whether its text changed. Raises CliError."""
    from wharf.cli.job.files import describe_file
    from wharf.job_files.conversion import JobFormat, format_job_file
    from wharf.job_files.data_writer import UnstableYaml
    from wharf.job_files.hcl_formatter import UnstableFormat
    from wharf.job_files.job_file import detect_format
    from wharf.languages.hcl.diagnostics import DocumentErrors

    name = describe_file(file)
    text = read_utf8_text(file, name)
    format = JobFormat(detect_format(file, text))
    if format in (JobFormat.JSON, JobFormat.TOML):
        raise CliError(
            f"{name}: only HCL and YAML are formatted: use the formatter of your editor for {format.upper()}"
        )
    try:
        formatted = format_job_file(text, format, name)
    except DocumentErrors as errors:
        raise CliError(errors.text) from errors
    except (UnstableYaml, UnstableFormat):
        raise CliError(f"{name}: cannot be formatted without a change of its content: it stays as it is") from None
    if not is_check:
        _write(file, text, formatted)
    return formatted != text


def _write(file: str, text: str, formatted: str) -> None:
    """Write a formatted file, if it changed. Raises CliError."""
    if file == STDIN:
        click.echo(formatted, nl=False)
    elif formatted != text:
        try:
            Path(file).write_text(formatted, encoding="utf-8", newline="")
        except OSError as error:
            raise CliError(f"cannot write {file}: {error.strerror}") from error
