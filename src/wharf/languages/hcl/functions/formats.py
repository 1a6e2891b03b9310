"""The functions `format` and `formatlist`."""

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Final

from wharf.languages.graphemes import count_graphemes, split_graphemes
from wharf.languages.hcl.calls import CallContext, FunctionError, FunctionSpec, define_function
from wharf.languages.hcl.conversions import ConversionError, to_bool, to_number_value, to_text, to_whole
from wharf.languages.hcl.functions.encodings import encode_json
from wharf.languages.hcl.numerals import Number, format_number
from wharf.languages.hcl.values import COLLECTIONS, SEQUENCES, STRING, HclList, Value

MAX_PRECISION: Final = 1_000
"""The digits that a verb may request. Limits the time of one conversion."""
MAX_WIDTH_DIGITS: Final = 7
_VERB: Final = re.compile(r"%([-+ 0#]*+)([0-9]*+)(?:\.([0-9]*+))?+(?:\[([0-9]++)\])?+(.?)", re.DOTALL)
_NUMBER_VERBS: Final = frozenset("dfeEgGboxX")
_VERBS: Final = "%s %q %d %f %e %E %g %G %b %o %x %X %t %v %#v %%"
_EXACT: Final = Context(prec=1_000)
_SHORTEST_PRECISION: Final = 6


def format_text(context: CallContext, template: str, *arguments: Value) -> str:
    """Return the template with its verbs replaced by the arguments. Raises `FunctionError`."""
    pieces: list[str] = []
    position = 0
    next_argument = 0
    used_count = 0
    for match in _VERB.finditer(template):
        pieces.append(template[position : match.start()])
        position = match.end()
        flags, width, precision, index, verb = match.groups()
        context.budget.use_steps(3)
        if verb == "%":
            pieces.append("%")
            continue
        if verb not in _NUMBER_VERBS and verb not in ("s", "q", "t", "v"):
            raise FunctionError(f'no verb "{match[0][:20]}" exists', argument=0, fix=f"the verbs are {_VERBS}")
        if len(width) > MAX_WIDTH_DIGITS or int(precision or 0) > MAX_PRECISION:
            raise FunctionError(f'the width or precision of "{match[0][:20]}" is too large', argument=0)
        if index is not None:
            next_argument = int(index[:6]) - 1
        if not 0 <= next_argument < len(arguments):
            raise FunctionError(
                f'"{match[0][:20]}" needs argument {next_argument + 1}, and there are {len(arguments)}', argument=0
            )
        value = arguments[next_argument]
        next_argument += 1
        used_count = max(used_count, next_argument)
        context.budget.use_bytes(int(width or 0))
        try:
            text = _format_verb(context, verb, flags, None if precision is None else int(precision or 0), value)
        except ConversionError as error:
            raise FunctionError(f"%{verb}: {error.message}", argument=next_argument, fix=error.fix) from None
        text = _pad(text, flags, int(width or 0), is_number=verb in _NUMBER_VERBS)
        context.budget.use_bytes(len(text))
        pieces.append(text)
    pieces.append(template[position:])
    if used_count < len(arguments):
        raise FunctionError(
            f"too many arguments: the format uses {used_count} of {len(arguments)}", argument=used_count + 1,
            fix="write a verb such as %s for each argument",
        )  # fmt: skip
    return "".join(pieces)


def _format_verb(context: CallContext, verb: str, flags: str, precision: int | None, value: Value) -> str:
    """Return the text of one argument. Raises `ConversionError`."""
    if verb == "v":
        if "#" in flags or value is None or isinstance(value, COLLECTIONS):
            return encode_json(value, context.budget)
        if not isinstance(value, str):
            return to_text(value)
        return value if precision is None else "".join(split_graphemes(value)[:precision])
    if value is None:
        raise ConversionError("null has no text", "use %v for any value")
    if verb in ("s", "q"):
        if isinstance(value, COLLECTIONS):
            raise ConversionError("a list or map has no text", "use %v for any value")
        text = to_text(value)
        if precision is not None:
            text = "".join(split_graphemes(text)[:precision])
        return json.dumps(text, ensure_ascii=False) if verb == "q" else text
    if verb == "t":
        return "true" if to_bool(value) else "false"
    if verb in "dboxX":
        whole = to_whole(value)
        digits = format(abs(whole), verb)
        if precision is not None:
            digits = digits.rjust(precision, "0")
        return _add_sign(digits, flags, is_negative=whole < 0)
    number = to_number_value(value)
    return _add_sign(_format_real(-number if number < 0 else number, verb, precision), flags, is_negative=number < 0)


def _format_real(number: Number, verb: str, precision: int | None) -> str:
    """Return a number that is not negative, as `%f`, `%e` or `%g` print it."""
    decimal = Decimal(format_number(number)) if isinstance(number, Fraction) else Decimal(number)
    if verb == "f":
        return format(decimal, f".{6 if precision is None else precision}f")
    if verb in ("e", "E"):
        # The exponent of a zero depends on the precision in `decimal`.
        value = decimal if decimal else 0.0
        return _pad_exponent(format(value, f".{6 if precision is None else precision}{verb}"))
    if precision is not None:
        return format(float(decimal), f".{precision}{verb}")
    # Without a precision, as few digits as possible.
    normalized = decimal.normalize(_EXACT)
    exponent = normalized.adjusted()
    if number != 0 and not -5 < exponent < max(_SHORTEST_PRECISION, 0):
        count = len(normalized.as_tuple().digits) - 1
        return _pad_exponent(format(normalized, f".{count}{'e' if verb == 'g' else 'E'}"))
    return format_number(number)


def _pad_exponent(text: str) -> str:
    """Return the text with an exponent of at least two digits."""
    head, letter, exponent = text.partition("e" if "e" in text else "E")
    return f"{head}{letter}{exponent[0]}{exponent[1:].rjust(2, '0')}"


def _add_sign(digits: str, flags: str, *, is_negative: bool) -> str:
    sign = "-" if is_negative else "+" if "+" in flags else " " if " " in flags else ""
    return sign + digits


def _pad(text: str, flags: str, width: int, *, is_number: bool) -> str:
    missing = width - count_graphemes(text)
    if missing <= 0:
        return text
    if "-" in flags:
        return text + " " * missing
    if "0" in flags and is_number:
        sign = text[0] if text[:1] in "+- " else ""
        return sign + "0" * missing + text[len(sign) :]
    return " " * missing + text


def _format_list(context: CallContext, template: str, *arguments: Value) -> Value:
    lists: list[tuple[int, Sequence[Value]]] = [
        (position, argument.items) for position, argument in enumerate(arguments, 1) if isinstance(argument, SEQUENCES)
    ]
    lengths = {len(items) for _, items in lists}
    if len(lengths) > 1:
        first = len(lists[0][1])
        position, items = next((p, i) for p, i in lists if len(i) != first)
        raise FunctionError(
            f"the lists have {first} and {len(items)} items", argument=position, fix="give lists of one length"
        )
    count = lengths.pop() if lengths else 1
    texts = [
        format_text(
            context, template, *[value.items[number] if isinstance(value, SEQUENCES) else value for value in arguments]
        )
        for number in range(count)
    ]
    return HclList(tuple(texts), STRING)


FUNCTIONS: Final[Mapping[str, FunctionSpec]] = dict(
    (
        define_function("format", "format:text arguments...!:any", format_text),
        define_function("formatlist", "format:text arguments...!:any", _format_list),
    )
)
