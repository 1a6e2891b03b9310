"""Exceptions to the rules of the checks, listed in `tools/allowed.toml` with a reason each.

An entry that no finding needs any more is a finding itself, so that the list stays short.
"""

import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tools.findings import ROOT, Finding

ALLOWANCES_FILE = "tools/allowed.toml"


@dataclass(frozen=True, slots=True)
class Allowance:
    """One entry of `tools/allowed.toml`: a file, or a pattern of files, in which a rule does not apply, and why."""

    file: str
    rule: str
    because: str

    def covers(self, finding: Finding) -> bool:
        return self.rule == finding.rule and fnmatchcase(finding.path, self.file)


def read_allowances(text: str) -> list[Allowance]:
    return [Allowance(**entry) for entry in tomllib.loads(text).get("allowed", [])]


def apply_allowances(findings: Sequence[Finding], allowances: Sequence[Allowance]) -> list[Finding]:
    """Return the findings that no allowance covers, and one finding for each allowance that covers nothing."""
    remaining = [finding for finding in findings if not any(allowance.covers(finding) for allowance in allowances)]
    unused = [
        Finding(
            ALLOWANCES_FILE,
            1,
            "allowed",
            f"nothing in {allowance.file} needs its allowance for {allowance.rule} any more: remove the entry",
        )
        for allowance in allowances
        if not any(allowance.covers(finding) for finding in findings)
    ]
    return [*remaining, *unused]


def print_remaining_findings(findings: Sequence[Finding], rules: Collection[str]) -> int:
    """Print the findings that are not allowed. Return the exit status: 1 if there are any.

    `rules` are the rules of the calling check. It ignores the entries of other checks.
    """
    text = (ROOT / ALLOWANCES_FILE).read_text("utf-8")
    allowances = [allowance for allowance in read_allowances(text) if allowance.rule in rules]
    remaining = apply_allowances(findings, allowances)
    for finding in remaining:
        print(finding)
    return 1 if remaining else 0
