"""Check that pyproject.toml, requirements/*.in and requirements/*.txt name the same dependencies.

It queries no registry: `make lock` has checked that the locked versions fit each other.
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
    """Return the normalized name of a distribution, for comparisons."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_direct_requirements(text: str) -> frozenset[str]:
    """Return the names that a .in file lists itself, without those of included files."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return frozenset(normalize_name(match.group()) for line in lines if (match := _NAME.match(line)))


def read_pins(text: str) -> dict[str, str]:
    """Return the locked version of each distribution in a requirements file, by name."""
    return {normalize_name(m.group(1)): m.group(2) for line in text.splitlines() if (m := _PIN.match(line))}


def find_disagreements(
    *, declared: frozenset[str], direct: dict[str, frozenset[str]], pins: dict[str, dict[str, str]]
) -> Iterator[Finding]:
    """Yield names that one file lists and another lacks, and versions that differ.

    `declared` comes from pyproject.toml. `direct` and `pins` come from the requirements files, by file stem (run, build,
    dev, lock).
    """
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
    """Yield each pinned version without a hash on its own line or the next."""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        following = lines[number] if number < len(lines) else ""
        if _PIN.match(line) and "--hash=" not in line and "--hash=" not in following:
            yield Finding(path, number, "requirements", "a version without its hash: run `make lock`")


def main(root: Path = ROOT) -> int:
    """Check all requirements files and print the findings. Return the exit code."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    folder = root / "requirements"
    direct = {file.stem: read_direct_requirements(file.read_text("utf-8")) for file in sorted(folder.glob("*.in"))}
    locks = {stem: (folder / f"{stem}.txt").read_text("utf-8") for stem in direct}
    declared = frozenset(normalize_name(m.group()) for text in project["dependencies"] if (m := _NAME.match(text)))
    findings = list(
        find_disagreements(declared=declared, direct=direct, pins={stem: read_pins(t) for stem, t in locks.items()})
    )
    for stem, text in locks.items():
        findings.extend(find_missing_hashes(f"requirements/{stem}.txt", text))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
