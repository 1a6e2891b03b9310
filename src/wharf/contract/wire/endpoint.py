"""The types of the endpoint table: endpoints, query parameters and list features.

The table only declares. Its users implement the decoding of parameters, access control, blocking, paging, filtering and the
OpenAPI document.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wharf.contract.model.acl.permissions import DenialDetail, Permission
from wharf.contract.model.body_limits import MAX_INLINE_BODY_BYTES

if TYPE_CHECKING:
    from wharf.languages.filters import FilterSubject


SMALL_BODY_BYTES: Final = MAX_INLINE_BODY_BYTES
"""The largest body of an endpoint that always runs on the event loop: it waits for a node or an identity provider, or
needs no token.
"""


class EndpointKind(enum.Enum):
    """Which process handles a request, and how consistent its data is."""

    READ = "read"  # A read of the replica; with `index` it waits for a change (blocking query).
    LOCAL = "local"  # Handled by the receiving process alone; no consistency guarantee, no log index in the reply.
    WRITE = "write"  # A write to the log, handled by the receiving server.
    LEADER_WRITE = "ask"  # A write to the log, handled by the brain of the leader.


class ScopeSource(enum.Enum):
    """What names the namespace, node pool or path in which the caller needs the permission."""

    REQUEST = "request"  # The `namespace` parameter and the path of the request.
    OBJECT = "object"  # The record or the body: the handler checks the permission after it has read it.


class ParameterKind(enum.Enum):
    """The type of a query parameter."""

    TEXT = "text"
    TEXTS = "texts"  # May be repeated; the value is the list of all texts.
    FLAG = "flag"  # true or false
    INTEGER = "integer"
    UNSIGNED = "unsigned"  # An integer of 0 or more.
    DURATION = "duration"  # Such as 30s or 1h30m.


class Parameter(msgspec.Struct, frozen=True):
    """A query parameter that an endpoint declares."""

    name: str
    kind: ParameterKind
    description: str  # One line for the API documents.
    refusal_prefix: str = ""  # Precedes the error text for an invalid value.


class JoinedFieldType(msgspec.Struct, frozen=True):
    """A field that filters of a list can use although it is not in the record, such as the job of an allocation.

    The handler module of the endpoint defines how it is read (`JOINED_FIELD_READERS`).
    """

    name: str  # Wire name, such as `Job`.
    type: Any  # Any type annotation.


class ListFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """The record type of a list endpoint, and which list parameters the endpoint supports."""

    record: type  # The type of the listed records; filters use its fields.
    hidden_fields: frozenset[str] = frozenset()
    """Fields that filters must not use, by wire name."""
    detail_need: Permission | None = None
    """The permission that a caller needs, in the namespace of a record, for filters with fields that the list does not
    show; `None` if callers of the list may read whole records."""
    shown_fields: frozenset[str] = frozenset()
    """With `detail_need`, the fields that the list shows, by wire name."""
    shown_presence_fields: frozenset[str] = frozenset()
    """With `detail_need`, the fields of which the list shows only whether they are set."""
    joins: tuple[JoinedFieldType, ...] = ()  # Further fields that filters can use.
    can_reverse: bool = True
    """Whether `reverse` has an effect; otherwise it is ignored."""
    reversing_parameter: str = ""
    """A parameter with which `reverse` has an effect although `can_reverse` is false: one that Nomad does not have."""
    can_filter: bool = True  # Whether `filter` is supported.
    has_pages: bool = True  # Whether `per_page` and `next_token` are supported.
    has_prefix: bool = True  # Whether `prefix` is supported.
    filtering_parameters: tuple[str, ...] = ()
    """Names of parameters in `Endpoint.parameters` that select records. A request cannot combine them with `filter`, nor
    with `prefix` (filtering rule 7)."""
    nomad_filtering_parameters: tuple[str, ...] = ()
    """Those of them that Nomad refuses together with `filter`."""

    def is_shown(self, selector: Sequence[str]) -> bool:
        """Return whether the list shows the value of a filter's selector to all its callers."""
        if self.detail_need is None or selector[0] in self.shown_fields:
            return True
        return len(selector) == 1 and selector[0] in self.shown_presence_fields

    def build_filter_subject(self, readers: Mapping[str, Callable[[Any], Any]]) -> "FilterSubject":
        """Return the description of the record type against which filter expressions are compiled.

        `readers` maps the name of each joined field to a function that reads its value from a record.
        """
        from wharf.languages.filters import FilterSubject, JoinedField

        joined = tuple(JoinedField(join.name, join.type, readers[join.name]) for join in self.joins)
        return FilterSubject(self.record, hidden=self.hidden_fields, joined=joined)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One method and path of the API.

    In `path`, `{name}` matches one segment and `{name...}` one or more, because job IDs may contain slashes.
    """

    name: str  # Such as `job.read`: noun, dot, operation.
    method: str  # PUT includes POST.
    path: str
    kind: EndpointKind
    need: Permission  # The permission that the caller needs.
    summary: str
    """One line for the API documents."""
    denial_detail: DenialDetail = DenialDetail.GENERIC  # How much the error text for a missing permission says.
    scope_source: ScopeSource = ScopeSource.REQUEST
    """What names the namespace, node pool or path in which the caller needs `need`."""
    scope_path_parameter: str = ""
    """The path parameter that names the node pool, volume or variable for which the caller needs the permission."""
    body_type: type | None = None  # The type of the request's body, or None if it has no body.
    is_body_optional: bool = False
    max_body_bytes: int = 0
    """The largest body, if that is less than `api.max_body_size`; 0: no limit of its own."""
    has_streamed_body: bool = False
    """Whether the handler reads the body in parts, so that it may have any size."""
    reply_type: Any = None
    """The type of the reply's body, or None if it has no body."""
    is_audited: bool = False
    """For endpoints of kind LOCAL: whether calls are recorded in the audit log. Calls of writes always are."""
    is_read_audited: bool = False
    """For READ: whether successful reads by callers with a token are recorded in the audit log. Reads by tasks are not."""
    content_type: str = ""
    """The content type of the reply, if it is not JSON."""
    has_endless_reply: bool = False
    """Whether the reply can last for as long as the caller reads it: streams."""
    success_statuses: tuple[int, ...] = (200,)
    """The statuses of successful replies; a reply with 204 has no body."""
    refusal_statuses: tuple[int, ...] = ()
    """HTTP statuses of errors, in addition to those of all endpoints of its `kind`, for the API documents."""
    parameters: tuple[Parameter, ...] = ()
    """The query parameters that this endpoint declares, in addition to those that all endpoints of its `kind` accept.
    """
    list_features: ListFeatures | None = None  # Set if the endpoint returns a list of records.
    can_block: bool = True
    """For READ: whether `index` makes the request wait; otherwise `index` is ignored."""
    is_put_only: bool = False
    """For PUT: whether POST is refused."""
    unsupported_reason: str = ""
    """Why the endpoint has no handler and replies with 501; empty if it is supported."""


