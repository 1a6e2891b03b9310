"""The class of commands with Slurm's options: they are read by `option_parser`, and connection options by click."""

from collections.abc import Sequence
from typing import Any, Final

import click

from wharf import __version__
from wharf.cli.common.server_commands import QuietServerCommand
from wharf.cli.lazy_group import CHECKED_TEXT, RenamedOption
from wharf.cli.slurm.option_parser import Occurrence, SlurmOption, SlurmOptionError, parse_options

_HELP_NAMES: Final = ("--help", "-help")


class SlurmCommand(QuietServerCommand):
    """A command that reads Slurm's options. Its function receives them as `occurrences`."""

    slurm_options: Sequence[SlurmOption] = ()
    help_sections: Sequence[tuple[str, Sequence[SlurmOption]]] = ()
    """The titles of the sections in the help, with their options; by default one section with all options."""
    stops_at_argument = False

    def __init__(self, name: str | None, **attributes: Any) -> None:  # click's own arguments.
        super().__init__(name, **{**attributes, "add_help_option": False})
        self.params.append(
            click.Option(
                ["-V", "--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_version,
                help="Show the version and exit.",
            )
        )
        self.params.append(_build_help_option(has_letter=all(option.letter != "h" for option in self.slurm_options)))

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Parse the arguments: Slurm's options here, others by click."""
        for word in arguments:
            CHECKED_TEXT.convert(word, None, context)
        try:
            occurrences, others, words = parse_options(
                arguments,
                self.slurm_options,
                foreign=self._count_foreign_words,
                stops_at_argument=self.stops_at_argument,
            )
        except SlurmOptionError as error:
            raise click.UsageError(f"{error}; `{context.command_path} --help` lists the options", context) from error
        rest = super().parse_args(context, [*others, "--", *words])
        context.params["occurrences"] = tuple(occurrences)
        return rest

    def _count_foreign_words(self, word: str) -> int:
        """Return the number of words of an option of click, with its value; 0 for other words."""
        name, sign, _ = word.partition("=")
        for param in self.params:
            if isinstance(param, click.Option) and (name in param.opts or (f"-{name}" in param.opts and len(name) > 2)):
                return 1 if param.is_flag or sign else 2
        return 1 if name in _HELP_NAMES else 0

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write Slurm's options, then those of the connection."""
        for title, options in self.help_sections or (("Options of Slurm", self.slurm_options),):
            with formatter.section(title):
                formatter.write_dl([(_format_option(option), option.help) for option in options])
        super().format_options(context, formatter)


def _show_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"wharf {__version__}")
        context.exit()


def _build_help_option(*, has_letter: bool) -> click.Option:
    def show_help(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            click.echo(context.get_help(), color=context.color)
            context.exit()

    return RenamedOption(
        ["-h", "--help"] if has_letter else ["--help"],
        former_names=["-help"] if has_letter else [],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show_help,
        help="Show this message and exit.",
    )


def _format_option(option: SlurmOption) -> str:
    return f"-{option.letter}, --{option.name}" if option.letter else f"--{option.name}"


def get_last_values(occurrences: Sequence[Occurrence]) -> dict[str, str]:
    """Return the value of each option that occurs; the last one counts."""
    return {occurrence.name: occurrence.value for occurrence in occurrences}
