"""The types of the endpoint table: endpoints, query parameters and list features.

The table only declares. Its users implement the decoding of parameters, access control, blocking, paging, filtering and the
OpenAPI document.
"""

import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wharf.contract.model.acl.permissions import DenialDetail, Permission

if TYPE_CHECKING:
    from wharf.languages.filters import FilterSubject


class EndpointKind(enum.Enum):
    """Where a request is handled, and with which consistency."""

    READ = "read"  # Read from the replica; may block on an index.
    LOCAL = "local"  # Handled by this process; no consistency, no index.
    WRITE = "write"  # Decided on this server.
    LEADER_WRITE = "ask"  # Decided by the leader's brain.


class ScopeSource(enum.Enum):
    """What determines the namespace, pool or path of the permission check."""

    REQUEST = "request"  # The `namespace` parameter, and the path segment named by `scope_path_parameter`.
    OBJECT = "object"  # The record or the body: the handler calls `request.require` once it has it.


class ParameterKind(enum.Enum):
    """The type of a query parameter."""

    TEXT = "text"
    TEXTS = "texts"  # May be repeated; all values count.
    FLAG = "flag"
    INTEGER = "integer"
    UNSIGNED = "unsigned"
    DURATION = "duration"


class Parameter(msgspec.Struct, frozen=True):
    """A query parameter of one endpoint. `refusal_prefix` precedes the error text for an invalid value."""

    name: str
    kind: ParameterKind
    description: str
    refusal_prefix: str = ""


class JoinedFieldType(msgspec.Struct, frozen=True):
    """A field that filters see in addition to those of the record, such as the job of an allocation.

    The handler module of the endpoint defines how it is read (`JOINED_FIELD_READERS`).
    """

    name: str
    type: Any  # Any type annotation.


class ListFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """What a list endpoint lists: the record type that filters see, and which list parameters it supports."""

    record: type
    hidden_fields: frozenset[str] = frozenset()
    """Fields that filters must not use, by wire name."""
    joins: tuple[JoinedFieldType, ...] = ()
    can_reverse: bool = True
    """Whether `reverse` has an effect; otherwise it is ignored."""
    can_filter: bool = True
    has_pages: bool = True
    has_prefix: bool = True
    filtering_parameters: tuple[str, ...] = ()
    """The endpoint's own parameters that select records; they cannot be combined with `filter`."""

    def build_filter_subject(self, readers: Mapping[str, Callable[[Any], Any]]) -> "FilterSubject":
        """Return the type that filters are compiled against. `readers` maps each joined field to a function that reads it."""
        from wharf.languages.filters import FilterSubject, JoinedField

        joined = tuple(JoinedField(join.name, join.type, readers[join.name]) for join in self.joins)
        return FilterSubject(self.record, hidden=self.hidden_fields, joined=joined)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One method and path of the API.

    In `path`, `{name}` matches one segment and `{name...}` one or more, because job IDs may contain slashes.
    """

    name: str
    method: str  # PUT includes POST.
    path: str
    kind: EndpointKind
    need: Permission
    summary: str
    """One line for the API documents."""
    denial_detail: DenialDetail = DenialDetail.GENERIC
    scope_source: ScopeSource = ScopeSource.REQUEST
    scope_path_parameter: str = ""
    """The path segment with the pool, the volume or the variable of the permission check."""
    body_type: type | None = None
    is_body_optional: bool = False
    has_streamed_body: bool = False
    """Whether the handler reads the body in parts, so that it may have any size."""
    reply_type: Any = None
    """The type of the reply's body, or None if it has no body."""
    is_audited: bool = False
    """For LOCAL: whether calls are recorded in the audit log. Writes always are."""
    content_type: str = ""
    """The content type of the reply, if it is not JSON."""
    success_statuses: tuple[int, ...] = (200,)
    """The statuses of successful replies; a reply with 204 has no body."""
    refusal_statuses: tuple[int, ...] = ()
    """Error statuses in addition to those of its kind, for the API documents."""
    parameters: tuple[Parameter, ...] = ()
    """Its own query parameters, in addition to those of its kind."""
    list_features: ListFeatures | None = None
    can_block: bool = True
    """For READ: whether `index` makes the request wait; otherwise `index` is ignored."""
    is_put_only: bool = False
    """For PUT: whether POST is refused."""
    unsupported_reason: str = ""
    """Why the endpoint has no handler and replies with 501; empty if it is supported."""


JOB_ID_PARAMETER: Final = "{job_id...}"


def define_read(name: str, path: str, **fields: Any) -> Endpoint:
    """Define a GET that reads from the replica."""
    return Endpoint(name=name, method="GET", path=path, kind=EndpointKind.READ, **fields)


def define_local(name: str, path: str, **fields: Any) -> Endpoint:
    """Define a GET that this process handles by itself."""
    return Endpoint(name=name, method="GET", path=path, kind=EndpointKind.LOCAL, **fields)


def define_write(name: str, path: str, *, method: str = "PUT", **fields: Any) -> Endpoint:
    """Define a write that this server decides."""
    return Endpoint(name=name, method=method, path=path, kind=EndpointKind.WRITE, **fields)


def define_leader_write(name: str, path: str, *, method: str = "PUT", **fields: Any) -> Endpoint:
    """Define a write that the leader's brain decides."""
    return Endpoint(name=name, method=method, path=path, kind=EndpointKind.LEADER_WRITE, **fields)


def flag(name: str, description: str, *, refusal_prefix: str = "") -> Parameter:
    return Parameter(name, ParameterKind.FLAG, description, refusal_prefix)


def text(name: str, description: str) -> Parameter:
    return Parameter(name, ParameterKind.TEXT, description)


def text_list(name: str, description: str) -> Parameter:
    return Parameter(name, ParameterKind.TEXTS, description)


def integer(name: str, description: str, *, refusal_prefix: str = "") -> Parameter:
    return Parameter(name, ParameterKind.INTEGER, description, refusal_prefix)


def unsigned(name: str, description: str, *, refusal_prefix: str = "") -> Parameter:
    return Parameter(name, ParameterKind.UNSIGNED, description, refusal_prefix)


def duration(name: str, description: str, *, refusal_prefix: str = "") -> Parameter:
    return Parameter(name, ParameterKind.DURATION, description, refusal_prefix)
