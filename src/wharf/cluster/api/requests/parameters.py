"""The query of a request: its pairs, the parameters of every read, and those that an endpoint declares of its own."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

import msgspec

from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.endpoint_table import Endpoint, Parameter, ParameterKind
from wharf.contract.wire.times import DurationError, parse_duration_ns

DEFAULT_WAIT_S: Final = 300.0
MAX_WAIT_S: Final = 600.0
MAX_INDEX: Final = 2**64 - 1
MAX_INTEGER: Final = 2**63 - 1
MAX_PER_PAGE: Final = 2**31 - 1
MAX_DIGITS: Final = 40  # Zeros may stand in front; an endless number is not worth reading.
INTEGER_PATTERN: Final = re.compile(r"[+-]?[0-9]{1,40}")
BAD_ESCAPE_PATTERN: Final = re.compile(rb"%(?![0-9a-fA-F]{2})")
TRUE_WORDS: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
FALSE_WORDS: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))

ParameterValue = str | bool | int | tuple[str, ...]


class QueryOptions(msgspec.Struct, frozen=True, gc=False):
    """The parameters that every read takes. `index` 0: answer at once; `per_page` 0: everything on one page."""

    index: int = 0
    wait_s: float = DEFAULT_WAIT_S
    is_stale_allowed: bool = False
    namespace: str = "default"
    prefix: str = ""
    is_reversed: bool = False
    per_page: int = 0
    next_token: str = ""
    filter: str = ""


DEFAULT_QUERY_OPTIONS: Final = QueryOptions()


def parse_query_pairs(query_string: bytes) -> list[tuple[str, str]]:
    """All pairs in order; one that cannot be decoded is dropped."""
    return [pair for pair in map(_pair, query_string.split(b"&")) if pair is not None and pair[0]]


def parse_query(query_string: bytes) -> dict[str, str]:
    """The first value of each parameter; pairs that cannot be decoded are dropped."""
    query: dict[str, str] = {}
    for name, value in parse_query_pairs(query_string):
        query.setdefault(name, value)
    return query


def parse_query_strict(query_string: bytes) -> dict[str, str]:
    """The first value of each parameter. Raises Refusal for a pair that cannot be decoded: passed over, a filter would
    filter nothing, and a condition of a write would not bind it."""
    query: dict[str, str] = {}
    if not query_string:
        return query
    for part in query_string.split(b"&"):
        pair = _pair(part)
        if pair is None:
            wrong = part[:100].decode("latin-1")
            raise invalid_request(f"the query holds {wrong}, which cannot be decoded: escape it as UTF-8")
        if pair[0]:
            query.setdefault(*pair)
    return query


def _pair(part: bytes) -> tuple[str, str] | None:
    if b";" in part:
        return None
    name, _, value = part.partition(b"=")
    decoded_name, decoded_value = _decoded(name), _decoded(value)
    return None if decoded_name is None or decoded_value is None else (decoded_name, decoded_value)


def _decoded(text: bytes) -> str | None:
    if BAD_ESCAPE_PATTERN.search(text):
        return None
    try:
        return unquote_to_bytes(text.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        return None


def parse_query_options(query: Mapping[str, str]) -> QueryOptions:
    """In the order of the reference: the first wrong parameter is the one that is told."""
    if not query:
        return DEFAULT_QUERY_OPTIONS
    return QueryOptions(
        is_stale_allowed=_stale(query),
        prefix=query.get("prefix", ""),
        namespace=query.get("namespace") or "default",
        per_page=_per_page(query),
        next_token=unquote(query.get("next_token", "")),  # As it was escaped for its header.
        filter=query.get("filter", ""),
        is_reversed=query.get("reverse") == "true",
        wait_s=_wait_s(query),
        index=_index(query),
    )


def _stale(query: Mapping[str, str]) -> bool:
    given = query.get("stale")
    if given is None:
        return False
    if given == "" or given in TRUE_WORDS:
        return True
    if given in FALSE_WORDS:
        return False
    raise invalid_request("Expect `true` or `false` for `stale` query string parameter")


def _per_page(query: Mapping[str, str]) -> int:
    given = query.get("per_page", "")
    if given == "":
        return 0
    # A positive integer, says the specification; 0 stays what it is to existing clients: no limit.
    if not INTEGER_PATTERN.fullmatch(given) or not 0 <= int(given) <= MAX_PER_PAGE:
        raise invalid_request("Expect a number for `per_page` query string parameter")
    return int(given)


def _wait_s(query: Mapping[str, str]) -> float:
    given = query.get("wait")
    if not given:
        return DEFAULT_WAIT_S
    try:
        wait_s = parse_duration_ns(given) / 1_000_000_000
    except DurationError:
        raise invalid_request("Invalid wait time") from None
    return min(wait_s, MAX_WAIT_S) if wait_s > 0 else DEFAULT_WAIT_S


def _index(query: Mapping[str, str]) -> int:
    given = query.get("index", "")
    if given == "":
        return 0
    if len(given) > MAX_DIGITS or not (given.isascii() and given.isdigit()) or int(given) > MAX_INDEX:
        raise invalid_request("Invalid index")
    return int(given)


def is_pretty(query: Mapping[str, str]) -> bool:
    return query.get("pretty", "0") != "0"


# -- an endpoint's own ---------------------------------------------------------------------------------------------


def parse_endpoint_parameters(
    endpoint: Endpoint, query: Mapping[str, str], query_string: bytes
) -> Mapping[str, ParameterValue]:
    """Those that were given, by name. What is declared is read even if the handler never asks for it."""
    if not endpoint.parameters or not query:
        return NO_PARAMETERS
    values: dict[str, ParameterValue] = {}
    for parameter in endpoint.parameters:
        given = query.get(parameter.name, "")
        if parameter.kind is ParameterKind.TEXTS:
            values[parameter.name] = tuple(v for name, v in parse_query_pairs(query_string) if name == parameter.name)
        elif given != "":
            values[parameter.name] = _value(parameter, given)
    return values


NO_PARAMETERS: Final[Mapping[str, ParameterValue]] = {}


def _value(parameter: Parameter, given: str) -> ParameterValue:
    match parameter.kind:
        case ParameterKind.FLAG:
            if given in TRUE_WORDS:
                return True
            if given in FALSE_WORDS:
                return False
            raise _bad(parameter, given, "bool", "ParseBool", "invalid syntax")
        case ParameterKind.INTEGER:
            return _whole(parameter, given, "int", "Atoi", least=-MAX_INTEGER - 1, most=MAX_INTEGER)
        case ParameterKind.UNSIGNED:
            return _whole(parameter, given, "uint64", "ParseUint", least=0, most=MAX_INDEX)
        case ParameterKind.DURATION:
            try:
                return parse_duration_ns(given)
            except DurationError as error:
                raise invalid_request(
                    f'{parameter.refusal_prefix}Failed to parse value of "{parameter.name}" ({given}): {error}'
                ) from error
        case _:
            return given


def _whole(parameter: Parameter, given: str, kind: str, reader: str, *, least: int, most: int) -> int:
    has_sign = given[0] in "+-"
    if not INTEGER_PATTERN.fullmatch(given) or (least == 0 and has_sign):
        raise _bad(parameter, given, kind, reader, "invalid syntax")
    if not least <= int(given) <= most:
        raise _bad(parameter, given, kind, reader, "value out of range")
    return int(given)


def _bad(parameter: Parameter, given: str, kind: str, reader: str, why: str) -> Exception:
    return invalid_request(
        f'{parameter.refusal_prefix}Failed to parse value of "{parameter.name}" ({given}) as a {kind}: '
        f'strconv.{reader}: parsing "{given}": {why}'
    )
