"""A request as handlers see it: where it goes, what it asks for, its body; and the reading of its parameters."""

import re
from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from wharf.model.reading import ReadError, Reading, read
from wharf.model.refusal import Code, Refusal, invalid
from wharf.wire.endpoints import Endpoint
from wharf.wire.go_duration import DurationError, parse_duration_ns

T = TypeVar("T")

WAIT_DEFAULT_S: Final = 300.0
WAIT_MAX_S: Final = 600.0
INDEX_MAX: Final = 2**64 - 1
INDEX_DIGITS: Final = 40  # Zeros may stand in front; an endless number is not worth reading.
NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
BAD_ESCAPE: Final = re.compile(rb"%(?![0-9a-fA-F]{2})")
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
        return self.read_body_with_warnings(kind).value

    def read_body_with_warnings(self, kind: type[T]) -> Reading[T]:
        """The same, with the fields that nobody knows."""
        if not self.body:
            raise invalid("Request body is empty")
        body = b"{}" if self.body.strip() == b"null" else self.body  # An object with nothing set (conventions 1.4).
        try:
            return read(kind, body)
        except ReadError as error:
            raise invalid(str(error)) from error

    def flag(self, name: str) -> bool:
        """A yes or no among the parameters; not given is no."""
        given = self.query.get(name, "")
        if given in TRUE_WORDS:
            return True
        if given == "" or given in FALSE_WORDS:
            return False
        raise invalid(
            f'Failed to parse value of "{name}" ({given}) as a bool: strconv.ParseBool: parsing "{given}": invalid syntax'
        )

    def number(self, name: str) -> int:
        """A whole number among the parameters; not given is 0."""
        given = self.query.get(name, "")
        if given == "":
            return 0
        if not NUMBER.fullmatch(given):
            raise invalid(
                f'Failed to parse value of "{name}" ({given}) as a int: strconv.Atoi: parsing "{given}": invalid syntax'
            )
        return int(given)


def parse_query(query_string: bytes) -> dict[str, str]:
    """The first value of each parameter; a pair that cannot be decoded is dropped."""
    query: dict[str, str] = {}
    for pair in query_string.split(b"&"):
        name, _, value = pair.partition(b"=")
        if not name or b";" in pair:
            continue
        decoded_name, decoded_value = _decoded(name), _decoded(value)
        if decoded_name is not None and decoded_value is not None:
            query.setdefault(decoded_name, decoded_value)
    return query


def _decoded(text: bytes) -> str | None:
    if BAD_ESCAPE.search(text):
        return None
    try:
        return unquote_to_bytes(text.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        return None


def read_options(query: Mapping[str, str]) -> ReadOptions:
    """In the order of the reference: the first wrong parameter is the one that is told."""
    if not query:
        return NO_OPTIONS
    for name in NOT_YET:
        if query.get(name):
            raise Refusal(Code.NOT_OURS, f"`{name}` is not served yet: leave it out, and choose from the whole list")
    return ReadOptions(
        stale=_stale(query),
        prefix=query.get("prefix", ""),
        namespace=query.get("namespace") or "default",
        reverse=query.get("reverse") == "true",
        wait_s=_wait_s(query),
        index=_index(query),
    )


NO_OPTIONS: Final = ReadOptions()

NOT_YET: Final = ("filter", "per_page", "next_token")
"""To pass these over in silence would answer another question than the one that was asked."""


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
    if not given:
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
    if len(given) > INDEX_DIGITS or not (given.isascii() and given.isdigit()) or int(given) > INDEX_MAX:
        raise invalid("Invalid index")
    return int(given)


def body_too_large(limit_bytes: int) -> Refusal:
    return Refusal(Code.TOO_LARGE, f"the request's body is larger than {limit_bytes} bytes")
