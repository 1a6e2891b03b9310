"""A request as handlers see it: where it goes, who asks, what it asks for, its body."""

import re
from collections.abc import AsyncIterator, Mapping
from typing import Final, TypeVar

import msgspec

from wharf.access import UNCHECKED, Caller, refuse_without
from wharf.api.parameters import NO_PARAMETERS, ReadOptions, Value
from wharf.model.need import Need
from wharf.model.reading import ReadError, Reading, read
from wharf.model.refusal import invalid
from wharf.wire.endpoints import Endpoint

__all__ = ["NO_BODY", "ReadOptions", "Request"]

T = TypeVar("T")

NO_BODY: Final = b""
TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")


class Request(msgspec.Struct, frozen=True):
    id: str
    endpoint: Endpoint
    path_values: dict[str, str]
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes = NO_BODY
    caller: Caller = UNCHECKED
    parameters: Mapping[str, Value] = NO_PARAMETERS
    parts: AsyncIterator[bytes] | None = None
    """The body as it comes, where the endpoint reads it so."""

    @property
    def namespace(self) -> str:
        return self.query.get("namespace") or "default"

    def value(self, name: str) -> str:
        """A part of the path, decoded."""
        return self.path_values[name]

    # -- rights ------------------------------------------------------------------------------------------------------

    def require(self, need: Need | None = None, *, namespace: str = "", path: str = "", label: str = "") -> None:
        """Raises unless the caller has the endpoint's need, or this one, of what the request turned out to be about."""
        needed = self.endpoint.need if need is None else need
        refuse_without(self.caller, needed, manner=self.endpoint.manner, namespace=namespace, path=path, label=label)

    def may(self, need: Need | None = None, *, namespace: str = "", path: str = "", label: str = "") -> bool:
        """Whether the caller has it: for lists, which leave out instead of refusing."""
        needed = self.endpoint.need if need is None else need
        rights = self.caller.rights
        return not self.caller.is_refused and rights.meet(needed, namespace=namespace, path=path, label=label)

    # -- body --------------------------------------------------------------------------------------------------------

    def read_body(self, kind: type[T]) -> T:
        """The body as declared; what is wrong with it is told with its place."""
        return self.read_body_with_warnings(kind).value

    def read_body_with_warnings(self, kind: type[T]) -> Reading[T]:
        """The same, with the fields that nobody knows."""
        if not self.body:
            raise invalid("Request body is empty")
        if self.body.isspace():
            raise invalid("EOF")
        body = b"{}" if self.body.strip() == b"null" else self.body  # An object with nothing set (conventions 1.4).
        try:
            return read(kind, first_value(body))
        except ReadError as error:
            raise invalid(str(error)) from error

    # -- the endpoint's own parameters, as it declares them ------------------------------------------------------------

    def text(self, name: str) -> str:
        """Not given is ""."""
        value = self._given(name, "")
        assert isinstance(value, str), f"{self.endpoint.name}: `{name}` is declared as something else"
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """All values, in order."""
        value = self._given(name, ())
        assert isinstance(value, tuple), f"{self.endpoint.name}: `{name}` is declared as something else"
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._given(name, default)
        assert isinstance(value, bool), f"{self.endpoint.name}: `{name}` is declared as something else"
        return value

    def number(self, name: str, *, default: int = 0) -> int:
        """A whole number, or a duration in nanoseconds."""
        value = self._given(name, default)
        assert isinstance(value, int), f"{self.endpoint.name}: `{name}` is declared as something else"
        return value

    def _given(self, name: str, default: Value) -> Value:
        declared = any(parameter.name == name for parameter in self.endpoint.parameters)
        assert declared, f"{self.endpoint.name} does not declare `{name}`"
        return self.parameters.get(name, default)


def first_value(body: bytes) -> bytes:
    """The body without what follows its first JSON value, which nobody looks at (conventions 1.4)."""
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except RecursionError:
        return body  # Whoever reads it says that it is nested too deeply.
    except msgspec.DecodeError as error:
        found = TRAILING.search(str(error))
        return body[: int(found[1]) - 1] if found else body
    return body
