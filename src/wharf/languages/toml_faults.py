"""Explains why a TOML text cannot be read: what is wrong, where, and what to write.

The parser of the standard library reports where it stopped. The functions here look at the text around that place for the mistake
that caused it. They run only on texts with errors, except `find_long_key`, which protects the parser.
"""

import json
import re
from typing import Final

from wharf.languages.exact_values import MAX_NUMBER_CHARS, NUMBER_FIX, find_number_problem
from wharf.languages.markup_errors import MarkupError, find_line_end, shorten
from wharf.languages.toml_locations import TOML_TEXT, TomlStatement, list_statements

MAX_KEY_PARTS: Final = 100
"""The parts of a dotted key. The parser takes time in the square of them: 15 s for 400,000."""
_PLACE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_REPEATED: Final = (
    "Cannot overwrite",
    "Cannot declare",
    "Cannot mutate",
    "Cannot redefine",
    "Duplicate inline table key",
)
_ESCAPES: Final = ("Unescaped '\\'", "Invalid hex value", "Escaped character is not", "Invalid escape")
_WORD: Final = re.compile(r"[^,\]}\n\"']*")
_KEYWORDS: Final = {"true": "true", "false": "false", "yes": "true", "no": "false"}
_NOTHING: Final = ("null", "none", "nil")
_HCL_START: Final = re.compile(r'\s*(?:job|group|task|variable)[ \t]+"[^"\n]*"[ \t]*\{')
_TOKEN: Final = re.compile(
    r"""#[^\n]*|(?P<text>\"""(?:[^\\]|\\.)*?"{3,5}|'''.*?'{3,5})|(?P<open>\"""|''')"""
    + r"""|(?P<line>"(?:[^"\\\n]|\\.)*"|'[^'\n]*')|(?P<quote>["'])|(?P<bracket>[\[\]{}])""",
    re.DOTALL,
)
_VALUE: Final = re.compile(rf"{_TOKEN.pattern}|(?P<number>[^\s=,\[\]{{}}\"'#]+)", re.DOTALL)
_LONG_KEY: Final = re.compile(
    r"(?P<key>(?<![\w-])(?:(?:[A-Za-z0-9_-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"
    + f"{{{MAX_KEY_PARTS}}})|{TOML_TEXT.pattern}|#[^\\n]*",
    re.DOTALL,
)
"""The start of a key with too many parts, or a text or comment, in which dots mean nothing."""
_NAMED_NUMBER: Final = re.compile(r"the number (.+?)(?:\.\.\.)? is ")
_NOT_FINITE: Final = re.compile(r"[+-]?(?:inf|nan)")


def find_long_key(text: str) -> MarkupError | None:
    """Return the error of the first key with more than `MAX_KEY_PARTS` parts. It takes about 1 ms for 1 MB of usual text."""
    if all(line.count(".") < MAX_KEY_PARTS for line in text.split("\n")):
        return None
    for match in _LONG_KEY.finditer(text):
        if match["key"] is not None:
            start = match.start()
            return MarkupError(
                f"the key has more than {MAX_KEY_PARTS} parts", start, start + 1, "use fewer dots, or put it in quotes"
            )
    return None


def explain_toml_error(text: str, error: Exception) -> MarkupError:
    """Return an error of the parser in words for users. `error` is the parser's exception."""
    message = str(error)
    place = _PLACE.search(message)
    problem = _PLACE.sub("", message)
    at = _find_offset(text, place)
    if at is None and problem.startswith("Exceeds the limit"):
        return _refuse_long_number(text)
    if at is None:
        return MarkupError(problem, *_find_number(text, problem))
    explained = (
        _explain_repetition(text, problem, at)
        or _explain_text(text, problem, at)
        or _explain_brackets(text, problem, at)
        or _explain_value(text, problem, at)
        or _explain_key(text, problem, at)
    )
    return explained or MarkupError(f"this is not TOML: {problem[0].lower()}{problem[1:]}", at)


def _find_offset(text: str, place: re.Match[str] | None) -> int | None:
    if place is None:
        return None
    if place[1] is None:
        return len(text)
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: int(place[1]) - 1]) + int(place[2]) - 1


