"""Checks that the tests which the pages name exist: `python -m tools.documented_tests`.

A page may name a test, such as `test_a_full_disk_is_reported`, and a file of tests below `tests/`, such as
`node/test_full_disk.py`. The end of a page's name for a file is enough, if it is a whole part of the path.
"""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping

from tools.findings import ROOT, Finding

PAGES = ("*.md", "docs/**/*.md", "changelog.d/*.md")
TEST_FOLDERS = ("tests", "benchmarks", "simulation")
FILE_RULE = "missing-test-file"
TEST_RULE = "missing-test"
_NAME = re.compile(r"(?<![\w/])(?P<file>(?:[\w.]+/)*test_\w+\.py)|\b(?P<test>test_\w+)\b(?!\.py)")
_DEFINITION = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)


def find_defined_tests(sources: Mapping[str, str]) -> Mapping[str, frozenset[str]]:
    """Return the paths that define each test, by its name. A module of tests counts as a test too, without its suffix.

    `sources` is by path.
    """
    paths: dict[str, frozenset[str]] = {}
    for path, source in sources.items():
        module = path.rsplit("/", 1)[-1].removesuffix(".py")
        for name in (module, *_DEFINITION.findall(source)):
            paths[name] = paths.get(name, frozenset()) | {path}
    return paths


def check_page(path: str, text: str, tests: Mapping[str, Collection[str]], files: Collection[str]) -> Iterator[Finding]:
    """Yield a finding for each test and each file of tests that the page names and that does not exist.

    A test that follows a file in the same line must be in that file.
    """
    for number, line in enumerate(text.splitlines(), 1):
        file = ""
        for match in _NAME.finditer(line):
            test = match["test"]
            if match["file"]:
                file = match["file"] if _is_named(match["file"], files) else ""
                if not file:
                    similar = _suggest(match["file"], files)
                    yield Finding(path, number, FILE_RULE, f"no file {match['file']} exists{similar}")
            elif test not in tests:
                yield Finding(path, number, TEST_RULE, f"no test {test} exists{_suggest(test, tests)}")
            elif file and not _is_named(file, tests[test]):
                message = f"{test} is not in {file}, but in {', '.join(sorted(tests[test]))}"
                yield Finding(path, number, TEST_RULE, message)


def _is_named(file: str, paths: Collection[str]) -> bool:
    """Return whether the name of a file on a page stands for one of these paths: it is a path or the end of one."""
    return any(f"/{path}".endswith(f"/{file}") for path in paths)


def _suggest(name: str, names: Collection[str]) -> str:
    """Return the most similar name as a question, or an empty text if none is similar."""
    similar = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f": did you mean {similar[0]}?" if similar else ""


def read_tests() -> Mapping[str, str]:
    """Return the source of all modules in the folders of tests, by path."""
    paths = [path for folder in TEST_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def main() -> int:
    """Check all pages and print the findings. Return the exit code."""
    sources = read_tests()
    tests = find_defined_tests(sources)
    findings = [
        finding
        for pattern in PAGES
        for page in sorted(ROOT.glob(pattern))
        for finding in check_page(page.relative_to(ROOT).as_posix(), page.read_text(), tests, sources)
    ]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