JOB_ID_PARAMETER: Final = "{job_id...}"
"""The path parameter for a job ID, which may contain slashes."""


def define_read(name: str, path: str, **fields: Any) -> Endpoint:
    """Return a GET endpoint that reads from the replica. `fields` are further fields of `Endpoint`."""
    return Endpoint(name=name, method="GET", path=path, kind=EndpointKind.READ, **fields)


def define_local(name: str, path: str, **fields: Any) -> Endpoint:
    """Return a GET endpoint that the receiving process handles alone. `fields` are further fields of `Endpoint`."""
    return Endpoint(name=name, method="GET", path=path, kind=EndpointKind.LOCAL, **fields)


def define_write(name: str, path: str, *, method: str = "PUT", **fields: Any) -> Endpoint:
    """Return a write endpoint whose requests the receiving server handles. `fields` are further fields of `Endpoint`."""
    return Endpoint(name=name, method=method, path=path, kind=EndpointKind.WRITE, **fields)


def define_leader_write(name: str, path: str, *, method: str = "PUT", **fields: Any) -> Endpoint:
    """Return a write endpoint whose requests the leader handles. `fields` are further fields of `Endpoint`."""
    return Endpoint(name=name, method=method, path=path, kind=EndpointKind.LEADER_WRITE, **fields)


def flag(name: str, description: str, *, refusal_prefix: str = "") -> Parameter:
    """Return a query parameter that is true or false."""
    return Parameter(name, ParameterKind.FLAG, description, refusal_prefix)


def text(name: str, description: str) -> Parameter:
    """Return a query parameter that is text."""
    return Parameter(name, ParameterKind.TEXT, description)


def text_list(name: str, description: str) -> Parameter:
    """Return a query parameter that is text and may be repeated."""
    return Parameter(name, ParameterKind.TEXTS, description)


def integer(name: str, description: str, *, refusal_prefix: str = "") -> Parameter:
    """Return a query parameter that is an integer."""
    return Parameter(name, ParameterKind.INTEGER, description, refusal_prefix)


def unsigned(name: str, description: str, *, refusal_prefix: str = "") -> Parameter:
    """Return a query parameter that is an integer of 0 or more."""
    return Parameter(name, ParameterKind.UNSIGNED, description, refusal_prefix)


def duration(name: str, description: str, *, refusal_prefix: str = "") -> Parameter:
    """Return a query parameter that is a duration, such as 30s."""
    return Parameter(name, ParameterKind.DURATION, description, refusal_prefix)
