"""Reads the texts that the programs of a step leave for later steps, from a file that the programs can write.

A line `name=value` is a text of one line. `name<<END`, lines, and a line `END` are a text of several lines; `END` may be any
word. The last text with a name counts. Where texts are stored is not decided here.
"""

import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from wharf.contract.model.jobs.step_outputs import OUTPUTS_FILE, ReportedOutputs, limit_outputs
from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError

MAX_FILE_BYTES: Final = 1024 * 1024
"""Limit of the file, which may have undeclared texts and several texts with one name; protects the memory of the node."""
MAX_LISTED_NAMES: Final = 5
"""Undeclared names in one message; limits the size of a task event."""
_LINE: Final = re.compile(r"([A-Za-z0-9_]{1,128})(=|<<)(.*)", re.DOTALL)


class _FileText:
    """The texts in the file, and what is wrong with the file."""

    def __init__(self, content: str) -> None:
        self.texts: dict[str, str] = {}
        self.problems: list[str] = []
        numbered = enumerate(content.split("\n"), start=1)
        for number, line in numbered:
            self._read_line(number, line.removesuffix("\r"), numbered)

    def _read_line(self, number: int, line: str, following: Iterator[tuple[int, str]]) -> None:
        if not line.strip():
            return
        match = _LINE.fullmatch(line)
        if match is None:
            self.problems.append(f"line {number} is neither name=value nor name<<END")
            return
        name, separator, value = match.groups()
        if separator == "=":
            self.texts[name] = value
            return
        lines: list[str] = []
        for _, each in following:
            if each.removesuffix("\r") == value:
                self.texts[name] = "\n".join(lines)
                return
            lines.append(each)
        self.problems.append(
            f'no line "{value[:40]}" ends the output {name} that begins in line {number}: no line after it was read'
        )


def create_outputs_file(allocation_folder: Path) -> None:
    """Create the empty file that all tasks of an allocation can write, unless something has its name. Raises `OSError`."""
    with ConfinedFolder(allocation_folder).open_folder("alloc") as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(OUTPUTS_FILE, flags, 0o600, dir_fd=folder)
        except FileExistsError:
            return
        try:
            os.fchmod(descriptor, 0o666)
        finally:
            os.close(descriptor)


def read_outputs(shared_folder: Path, names: Collection[str], max_bytes: int) -> ReportedOutputs:
    """Return the declared texts from the file in the folder `alloc/`, and why others are missing."""
    try:
        data = ConfinedFolder(shared_folder).read_file(OUTPUTS_FILE, MAX_FILE_BYTES)
    except FileNotFoundError:
        return ReportedOutputs()
    except (ConfinedPathError, OSError) as error:
        return ReportedOutputs(problem=f"the outputs cannot be read: {_describe_error(error)}")
    content = data.decode(errors="replace").replace("\0", "\ufffd")
    file = _FileText(content)
    # The last problem may be a text without its end, which contains the rest of the file.
    problems = list(dict.fromkeys((*file.problems[:1], *file.problems[-1:])))
    if "\ufffd" in content:
        problems.append("bytes that are no UTF-8 text were replaced by \ufffd")
    if undeclared := [name for name in file.texts if name not in names]:
        problems.append(f"Outputs.Text does not name {_join(undeclared)}")
    return limit_outputs(ReportedOutputs(texts=file.texts, problem="; ".join(problems)), names, max_bytes)


def _describe_error(error: ConfinedPathError | OSError) -> str:
    """Return why the file cannot be read. A link has an error number of its own, because links are not followed."""
    if isinstance(error, OSError):
        is_link = error.errno == errno.ELOOP
        return "WHARF_OUTPUTS is a link" if is_link else f"WHARF_OUTPUTS: {error.strerror}"
    return str(error).replace(OUTPUTS_FILE, "WHARF_OUTPUTS")


def _join(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - MAX_LISTED_NAMES
    return ", ".join(listed[:MAX_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")
