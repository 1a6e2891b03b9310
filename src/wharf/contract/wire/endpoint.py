"""What a row of the endpoint table says. Everything that is the same for all endpoints follows from it.

A row declares and never does: reading of parameters, rights, blocking, paging, filtering and the OpenAPI document are the
work of those who read it.
"""

import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wharf.contract.model.acl.permissions import DenialDetail, Permission

if TYPE_CHECKING:
    from wharf.languages.filters import FilterSubject


class EndpointKind(enum.Enum):
    READ = "read"  # From the replica; may block on an index.
    LOCAL = "local"  # About this process; no consistency, no index.
    WRITE = "write"  # Decided on this server.
    LEADER_WRITE = "ask"  # Decided by the leader's brain.


class ScopeSource(enum.Enum):
    """What tells the namespace, pool or path that the need is about."""

    REQUEST = "request"  # The `namespace` of the query, and the part of the path that `label` names.
    OBJECT = "object"  # The record or the body: the handler calls `request.require` as soon as it knows it.


class ParameterKind(enum.Enum):
    TEXT = "text"
    TEXTS = "texts"  # May be repeated; all count.
    FLAG = "flag"
    INTEGER = "integer"
    UNSIGNED = "unsigned"
    DURATION = "duration"


class Parameter(msgspec.Struct, frozen=True):
    """One query parameter of an endpoint's own. `refusal` goes before the text that tells of a bad value."""

    name: str
    kind: ParameterKind
    description: str
    refusal_prefix: str = ""


class JoinedField(msgspec.Struct, frozen=True):
    """A field that a filter sees beside those of the record, such as the job of an allocation. The handlers' room says
    how it is read (`JOINS`)."""

    name: str
    type: Any  # Whatever may annotate a field.


class ListFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """What is listed: the records that a filter sees, and which of the parameters of lists count."""

    record: type
    hidden_fields: frozenset[str] = frozenset()
    """Fields that no filter may ask for, by their names on the wire."""
    joins: tuple[JoinedField, ...] = ()
    can_reverse: bool = True
    """Whether `reverse` counts; where it does not, it is passed over."""
    can_filter: bool = True
    has_pages: bool = True
    has_prefix: bool = True
    filtering_parameters: tuple[str, ...] = ()
    """Its own parameters that leave out records, and so cannot stand beside a `filter`."""

    def build_filter_subject(self, readers: Mapping[str, Callable[[Any], Any]]) -> "FilterSubject":
        """What filters are compiled against. `reads`: how each joined field is read from a record."""
        from wharf.languages.filters import FilterSubject, JoinedField

        joined = tuple(JoinedField(join.name, join.type, readers[join.name]) for join in self.joins)
        return FilterSubject(self.record, hidden=self.hidden_fields, joined=joined)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`path`: `{name}` stands for one segment, `{name...}` for one or more (ids of jobs may hold slashes)."""

    name: str
    method: str  # PUT stands for POST too.
    path: str
    kind: EndpointKind
    need: Permission
    summary: str
    """One line for people who read the documents."""
    manner: DenialDetail = DenialDetail.GENERIC
    scope_source: ScopeSource = ScopeSource.REQUEST
    scope_path_parameter: str = ""
    """The part of the path that is the pool, the volume or the variable of the need."""
    body_type: type | None = None
    is_body_optional: bool = False
    has_streamed_body: bool = False
    """Whether the handler reads the body part by part: one of any size."""
    reply_type: Any = None
    """The type of the reply's body; None: it has none."""
    is_audited: bool = False
    """Of a LOCAL: whether the audit log hears of it, as it does of every write."""
    content_type: str = ""
    """The content type of the reply, where it is not JSON."""
    success_statuses: tuple[int, ...] = (200,)
    """The statuses of replies that are no refusal; with 204 there is no body."""
    refusal_statuses: tuple[int, ...] = ()
    """Statuses of refusals beside those that every endpoint of its kind may answer, for the documents."""
    parameters: tuple[Parameter, ...] = ()
    """Its own, beside those that its kind gives it."""
    list_features: ListFeatures | None = None
    can_block: bool = True
    """Of a READ: whether `index` makes it wait. Where it does not, `index` is passed over."""
    is_put_only: bool = False
    """Of a PUT: a POST is refused."""
    unsupported_reason: str = ""
    """Why it answers 501: it is declared, and has no handler."""


JOB_ID_PARAMETER: Final = "{job_id...}"


def define_read(name: str, path: str, **more: Any) -> Endpoint:
    """A GET that is answered from the replica."""
    return Endpoint(name=name, method="GET", path=path, kind=EndpointKind.READ, **more)


def define_local(name: str, path: str, **more: Any) -> Endpoint:
    """A GET about this process."""
    return Endpoint(name=name, method="GET", path=path, kind=EndpointKind.LOCAL, **more)


def define_write(name: str, path: str, *, method: str = "PUT", **more: Any) -> Endpoint:
    """A write that this server decides."""
    return Endpoint(name=name, method=method, path=path, kind=EndpointKind.WRITE, **more)


def define_leader_write(name: str, path: str, *, method: str = "PUT", **more: Any) -> Endpoint:
    """A write that the leader's brain decides."""
    return Endpoint(name=name, method=method, path=path, kind=EndpointKind.LEADER_WRITE, **more)


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