def _refuse_long_number(text: str) -> MarkupError:
    """Return the error of the first number with thousands of digits: the parser reports no place for it."""
    for token in _VALUE.finditer(text):
        number = token["number"]
        if number and len(number) > MAX_NUMBER_CHARS:
            return MarkupError(find_number_problem(number), token.start("number"), token.end("number"), NUMBER_FIX)
    raise AssertionError("the parser has found a long number")


def _find_number(text: str, problem: str) -> tuple[int, int] | tuple[None, None]:
    """Return the place of a number that JSON does not have: the parser reports no place for it."""
    named = _NAMED_NUMBER.match(problem)
    for token in _VALUE.finditer(text):
        number = token["number"] or ""  # More characters than the number may follow: the parser has not read them.
        special = _NOT_FINITE.match(number)
        if problem.startswith(special[0]) if special is not None else named is not None and number.startswith(named[1]):
            return token.start("number"), token.end("number")
    return None, None


def _quote(text: str) -> str:
    return json.dumps(shorten(text), ensure_ascii=False)


# -- keys and tables that occur twice


def _explain_repetition(text: str, problem: str, at: int) -> MarkupError | None:
    if not problem.startswith(_REPEATED):
        return None
    statements = [each for each in list_statements(text[:at]) if each.start <= at]
    if not statements:
        return None
    second = statements[-1]
    start, end = (
        second.start,
        max(second.end, min(at + 1 + second.is_element, find_line_end(text, at)) if second.is_header else 0),
    )
    first = _find_first(statements[:-1], second)
    name = ".".join(map(str, second.path))
    related = (first.start, first.end, "the first is at") if first is not None else None
    if first is not None and len(first.path) < len(second.path):
        complete = ".".join(map(str, first.path))
        related = (first.start, first.end, f"{complete} is at")
        return MarkupError(f"{complete} is complete before this line", start, end, "write the key there", related)
    if not second.is_header:
        kind, fix = "the key", "remove one"
    elif second.is_element:
        kind, fix = "the list", f"write [[{name}]] there too, if it is an item of the list"
        if first is not None and not first.is_header:
            fix = f"remove the key above: each [[{name}]] adds an item"
    else:
        kind, fix = "the table", f"write both as one table, or [[{name}]] in both places if they are items of a list"
    return MarkupError(f"{kind} {name} occurs twice", start, end, fix, related)


def _find_first(statements: list[TomlStatement], second: TomlStatement) -> TomlStatement | None:
    """Return the statement that sets a path first, or a part of the path, or a key inside it."""
    for length in range(len(second.path), 0, -1):
        path = second.path[:length]
        for each in statements:
            if each.path == path:
                return each
    return next((each for each in statements if each.path[: len(second.path)] == second.path), None)


# -- texts


def _explain_text(text: str, problem: str, at: int) -> MarkupError | None:
    """Explain a text without a closing quote, or with an unknown escape."""
    if problem.startswith(_ESCAPES):
        start = text.rfind("\\", 0, at + 1)
        start = max(start, 0)
        return MarkupError(
            "this escape is unknown", start, start + 2,
            "write \\\\ for a backslash, or put the text in single quotes: 'C:\\x'",
        )  # fmt: skip
    is_open = problem.startswith(
        (
            "Unterminated string",
            "Expected \"'",
            "Expected '\"",
            "Illegal character '\\n'",
            "Found invalid character '\\n'",
        )
    )
    if is_open or problem.startswith(("Illegal character", "Found invalid character")):
        opening = _find_open_quote(text)
        if opening is not None and is_open:
            quote = opening[1]
            fix = f"write {quote} at the end of the text"
            if len(quote) == 1:
                fix += f"; a text of several lines begins and ends with {quote * 3}"
            return MarkupError(
                "the quote that opens here is not closed", opening[0], find_line_end(text, opening[0]), fix
            )
        code = ord(text[at]) if at < len(text) else 0
        return MarkupError(
            f"the control character #x{code:04x} is not allowed in TOML",
            at,
            at + 1,
            f'remove it, or write it as "\\u{code:04x}"',
        )
    return None


