"""Find what must not be in the repository: paths of one machine, addresses of package registries, binary files.

For a long Python file it prints a note, which is not a failure: a long table is fine, a second topic in one file is not.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tools.allowances import print_remaining_findings
from tools.findings import ROOT, Finding

LONG_FILE_LINES = 700
# Text whose lines are not written by hand, or that is not ours.
SKIPPED_FILES = ("LICENSE",)
# The folders of files that are not text: fixtures and pictures.
BINARY_FOLDERS = ("tests/", "docs/pictures/")
_BINARY_RULE = "binary-file"

# Written in pieces, so that this file does not hold what it looks for.
_BANNED_TEXT = (
    (
        "machine-path",
        re.compile(r"(?<![\w./$}>])/(?:work|root|home/\w+|Users/\w+)/|(?<![\w./$}>])/" + r"tmp/\w"),
        "a path of one machine: use a path inside the project, or tmp_path in a test",
    ),
    (
        "registry-address",
        re.compile(
            "|".join(
                "".join(pieces).replace(".", r"\.")
                for pieces in (
                    ("pypi", ".org/"),
                    ("pythonhosted", ".org"),
                    ("registry", ".npmjs.org"),
                    ("static.crates", ".io"),
                    ("index.crates", ".io"),
                    ("proxy.golang", ".org"),
                    ("repo1.maven", ".org"),
                    ("repo.maven.apache", ".org"),
                    ("deb.debian", ".org"),
                )
            )
            + r"|--(?:extra-)?index-url[ =]\S*:"
        ),
        "an address of a package registry: name the package only",
    ),
)


def check_file(path: str, data: bytes) -> Iterator[Finding]:
    """Yield the findings of a file."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        if not path.startswith(BINARY_FOLDERS):
            folders = " and ".join(BINARY_FOLDERS)
            yield Finding(path, 1, _BINARY_RULE, f"not a text: only {folders} hold other files; remove it")
        return
    yield from check_text(path, text)


def check_text(path: str, text: str) -> Iterator[Finding]:
    """Yield a finding for each line that contains a banned text."""
    for number, line in enumerate(text.splitlines(), start=1):
        for rule, pattern, message in _BANNED_TEXT:
            if pattern.search(line):
                yield Finding(path, number, rule, message)


def list_files(root: Path) -> list[str]:
    """Return the files that are, or would be, in the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return sorted({path for path in listed.split("\0") if path and (root / path).is_file()})


def main() -> int:
    """Check all files of the repository and print the findings. Return the exit code."""
    findings: list[Finding] = []
    for path in list_files(ROOT):
        if path in SKIPPED_FILES:
            continue
        data = (ROOT / path).read_bytes()
        findings.extend(check_file(path, data))
        lines = data.count(b"\n")
        if path.endswith(".py") and lines > LONG_FILE_LINES:
            print(f"note: {path} has {lines} lines: does it still have one topic?")
    return print_remaining_findings(findings, {rule for rule, _, _ in _BANNED_TEXT} | {_BINARY_RULE})


if __name__ == "__main__":
    raise SystemExit(main())
