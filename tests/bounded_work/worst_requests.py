"""The worst requests of each endpoint: one for each body of the largest permitted size, and one for each parameter."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote, quote_plus

import msgspec

from tests.bounded_work.worst_bodies import MAX_BODY_BYTES, iter_worst_bodies
from wharf.cluster.api.requests.parameters import MAX_PARAMETERS
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint, EndpointKind, ParameterKind

MAX_REQUEST_LINE_BYTES: Final = 65_536
LONGEST_VALUE: Final = 60_000
"""Characters of the longest generated parameter. The rest of the request line is left to the path and its ids."""
PLAIN_CHARACTERS: Final = "()[]{}*,:;/?@!$'=\""
"""Characters that are sent as they are, so that more of them fit in a request line."""
LONGEST_WEBSOCKET_VALUE: Final = 8_000
"""Characters of the longest generated parameter of a websocket, whose request line is limited to 8 kB."""


def build_worst_commands(size: int) -> tuple[str, ...]:
    """Return the worst values of the JSON list that is the command of an exec session, with up to `size` characters."""
    return (
        "[" * size,
        "[" + ",".join(['"a"'] * (size // 4 - 1)) + "]",
        '["' + "x" * (size - 4) + '"]',
        "[" + ",".join(["1"] * (size // 2 - 1)) + "]",
    )


WORST_BY_KIND: Final[Mapping[ParameterKind, tuple[str, ...]]] = {
    ParameterKind.TEXT: (
        "x" * LONGEST_VALUE,
        "%" * 20_000,
        "\U0001f6a2" * 5_000,
        "a/" * (LONGEST_VALUE // 2),
        "../" * 20_000,
    ),
    ParameterKind.TEXTS: ("x" * LONGEST_VALUE, "Job:" + "*" * 60_000),
    ParameterKind.FLAG: ("true", "x" * LONGEST_VALUE),
    ParameterKind.INTEGER: ("9" * LONGEST_VALUE, "-" + "9" * 60_000),
    ParameterKind.UNSIGNED: ("18446744073709551615", "9" * LONGEST_VALUE),
    ParameterKind.DURATION: ("9" * LONGEST_VALUE, "1ns" * 20_000),
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
    "wait": ("9" * LONGEST_VALUE, "1ns" * 20_000),
    "seconds": ("x" * LONGEST_VALUE, "9" * LONGEST_VALUE),
    "command": build_worst_commands(LONGEST_VALUE),
    "filter": (
        "(" * LONGEST_VALUE,
        "not " * 15_000 + "Name is empty",
        " or ".join(f'Name == "{number}"' for number in range(3_000)),
        'Name == "' + "x" * 60_000 + '"',
        " or ".join(['ID matches "([a-z]?){300}N"'] * 1_800),
        " or ".join(['ID matches "(x+x+)+y"'] * 2_000),
    ),
}
"""The worst values of parameters that mean more than their type says. The table is open for others."""
LIST_PARAMETERS: Final = ("filter", "prefix", "per_page", "next_token", "reverse")
COMMON_PARAMETERS: Final = ("namespace", "pretty")
READ_PARAMETERS: Final = ("index", "wait")

REQUIRED_PARAMETERS: Final[Mapping[str, Mapping[str, str]]] = {
    "client.exec": {"task": "server", "command": '["true"]'},
    "client.fs_logs": {"task": "server", "type": "stdout"},
    "client.fs_read_at": {"offset": "0", "limit": "1"},
    "client.fs_search": {"task": "server", "type": "stdout", "text": "x"},
    "agent.monitor_export": {"on_disk": "true"},
}
"""Parameters without which an endpoint reads no other ones, with a valid value."""
REPEATED_VALUES: Final[Mapping[str, Callable[[int], str]]] = {
    "topic": lambda number: f"Job:{number:05}",
    "address": lambda number: f"h{number:05}:4647",
    "endpoint": lambda number: f"job.{number:05}",
    "type": lambda number: f"{number:05}",
}
"""Different values of parameters that may be repeated, so that many of them fit in a request line."""
SHUTTING_DOWN: Final = frozenset(("operator.transfer", "operator.remove_peer", "agent.force_leave"))
"""Endpoints that would end the leadership of the only server."""


WORST_QUERIES: Final = (
    "region=global&index=1&" + "&" * LONGEST_VALUE,
    "region=global&" + "&".join(f"{number:x}" for number in range(12_500)),
    "region=global&" + "&".join(f"%41{number:020}%41" for number in range(MAX_PARAMETERS - 1)),
)
"""Queries with more parameters than a server accepts, and with the largest number."""


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
    has_endless_reply: bool = False
    """Whether only the first part of the reply is read."""
    reads_until_silent: bool = False
    """Whether an endless reply is read until nothing arrives for a while."""
    is_websocket: bool = False
    """Whether the request asks for a websocket."""

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
    max_bytes = min(endpoint.max_body_bytes or MAX_BODY_BYTES, MAX_BODY_BYTES)
    for body in iter_worst_bodies(endpoint.body_type, next(iter(values.values()), ""), max_bytes):
        yield WorstRequest(endpoint.name, body.name, endpoint.method, target, body.build)


def iter_parameter_requests(ids: Mapping[str, Sequence[str]]) -> Iterator[WorstRequest]:
    """Yield one request for each worst value of each parameter of each endpoint, and one with all repetitions that fit."""
    for endpoint in ENDPOINTS:
        if endpoint.name in SHUTTING_DOWN or endpoint.unsupported_reason:
            continue
        target, _ = build_target(endpoint, ids)
        for name, kind in _list_parameters(endpoint):
            for value in WORST_BY_NAME.get(name) or WORST_BY_KIND[kind]:
                query = f"{_get_required_query(endpoint, name)}{name}={quote_plus(value, safe=PLAIN_CHARACTERS)}"
                yield _build_request(endpoint, f"{name}={value[:30]}... of {len(value)}", f"{target}?{query}")
            if endpoint.name == "client.exec" and name in ("task", "command"):
                yield from _iter_websocket_requests(endpoint, name, target)
            if kind is ParameterKind.TEXTS:
                for count in (MAX_PARAMETERS, LONGEST_VALUE):
                    query = _repeat(name, count)
                    yield _build_request(endpoint, f"{name} repeated up to {count} times", f"{target}?{query}")
        for number, query in enumerate(WORST_QUERIES):
            yield _build_request(endpoint, f"query {number} with many parameters", f"{target}?{query}")


def iter_stream_requests(ids: Mapping[str, Sequence[str]]) -> Iterator[WorstRequest]:
    """Yield the parameter requests of streams, files, logs, profiles and commands."""
    prefixes = ("event.", "client.fs", "client.exec", "agent.monitor", "agent.pprof", "search.")
    return (request for request in iter_parameter_requests(ids) if request.endpoint.startswith(prefixes))


def _build_request(endpoint: Endpoint, name: str, target: str) -> WorstRequest:
    assert len(target) < MAX_REQUEST_LINE_BYTES - 100, f"{endpoint.name}: {name} is longer than a request line"
    return WorstRequest(
        endpoint.name,
        name,
        endpoint.method,
        target,
        has_endless_reply=endpoint.has_endless_reply,
    )


def _iter_websocket_requests(endpoint: Endpoint, name: str, target: str) -> Iterator[WorstRequest]:
    """Yield the worst requests for a command in a task: as websockets, whose request lines have a limit of their own."""
    size = LONGEST_WEBSOCKET_VALUE - len(target) - 100
    for value in build_worst_commands(size) if name == "command" else ("x" * size, "%" * (size // 3)):
        query = f"{_get_required_query(endpoint, name)}{name}={quote_plus(value, safe=PLAIN_CHARACTERS)}"
        request = _build_request(endpoint, f"websocket, {name}={value[:30]}... of {len(value)}", f"{target}?{query}")
        yield msgspec.structs.replace(request, is_websocket=True)


def _get_required_query(endpoint: Endpoint, name: str) -> str:
    """Return the parameters without which the endpoint would not read the one with this name."""
    required = REQUIRED_PARAMETERS.get(endpoint.name, {})
    return "".join(f"{other}={value}&" for other, value in required.items() if other != name)


def _repeat(name: str, most: int) -> str:
    """Return a query with as many different values of the parameter as fit in a request line, at most `most`."""
    make_value = REPEATED_VALUES.get(name, str)
    count = LONGEST_VALUE // (len(name) + len(make_value(0)) + len("=&"))
    return "&".join(f"{name}={make_value(number)}" for number in range(min(count, most)))


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
