"""Finds private words in names and texts of the code: words that a reader cannot look up.

The list is short and strict. It stops a relapse; it does not replace a review. Add a word when a review finds it twice.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.allowances import print_remaining_findings
from tools.findings import ROOT, Finding

CHECKED_FOLDERS = ("src/wharf", "tools", "simulation", "benchmarks")
RULE = "private-word"

# A word of an identifier, and what to write instead.
IDENTIFIER_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("told", "tell", "tells", "telling"), "report, return, send, print, log or show"),
    **dict.fromkeys(("said", "says", "saying"), "report, return, send, print, log or show"),
    **dict.fromkeys(("hear", "hears", "heard", "hearing"), "receive or observe"),
    **dict.fromkeys(("mend", "mends", "mended", "mending"), "fix"),
    **dict.fromkeys(("forget", "forgets", "forgotten"), "delete, evict or garbage-collect"),
    **dict.fromkeys(("who", "whose", "whoever", "nobody", "somebody", "those"), "the noun"),
    **dict.fromkeys(("forethought", "foresight", "thinking"), "dry run or pre-planning"),
    "anew": "again, or a verb with re-",
    "came": "a noun for the record",
    "door": "endpoint or listener",
    "doors": "endpoints or listeners",
    "desk": "decision service",
    "likeness": "fingerprint",
    "sideline": "worker process",
    "formers": "predecessors",
    "steered": "task commands",
    "astray": "unrouted",
    "rolls": "list cache",
    "walls": "sandbox",
    **dict.fromkeys(("shelf", "shelves"), "sharded dict"),
    **dict.fromkeys(("room", "rooms"), "capacity or free resources"),
    **dict.fromkeys(("shape", "shapes"), "type, schema or format"),
    **dict.fromkeys(("turn", "turns"), "slot or scheduling pass"),
    **dict.fromkeys(("house", "floor"), "code base, package or layer"),
    "rehearsal": "preview",
}
# A whole name, without leading and trailing underscores: participles and pronouns say nothing about the value.
WHOLE_NAMES: Mapping[str, str] = dict.fromkeys(
    ("asked", "begun", "given", "gone", "kept", "made", "meant", "none", "taken", "wanted", "which"),
    "a noun",
)
# A phrase of a docstring, a comment or a message.
PHRASES: Mapping[str, str] = {
    r"(?:is|are|was|were|been|be) (?:told|said)": "report, return, send, print, log or show",
    r"(?<!cannot )(?<!can )tells?": "reports, returns, sends, prints, logs or shows",
    r"(?:is|are|was|were|been|be) looked at": "is evaluated or checked",
    r"(?<!there )(?:is|are) (?-i:none)": "does not exist, or is not an X",
    r"comes? to nothing": "fails",
    r"anew|once more": "again, or a verb with re-",
    r"so (?:many|long)(?! as)": "the count or the duration, with its name",
    r"whoever|who (?:asks|calls)": "the caller or the client",
    "somebody": "the component or the person",
    r"hears?|heard": "receives or observes",
    r"mend(?:s|ed|ing)?": "fix",
    r"likeness|forethought|foresight|sideline|formers|steered|astray|shelves": "see the word list",
}
_PHRASES = tuple((re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE), instead) for phrase, instead in PHRASES.items())
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_TEXT_TOKENS = (tokenize.STRING, tokenize.COMMENT)


def check_source(path: str, source: str) -> list[Finding]:
    """Return all private words of one file, sorted by line."""
    return sorted({*_check_names(path, source), *_check_texts(path, source)})


def _check_names(path: str, source: str) -> Iterator[Finding]:
    """Yield a finding for each defined name that is, or contains, a private word."""
    for name, line in _list_defined_names(ast.parse(source, filename=path)):
        whole = name.strip("_")
        instead = WHOLE_NAMES.get(whole)
        if instead is not None:
            yield _describe(path, line, whole, instead)
        for word in _WORD.findall(name):
            instead = IDENTIFIER_WORDS.get(word.lower())
            if instead is not None:
                yield _describe(path, line, name, instead)


def _list_defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield each name that the module defines, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno
            case _:
                pass


def _check_texts(path: str, source: str) -> Iterator[Finding]:
    """Yield a finding for each private phrase in strings, docstrings and comments."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = token.type in _TEXT_TOKENS or tokenize.tok_name[token.type] == "FSTRING_MIDDLE"
        if not is_text:
            continue
        for offset, text in enumerate(token.string.splitlines()):
            for pattern, instead in _PHRASES:
                for match in pattern.finditer(text):
                    yield _describe(path, token.start[0] + offset, match[0], instead)


def _describe(path: str, line: int, word: str, instead: str) -> Finding:
    return Finding(path, line, RULE, f'private word "{word}": write {instead}')


def main() -> int:
    """Check all files and print the findings. Return the exit code."""
    findings: list[Finding] = []
    for folder in CHECKED_FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = file.relative_to(ROOT).as_posix()
            if path != Path(__file__).relative_to(ROOT).as_posix():
                findings.extend(check_source(path, file.read_text("utf-8")))
    return print_remaining_findings(findings, {RULE})


if __name__ == "__main__":
    raise SystemExit(main())
