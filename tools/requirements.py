"""Checks that the places which name our dependencies agree: pyproject.toml, requirements/*.in and requirements/*.txt.

It asks no registry: that the locked versions fit each other was found out by `make lock`.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.findings import ROOT, Finding

INCLUDED_STEMS = frozenset({"run", "build"})  # dev.in includes these; locked versions must be the same in both.

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")


def normalize_name(name: str) -> str:
    """Return the one spelling of a distribution's name that others are compared with."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_direct_requirements(text: str) -> frozenset[str]:
    """Return the names that a .in file asks for itself, without those of files it includes."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return frozenset(normalize_name(match.group()) for line in lines if (match := _NAME.match(line)))


def read_pins(text: str) -> dict[str, str]:
    return {normalize_name(m.group(1)): m.group(2) for line in text.splitlines() if (m := _PIN.match(line))}


def find_disagreements(
    *, declared: frozenset[str], direct: dict[str, frozenset[str]], pins: dict[str, dict[str, str]]
) -> Iterator[Finding]:
    """`declared` is of pyproject.toml; `wanted` and `pins` are of run, build, dev and lock, by stems."""
    for name in sorted(declared ^ direct["run"]):
        has, lacks = ("pyproject.toml", "requirements/run.in")[:: 1 if name in declared else -1]
        yield Finding(lacks, 1, "requirements", f"{name} is in {has} and not here: both list what wharf needs to run")
    for stem, names in sorted(direct.items()):
        for name in sorted(names - pins[stem].keys()):
            yield Finding(f"requirements/{stem}.txt", 1, "requirements", f"{name} is not locked: run `make lock`")
    for stem in sorted(INCLUDED_STEMS & pins.keys()):
        for name, version in sorted(pins[stem].items()):
            if pins["dev"].get(name) != version:
                message = f"{name} is {version} here and {pins['dev'].get(name, 'absent')} in dev.txt: run `make lock`"
                yield Finding(f"requirements/{stem}.txt", 1, "requirements", message)


def find_missing_hashes(path: str, text: str) -> Iterator[Finding]:
    """Every pin is followed by a hash, on its own line or the next."""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        following = lines[number] if number < len(lines) else ""
        if _PIN.match(line) and "--hash=" not in line and "--hash=" not in following:
            yield Finding(path, number, "requirements", "a version without its hash: run `make lock`")


def main(root: Path = ROOT) -> int:
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    folder = root / "requirements"
    wanted = {file.stem: read_direct_requirements(file.read_text("utf-8")) for file in sorted(folder.glob("*.in"))}
    locks = {stem: (folder / f"{stem}.txt").read_text("utf-8") for stem in wanted}
    declared = frozenset(normalize_name(m.group()) for text in project["dependencies"] if (m := _NAME.match(text)))
    findings = list(
        find_disagreements(declared=declared, direct=wanted, pins={stem: read_pins(t) for stem, t in locks.items()})
    )
    for stem, text in locks.items():
        findings.extend(find_missing_hashes(f"requirements/{stem}.txt", text))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
