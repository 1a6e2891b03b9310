"""Template functions for data formats (JSON, YAML, base64) and digests."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from wharf.languages.templates.errors import EvaluationError
from wharf.languages.templates.parser import Arity
from wharf.languages.templates.values import format_value

MAX_YAML_VALUES: Final = 1_000_000
"""The number of values in a YAML document. With aliases a few lines could otherwise expand beyond the memory."""
MAX_YAML_DEPTH: Final = 200
"""How deep a YAML document may nest: limits the stack."""


def _to_text(value: Any) -> str:
    return "" if value is None else format_value(value)


def _parse_json(text: Any) -> Any:
    try:
        return msgspec.json.decode(_to_text(text) or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise EvaluationError(f"parseJSON cannot read this: {str(error)[:200]}") from None


def _parse_yaml(text: Any) -> Any:
    """Parse YAML 1.2, in which `on` and `no` are texts. Raises `EvaluationError`."""
    from ruamel.yaml import YAML  # Slow to import, and rarely used.
    from ruamel.yaml.error import YAMLError

    parser = YAML(typ="safe", pure=True)
    parser.version = (1, 2)
    try:
        return _convert_yaml_value(parser.load(_to_text(text)), _DecodedDataBudget(), 0)
    except (YAMLError, ValueError, RecursionError) as error:
        raise EvaluationError(f"parseYAML cannot read this: {' '.join(str(error).split())[:200]}") from None


class _DecodedDataBudget:
    """How many more values of a YAML document may be converted."""

    def __init__(self) -> None:
        self.remaining = MAX_YAML_VALUES


def _convert_yaml_value(value: Any, budget: _DecodedDataBudget, depth: int) -> Any:
    """Convert a value of a YAML document to one of a template. Raises `EvaluationError` beyond the limits."""
    budget.remaining -= 1
    if budget.remaining < 0 or depth > MAX_YAML_DEPTH:
        raise EvaluationError(f"parseYAML reads at most {MAX_YAML_VALUES:,} values, {MAX_YAML_DEPTH} deep")
    match value:
        case dict():
            return {
                format_value(_convert_yaml_value(key, budget, depth + 1)): _convert_yaml_value(item, budget, depth + 1)
                for key, item in value.items()
            }
        case list() | tuple() | set():
            return [_convert_yaml_value(item, budget, depth + 1) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return value.isoformat() if hasattr(value, "isoformat") else str(value)


def write_json(value: Any) -> str:
    """Return a value as JSON on one line, with sorted keys."""
    return msgspec.json.encode(value, order="sorted").decode()


def _write_json_pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2).decode()


def _write_yaml(value: Any) -> str:
    """Return a value as YAML, without a trailing newline."""
    from io import StringIO

    from ruamel.yaml import YAML

    dumper, output = YAML(typ="safe", pure=True), StringIO()
    dumper.default_flow_style = False
    dumper.dump(msgspec.to_builtins(value), output)
    return output.getvalue().removesuffix("\n...\n").removesuffix("\n")


def _make_base64_decoder(decode: Callable[[bytes], bytes]) -> Callable[[Any], str]:
    """Return a function that decodes base64 with `decode`. It raises `EvaluationError` for invalid input."""

    def decode_text(text: Any) -> str:
        """Return the decoded text. Raises `EvaluationError` if the input is not base64, or not of UTF-8 text."""
        try:
            return decode(_to_text(text).encode()).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise EvaluationError("this is not valid base64") from None

    return decode_text


def _decode_base64_url(data: bytes) -> bytes:
    """Decode base64 with the URL alphabet; padding is optional."""
    return base64.b64decode(data + b"=" * (-len(data) % 4), altchars=b"-_", validate=True)


def _parse_boolean(text: Any) -> bool:
    """Return the boolean that a text stands for. Raises `EvaluationError`."""
    match _to_text(text):
        case "1" | "t" | "T" | "true" | "TRUE" | "True":
            return True
        case "0" | "f" | "F" | "false" | "FALSE" | "False":
            return False
        case other:
            raise EvaluationError(f"{other[:40]!r} is neither true nor false")


def _explode_map(flat_map: Any) -> dict[str, Any]:
    """Return a nested map for a map whose keys have slashes: `{"a": {"b": 1}}` for `{"a/b": 1}`."""
    if not isinstance(flat_map, dict):
        raise EvaluationError("explodeMap takes a map")
    nested_map: dict[str, Any] = {}
    for path, value in sorted(flat_map.items()):
        *parent_keys, name = path.split("/")
        parent = nested_map
        for parent_key in parent_keys:
            parent = parent.setdefault(parent_key, {})
            if not isinstance(parent, dict):
                raise EvaluationError(f"explodeMap: a key above {path} has a value of its own")
        parent[name] = value
    return nested_map


def _sign_hmac(key: Any, text: Any) -> str:
    return hmac.new(_to_text(key).encode(), _to_text(text).encode(), hashlib.sha256).hexdigest()


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], Arity]]] = {
    "json": (write_json, Arity(1, 1)),
    "toJSON": (write_json, Arity(1, 1)),
    "toJSONPretty": (_write_json_pretty, Arity(1, 1)),
    "toUnescapedJSON": (write_json, Arity(1, 1)),
    "toUnescapedJSONPretty": (_write_json_pretty, Arity(1, 1)),
    "toYAML": (_write_yaml, Arity(1, 1)),
    "parseJSON": (_parse_json, Arity(1, 1)),
    "parseYAML": (_parse_yaml, Arity(1, 1)),
    "parseBool": (_parse_boolean, Arity(1, 1)),
    "explodeMap": (_explode_map, Arity(1, 1)),
    "base64Encode": (lambda text: base64.b64encode(_to_text(text).encode()).decode(), Arity(1, 1)),
    "base64Decode": (_make_base64_decoder(lambda data: base64.b64decode(data, validate=True)), Arity(1, 1)),
    "base64URLEncode": (lambda text: base64.urlsafe_b64encode(_to_text(text).encode()).decode(), Arity(1, 1)),
    "base64URLDecode": (_make_base64_decoder(_decode_base64_url), Arity(1, 1)),
    "sha256Hex": (lambda text: hashlib.sha256(_to_text(text).encode()).hexdigest(), Arity(1, 1)),
    "sha1sum": (lambda text: hashlib.sha1(_to_text(text).encode(), usedforsecurity=False).hexdigest(), Arity(1, 1)),
    "md5sum": (lambda text: hashlib.md5(_to_text(text).encode(), usedforsecurity=False).hexdigest(), Arity(1, 1)),
    "hmacSHA256Hex": (_sign_hmac, Arity(2, 2)),
}
