"""Write the fragments of changelog.d/ into CHANGELOG.md. Without a version, only check them.

python -m tools.changelog            check the names and texts of all fragments
python -m tools.changelog 0.2.0      write the section of that version and delete the fragments
"""

import re
import sys
from pathlib import Path

from tools.findings import ROOT

CHANGE_KINDS = ("added", "changed", "fixed", "removed", "security")
FRAGMENT_FOLDER = "changelog.d"
INSERTION_MARKER = "<!-- New versions are written below this line by `make changelog`. -->"

_NAME = re.compile(rf"^(?P<slug>[a-z0-9]+(?:-[a-z0-9]+)*)\.(?P<kind>{'|'.join(CHANGE_KINDS)})\.md$")
_VERSION = re.compile(r"^\d+\.\d+\.\d+$")


class FragmentError(Exception):
    """A fragment has an invalid name or text."""


def check_fragment(name: str, text: str) -> str:
    """Return the kind of a fragment. Raises `FragmentError` if its name or text is invalid."""
    match = _NAME.match(name)
    if match is None:
        raise FragmentError(
            f"{FRAGMENT_FOLDER}/{name}: name it what-changed.KIND.md, KIND one of {', '.join(CHANGE_KINDS)}"
        )
    if not text.strip():
        raise FragmentError(
            f"{FRAGMENT_FOLDER}/{name}: the file is empty; describe the change in one or two sentences, for users of Wharf"
        )
    if text.lstrip().startswith(("#", "-", "*")):
        raise FragmentError(f"{FRAGMENT_FOLDER}/{name}: write plain sentences; `make changelog` adds heading and list")
    return match["kind"]


def assemble_section(version: str, fragments: dict[str, str]) -> str:
    """Return the section of one version, from the fragments' names and texts."""
    by_kind: dict[str, list[str]] = {kind: [] for kind in CHANGE_KINDS}
    for name, text in sorted(fragments.items()):
        by_kind[check_fragment(name, text)].append("- " + "\n  ".join(text.strip().splitlines()))
    parts = [f"## {version}"]
    parts += [f"### {kind.capitalize()}\n\n" + "\n".join(entries) for kind, entries in by_kind.items() if entries]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Check all fragments; with a version as argument, also write its section and delete the fragments.

    Return the exit code.
    """
    files = [file for file in sorted((root / FRAGMENT_FOLDER).iterdir()) if file.name != "README.md"]
    fragments = {file.name: file.read_text("utf-8") for file in files}
    faults = []
    for name, text in fragments.items():
        try:
            check_fragment(name, text)
        except FragmentError as fault:
            faults.append(str(fault))
    print("\n".join(faults), end="\n" if faults else "")
    if faults or not arguments:
        return 1 if faults else 0
    version = arguments[0]
    if not _VERSION.match(version):
        print("Give the version: make changelog VERSION=1.2.3", file=sys.stderr)
        return 2
    if not fragments:
        print(f"There is nothing in {FRAGMENT_FOLDER}/ to assemble.", file=sys.stderr)
        return 1
    log = root / "CHANGELOG.md"
    log.write_text(
        log.read_text("utf-8").replace(
            INSERTION_MARKER, f"{INSERTION_MARKER}\n\n{assemble_section(version, fragments).rstrip()}"
        ),
        "utf-8",
    )
    for file in files:
        file.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
