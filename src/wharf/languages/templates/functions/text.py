"""Functions over text. The text comes last, so that it can be piped in: `{{ .Name | trimPrefix "old-" | toUpper }}`."""

import html
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote_plus

from wharf.languages.patterns import PatternError, Re2Pattern, compile_pattern
from wharf.languages.templates.errors import EvaluationError
from wharf.languages.templates.parser import Arity
from wharf.languages.templates.values import format_value

MAX_WIDTH_CHARS: Final = 500
_FORM: Final = re.compile(r"%(?P<flags>[-+0 ]*)(?P<width>\d+)?(?:\.(?P<digits>\d+))?(?P<verb>.?)", re.DOTALL)


def _text(value: Any) -> str:
    return "" if value is None else format_value(value)


def _on_text(change: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: change(_text(value))


def join_list(first: Any, second: Any) -> str:
    """Both orders: `join .IDs ", "` and `.IDs | join ", "`."""
    values, between = (second, first) if isinstance(first, str) else (first, second)
    if isinstance(values, str) or not isinstance(values, list | None) or not isinstance(between, str):
        raise EvaluationError("join takes a list, and the text to put between")
    return between.join(format_value(one) for one in values or ())


def _split(between: Any, text: Any) -> list[str]:
    whole = _text(text)
    return (list(whole) if between == "" else whole.split(_text(between))) if whole else []


def _split_to_map(between: Any, assigns: Any, text: Any) -> dict[str, str]:
    pairs = (entry.partition(_text(assigns) or "=") for entry in _split(between, text))
    return {key: value for key, _, value in pairs}


def _indent(width: Any, text: Any) -> str:
    if not isinstance(width, int) or not 0 <= width <= MAX_WIDTH_CHARS:
        raise EvaluationError(f"indent takes a number from 0 to {MAX_WIDTH_CHARS}")
    return "\n".join(" " * width + line if line else line for line in _text(text).split("\n"))


def _pattern(text: Any) -> Re2Pattern:
    try:
        return compile_pattern(_text(text))
    except PatternError as error:
        raise EvaluationError(f"the pattern {_text(text)[:60]} cannot be used: {error}") from None


def _quoted(value: Any) -> str:
    text = format_value(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") + '"'


def format_printf(form: Any, *values: Any) -> str:
    """`printf`: %s %v %q %d %f %g %e %t %x %X %c %U %% with flags, width and digits."""
    left = list(values)

    def put(found: re.Match[str]) -> str:
        verb = found["verb"]
        if verb == "%":
            return "%"
        if not verb or verb not in "svqdfgetxXc":
            raise EvaluationError(f"printf knows no {found[0]}: there are %s %v %q %d %f %g %e %t %x %c")
        if not left:
            raise EvaluationError(f"printf has no value for {found[0]}")
        value = left.pop(0)
        width, flags = min(int(found["width"] or 0), MAX_WIDTH_CHARS), found["flags"]
        text = _formed(value, verb, None if found["digits"] is None else min(int(found["digits"]), MAX_WIDTH_CHARS))
        if "+" in flags and verb in "dfge" and not text.startswith("-"):
            text = "+" + text
        if "0" in flags and "-" not in flags and verb in "dfgexX":
            return text.zfill(width)
        return text.ljust(width) if "-" in flags else text.rjust(width)

    made = _FORM.sub(put, _text(form))
    if left:
        raise EvaluationError(f"printf has {len(left)} value{'s' * (len(left) > 1)} too many")
    return made


def _formed(value: Any, verb: str, digits: int | None) -> str:
    match verb:
        case "d" | "c" if isinstance(value, bool) or not isinstance(value, int):
            raise EvaluationError(f"printf's %{verb} takes a whole number, and {format_value(value)[:40]} is none")
        case "d":
            return str(value)
        case "c":
            return chr(value) if 0 <= value <= 0x10FFFF else "\ufffd"
        case "f" | "e" | "g":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise EvaluationError(f"printf's %{verb} takes a number, and {format_value(value)[:40]} is none")
            return f"{float(value):.{6 if digits is None else digits}{verb}}" if verb != "g" else f"{float(value):g}"
        case "x" | "X":
            text = f"{value:x}" if isinstance(value, int) else _text(value).encode().hex()
            return text.upper() if verb == "X" else text
        case "q":
            return _quoted(value)
        case _:
            text = format_value(value)
            return text if digits is None else text[:digits]


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], Arity]]] = {
    "print": (lambda *values: "".join(format_value(value) for value in values), Arity(0, None)),
    "println": (lambda *values: " ".join(format_value(value) for value in values) + "\n", Arity(0, None)),
    "printf": (format_printf, Arity(1, None)),
    "html": (_on_text(html.escape), Arity(1, 1)),
    "urlquery": (_on_text(quote_plus), Arity(1, 1)),
    "join": (join_list, Arity(2, 2)),
    "split": (_split, Arity(2, 2)),
    "splitToMap": (_split_to_map, Arity(3, 3)),
    "indent": (_indent, Arity(2, 2)),
    "toLower": (_on_text(str.lower), Arity(1, 1)),
    "toUpper": (_on_text(str.upper), Arity(1, 1)),
    "toTitle": (_on_text(lambda text: re.sub(r"\b\w", lambda found: found[0].upper(), text)), Arity(1, 1)),
    "trim": (lambda signs, text: _text(text).strip(_text(signs)), Arity(2, 2)),
    "trimSpace": (_on_text(str.strip), Arity(1, 1)),
    "trimPrefix": (lambda prefix, text: _text(text).removeprefix(_text(prefix)), Arity(2, 2)),
    "trimSuffix": (lambda suffix, text: _text(text).removesuffix(_text(suffix)), Arity(2, 2)),
    "replaceAll": (lambda old, new, text: _text(text).replace(_text(old), _text(new)), Arity(3, 3)),
    "regexMatch": (lambda wanted, text: _pattern(wanted).matches(_text(text)), Arity(2, 2)),
    "regexReplaceAll": (lambda old, new, text: _pattern(old).replace(_text(text), _text(new)), Arity(3, 3)),
    # Short names for the command line, where one types them.
    "upper": (_on_text(str.upper), Arity(1, 1)),
    "lower": (_on_text(str.lower), Arity(1, 1)),
    "short": (lambda text: _text(text)[:8], Arity(1, 1)),
}