def _find_open_quote(text: str) -> tuple[int, str] | None:
    """Return the place and the form of the first quote that is not closed."""
    for token in _TOKEN.finditer(text):
        quote = token["open"] or token["quote"]
        if quote is not None:
            return token.start(), quote
    return None


def _explain_brackets(text: str, problem: str, at: int) -> MarkupError | None:
    """Explain a list, inline table or header without an end."""
    if problem.startswith(("Expected ']' at", "Expected ']]' at")):
        start = text.rfind("\n", 0, at) + 1
        end = find_line_end(text, at)
        name = text[start:end].strip(" \t[]")
        closing = "[[" if "]]" in problem else "["
        return MarkupError(
            "the header of this table has no end",
            start,
            end,
            f"write {closing}{shorten(name)}{closing.replace('[', ']')}",
        )
    is_list = problem.startswith("Unclosed array")
    if not is_list and not problem.startswith(("Unclosed inline table", "Invalid initial character for a key part")):
        return None
    opening = _find_open_bracket(text, at)
    if opening is None:
        return None
    sign = text[opening]
    closing = "]" if sign == "[" else "}"
    related = (opening, opening + 1, f"the {sign} is at")
    found = text[at : at + 1]
    if sign == "{" and found in ("\n", "\r"):
        if _find_closing_brace(text, opening) is None:
            return MarkupError(
                "the { that opens here is not closed", opening, opening + 1, "write } at its end, on the same line"
            )
        return MarkupError(
            "an inline table must be on one line",
            opening,
            opening + 1,
            "write it on one line, or as a table with a header",
        )
    if sign == "{" and found == "}":
        return MarkupError('a "," is before the }', text.rfind(",", 0, at), at, "delete the comma", related)
    line_start = text.rfind("\n", 0, at) + 1
    is_next_line = re.match(r"\s*[\w.\"'-]+\s*=|\s*\[", text[line_start:]) is not None and opening < line_start
    if at >= len(text.rstrip()) or is_next_line:
        return _refuse_open_bracket(text, opening)
    return MarkupError(f'expected "," or "{closing}"', at, at + 1, "separate the entries by commas", related)


def _refuse_open_bracket(text: str, opening: int) -> MarkupError:
    """Return the error of a list or inline table without an end."""
    sign = text[opening]
    closing = "]" if sign == "[" else "}"
    return MarkupError(f"the {sign} that opens here is not closed", opening, opening + 1, f"write {closing} at its end")


def _find_open_bracket(text: str, at: int) -> int | None:
    """Return where the innermost list or inline table begins that is open at an offset."""
    statements = [each for each in list_statements(text[:at]) if not each.is_header]
    depth: list[int] = []
    start = next((each.end for each in reversed(statements) if text[each.end :].lstrip(" \t")[:1] == "="), 0)
    first = max((each.end for each in statements if text.rfind("\n", 0, each.start) + 1 == each.start), default=start)
    for token in _TOKEN.finditer(text, first, at):
        if token["bracket"] in ("[", "{"):
            depth.append(token.start())
        elif token["bracket"] is not None and depth:
            depth.pop()
    return depth[-1] if depth else None


def _find_closing_brace(text: str, opening: int) -> int | None:
    """Return where the brace that opens at an offset is closed, or `None`."""
    depth = 0
    for token in _TOKEN.finditer(text, opening):
        if token["bracket"] in ("{", "}"):
            depth += 1 if token["bracket"] == "{" else -1
            if not depth:
                return token.start()
    return None


# -- values and keys


