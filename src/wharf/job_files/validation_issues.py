"""The single problems in the text with which servers refuse a job."""

import re
from typing import Final, NamedTuple

_PATH_FIRST: Final = re.compile(r"Job((?:\.\w+|\[[^\]]*\])*): (.*)")
_ITEM: Final = re.compile(r"\n\s*\* ")
_COUNT: Final = re.compile(r"\b\d+ errors? occurred:$")
_PATH_LAST: Final = re.compile(r"(.*?) \(([A-Z]\w*(?:\[[^\]]*\]|\.\w+)*)\)(: .*)?")


class ValidationIssue(NamedTuple):
    """One problem of a job; `field_path` is `TaskGroups[0].Count`, `Job` for the whole job, or empty if unknown."""

    field_path: str
    text: str


def parse_validation_issues(text: str) -> list[ValidationIssue]:
    """Return the single problems of a server's validation error.

    The server's text is either `Job.Path: problem; Job.Path: problem`, or nested bullet lists of `problem (Path)`.
    """
    issues: list[ValidationIssue] = []
    for item in _ITEM.split(text.strip()):
        line = " ".join(item.split())
        if _COUNT.search(line):
            continue  # The heading of a list: only the number of problems that follow.
        if path_last := _PATH_LAST.fullmatch(line):
            issues.append(ValidationIssue(path_last[2], path_last[1] + (path_last[3] or "")))
            continue
        for part in re.split(r"; (?=Job\.)", line):
            path_first = _PATH_FIRST.fullmatch(part)
            issues.append(
                ValidationIssue(path_first[1].lstrip(".") or "Job", path_first[2])
                if path_first
                else ValidationIssue("", part)
            )
    return issues


def format_validation_issues(text: str) -> str:
    """Return a bullet list of problems with one line for each problem, and any other text as one line."""
    if _ITEM.search(text) is None:
        return " ".join(text.split())
    return "\n".join(
        f"{issue.field_path}: {issue.text}" if issue.field_path else issue.text
        for issue in parse_validation_issues(text)
    )
