"""Parsing of query parameters: those that every read takes, and those that an endpoint declares."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

import msgspec

from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.times import DurationError, parse_duration_ns
from wharf.contract.wire.endpoint_table import Endpoint, Parameter, ParameterKind

DEFAULT_WAIT_S: Final = 300.0
MAX_WAIT_S: Final = 600.0
MAX_INDEX: Final = 2**64 - 1
MAX_INTEGER: Final = 2**63 - 1
MAX_PER_PAGE: Final = 2**31 - 1
MAX_DIGITS: Final = 40  # Allows leading zeros, and limits the work of parsing a number.
MAX_PARAMETERS: Final = 1_000
"""Parameters of one query, with repeated ones. Protects the event loop: a query of 64 kB can have 64,000, and parsing these takes
up to 50 ms."""
INTEGER_PATTERN: Final = re.compile(r"[+-]?[0-9]{1,40}")
BAD_ESCAPE_PATTERN: Final = re.compile(rb"%(?![0-9a-fA-F]{2})")
TRUE_WORDS: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
FALSE_WORDS: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))

ParameterValue = str | bool | int | tuple[str, ...]


class QueryOptions(msgspec.Struct, frozen=True, gc=False):
    """The query parameters that every read accepts."""

    index: int = 0
    """The read waits for a log index above this one; 0 returns at once."""
    wait_s: float = DEFAULT_WAIT_S
    """How long a blocking query waits."""
    is_stale_allowed: bool = False
    """Whether the read may skip the log barrier and so return slightly old data."""
    namespace: str = "default"
    prefix: str = ""
    """Lists contain only records whose id or name begins with it."""
    is_reversed: bool = False
    per_page: int = 0
    """Records in one page; 0 returns all."""
    next_token: str = ""
    """Names the first record of the requested page; empty means the first page."""
    filter: str = ""
    """A filter expression; empty selects all records."""


DEFAULT_QUERY_OPTIONS: Final = QueryOptions()


def parse_query_pairs(query_string: bytes) -> list[tuple[str, str]]:
    """Return the decoded name-value pairs of a query string in order.

    Pairs that cannot be decoded or have no name are omitted, and those after the first `MAX_PARAMETERS`.
    """
    parts = query_string.split(b"&", MAX_PARAMETERS)[:MAX_PARAMETERS]
    return [pair for pair in map(_decode_pair, parts) if pair is not None and pair[0]]


def parse_query(query_string: bytes) -> dict[str, str]:
    """Return the first value of each query parameter by name. Pairs that cannot be decoded are omitted."""
    query: dict[str, str] = {}
    for name, value in parse_query_pairs(query_string):
        query.setdefault(name, value)
    return query


def parse_query_strict(query_string: bytes, endpoint: Endpoint) -> dict[str, str]:
    """Return the value of each query parameter by name; the first one of parameters that accept several.

    Raises `Refusal` for a pair that cannot be decoded, for a parameter with two different values, and for more than
    `MAX_PARAMETERS`. Ignoring a pair could drop the filter of a list or the condition of a write.
    """
    query: dict[str, str] = {}
    if not query_string:
        return query
    count = query_string.count(b"&") + 1
    if count > MAX_PARAMETERS:
        raise invalid_request(f"the query has {count} parameters: at most {MAX_PARAMETERS} are allowed")
    for part in query_string.split(b"&"):
        pair = _decode_pair(part)
        if pair is None:
            wrong = part[:100].decode("latin-1")
            raise invalid_request(f"the query holds {wrong}, which cannot be decoded: escape it as UTF-8")
        if pair[0] and query.setdefault(*pair) != pair[1] and not _accepts_several_values(endpoint, pair[0]):
            name, first, second = (cut_echo(text) for text in (pair[0], query[pair[0]], pair[1]))
            raise invalid_request(
                f'conflicting parameters: {name} has the values "{first}" and "{second}"; send it once'
            )
    return query


def check_filter_is_supported(query: Mapping[str, str], endpoint: Endpoint) -> None:
    """Raise `Refusal` for a filter that the endpoint would ignore: the reply would have records that the caller excluded."""
    if endpoint.method != "GET" or not query.get("filter"):
        return
    if endpoint.list_features is None or not endpoint.list_features.can_filter:
        raise invalid_request(
            f"`filter` is not supported by {endpoint.path}, which would return all records: select records of the reply, "
            "or read a list that supports filters; GET /v1/openapi.json has the parameters of each"
        )


def _accepts_several_values(endpoint: Endpoint, name: str) -> bool:
    """Return whether a query of the endpoint may contain the parameter several times."""
    return any(each.name == name and each.kind is ParameterKind.TEXTS for each in endpoint.parameters)


def _decode_pair(part: bytes) -> tuple[str, str] | None:
    """Return the decoded name and value, or `None` if they are not valid UTF-8 or hold a semicolon."""
    if b";" in part:
        return None
    name, _, value = part.partition(b"=")
    decoded_name, decoded_value = _decode_text(name), _decode_text(value)
    return None if decoded_name is None or decoded_value is None else (decoded_name, decoded_value)


def _decode_text(text: bytes) -> str | None:
    """Return the percent-decoded text, or `None` if an escape is malformed or the bytes are not UTF-8."""
    if BAD_ESCAPE_PATTERN.search(text):
        return None
    try:
        return unquote_to_bytes(text.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        return None


def parse_query_options(query: Mapping[str, str], *, is_nomad_compatible: bool = False) -> QueryOptions:
    """Return the options of a query. Raises `Refusal` for an invalid value. For `is_nomad_compatible` see 0068.

    The parameters are parsed in Nomad's order, so that of several invalid ones the same is reported as by Nomad.
    """
    if not query:
        return DEFAULT_QUERY_OPTIONS
    return QueryOptions(
        is_stale_allowed=_parse_stale(query),
        prefix=query.get("prefix", ""),
        namespace=query.get("namespace") or "default",
        per_page=_parse_per_page(query, is_nomad_compatible=is_nomad_compatible),
        next_token=unquote(query.get("next_token", "")),  # The reply header escapes the token.
        filter=query.get("filter", ""),
        is_reversed=query.get("reverse") == "true",
        wait_s=_parse_wait_s(query),
        index=_parse_index(query),
    )


def _parse_stale(query: Mapping[str, str]) -> bool:
    """Return whether the query allows stale data: `stale` without a value or with a true word. Raises `Refusal`."""
    text = query.get("stale")
    if text is None:
        return False
    if text == "" or text in TRUE_WORDS:
        return True
    if text in FALSE_WORDS:
        return False
    raise invalid_request("Expect `true` or `false` for `stale` query string parameter")


def _parse_per_page(query: Mapping[str, str], *, is_nomad_compatible: bool) -> int:
    """Return the page size; 0 means no limit. Raises `Refusal` if it is not a number from 1 to 2**31 - 1.

    As Nomad does, compatible servers also accept 0, and negative numbers, which select an empty page.
    """
    text = query.get("per_page", "")
    if text == "":
        return 0
    if not INTEGER_PATTERN.fullmatch(text) or not -MAX_PER_PAGE - 1 <= int(text) <= MAX_PER_PAGE:
        raise invalid_request("Expect a number for `per_page` query string parameter")
    if int(text) < 1 and not is_nomad_compatible:
        raise invalid_request(
            f'Expect a number from 1 for `per_page` query string parameter, given "{text}"; leave it out to get all records'
        )
    return int(text)


def _parse_wait_s(query: Mapping[str, str]) -> float:
    """Return the wait time of a blocking query in seconds: `wait`, capped at `MAX_WAIT_S`. Raises `Refusal`.

    A missing, zero or negative `wait` selects the default.
    """
    text = query.get("wait")
    if not text:
        return DEFAULT_WAIT_S
    try:
        wait_s = parse_duration_ns(text) / 1_000_000_000
    except DurationError:
        raise invalid_request("Invalid wait time") from None
    return min(wait_s, MAX_WAIT_S) if wait_s > 0 else DEFAULT_WAIT_S


def _parse_index(query: Mapping[str, str]) -> int:
    """Return the log index of the query; 0 if it is missing.

    Raises `Refusal` if it is not an unsigned 64-bit number.
    """
    text = query.get("index", "")
    if text == "":
        return 0
    if len(text) > MAX_DIGITS or not (text.isascii() and text.isdigit()) or int(text) > MAX_INDEX:
        raise invalid_request("Invalid index")
    return int(text)


def is_pretty(query: Mapping[str, str]) -> bool:
    return query.get("pretty", "0") != "0"


# -- endpoint parameters ------------------------------------------------------------------------------------------


def parse_endpoint_parameters(
    endpoint: Endpoint, query: Mapping[str, str], query_string: bytes
) -> Mapping[str, ParameterValue]:
    """Return the values of the parameters that the endpoint declares and the query contains, by name.

    Raises `Refusal` for an invalid value, even if the handler does not use the parameter.
    """
    if not endpoint.parameters or not query:
        return NO_PARAMETERS
    values: dict[str, ParameterValue] = {}
    for parameter in endpoint.parameters:
        text = query.get(parameter.name, "")
        if parameter.kind is ParameterKind.TEXTS:
            values[parameter.name] = tuple(v for name, v in parse_query_pairs(query_string) if name == parameter.name)
        elif text != "":
            values[parameter.name] = _parse_value(parameter, text)
    return values


NO_PARAMETERS: Final[Mapping[str, ParameterValue]] = {}


def _parse_value(parameter: Parameter, text: str) -> ParameterValue:
    """Return the value of a declared parameter, converted to its declared type.

    Raises `Refusal` with Nomad's error text.
    """
    match parameter.kind:
        case ParameterKind.FLAG:
            if text in TRUE_WORDS:
                return True
            if text in FALSE_WORDS:
                return False
            raise _build_parse_refusal(parameter, text, "bool", "ParseBool", "invalid syntax")
        case ParameterKind.INTEGER:
            return _parse_integer(parameter, text, "int", "Atoi", min_value=-MAX_INTEGER - 1, max_value=MAX_INTEGER)
        case ParameterKind.UNSIGNED:
            return _parse_integer(parameter, text, "uint64", "ParseUint", min_value=0, max_value=MAX_INDEX)
        case ParameterKind.DURATION:
            try:
                return parse_duration_ns(text)
            except DurationError as error:
                raise invalid_request(
                    f'{parameter.refusal_prefix}Failed to parse value of "{parameter.name}" ({text}): {error}'
                ) from error
        case _:
            return text


def _parse_integer(
    parameter: Parameter, text: str, go_type_name: str, go_function_name: str, *, min_value: int, max_value: int
) -> int:
    """Return the integer that `text` holds. Raises `Refusal` if it is not a decimal integer or not in the range.

    The error text is that of Nomad: `go_type_name` and `go_function_name` are the Go type and the function of Go's
    `strconv` that it names.
    """
    has_sign = text[0] in "+-"
    if not INTEGER_PATTERN.fullmatch(text) or (min_value == 0 and has_sign):
        raise _build_parse_refusal(parameter, text, go_type_name, go_function_name, "invalid syntax")
    if not min_value <= int(text) <= max_value:
        raise _build_parse_refusal(parameter, text, go_type_name, go_function_name, "value out of range")
    return int(text)


def _build_parse_refusal(
    parameter: Parameter, text: str, go_type_name: str, go_function_name: str, reason: str
) -> Exception:
    """Return the refusal of a parameter value, in the words of Go's `strconv`, which existing clients expect."""
    return invalid_request(
        f'{parameter.refusal_prefix}Failed to parse value of "{parameter.name}" ({text}) as a {go_type_name}: '
        f'strconv.{go_function_name}: parsing "{text}": {reason}'
    )
