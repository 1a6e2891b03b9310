"""The worst requests of each endpoint: one for each body of the largest permitted size, and one for each parameter."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from tests.bounded_work.worst_bodies import iter_worst_bodies
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint, EndpointKind, ParameterKind

LONGEST_VALUE: Final = 12_000
"""Characters of the longest generated parameter. The request line is limited to 64 kB."""
WORST_BY_KIND: Final[Mapping[ParameterKind, tuple[str, ...]]] = {
    ParameterKind.TEXT: ("x" * LONGEST_VALUE, "%" * 4_000, "\U0001f6a2" * 1_000),
    ParameterKind.TEXTS: ("x" * LONGEST_VALUE, "Job:" + "*" * 4_000),
    ParameterKind.FLAG: ("true", "x" * LONGEST_VALUE),
    ParameterKind.INTEGER: ("9" * 4_000, "-" + "9" * LONGEST_VALUE),
    ParameterKind.UNSIGNED: ("18446744073709551615", "9" * LONGEST_VALUE),
    ParameterKind.DURATION: ("9" * LONGEST_VALUE, "1ns" * 4_000),
}
"""The worst values of a parameter by its type."""
WORST_BY_NAME: Final[Mapping[str, tuple[str, ...]]] = {
    "namespace": ("*", "x" * LONGEST_VALUE),
    "prefix": ("x" * LONGEST_VALUE,),
    "next_token": ("x" * LONGEST_VALUE, "9" * LONGEST_VALUE + ".a.b"),
    "per_page": ("2147483647", "9" * LONGEST_VALUE),
    "reverse": ("true",),
    "pretty": ("true",),
    "resources": ("true",),
    "task_states": ("true",),
    "index": ("9" * LONGEST_VALUE,),
    "wait": ("9" * LONGEST_VALUE, "1ns" * 4_000),
    "seconds": ("x" * LONGEST_VALUE,),
    "filter": (
        "(" * LONGEST_VALUE,
        "not " * 3_000 + "Name is empty",
        " or ".join(f'Name == "{number}"' for number in range(800)),
        'Name == "' + "x" * LONGEST_VALUE + '"',
        " or ".join(['ID matches "([a-z]?){300}N"'] * 20),
        " or ".join(['ID matches "(x+x+)+y"'] * 100),
    ),
}
"""The worst values of parameters that mean more than their type says. The table is open for others."""
LIST_PARAMETERS: Final = ("filter", "prefix", "per_page", "next_token", "reverse")
COMMON_PARAMETERS: Final = ("namespace", "pretty")
READ_PARAMETERS: Final = ("index", "wait")

LONG_BY_DESIGN: Final = frozenset((
    "agent.monitor", "agent.monitor_export", "event.stream", "agent.pprof", "agent.profile", "client.fs_logs", "client.fs_stream",
))  # fmt: skip
"""Endpoints without parameters to probe here: their replies last as long as the caller wants."""
SHUTTING_DOWN: Final = frozenset(("operator.transfer", "operator.remove_peer", "agent.force_leave"))
"""Endpoints that would end the leadership of the only server."""


class WorstRequest(msgspec.Struct, frozen=True):
    """A request, and why it is expensive."""

    endpoint: str
    name: str
    method: str
    target: str
    build_body: Callable[[], bytes] = bytes
    accept_encoding: str = ""
    cpu_limit_s: float = 0.0
    """The documented CPU budget of the request, if it is not that of all requests."""
    hold_limit_s: float = 0.0
    """The longest time for which the request may hold the loop, if it is not that of all requests."""

    def __str__(self) -> str:
        return f"{self.endpoint}: {self.name}"


BODY_ENDPOINTS: Final = tuple(
    endpoint
    for endpoint in ENDPOINTS
    if endpoint.body_type is not None and not endpoint.has_streamed_body and endpoint.name not in SHUTTING_DOWN
)


def iter_body_requests(endpoint: Endpoint, ids: Mapping[str, Sequence[str]]) -> Iterator[WorstRequest]:
    """Yield the worst requests of an endpoint with a body."""
    target, values = build_target(endpoint, ids)
    assert endpoint.body_type is not None
    for body in iter_worst_bodies(endpoint.body_type, next(iter(values.values()), "")):
        yield WorstRequest(endpoint.name, body.name, endpoint.method, target, body.build)


def iter_parameter_requests(ids: Mapping[str, Sequence[str]]) -> Iterator[WorstRequest]:
    """Yield one request for each worst value of each parameter of each endpoint."""
    for endpoint in ENDPOINTS:
        if endpoint.name in LONG_BY_DESIGN | SHUTTING_DOWN or endpoint.unsupported_reason:
            continue
        target, _ = build_target(endpoint, ids)
        for name, kind in _list_parameters(endpoint):
            for value in WORST_BY_NAME.get(name) or WORST_BY_KIND[kind]:
                yield WorstRequest(
                    endpoint.name,
                    f"{name}={value[:30]}... of {len(value)}",
                    endpoint.method,
                    f"{target}?{quote(name)}={quote(value)}",
                )


def _list_parameters(endpoint: Endpoint) -> list[tuple[str, ParameterKind]]:
    """Return all parameters of the endpoint: its own, and those that all endpoints of its kind have."""
    own = [(parameter.name, parameter.kind) for parameter in endpoint.parameters]
    names = [*COMMON_PARAMETERS]
    if endpoint.list_features is not None:
        names += LIST_PARAMETERS
    if endpoint.kind is EndpointKind.READ:
        names += READ_PARAMETERS
    return own + [(name, ParameterKind.TEXT) for name in names if name not in dict(own)]


def build_target(endpoint: Endpoint, ids: Mapping[str, Sequence[str]]) -> tuple[str, dict[str, str]]:
    """Return the path of the endpoint with known ids, and the ids by the name of their part of the path."""
    values = {}
    segments = []
    for segment in endpoint.path.split("/"):
        if segment.startswith("{"):
            name = segment.strip("{}").removesuffix("...")
            values[name] = (ids.get(name) or ids[""])[0]
            segments.append(quote(values[name], safe=""))
        else:
            segments.append(segment)
    return "/".join(segments), values
