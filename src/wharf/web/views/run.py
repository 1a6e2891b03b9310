"""The page on which a person pastes a job file: its mistakes with their lines, and the plan."""

import re
import zlib
from typing import Final

import msgspec

from wharf.web.views.plans import PlanView

FILE_NAME: Final = "job file"
"""The name of the pasted text in messages."""
VALUES_NAME: Final = "variables"
_POSITION: Final = re.compile(rf"({FILE_NAME}|{VALUES_NAME}):(\d+):(\d+): (.*)")
MAX_PROBLEMS: Final = 50


class FileMistake(msgspec.Struct, frozen=True):
    """A mistake in a job file."""

    line: int
    """0: it has no line."""
    column: int
    is_in_values: bool
    """Whether it is in the values of variables."""
    text: str
    excerpt: str


class RunPageView(msgspec.Struct, frozen=True):
    """The page with the text that was sent, and what was found."""

    source: str = ""
    variables: str = ""
    format: str = ""
    """The language that was found; empty before the first check."""
    job_id: str = ""
    namespace: str = ""
    problems: tuple[FileMistake, ...] = ()
    warnings: tuple[str, ...] = ()
    plan: PlanView | None = None
    note: str = ""

    @property
    def checksum(self) -> str:
        """A checksum, by which a form shows that its text has changed since the plan."""
        return f"{zlib.crc32(repr((self.source, self.variables)).encode()):08x}"


def list_problems(text: str) -> tuple[FileMistake, ...]:
    """Return the mistakes in a text with places, such as `job file:3:5: unknown key "x"`, with the lines below each."""
    problems: list[FileMistake] = []
    for line in text.splitlines():
        found = _POSITION.fullmatch(line)
        if found is not None:
            problems.append(FileMistake(int(found[2]), int(found[3]), found[1] == VALUES_NAME, found[4], ""))
        elif problems and (line.startswith(" ") or not line):
            last = problems[-1]
            problems[-1] = msgspec.structs.replace(last, excerpt=f"{last.excerpt}\n{line}".lstrip("\n"))
        else:
            problems.append(FileMistake(0, 0, is_in_values=False, text=line.removeprefix(f"{FILE_NAME}: "), excerpt=""))
    return tuple(problems[:MAX_PROBLEMS])
