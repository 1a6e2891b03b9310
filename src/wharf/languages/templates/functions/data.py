"""Functions that read and write the usual forms of data, and digests."""

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

# Aliases let a few lines of YAML stand for more than any memory holds.
MAX_YAML_VALUES: Final = 1_000_000
MAX_YAML_DEPTH: Final = 200


def _text(value: Any) -> str:
    return "" if value is None else format_value(value)


def _read_json(text: Any) -> Any:
    try:
        return msgspec.json.decode(_text(text) or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise EvaluationError(f"parseJSON cannot read this: {str(error)[:200]}") from None


def _read_yaml(text: Any) -> Any:
    from ruamel.yaml import YAML  # Heavy, and rarely asked for.
    from ruamel.yaml.error import YAMLError

    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 2)  # In which `on` and `no` are words.
    try:
        return _plain(reader.load(_text(text)), _Budget(), 0)
    except (YAMLError, ValueError, RecursionError) as error:
        raise EvaluationError(f"parseYAML cannot read this: {' '.join(str(error).split())[:200]}") from None


class _Budget:
    def __init__(self) -> None:
        self.left = MAX_YAML_VALUES


def _plain(value: Any, budget: _Budget, depth: int) -> Any:
    budget.left -= 1
    if budget.left < 0 or depth > MAX_YAML_DEPTH:
        raise EvaluationError(f"parseYAML reads at most {MAX_YAML_VALUES:,} values, {MAX_YAML_DEPTH} deep")
    match value:
        case dict():
            return {
                format_value(_plain(key, budget, depth + 1)): _plain(one, budget, depth + 1)
                for key, one in value.items()
            }
        case list() | tuple() | set():
            return [_plain(one, budget, depth + 1) for one in value]
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return value.isoformat() if hasattr(value, "isoformat") else str(value)


def write_json(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _write_json_pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2).decode()


def _write_yaml(value: Any) -> str:
    from io import StringIO

    from ruamel.yaml import YAML

    writer, made = YAML(typ="safe", pure=True), StringIO()
    writer.default_flow_style = False
    writer.dump(msgspec.to_builtins(value), made)
    return made.getvalue().removesuffix("\n...\n").removesuffix("\n")


def _from_base64(decode: Callable[[bytes], bytes]) -> Callable[[Any], str]:
    def read(text: Any) -> str:
        try:
            return decode(_text(text).encode()).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise EvaluationError("this is no text in base64") from None

    return read


def _decode_url(data: bytes) -> bytes:
    return base64.b64decode(data + b"=" * (-len(data) % 4), altchars=b"-_", validate=True)


def _read_truth(text: Any) -> bool:
    match _text(text):
        case "1" | "t" | "T" | "true" | "TRUE" | "True":
            return True
        case "0" | "f" | "F" | "false" | "FALSE" | "False":
            return False
        case other:
            raise EvaluationError(f"{other[:40]!r} is neither true nor false")


def _explode_map(flat: Any) -> dict[str, Any]:
    """`{"a/b": 1}` is `{"a": {"b": 1}}`."""
    if not isinstance(flat, dict):
        raise EvaluationError("explodeMap takes a map")
    deep: dict[str, Any] = {}
    for path, value in sorted(flat.items()):
        *folders, name = path.split("/")
        inner = deep
        for folder in folders:
            inner = inner.setdefault(folder, {})
            if not isinstance(inner, dict):
                raise EvaluationError(f"{path} lies under a value")
        inner[name] = value
    return deep


def _keyed(key: Any, text: Any) -> str:
    return hmac.new(_text(key).encode(), _text(text).encode(), hashlib.sha256).hexdigest()


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], Arity]]] = {
    "json": (write_json, Arity(1, 1)),
    "toJSON": (write_json, Arity(1, 1)),
    "toJSONPretty": (_write_json_pretty, Arity(1, 1)),
    "toUnescapedJSON": (write_json, Arity(1, 1)),
    "toUnescapedJSONPretty": (_write_json_pretty, Arity(1, 1)),
    "toYAML": (_write_yaml, Arity(1, 1)),
    "parseJSON": (_read_json, Arity(1, 1)),
    "parseYAML": (_read_yaml, Arity(1, 1)),
    "parseBool": (_read_truth, Arity(1, 1)),
    "explodeMap": (_explode_map, Arity(1, 1)),
    "base64Encode": (lambda text: base64.b64encode(_text(text).encode()).decode(), Arity(1, 1)),
    "base64Decode": (_from_base64(lambda data: base64.b64decode(data, validate=True)), Arity(1, 1)),
    "base64URLEncode": (lambda text: base64.urlsafe_b64encode(_text(text).encode()).decode(), Arity(1, 1)),
    "base64URLDecode": (_from_base64(_decode_url), Arity(1, 1)),
    "sha256Hex": (lambda text: hashlib.sha256(_text(text).encode()).hexdigest(), Arity(1, 1)),
    "sha1sum": (lambda text: hashlib.sha1(_text(text).encode(), usedforsecurity=False).hexdigest(), Arity(1, 1)),
    "md5sum": (lambda text: hashlib.md5(_text(text).encode(), usedforsecurity=False).hexdigest(), Arity(1, 1)),
    "hmacSHA256Hex": (_keyed, Arity(2, 2)),
}
