"""A request as handlers see it: where it goes, what it asks for, its body; and the reading of its parameters."""

from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import unquote_plus

import msgspec

from wharf.model.reading import ReadError, read
from wharf.model.refusal import Code, Refusal, invalid
from wharf.wire.endpoints import Endpoint
from wharf.wire.go_duration import DurationError, parse_duration_ns

T = TypeVar("T")

WAIT_DEFAULT_S: Final = 300.0
WAIT_MAX_S: Final = 600.0
INDEX_MAX: Final = 2**64 - 1
TRUE_WORDS: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
FALSE_WORDS: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))


class ReadOptions(msgspec.Struct, frozen=True, gc=False):
    """The parameters that every read takes. `index` 0: answer at once."""

    index: int = 0
    wait_s: float = WAIT_DEFAULT_S
    stale: bool = False
    namespace: str = "default"
    prefix: str = ""
    reverse: bool = False


class Request(msgspec.Struct, frozen=True):
    id: str
    endpoint: Endpoint
    path_values: dict[str, str]
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes

    @property
    def namespace(self) -> str:
        return self.query.get("namespace") or "default"

    def value(self, name: str) -> str:
        return self.path_values[name]

    def read_body(self, kind: type[T]) -> T:
        """The body as declared; what is wrong with it is told with its place."""
        if not self.body:
            raise invalid("Request body is empty")
        try:
            return read(kind, self.body).value
        except ReadError as error:
            raise invalid(str(error)) from error


def parse_query(query_string: bytes) -> dict[str, str]:
    """The first value of each parameter; a pair that cannot be decoded is dropped."""
    query: dict[str, str] = {}
    for pair in query_string.decode("latin-1").split("&"):
        name, _, value = pair.partition("=")
        if not name or ";" in pair:
            continue
        try:
            query.setdefault(unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict"))
        except UnicodeDecodeError:
            continue
    return query


def read_options(query: Mapping[str, str]) -> ReadOptions:
    """In the order of the reference: the first wrong parameter is the one that is told."""
    if not query:
        return NO_OPTIONS
    return ReadOptions(
        stale=_stale(query),
        prefix=query.get("prefix", ""),
        namespace=query.get("namespace") or "default",
        reverse=query.get("reverse") == "true",
        wait_s=_wait_s(query),
        index=_index(query),
    )


NO_OPTIONS: Final = ReadOptions()


def _stale(query: Mapping[str, str]) -> bool:
    given = query.get("stale")
    if given is None:
        return False
    if given == "" or given in TRUE_WORDS:
        return True
    if given in FALSE_WORDS:
        return False
    raise invalid("Expect `true` or `false` for `stale` query string parameter")


def _wait_s(query: Mapping[str, str]) -> float:
    given = query.get("wait")
    if given is None:
        return WAIT_DEFAULT_S
    try:
        wait_s = parse_duration_ns(given) / 1_000_000_000
    except DurationError:
        raise invalid("Invalid wait time") from None
    return min(wait_s, WAIT_MAX_S) if wait_s > 0 else WAIT_DEFAULT_S


def _index(query: Mapping[str, str]) -> int:
    given = query.get("index", "")
    if given == "":
        return 0
    if not (given.isascii() and given.isdigit()) or int(given) > INDEX_MAX:
        raise invalid("Invalid index")
    return int(given)


def body_too_large(limit_bytes: int) -> Refusal:
    return Refusal(Code.TOO_LARGE, f"the request's body is larger than {limit_bytes} bytes")
