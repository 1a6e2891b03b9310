"""What a row of the endpoint table says. Everything that is the same for all endpoints follows from it.

A row declares and never does: reading of parameters, rights, blocking, paging, filtering and the OpenAPI document are the
work of those who read it.
"""

import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wharf.model.need import Manner, Need

if TYPE_CHECKING:
    from wharf.filters import Subject


class Kind(enum.Enum):
    READ = "read"  # From the replica; may block on an index.
    LOCAL = "local"  # About this process; no consistency, no index.
    WRITE = "write"  # Decided on this server.
    ASK = "ask"  # Decided by the leader's brain.


class Decides(enum.Enum):
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
    refusal: str = ""


class Join(msgspec.Struct, frozen=True):
    """A field that a filter sees beside those of the record, such as the job of an allocation. The handlers' room says
    how it is read (`JOINS`)."""

    name: str
    type: Any  # Whatever may annotate a field.


class Lists(msgspec.Struct, frozen=True, kw_only=True):
    """What is listed: the records that a filter sees, and which of the parameters of lists count."""

    record: type
    hidden: frozenset[str] = frozenset()
    """Fields that no filter may ask for, by their names on the wire."""
    joins: tuple[Join, ...] = ()
    reverses: bool = True
    """Whether `reverse` counts; where it does not, it is passed over."""
    filters: bool = True
    pages: bool = True
    prefix: bool = True
    filtering: tuple[str, ...] = ()
    """Its own parameters that leave out records, and so cannot stand beside a `filter`."""

    def subject(self, reads: Mapping[str, Callable[[Any], Any]]) -> "Subject":
        """What filters are compiled against. `reads`: how each joined field is read from a record."""
        from wharf.filters import Joined, Subject  # Here: clients read the table too, and need no language of filters.

        joined = tuple(Joined(join.name, join.type, reads[join.name]) for join in self.joins)
        return Subject(self.record, hidden=self.hidden, joined=joined)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`path`: `{name}` stands for one segment, `{name...}` for one or more (ids of jobs may hold slashes)."""

    name: str
    method: str  # PUT stands for POST too.
    path: str
    kind: Kind
    need: Need
    summary: str
    """One line for people who read the documents."""
    manner: Manner = Manner.CURT
    decides: Decides = Decides.REQUEST
    label: str = ""
    """The part of the path that is the pool, the volume or the variable of the need."""
    body: type | None = None
    body_optional: bool = False
    streams_body: bool = False
    """Whether the handler reads the body part by part: one of any size."""
    returns: Any = None
    """The type of the reply's body; None: it has none."""
    audited: bool = False
    """Of a LOCAL: whether the audit log hears of it, as it does of every write."""
    media: str = ""
    """The content type of the reply, where it is not JSON."""
    answers: tuple[int, ...] = (200,)
    """The statuses of replies that are no refusal; with 204 there is no body."""
    refuses: tuple[int, ...] = ()
    """Statuses of refusals beside those that every endpoint of its kind may answer, for the documents."""
    parameters: tuple[Parameter, ...] = ()
    """Its own, beside those that its kind gives it."""
    lists: Lists | None = None
    blocks: bool = True
    """Of a READ: whether `index` makes it wait. Where it does not, `index` is passed over."""
    put_only: bool = False
    """Of a PUT: a POST is refused."""
    left_out: str = ""
    """Why it answers 501: it is declared, and has no handler."""


JOB_ID: Final = "{job_id...}"


def reads(name: str, path: str, **more: Any) -> Endpoint:
    """A GET that is answered from the replica."""
    return Endpoint(name=name, method="GET", path=path, kind=Kind.READ, **more)


def tells(name: str, path: str, **more: Any) -> Endpoint:
    """A GET about this process."""
    return Endpoint(name=name, method="GET", path=path, kind=Kind.LOCAL, **more)


def writes(name: str, path: str, *, method: str = "PUT", **more: Any) -> Endpoint:
    """A write that this server decides."""
    return Endpoint(name=name, method=method, path=path, kind=Kind.WRITE, **more)


def asks(name: str, path: str, *, method: str = "PUT", **more: Any) -> Endpoint:
    """A write that the leader's brain decides."""
    return Endpoint(name=name, method=method, path=path, kind=Kind.ASK, **more)


def flag(name: str, description: str, *, refusal: str = "") -> Parameter:
    return Parameter(name, ParameterKind.FLAG, description, refusal)


def text(name: str, description: str) -> Parameter:
    return Parameter(name, ParameterKind.TEXT, description)


def texts(name: str, description: str) -> Parameter:
    return Parameter(name, ParameterKind.TEXTS, description)


def integer(name: str, description: str, *, refusal: str = "") -> Parameter:
    return Parameter(name, ParameterKind.INTEGER, description, refusal)


def unsigned(name: str, description: str, *, refusal: str = "") -> Parameter:
    return Parameter(name, ParameterKind.UNSIGNED, description, refusal)


def duration(name: str, description: str, *, refusal: str = "") -> Parameter:
    return Parameter(name, ParameterKind.DURATION, description, refusal)
