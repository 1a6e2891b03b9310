"""Notices of commands about slow servers. They depend on the speed of the machine, so tests of the output leave them out."""

import re
from typing import Final

NOTICE: Final = re.compile(
    r"waiting for .*; Ctrl-C (ends the command|stops watching)|wharf: .*; trying again for up to .*; Ctrl-C ends the command"
)


def is_notice(line: str) -> bool:
    return NOTICE.fullmatch(line) is not None


def remove_notices(output: str) -> str:
    """Return the output of a command without the lines that it prints if a reply takes long."""
    return "".join(line for line in output.splitlines(keepends=True) if not is_notice(line.rstrip("\n")))
