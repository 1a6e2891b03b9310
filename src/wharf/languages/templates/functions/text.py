"""Template functions over text. The text is the last argument, so it can be piped: `{{ .Name | trimPrefix "old-" }}`."""

import html
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote_plus

from wharf.languages.patterns import PatternError, Re2Pattern, compile_stored_pattern
from wharf.languages.templates.errors import EvaluationError
from wharf.languages.templates.parser import Arity
from wharf.languages.templates.values import format_value

MAX_WIDTH_CHARS: Final = 500
"""The largest width and precision of `printf` and `indent`: limits the text that one call can produce."""
MAX_RESULT_CHARS: Final = 64 << 20
"""The longest text that `join`, `replaceAll` and `indent` produce: small arguments could produce gigabytes."""
_PRINTF_VERB: Final = re.compile(r"%(?P<flags>[-+0 ]*)(?P<width>\d+)?(?:\.(?P<digits>\d+))?(?P<verb>.?)", re.DOTALL)


def _to_text(value: Any) -> str:
    return "" if value is None else format_value(value)


def _make_text_function(change: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a template function that converts its argument to text and passes it to `change`."""
    return lambda value: change(_to_text(value))


def join_list(first: Any, second: Any) -> str:
    """Return the elements of a list joined by a separator.

    The two arguments may be in either order: `join .IDs ", "` or `.IDs | join ", "`.
    """
    values, separator = (second, first) if isinstance(first, str) else (first, second)
    if isinstance(values, str) or not isinstance(values, list | None) or not isinstance(separator, str):
        raise EvaluationError("join takes a list and a separator")
    texts = [format_value(item) for item in values or ()]
    _check_length("join", sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _split(separator: Any, text: Any) -> list[str]:
    full_text = _to_text(text)
    return (list(full_text) if separator == "" else full_text.split(_to_text(separator))) if full_text else []


def _split_to_map(separator: Any, assignment: Any, text: Any) -> dict[str, str]:
    pairs = (entry.partition(_to_text(assignment) or "=") for entry in _split(separator, text))
    return {key: value for key, _, value in pairs}


def _trim(characters: Any, text: Any) -> str:
    """Return the text without these characters at both ends.

    `str.strip` would search all of `characters` for each character of the text.
    """
    full_text, dropped = _to_text(text), frozenset(_to_text(characters))
    start, end = 0, len(full_text)
    while start < end and full_text[start] in dropped:
        start += 1
    while end > start and full_text[end - 1] in dropped:
        end -= 1
    return full_text[start:end]


def _replace_all(old: Any, new: Any, text: Any) -> str:
    """Return the text with each occurrence of `old` replaced. Raises `EvaluationError` if the result is too long."""
    full_text, old_text, new_text = _to_text(text), _to_text(old), _to_text(new)
    growth = full_text.count(old_text) * (len(new_text) - len(old_text))
    _check_length("replaceAll", len(full_text) + growth)
    return full_text.replace(old_text, new_text)


def _check_length(function: str, chars: int) -> None:
    """Raise `EvaluationError` if a function would produce more than `MAX_RESULT_CHARS` characters."""
    if chars > MAX_RESULT_CHARS:
        raise EvaluationError(f"{function} would produce {chars:,} characters; the limit is {MAX_RESULT_CHARS:,}")


def _indent(width: Any, text: Any) -> str:
    """Return the text with this number of spaces in front of every line that is not empty."""
    if not isinstance(width, int) or not 0 <= width <= MAX_WIDTH_CHARS:
        raise EvaluationError(f"indent takes a number from 0 to {MAX_WIDTH_CHARS}")
    full_text = _to_text(text)
    _check_length("indent", len(full_text) + width * (full_text.count("\n") + 1))
    return "\n".join(" " * width + line if line else line for line in full_text.split("\n"))


def _compile_pattern(text: Any) -> Re2Pattern:
    """Compile a regular expression. Raises `EvaluationError` if it is invalid."""
    try:
        return compile_stored_pattern(_to_text(text))
    except PatternError as error:
        raise EvaluationError(f"invalid pattern {_to_text(text)[:60]}: {error}") from None


def _quote(value: Any) -> str:
    text = format_value(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") + '"'


def format_printf(format_text: Any, *values: Any) -> str:
    """Return a text in which verbs such as `%s` are replaced by the values, with flags, width and precision.

    The verbs are %s %v %q %d %f %g %e %t %x %X %c %%. Raises `EvaluationError` if the number or a type of the values
    does not fit.
    """
    remaining_values = list(values)

    def format_verb(verb_match: re.Match[str]) -> str:
        """Return the text of the next value for one verb, with flags and width."""
        verb = verb_match["verb"]
        if verb == "%":
            return "%"
        if not verb or verb not in "svqdfgetxXc":
            raise EvaluationError(f"printf does not support {verb_match[0]}: use %s %v %q %d %f %g %e %t %x %c")
        if not remaining_values:
            raise EvaluationError(f"printf has no value for {verb_match[0]}")
        value = remaining_values.pop(0)
        width, flags = min(int(verb_match["width"] or 0), MAX_WIDTH_CHARS), verb_match["flags"]
        text = _format_by_verb(
            value, verb, None if verb_match["digits"] is None else min(int(verb_match["digits"]), MAX_WIDTH_CHARS)
        )
        if "+" in flags and verb in "dfge" and not text.startswith("-"):
            text = "+" + text
        if "0" in flags and "-" not in flags and verb in "dfgexX":
            return text.zfill(width)
        return text.ljust(width) if "-" in flags else text.rjust(width)

    result = _PRINTF_VERB.sub(format_verb, _to_text(format_text))
    if remaining_values:
        raise EvaluationError(f"printf has {len(remaining_values)} value{'s' * (len(remaining_values) > 1)} too many")
    return result


def _format_by_verb(value: Any, verb: str, precision: int | None) -> str:
    """Format one value by a verb, without flags and width. `precision` is that of the verb, if any."""
    match verb:
        case "d" | "c" if isinstance(value, bool) or not isinstance(value, int):
            raise EvaluationError(f"printf %{verb} takes a whole number, got {format_value(value)[:40]}")
        case "d":
            return str(value)
        case "c":
            is_character = 0 <= value <= 0x10FFFF and not 0xD800 <= value <= 0xDFFF
            return chr(value) if is_character else "\ufffd"
        case "f" | "e" | "g":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise EvaluationError(f"printf %{verb} takes a number, got {format_value(value)[:40]}")
            return (
                f"{float(value):.{6 if precision is None else precision}{verb}}" if verb != "g" else f"{float(value):g}"
            )
        case "x" | "X":
            text = f"{value:x}" if isinstance(value, int) else _to_text(value).encode().hex()
            return text.upper() if verb == "X" else text
        case "q":
            return _quote(value)
        case _:
            text = format_value(value)
            return text if precision is None else text[:precision]


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], Arity]]] = {
    "print": (lambda *values: "".join(format_value(value) for value in values), Arity(0, None)),
    "println": (lambda *values: " ".join(format_value(value) for value in values) + "\n", Arity(0, None)),
    "printf": (format_printf, Arity(1, None)),
    "html": (_make_text_function(html.escape), Arity(1, 1)),
    "urlquery": (_make_text_function(quote_plus), Arity(1, 1)),
    "join": (join_list, Arity(2, 2)),
    "split": (_split, Arity(2, 2)),
    "splitToMap": (_split_to_map, Arity(3, 3)),
    "indent": (_indent, Arity(2, 2)),
    "toLower": (_make_text_function(str.lower), Arity(1, 1)),
    "toUpper": (_make_text_function(str.upper), Arity(1, 1)),
    "toTitle": (
        _make_text_function(lambda text: re.sub(r"\b\w", lambda match: match[0].upper(), text)),
        Arity(1, 1),
    ),
    "trim": (_trim, Arity(2, 2)),
    "trimSpace": (_make_text_function(str.strip), Arity(1, 1)),
    "trimPrefix": (lambda prefix, text: _to_text(text).removeprefix(_to_text(prefix)), Arity(2, 2)),
    "trimSuffix": (lambda suffix, text: _to_text(text).removesuffix(_to_text(suffix)), Arity(2, 2)),
    "replaceAll": (_replace_all, Arity(3, 3)),
    "regexMatch": (lambda pattern, text: _compile_pattern(pattern).matches(_to_text(text)), Arity(2, 2)),
    "regexReplaceAll": (
        lambda old, new, text: _compile_pattern(old).replace(_to_text(text), _to_text(new)),
        Arity(3, 3),
    ),
    # Short names, for templates that are typed on the command line.
    "upper": (_make_text_function(str.upper), Arity(1, 1)),
    "lower": (_make_text_function(str.lower), Arity(1, 1)),
    "short": (lambda text: _to_text(text)[:8], Arity(1, 1)),
}
