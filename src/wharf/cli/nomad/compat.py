"""`wharf compat`: links with the names of other programs, and the translation of Nomad's arguments when the program is
called by the link `nomad`.

`command_table` has the names of commands and options.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice, print_sentence
from wharf.cli.lazy_group import NOMAD_PROGRAM, SLURM_PROGRAMS, CommandEntry, LazyGroup
from wharf.cli.nomad.command_table import ALIASES, COMMANDS, POSITIONAL, REMOTE_COMMANDS, NomadCommand

MODULE: Final = "wharf.cli.nomad.compat"
GROUP_COMMANDS: Final = {
    "install-nomad": CommandEntry(MODULE, "install_nomad", "Make the link `nomad` to this program in a folder."),
    "install-slurm": CommandEntry(MODULE, "install_slurm", "Make links with names of Slurm's commands in a folder."),
}
WHARF_PROGRAM: Final = "wharf"
MAX_NAME_WORDS: Final = 4
"""Words of the longest name of a command, such as `operator root keyring list`."""
HELP_OPTIONS: Final = frozenset({"-h", "-help", "--help"})
VERSION_OPTIONS: Final = frozenset({"-v", "-version", "--version"})
TRUE_WORDS: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
FALSE_WORDS: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
"""The values of switches in the arguments of programs that are written in Go."""


@click.group(cls=LazyGroup, entries=GROUP_COMMANDS)
def compat() -> None:
    """Let scripts that call the commands of other schedulers call Wharf."""


@click.command("install-nomad")
@click.argument("folder", metavar="DIR")
def install_nomad(folder: str) -> None:
    """Make the link `nomad` to this program in a folder.

    Called as `nomad`, the program takes Nomad's commands, options and NOMAD_ variables, and runs the commands of Wharf.

    wharf compat install-nomad ~/bin
    """
    _install_links(folder, (NOMAD_PROGRAM,))


@click.command("install-slurm")
@click.argument("folder", metavar="DIR")
def install_slurm(folder: str) -> None:
    """Make links with names of Slurm's commands in a folder: `sbatch`, `squeue`, `scancel`, `sacct`, `seff`.

    Called by one of these names, the program runs the command of this name, such as `wharf sbatch`.

    wharf compat install-slurm ~/bin
    """
    _install_links(folder, SLURM_PROGRAMS)


def _install_links(folder: str, names: Sequence[str]) -> None:
    """Make links with these names. Raises CliError, and makes none, if a file of another program has one of the names."""
    program = _find_program()
    links = [Path(folder) / name for name in names]
    link = links[0]
    try:
        if not Path(folder).is_dir():
            raise CliError(f"{folder} is not a folder: create it, or name a folder that is in PATH")
        for link in links:
            if os.path.lexists(link) and not _is_own_link(link):
                raise CliError(
                    f"{link} exists and is not a link to {WHARF_PROGRAM}: move it away, or name another folder; nothing "
                    "was changed"
                )
        for link in links:
            _replace_link(link, program)
    except OSError as error:
        raise CliError(
            f"cannot make {link}: {error.strerror}: name a folder that you may write, or use an account that may"
        ) from error
    for link in links:
        print_sentence(f"{link} runs {program}")
    for line in dict.fromkeys(line for link in links for line in _list_path_notes(link)):
        print_notice(line)


def _find_program() -> Path:
    """Return the program `wharf` that runs. Raises CliError if only its Python modules are installed."""
    candidates = [Path(sys.argv[0]), Path(sys.executable).with_name(WHARF_PROGRAM)]
    found = shutil.which(WHARF_PROGRAM)
    if found:
        candidates.append(Path(found))
    for candidate in candidates:
        is_link = candidate.name in (NOMAD_PROGRAM, *SLURM_PROGRAMS)
        path = candidate.resolve() if is_link else candidate.absolute()
        if path.name == WHARF_PROGRAM and path.is_file() and os.access(path, os.X_OK):
            return path
    raise CliError(
        f"no program {WHARF_PROGRAM} is installed: install the package, as the documentation page Installing describes"
    )


def _is_own_link(link: Path) -> bool:
    return link.is_symlink() and link.readlink().name == WHARF_PROGRAM


def _replace_link(link: Path, program: Path) -> None:
    """Make the link, or let it name another program, in one step."""
    new_link = link.with_name(f".{link.name}.{os.getpid()}")
    new_link.symlink_to(program)
    try:
        new_link.replace(link)
    except OSError:
        new_link.unlink()
        raise


def _list_path_notes(link: Path) -> list[str]:
    """Return what keeps a shell from finding the link by its name."""
    found = shutil.which(link.name)
    if found is None:
        return [f"note: {link.parent} is not in PATH: add it, or call {link}"]
    if Path(found).absolute() != link.absolute():
        return [f"note: `{link.name}` still runs {found}, which comes earlier in PATH"]
    return []


class _CommandCall(NamedTuple):
    """A command of Nomad by its name in the table, and the arguments after the name."""

    name: str
    command: NomadCommand
    arguments: Sequence[str]


def translate_arguments(words: Sequence[str]) -> list[str]:
    """Return the arguments of `wharf` for those of `nomad`. Words that the table does not have stay as they are.

    Raises CliError for commands and options that Wharf does not have, or that would act differently.
    """
    if not words or words[0] in HELP_OPTIONS:
        return ["--help"]
    if words[0] in VERSION_OPTIONS:
        return ["version"]
    call = _find_command(words)
    if call is None:
        return list(words)
    if call.command.reason:
        raise CliError(f"{NOMAD_PROGRAM} {call.name}: {call.command.reason}")
    translation = _translate_arguments(call)
    is_alternative = call.command.without_arguments and not translation.has_arguments
    wharf = call.command.without_arguments if is_alternative else call.command.wharf
    return [*wharf.split(), *translation.words]


def _find_command(words: Sequence[str]) -> _CommandCall | None:
    """Return the command with the longest name that the words begin with; None if the table has none."""
    names = [word for word in words[:MAX_NAME_WORDS] if not word.startswith("-")]
    for count in range(len(names), 0, -1):
        name = " ".join(words[:count])
        name = ALIASES.get(name, name)
        if name in COMMANDS:
            return _CommandCall(name, COMMANDS[name], words[count:])
    return None


class _Translation(NamedTuple):
    """The translated words after the name of a command, and whether any is not an option."""

    words: list[str]
    has_arguments: bool


def _translate_arguments(call: _CommandCall) -> _Translation:
    """Return the arguments with the options of Wharf. Raises CliError for a refused option."""
    options = call.command.option_names
    unset_defaults = set(call.command.defaults.split())
    arguments = iter(call.arguments)
    translated: list[str] = []
    has_arguments = False
    for word in arguments:
        has_arguments = has_arguments or not _is_option(word)
        if word == "--" or (not _is_option(word) and call.name in REMOTE_COMMANDS):
            translated += [word, *arguments]
            break
        if not _is_option(word) or word in HELP_OPTIONS:
            translated.append("--help" if word in HELP_OPTIONS else word)
            continue
        name, sign, value = word.lstrip("-").partition("=")
        unset_defaults.discard(name)
        if name in call.command.refused:
            raise CliError(f"{NOMAD_PROGRAM} {call.name}: -{name}: {call.command.refused[name]}")
        if name in call.command.ignored.split():
            continue
        if f"{name}=" in options:
            new_name = options[f"{name}="].rstrip("=")
            text = value if sign else next(arguments, None)
            translated += _write_value(new_name, text)
        elif name in options:
            translated += _write_switch(
                f"{NOMAD_PROGRAM} {call.name}: -{name}", options[name], value if sign else "true"
            )
        else:
            translated.append(word)
    defaults = [_spell_option(name) for name in sorted(unset_defaults)]
    return _Translation([*defaults, *translated], has_arguments)


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-")


def _write_value(name: str, value: str | None) -> list[str]:
    """Return an option with its value. If the value is missing, the command reports that."""
    if value is None:
        return [_spell_option(name)]
    return [value] if name == POSITIONAL else [_spell_option(name), value]


def _write_switch(described: str, name: str, value: str) -> list[str]:
    """Return a switch of Wharf for the value of a switch of Nomad. Raises CliError if the value is neither true nor false."""
    if value not in TRUE_WORDS | FALSE_WORDS:
        raise CliError(f"{described}: expected true or false, got {value!r}")
    is_on = value in TRUE_WORDS
    if name.endswith("="):
        return [f"{_spell_option(name)}{str(is_on).lower()}"]
    on, _, off = name.partition("/")
    chosen = on if is_on else off
    return [_spell_option(chosen)] if chosen else []


def _spell_option(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"
