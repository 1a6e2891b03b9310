"""Reads the `#SBATCH` lines of a script. They end at the first line that is neither empty nor a comment, as in Slurm."""

import shlex
from collections.abc import Iterator
from typing import Final, NamedTuple

from wharf.cli.slurm.option_parser import Occurrence, SlurmOptionError, parse_options
from wharf.cli.slurm.sbatch_options import SBATCH_OPTIONS

MARK: Final = "#SBATCH"
OTHER_MARKS: Final = ("#PBS", "#BSUB", "#COBALT")
MAX_DIRECTIVES: Final = 200
"""Limit of the lines with options; a script has a few."""


class Directives(NamedTuple):
    """The options of a script, errors with their places, and notes about lines that have no effect."""

    occurrences: tuple[Occurrence, ...]
    errors: tuple[str, ...]
    notes: tuple[str, ...]


def read_directives(text: str, file: str) -> Directives:
    """Return the options in the `#SBATCH` lines of a script. `file` is its name for messages."""
    occurrences: list[Occurrence] = []
    errors: list[str] = []
    notes: list[str] = []
    has_begun = False
    count = 0
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{file}:{number}"
        if not line.startswith(MARK) or line[len(MARK) :][:1].strip():
            has_begun = has_begun or bool(line.strip() and not line.lstrip().startswith("#"))
            if not has_begun and line.startswith(OTHER_MARKS):
                notes.append(f"{place}: {line.split()[0]} is for another scheduler: the line has no effect")
            continue
        count += 1
        if count > MAX_DIRECTIVES:
            errors.append(f"{place}: more than {MAX_DIRECTIVES} lines with {MARK}: remove some")
            break
        if has_begun:
            notes.append(f"{place}: a {MARK} line after the first command has no effect, as in Slurm: move it up")
            continue
        try:
            words = _drop_comment(shlex.split(line[len(MARK) :]))
            found, _, arguments = parse_options(words, SBATCH_OPTIONS, stops_at_argument=False, place=place)
        except (SlurmOptionError, ValueError) as error:
            errors.append(f"{place}: {_lower_first(str(error))}: {line.strip()}")
            continue
        occurrences += found
        errors += [f"{place}: {word} is no option: write --NAME=VALUE" for word in arguments]
    return Directives(tuple(occurrences), tuple(errors), tuple(notes))


def find_srun_lines(text: str) -> Iterator[int]:
    """Yield the numbers of the lines that call `srun`, which nodes usually do not have."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.split()[:1] == ["srun"]:
            yield number


def _drop_comment(words: list[str]) -> list[str]:
    """Return the words before a comment in the same line."""
    return next((words[:at] for at, word in enumerate(words) if word.startswith("#")), words)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
