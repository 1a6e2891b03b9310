"""Run the checks of the project and print which ones failed. A failed check does not stop the others.

python -m tools.check            all
python -m tools.check types      the named ones
"""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.findings import ROOT

PROGRAM_FOLDER = Path(sys.executable).parent
CHECKED_FOLDERS = tuple(
    f for f in ("src", "tests", "simulation", "benchmarks", "tools") if any((ROOT / f).rglob("*.py"))
)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, its command, and what to do if it fails."""

    name: str
    command: tuple[str, ...]
    fix_hint: str


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The result of one check, with the output of its command and the time it took."""

    check: Check
    is_passed: bool
    output: str
    seconds: float


def build_program_path(name: str) -> str:
    return str(PROGRAM_FOLDER / name)


def build_module_command(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name)


# The slowest first: two run at a time.
CHECKS = (
    Check("types", (build_program_path("mypy"), *CHECKED_FOLDERS), "fix the types"),
    Check(
        "format", (build_program_path("ruff"), "format", "--check", "--quiet", "--diff", "."), ".venv/bin/ruff format ."
    ),
    Check("lint", (build_program_path("ruff"), "check", "--quiet", "."), ".venv/bin/ruff check --fix . fixes some"),
    Check(
        "imports",
        (build_program_path("lint-imports"), "--no-cache"),
        "import downwards; the table is in pyproject.toml",
    ),
    Check(
        "banned",
        build_module_command("tools.banned"),
        "use what the line names, or list the exception in tools/allowed.toml",
    ),
    Check("tidy", build_module_command("tools.tidy"), "remove the text from the file"),
    Check(
        "wording",
        build_module_command("tools.wording"),
        "write the plain word, or list the reason in tools/allowed.toml",
    ),
    Check("modules", build_module_command("tools.modules"), "rename or join, or list the reason in tools/allowed.toml"),
    Check(
        "logs",
        build_module_command("tools.log_lines"),
        "edit docs/logs.toml, then run python -m tools.log_lines --write",
    ),
    Check(
        "pages",
        build_module_command("tools.documented_tests"),
        "name a test that exists, as `git grep test_` shows it",
    ),
    Check("requirements", build_module_command("tools.requirements"), "make the files agree, then run `make lock`"),
    Check(
        "changes", build_module_command("tools.changelog"), "changelog.d/README.md describes the format of a fragment"
    ),
)


def run_check(check: Check) -> CheckOutcome:
    """Run the command of a check and return the outcome."""
    began = time.monotonic()
    done = subprocess.run(
        check.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return CheckOutcome(check, done.returncode == 0, done.stdout, time.monotonic() - began)


def main(names: list[str]) -> int:
    """Run the named checks, or all, two at a time, and print their results. Return the exit code."""
    known = {check.name: check for check in CHECKS}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown check {', '.join(unknown)}; known checks: {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = [known[name] for name in names] if names else list(CHECKS)
    with ThreadPoolExecutor(max_workers=2) as pool:
        outcomes = list(pool.map(run_check, chosen))
    for outcome in outcomes:
        notes = [line for line in outcome.output.splitlines() if line.startswith("note: ")]
        shown = "\n".join(notes) if outcome.is_passed else outcome.output.strip()
        if shown:
            print(f"--- {outcome.check.name}\n{shown}\n")
    for outcome in outcomes:
        state = "ok" if outcome.is_passed else f"FAILED  to fix it: {outcome.check.fix_hint}"
        print(f"{outcome.check.name:13} {outcome.seconds:5.1f} s  {state}")
    return 0 if all(outcome.is_passed for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
