"""Check the log lines of the source, and write `docs/logs.md`: warnings and errors with cause and remedy.

python -m tools.log_lines            check the form of all log lines, and that the page is complete and up to date
python -m tools.log_lines --write    write the page

The phrases come from the source. `docs/logs.toml` holds a cause and a remedy for each.
"""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.allowances import print_remaining_findings
from tools.banned import get_module_name
from tools.findings import ROOT, Finding

SOURCE_FOLDER = "src/wharf"
TEXTS_FILE = "docs/logs.toml"
PAGE_FILE = "docs/logs.md"
FORM_RULE = "log-line"
PAGE_RULE = "log-page"

LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
# The levels that the page lists, and their names in a log file.
PAGE_LEVELS = {"warning": "WARNING", "error": "ERROR", "exception": "ERROR", "critical": "CRITICAL"}
LOGGER_NAMES = frozenset({"log", "_log", "logger"})

# A fixed phrase, then fields of the form `key=%s`. The phrase can be searched for.
_LINE = re.compile(r"(?P<phrase>[a-zA-Z][^%=]*?)(?: [a-z_]+=%[-.\w]+)*")

PAGE_HEAD = """\
# Log lines

Each log line is a fixed phrase, followed by fields of the form `key=value`. Search for the phrase. This page lists the
warnings and errors: what each phrase means, and what you can do.

A line that names an error also has its text in a field (`error=`, `reason=`, `why=`). For the format, files and levels of logs,
see [Logs](running.md#logs).

<!-- Written by `python -m tools.log_lines --write` from the source and docs/logs.toml. -->
"""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A call of a logger in the source. `phrase` is `None` if the line is not a phrase with fields."""

    path: str
    line: int
    level: str
    phrase: str | None


@dataclass(frozen=True, slots=True)
class PhraseTexts:
    """The texts of one phrase in `docs/logs.toml`."""

    phrase: str
    cause: str
    remedy: str


def list_log_lines(path: str, source: str) -> Iterator[LogLine]:
    """Yield the calls of a logger in one file."""
    for node in ast.walk(ast.parse(source, filename=path)):
        match node:
            case ast.Call(func=ast.Attribute(value=logger, attr=level), args=[text, *_]) if level in LEVELS:
                if _is_logger(logger):
                    yield LogLine(path, node.lineno, level, _read_phrase(text))
            case _:
                pass


def _is_logger(node: ast.expr) -> bool:
    """Return whether an expression is a variable or attribute with the name of a logger."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in LOGGER_NAMES
        case _:
            return False


def _read_phrase(text: ast.expr) -> str | None:
    """Return the fixed phrase of a log text, or `None` if the text does not have the form of a phrase with fields."""
    if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
        return None
    match = _LINE.fullmatch(text.value)
    return match["phrase"] if match else None


def check_form(lines: Sequence[LogLine]) -> Iterator[Finding]:
    """Yield a finding for each log line that is not a fixed phrase with fields."""
    for line in lines:
        if line.phrase is None:
            message = 'write a fixed phrase and fields: log.warning("node missed heartbeat node=%s", node_id)'
            yield Finding(line.path, line.line, FORM_RULE, message)


def check_texts(lines: Sequence[LogLine], texts: Mapping[str, PhraseTexts]) -> Iterator[Finding]:
    """Yield a finding for each listed phrase without texts, and for texts whose phrase is not in the source."""
    used: set[str] = set()
    for line in lines:
        if line.phrase is None or line.level not in PAGE_LEVELS:
            continue
        used.add(line.phrase)
        if line.phrase not in texts:
            message = f'add cause and remedy of "{line.phrase}" to {TEXTS_FILE}'
            yield Finding(line.path, line.line, PAGE_RULE, message)
    for phrase in sorted(texts.keys() - used):
        yield Finding(TEXTS_FILE, 1, PAGE_RULE, f'no warning or error logs "{phrase}": remove the entry')


def read_texts(text: str) -> dict[str, PhraseTexts]:
    """Return the texts of `docs/logs.toml`, by phrase."""
    entries = [PhraseTexts(**entry) for entry in tomllib.loads(text).get("line", [])]
    return {entry.phrase: entry for entry in entries}


def render_page(lines: Sequence[LogLine], texts: Mapping[str, PhraseTexts], titles: Mapping[str, str]) -> str:
    """Return the page: a table for each part of the program, sorted by phrase.

    `titles` maps the start of a module's name to the title of its part. The longest start wins.
    """
    parts: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for line in lines:
        if line.phrase is None or line.level not in PAGE_LEVELS or line.phrase not in texts:
            continue
        part = _find_title(get_module_name(line.path), titles)
        parts[part][line.phrase] = PAGE_LEVELS[line.level]
    sections = [PAGE_HEAD]
    for title in dict.fromkeys(titles.values()):
        if parts[title]:
            rows = [_render_row(texts[phrase], level) for phrase, level in sorted(parts[title].items())]
            table = "\n".join(["| line | level | cause | what to do |", "|---|---|---|---|", *rows])
            sections.append(f"## {title}\n\n{table}\n")
    return "\n".join(sections)


def _find_title(module: str, titles: Mapping[str, str]) -> str:
    return titles[max((start for start in titles if module.startswith(start)), key=len)]


def _render_row(texts: PhraseTexts, level: str) -> str:
    return f"| `{texts.phrase}` | {level} | {texts.cause} | {texts.remedy} |"


# Parts of the page, by module.
TITLES = {
    "wharf.": "Agent and processes",
    "wharf.cluster.server": "Servers",
    "wharf.cluster.api": "HTTP API",
    "wharf.cluster.engines": "The log (storage)",
    "wharf.node": "Nodes and tasks",
    "wharf.limits": "Rate limiter",
}


def main(arguments: list[str]) -> int:
    """Check all log lines, and the page that lists them; with `--write`, write the page. Return the exit code."""
    lines: list[LogLine] = []
    for file in sorted((ROOT / SOURCE_FOLDER).rglob("*.py")):
        lines.extend(list_log_lines(file.relative_to(ROOT).as_posix(), file.read_text("utf-8")))
    texts = read_texts((ROOT / TEXTS_FILE).read_text("utf-8"))
    page = render_page(lines, texts, TITLES)
    page_file: Path = ROOT / PAGE_FILE
    if arguments == ["--write"]:
        page_file.write_text(page, "utf-8")
    findings = [*check_form(lines), *check_texts(lines, texts)]
    if not page_file.exists() or page_file.read_text("utf-8") != page:
        message = "the page is out of date: run python -m tools.log_lines --write"
        findings.append(Finding(PAGE_FILE, 1, PAGE_RULE, message))
    return print_remaining_findings(findings, {FORM_RULE, PAGE_RULE})


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
