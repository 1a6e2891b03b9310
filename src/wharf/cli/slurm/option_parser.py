"""Reads options as Slurm's commands take them: `--name=value`, `--name value`, `-n value`, `-nvalue`, and prefixes of names.

The same parser reads command lines and `#SBATCH` lines. It knows nothing about what an option means.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple


class OptionValue(enum.Enum):
    """Whether an option has a value."""

    REQUIRED = "required"
    NONE = "none"
    OPTIONAL = "optional"
    """Only after `=`, or attached to the letter of the option."""


class SlurmOption(NamedTuple):
    """An option of a command of Slurm."""

    name: str
    letter: str = ""
    value: OptionValue = OptionValue.REQUIRED
    help: str = ""


class Occurrence(NamedTuple):
    """An option as it was written, with its value; a flag has the value "". `place` is the file and line, or empty."""

    name: str
    value: str
    written: str
    place: str = ""


class SlurmOptionError(ValueError):
    """The error for a word that is no option, or an option without its value."""


MIN_PREFIX_CHARS: Final = 2
"""A shorter beginning of a long option is a mistake rather than an abbreviation."""


def parse_options(
    words: Sequence[str],
    options: Iterable[SlurmOption],
    *,
    foreign: Callable[[str], int] = lambda _: 0,
    stops_at_argument: bool = True,
    place: str = "",
) -> tuple[list[Occurrence], list[str], list[str]]:
    """Return the options in the words, words of foreign options, and the arguments. Raises `SlurmOptionError`.

    `foreign` returns how many words an option that is not Slurm's has, and 0 if it is unknown. Arguments begin with the
    first word that is no option; if `stops_at_argument` is false, options may follow them.
    """
    by_name = {option.name: option for option in options}
    by_letter = {option.letter: option for option in by_name.values() if option.letter}
    found: list[Occurrence] = []
    others: list[str] = []
    arguments: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            arguments += rest
            break
        if not word.startswith("-") or word == "-":
            arguments.append(word)
            if stops_at_argument:
                arguments += rest
                break
            continue
        foreign_words = foreign(word)
        if foreign_words:
            others += [word, *rest[: foreign_words - 1]]
            del rest[: foreign_words - 1]
            continue
        if word.startswith("--"):
            _read_long_option(word, rest, by_name, found, place)
        else:
            _read_letters(word, rest, by_letter, found, place)
    return found, others, arguments


def _read_long_option(
    word: str, rest: list[str], by_name: Mapping[str, SlurmOption], found: list[Occurrence], place: str
) -> None:
    name, sign, value = word[2:].partition("=")
    option = _find_option(name, by_name)
    if option.value is OptionValue.NONE:
        if sign:
            raise SlurmOptionError(f"--{option.name} has no value: write --{option.name}")
    elif not sign and option.value is OptionValue.REQUIRED:
        if not rest:
            raise SlurmOptionError(f"--{option.name} needs a value")
        value = rest.pop(0)
        word = f"{word} {value}"
    found.append(Occurrence(option.name, value, word, place))


def _find_option(name: str, by_name: Mapping[str, SlurmOption]) -> SlurmOption:
    """Return the option with this name, or the only one whose name begins with it."""
    if name in by_name:
        return by_name[name]
    matches = (
        [option for option in by_name.values() if option.name.startswith(name)] if len(name) >= MIN_PREFIX_CHARS else []
    )
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise SlurmOptionError(
            f"--{name} may be {', '.join(f'--{option.name}' for option in matches[:5])}: write the whole name"
        )
    from wharf.languages.suggestions import find_nearest_name

    nearest = find_nearest_name(name, by_name)
    raise SlurmOptionError(f"unknown option --{name}" + (f"; did you mean --{nearest}?" if nearest else ""))


def _read_letters(
    word: str, rest: list[str], by_letter: Mapping[str, SlurmOption], found: list[Occurrence], place: str
) -> None:
    """Read a word such as `-n4`, `-n` or `-hl`: letters of flags, and at the end one of an option with a value."""
    letters = word[1:]
    while letters:
        option = by_letter.get(letters[0])
        if option is None:
            raise SlurmOptionError(f"unknown option -{letters[0]}")
        letters = letters[1:]
        if option.value is OptionValue.NONE:
            found.append(Occurrence(option.name, "", f"-{option.letter}", place))
            continue
        value = letters.removeprefix("=")
        written = f"-{option.letter} {value}".rstrip()
        if not letters and option.value is OptionValue.REQUIRED:
            if not rest:
                raise SlurmOptionError(f"-{option.letter} needs a value")
            value = rest.pop(0)
            written = f"-{option.letter} {value}"
        found.append(Occurrence(option.name, value, written, place))
        return
