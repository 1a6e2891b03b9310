"""A request as handlers see it: its endpoint, caller, parameters and body."""

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from wharf.cluster.access import UNCHECKED_CALLER, Caller, require_rights
from wharf.cluster.api.requests.parameters import NO_PARAMETERS, ParameterValue
from wharf.contract.model.acl.permissions import Permission
from wharf.contract.model.decoding import DecodedInput, DecodingError, decode_record
from wharf.contract.model.refusal import RefusalReason, invalid_request, not_found
from wharf.contract.wire.endpoint_table import Endpoint, EndpointKind
from wharf.world import World

T = TypeVar("T")

EMPTY_BODY: Final = b""
TRAILING_CHARACTERS_ERROR: Final = re.compile(r"trailing characters \(byte (\d+)\)")


REQUEST_ID_HEADER: Final = b"x-request-id"
MAX_REQUEST_ID_CHARACTERS: Final = 64
"""Longer ids from callers are cut, because the id is written to every log line of the request."""


class UsedPermission(msgspec.Struct, frozen=True):
    """A permission that a handler required for a request, on the object that the other fields name."""

    permission: Permission
    namespace: str
    path: str
    label: str


class Request(msgspec.Struct, frozen=True):
    """One HTTP request that was routed to an endpoint."""

    id: str
    """The request id, which logs and audit records contain."""
    endpoint: Endpoint
    path_values: dict[str, str]
    """The decoded values of the named parts of the path."""
    query: Mapping[str, str]
    """All query parameters as text."""
    headers: Mapping[bytes, bytes]
    """The headers; names in lower case."""
    body: bytes = EMPTY_BODY
    caller: Caller = UNCHECKED_CALLER
    parameters: Mapping[str, ParameterValue] = NO_PARAMETERS
    """The query parameters that the endpoint declares, converted to their types."""
    body_parts: AsyncIterator[bytes] | None = None
    """The parts of the body as they arrive, for endpoints with a streamed body."""
    used_permissions: list[UsedPermission] = msgspec.field(default_factory=list)
    """The permissions that were required so far. They are checked again while a stream or websocket is open. Empty for reads,
    which have neither, and are evaluated again and again while they wait."""
    wait_for_disconnect: Callable[[], Coroutine[None, None, None]] | None = None
    """Waits until the client disconnects, for actions that call other services before they change anything."""

    @property
    def namespace(self) -> str:
        """The namespace of the query; `default` if it has none."""
        return self.query.get("namespace") or "default"

    @property
    def owner(self) -> tuple[str, ...]:
        """Whose share of a limited resource the request uses: that of its token or job; without both, of its namespace."""
        key = self.caller.owner_key
        return key if any(key) else (*key, self.namespace)

    def get_path_value(self, name: str) -> str:
        """Return the decoded value of a named part of the path, such as `job_id`."""
        return self.path_values[name]

    def require_region(self, own_region: str) -> None:
        """Raise a not-found `Refusal` if the query names a region other than `own_region`.

        Requests for regions that can be reached were relayed before and do not get here.
        """
        if self.query.get("region", "") not in ("", own_region):
            raise not_found("No path to region")

    # -- rights ------------------------------------------------------------------------------------------------------

    def require_permission(
        self, permission: Permission | None = None, *, namespace: str = "", path: str = "", label: str = ""
    ) -> None:
        """Raise a `Refusal` unless the caller has a permission on the object that the arguments name.

        Without `permission`, this is the permission that the endpoint requires.
        """
        needed = self.endpoint.need if permission is None else permission
        is_in_path = namespace in self.path_values.values()
        require_rights(
            self.caller,
            needed,
            manner=self.endpoint.denial_detail,
            query_namespace=namespace if is_in_path else self.namespace,
            namespace=namespace,
            path=path,
            label=label,
        )
        if self.endpoint.kind is not EndpointKind.READ:
            self.used_permissions.append(UsedPermission(needed, namespace, path, label))

    def has_permission(
        self, permission: Permission | None = None, *, namespace: str = "", path: str = "", label: str = ""
    ) -> bool:
        """Return whether the caller has a permission on the object that the arguments name.

        Without `permission`, this is the permission that the endpoint requires. Lists use this to omit records.
        """
        needed = self.endpoint.need if permission is None else permission
        rights = self.caller.rights
        return not self.caller.is_refused and rights.satisfies(needed, namespace=namespace, path=path, label=label)

    def build_namespace_test(
        self, permission: Permission | None = None, *, get_namespace: Callable[[Any], str] = attrgetter("namespace")
    ) -> Callable[[Any], bool]:
        """Return a test of whether the caller has a permission, by default the endpoint's, in a record's namespace.

        The permission is checked once for each namespace.
        """
        can_read = cache(lambda namespace: self.has_permission(permission, namespace=namespace))
        return lambda record: can_read(get_namespace(record))

    # -- body --------------------------------------------------------------------------------------------------------

    def decode_body(self, body_type: type[T]) -> T:
        """Return the body as a value of the type. Raises a `Refusal` that names the position of the error."""
        return self.decode_body_with_warnings(body_type).value

    def decode_body_with_warnings(self, body_type: type[T]) -> DecodedInput[T]:
        """Return the body as a value of the type, with warnings about unknown fields.

        Raises `Refusal` if it is invalid.
        """
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
        """Return a boolean parameter, or `default` if it is absent."""
        return self._get_parameter(name, bool, default)

    def get_number(self, name: str, *, default: int = 0) -> int:
        """Return an integer parameter, or a duration parameter in nanoseconds."""
        return self._get_parameter(name, int, default)

    def _get_parameter(self, name: str, value_type: type[T], default: T) -> T:
        """Return the value of a parameter that the endpoint declares with this type, or `default` if the query lacks
        it.
        """
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
    """Return the request. Its id is that of the `X-Request-Id` header, else a new one. The caller is added later."""
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
