"""Runs docs/six-machines.md. `test_six_machines` starts this in namespaces of its own; it is not collected by itself."""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tests.docs.network_machines import Machine, running_machines
from tests.docs.walking import PAGES, mask, matches
from tests.waiting import wait_until

PAGE: Final = PAGES / "docs/six-machines.md"
VERSIONS: Final = ["0.1.0", "0.2.0"]
ROW: Final = re.compile(r"^\| (\w\d) \| ([\d.]+) \|", re.MULTILINE)
GROUPS: Final = {"each machine": "sn", "each server": "s", "each node": "n"}
NO_NODES: Final = re.compile(r"(?!)")
WITHIN_S: Final = 90.0
FAILED_MARK: Final = "failed with exit code"


class Block(NamedTuple):
    """Commands of the page, the machines on which they run, and whether the page shows their output."""

    machines: list[str]
    text: str
    is_console: bool


def read_addresses() -> dict[str, str]:
    return dict(ROW.findall(PAGE.read_text()))


def read_blocks() -> Iterator[Block]:
    """Yield the blocks of commands. The paragraph before a block names the machines in bold."""
    names = list(read_addresses())
    paragraph, language, lines = "", "", list[str]()
    for line in PAGE.read_text().splitlines():
        if line == "```":
            if language in ("sh", "console"):
                yield Block(select_machines(paragraph, names), "\n".join([*lines, ""]), language == "console")
            paragraph, language = "", ""
        elif line.startswith("```"):
            language, lines = line[3:], []
        elif language:
            lines.append(line)
        else:
            # A paragraph ends with an empty line; the next line begins a new one.
            paragraph = (
                f"{paragraph}{line}\n"
                if line and not paragraph.endswith("\n\n")
                else f"{line}\n"
                if line
                else f"{paragraph}\n"
            )


def select_machines(paragraph: str, names: list[str]) -> list[str]:
    bold = re.findall(r"\*\*([\w ]+)\*\*", paragraph)
    kinds = "".join(GROUPS.get(word, "") for word in bold)
    return [name for name in names if name in bold or name[0] in kinds]


def run_console(machine: Machine, text: str) -> str:
    """Repeat each command until it prints what the page shows. Return the output of the last one."""
    output = ""
    for command, shown in re.findall(r"^\$ (.*)\n((?:^(?!\$ ).*\n)*)", text, re.MULTILINE):
        expected = simplify(shown)

        def matches_page(command: str = command, expected: list[str] = expected) -> bool:
            nonlocal output
            output = machine.run(f"{command} || echo {FAILED_MARK!r} $?").strip()
            return FAILED_MARK not in output and matches(expected, simplify(output))

        with suppress(AssertionError):  # The comparison below shows the last output.
            wait_until(matches_page, what=command, within_s=WITHIN_S)
        assert matches(expected, simplify(output)), f"{command} printed\n{output}"
        assert FAILED_MARK not in output
    return output


def simplify(text: str) -> list[str]:
    """Mask what differs between runs, also which server leads."""
    return [re.sub(r"\b(?:yes|no)\b", "ANY", line) for line in mask(text.rstrip("\n").splitlines(), NO_NODES)]


def test_the_commands_of_the_page_set_up_the_cluster_restore_it_and_upgrade_it(tmp_path: Path) -> None:
    addresses = read_addresses()
    blocks = list(read_blocks())

    with running_machines(tmp_path, addresses, VERSIONS) as machines:
        pasted = ""
        start_s = time.monotonic()
        for block in blocks:
            print(block.machines, block.text.splitlines()[0], f"{time.monotonic() - start_s:.1f} s")
            for name in block.machines:
                machine = machines[name]
                if block.is_console:
                    pasted = run_console(machine, block.text)
                    continue
                text = block.text.replace("PASTE", pasted)
                machine.run(text.replace("NAME=s1 ADDRESS=10.0.0.1", f"NAME={name} ADDRESS={addresses[name]}"))

    assert list(addresses) == ["s1", "s2", "s3", "n1", "n2", "n3"]
    assert [block for block in blocks if not block.machines] == []
    assert len(blocks) == PAGE.read_text().count("```") // 2
