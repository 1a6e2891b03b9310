"""A request as handlers see it: its endpoint, caller, parameters and body."""

import re
from collections.abc import AsyncIterator, Mapping
from typing import Final, TypeVar

import msgspec

from wharf.cluster.access import UNCHECKED_CALLER, Caller, require_rights
from wharf.cluster.api.requests.parameters import NO_PARAMETERS, ParameterValue
from wharf.contract.model.acl.permissions import Permission
from wharf.contract.model.decoding import DecodedInput, DecodingError, decode_record
from wharf.contract.model.refusal import RefusalReason, invalid_request, not_found
from wharf.contract.wire.endpoint_table import Endpoint
from wharf.world import World

T = TypeVar("T")

EMPTY_BODY: Final = b""
TRAILING_CHARACTERS_ERROR: Final = re.compile(r"trailing characters \(byte (\d+)\)")


REQUEST_ID_HEADER: Final = b"x-request-id"
MAX_REQUEST_ID_CHARACTERS: Final = 64
"""Longer ids from callers are cut, because the id is written to every log line of the request."""


class Request(msgspec.Struct, frozen=True):
    """One HTTP request that was routed to an endpoint."""

    id: str
    endpoint: Endpoint
    path_values: dict[str, str]
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes = EMPTY_BODY
    caller: Caller = UNCHECKED_CALLER
    parameters: Mapping[str, ParameterValue] = NO_PARAMETERS
    body_parts: AsyncIterator[bytes] | None = None
    """The parts of the body as they arrive, for endpoints with a streamed body."""

    @property
    def namespace(self) -> str:
        return self.query.get("namespace") or "default"

    def get_path_value(self, name: str) -> str:
        """Return a named part of the path, decoded."""
        return self.path_values[name]

    def require_region(self, own_region: str) -> None:
        """Raise a not-found `Refusal` if the request names another region than this server's.

        Requests for reachable regions were relayed before they reach the application.
        """
        if self.query.get("region", "") not in ("", own_region):
            raise not_found("No path to region")

    # -- rights ------------------------------------------------------------------------------------------------------

    def require_permission(
        self, permission: Permission | None = None, *, namespace: str = "", path: str = "", label: str = ""
    ) -> None:
        """Raise a `Refusal` unless the caller has the permission (default: the endpoint's) on the given object."""
        needed = self.endpoint.need if permission is None else permission
        require_rights(
            self.caller, needed, manner=self.endpoint.denial_detail, namespace=namespace, path=path, label=label
        )

    def has_permission(
        self, permission: Permission | None = None, *, namespace: str = "", path: str = "", label: str = ""
    ) -> bool:
        """Return whether the caller has the permission. Lists use this to omit records instead of refusing."""
        needed = self.endpoint.need if permission is None else permission
        rights = self.caller.rights
        return not self.caller.is_refused and rights.satisfies(needed, namespace=namespace, path=path, label=label)

    # -- body --------------------------------------------------------------------------------------------------------

    def decode_body(self, body_type: type[T]) -> T:
        """Return the decoded body. Raises `Refusal` with the position of the error."""
        return self.decode_body_with_warnings(body_type).value

    def decode_body_with_warnings(self, body_type: type[T]) -> DecodedInput[T]:
        """Return the decoded body and warnings about unknown fields. Raises `Refusal`."""
        if not self.body:
            raise invalid_request("Request body is empty", RefusalReason.EMPTY_BODY)
        if self.body.isspace():
            raise invalid_request("EOF")
        body = b"{}" if self.body.strip() == b"null" else self.body  # An object with nothing set (conventions 1.4).
        try:
            return decode_record(body_type, extract_first_value(body))
        except DecodingError as error:
            raise invalid_request(str(error)) from error

    # -- the endpoint's own parameters, as it declares them ------------------------------------------------------------

    def get_text(self, name: str) -> str:
        """Return a text parameter, or "" if it is absent."""
        return self._get_parameter(name, str, "")

    def get_texts(self, name: str) -> tuple[str, ...]:
        """Return all values of a repeatable parameter, in order."""
        return self._get_parameter(name, tuple, ())

    def get_flag(self, name: str, *, default: bool = False) -> bool:
        return self._get_parameter(name, bool, default)

    def get_number(self, name: str, *, default: int = 0) -> int:
        """Return an integer parameter, or a duration parameter in nanoseconds."""
        return self._get_parameter(name, int, default)

    def _get_parameter(self, name: str, value_type: type[T], default: T) -> T:
        declared = any(parameter.name == name for parameter in self.endpoint.parameters)
        assert declared, f"{self.endpoint.name} does not declare `{name}`"
        value = self.parameters.get(name, default)
        assert isinstance(value, value_type), f"{self.endpoint.name}: `{name}` is declared with another type"
        return value


def create_request(
    world: World,
    endpoint: Endpoint,
    path_values: dict[str, str],
    query: Mapping[str, str],
    headers: Mapping[bytes, bytes],
    parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
) -> Request:
    """Return the request. Its id is that of the `X-Request-Id` header, else a new one."""
    id_header = headers.get(REQUEST_ID_HEADER)
    request_id = (id_header.decode("latin-1")[:MAX_REQUEST_ID_CHARACTERS] if id_header else "") or world.new_id()
    return Request(request_id, endpoint, path_values, query, headers, parameters=parameters)


def extract_first_value(body: bytes) -> bytes:
    """Return the body up to the end of its first JSON value. The rest is ignored, as Nomad does (conventions 1.4)."""
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except RecursionError:
        return body  # Decoding the body reports that it is nested too deeply.
    except msgspec.DecodeError as error:
        match = TRAILING_CHARACTERS_ERROR.search(str(error))
        return body[: int(match[1]) - 1] if match else body
    return body
