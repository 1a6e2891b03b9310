"""Functions that encode and decode: base64, URLs, JSON and CSV."""

import base64
import binascii
import csv
import io
import json
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final, NoReturn
from urllib.parse import quote_plus

from wharf.languages.hcl.budget import MAX_VALUE_DEPTH, Budget
from wharf.languages.hcl.calls import CallContext, FunctionError, FunctionSpec, define_function
from wharf.languages.hcl.numerals import NumberError, format_number, parse_number
from wharf.languages.hcl.values import (
    STRING,
    HclList,
    HclObject,
    HclSet,
    HclTuple,
    ObjectType,
    Value,
    measure_value,
    normalize_text,
)

_JSON_ESCAPES: Final = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
_JSON_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def encode_json(value: Value, budget: Budget) -> str:
    """Return the value as compact JSON with sorted keys. `<`, `>` and `&` are escaped, as in HTML."""
    budget.use_steps(measure_value(value) >> 2)
    budget.use_bytes(measure_value(value))
    pieces: list[str] = []
    _append_json(value, pieces)
    return "".join(pieces)


def _append_json(value: Value, pieces: list[str]) -> None:
    """Append the pieces of a value. The depth of values is limited, and so is the recursion."""
    match value:
        case None:
            pieces.append("null")
        case bool():
            pieces.append("true" if value else "false")
        case str():
            pieces.append(json.dumps(value, ensure_ascii=False).translate(_JSON_ESCAPES))
        case int() | Fraction():
            pieces.append(format_number(value))
        case HclTuple() | HclList() | HclSet():
            pieces.append("[")
            for number, item in enumerate(value.items):
                if number:
                    pieces.append(",")
                _append_json(item, pieces)
            pieces.append("]")
        case _:
            pieces.append("{")
            for number, key in enumerate(sorted(value.entries)):
                pieces.append("," if number else "")
                _append_json(key, pieces)
                pieces.append(":")
                _append_json(value.entries[key], pieces)
            pieces.append("}")


def _decode_json(context: CallContext, text: str) -> Value:
    _check_json_depth(text)
    context.budget.use_steps(len(text) >> 1)
    context.budget.use_bytes(4 * len(text))
    try:
        document = json.loads(text, parse_int=parse_number, parse_float=parse_number, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise FunctionError(f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}", argument=0) from None
    except NumberError as error:
        raise FunctionError(str(error), argument=0) from None
    return _from_json(document)


def _check_json_depth(text: str) -> None:
    """Raise `FunctionError` if lists and objects nest too deeply for the decoder."""
    depth = 0
    for match in _JSON_BRACKET.finditer(text):
        character = match[0]
        if character in ("[", "{"):
            depth += 1
            if depth >= MAX_VALUE_DEPTH:
                raise FunctionError(f"nested more than {MAX_VALUE_DEPTH} deep", argument=0)
        elif character in ("]", "}"):
            depth -= 1


def _refuse_constant(name: str) -> NoReturn:
    raise FunctionError(f"{name} is not JSON", argument=0)


def _from_json(document: Any) -> Value:
    """Return the value of a decoded document."""
    if isinstance(document, str):
        if _SURROGATE.search(document):
            document = document.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return normalize_text(document)
    if isinstance(document, list):
        return HclTuple(tuple([_from_json(item) for item in document]))
    if isinstance(document, dict):
        return HclObject({str(_from_json(key)): _from_json(item) for key, item in document.items()})
    number_or_constant: Value = document
    return number_or_constant


def _encode_base64(_: CallContext, text: str) -> Value:
    return base64.b64encode(text.encode()).decode()


def _decode_base64(_: CallContext, text: str) -> Value:
    try:
        data = base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise FunctionError("the text is not base64", argument=0) from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FunctionError("the decoded bytes are not UTF-8", argument=0) from None


def _encode_url(context: CallContext, text: str) -> Value:
    context.budget.use_bytes(3 * len(text))
    return quote_plus(text, safe="~-_.")


def _decode_csv(context: CallContext, text: str) -> Value:
    context.budget.use_steps(len(text) >> 2)
    context.budget.use_bytes(4 * len(text))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names: list[str] | None = None
    rows: list[Value] = []
    try:
        for row in reader:
            if not row:
                continue
            if names is None:
                names = row
                if len(set(names)) < len(names):
                    repeated = next(name for name in names if names.count(name) > 1)
                    raise FunctionError(f'the column "{repeated[:80]}" occurs twice', argument=0)
                continue
            if len(row) != len(names):
                raise FunctionError(
                    f"line {reader.line_num} has {len(row)} values, and the first has {len(names)}", argument=0
                )
            context.budget.use_bytes(16 * len(row))
            rows.append(HclObject(dict(zip(names, row, strict=True))))
    except csv.Error as error:
        raise FunctionError(f"not CSV at line {reader.line_num}: {error}", argument=0) from None
    if names is None:
        raise FunctionError("the text has no line with the names of the columns", argument=0)
    return HclList(tuple(rows), ObjectType(dict.fromkeys(names, STRING)))


FUNCTIONS: Final[Mapping[str, FunctionSpec]] = dict(
    (
        define_function("base64encode", "s:text", _encode_base64),
        define_function("base64decode", "s:text", _decode_base64),
        define_function("urlencode", "s:text", _encode_url),
        define_function("jsonencode", "value!:any", lambda context, value: encode_json(value, context.budget)),
        define_function("jsondecode", "s:text", _decode_json),
        define_function("csvdecode", "s:text", _decode_csv),
    )
)