def _explain_value(text: str, problem: str, at: int) -> MarkupError | None:
    """Explain a value that is no TOML value, most often a text without quotes."""
    if problem.startswith("Invalid value"):
        opening = _find_open_bracket(text, at) if at >= len(text.rstrip()) else None
        return _refuse_word(text, at) if opening is None else _refuse_open_bracket(text, opening)
    if not problem.startswith("Expected newline or end of document"):
        return None
    line_start = text.rfind("\n", 0, at) + 1
    line = text[line_start : find_line_end(text, at)]
    rest = text[at : line_start + len(line)]
    value = re.match(r"[^=\"'#\[]*=[ \t]*", line)
    start = line_start + (value.end() if value is not None else 0)
    if rest.strip() in (";", ","):
        sign = rest.strip()
        return MarkupError(f'a "{sign}" is after the value', at, at + 1, "delete it: a value ends with its line")
    if value is None:
        return MarkupError(
            "a text follows the header of the table", at, line_start + len(line), "write it on the next line"
        )
    if text[at - 1 : at] in ('"', "'") and text[start : start + 1] == "'" and re.match(r"\w", rest):
        return MarkupError("the text ends at this quote", at - 1, at, "put a text with an apostrophe in double quotes")
    if re.match(r"\s*[\w.\"-]+\s*=", rest):
        second = at + len(rest) - len(rest.lstrip())
        return MarkupError(
            "two keys are on one line", second, line_start + len(line), "write each key on a line of its own"
        )
    if text[start : start + 1] in ('"', "'", "[", "{"):
        return MarkupError(
            "a text follows the value", at, line_start + len(line), "delete it, or put the whole value in quotes"
        )
    return _refuse_word(text, start)


def _refuse_word(text: str, start: int) -> MarkupError:
    """Return the error of a value without quotes."""
    if text.startswith("{", start) or text.startswith("[", start):
        return MarkupError("this is no TOML value", start, start + 1)
    match = _WORD.match(text, start)
    word = re.split(r"[ \t]#", match[0] if match is not None else "", maxsplit=1)[0].strip()
    end = start + len(word)
    if not word or word.startswith("#"):
        before = text.rfind("=", 0, start + 1)
        if before >= 0 and not text[before + 1 : start].strip():
            return MarkupError("the key has no value", before, before + 1, "write one, or remove the line")
        return MarkupError("a value is missing", start, start + 1, "write one, or delete the comma before it")
    if word.startswith("="):
        return MarkupError('a second "=" follows the key', start, start + 1, "delete it")
    if word.lower() in _NOTHING:
        return MarkupError(f"TOML has no {word}", start, end, "remove the key: a missing key has no value")
    if word.lower() in _KEYWORDS:
        return MarkupError(f"{word} is no TOML value", start, end, f"write {_KEYWORDS[word.lower()]}")
    if re.fullmatch(r"[+-]?0\d+", word):
        return MarkupError(
            f"the number {word} begins with 0",
            start,
            end,
            f"write {word.lstrip('+-').lstrip('0') or '0'}, or {_quote(word)}",
        )
    return MarkupError("a text needs quotes", start, end, f"write {_quote(word)}")


def _explain_key(text: str, problem: str, at: int) -> MarkupError | None:
    if not problem.startswith(("Expected '=' after a key", "Invalid statement", "Invalid initial character for a key")):
        return None
    line_start = text.rfind("\n", 0, at) + 1
    line_end = find_line_end(text, at)
    line = text[line_start:line_end]
    content = line.strip()
    start = line_start + len(line) - len(line.lstrip())
    end = start + len(content)
    if _HCL_START.match(line):
        return MarkupError("this is HCL, not TOML", start, end, "give the file a name that ends with .hcl")
    if content.startswith(("//", "/*", ";")):
        return MarkupError("a comment of TOML begins with #", start, start + 2, "write # instead")
    if content.startswith("- "):
        return MarkupError("this is YAML, not TOML", start, end, "give the file a name that ends with .yaml")
    if text[at : at + 1] == ":":
        return MarkupError('a ":" follows the key', at, at + 1, "write = instead")
    if content.startswith("}"):
        return MarkupError(
            "this } closes nothing", start, start + 1, "delete it: a table ends where the next header begins"
        )
    key = re.match(r"[^=\s]*[^\x00-\x7f][^=\s]*", content)
    if key is not None:
        return MarkupError("this key needs quotes", start, start + key.end(), f"write {_quote(key[0])}")
    name, _, value = content.partition(" ")
    if "=" in content:
        name = content.partition("=")[0].strip()
        return MarkupError("a key with blanks needs quotes", start, start + len(name), f"write {_quote(name)}")
    fix = f"write {name} = {shorten(value) or '...'}"
    return MarkupError('the key has no "=" and value', start, end, fix)
