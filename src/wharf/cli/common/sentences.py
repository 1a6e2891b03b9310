"""Prints sentences for people: on a terminal broken between words at its width, elsewhere on one line."""

import re
import sys
from collections.abc import Iterator
from typing import Final

import click

from wharf.cli.common.rendering import wrap_for_terminal

_WARNING_COUNT_LINE: Final = re.compile(r"\d+ warnings?:")


def print_sentence(text: str) -> None:
    """Print text for people to standard output."""
    click.echo(wrap_for_terminal(text))


def print_notice(text: str) -> None:
    """Print text for people to standard error, such as what a command waits for."""
    click.echo(wrap_for_terminal(text, sys.stderr), err=True)


def iterate_warnings(warnings: str) -> Iterator[str]:
    """Yield the warnings of a reply of a server, which is a list with the number of warnings in front."""
    for line in warnings.splitlines():
        text = line.strip().removeprefix("* ")
        if text and not _WARNING_COUNT_LINE.fullmatch(text):
            yield text
