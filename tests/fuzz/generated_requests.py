"""Valid and invalid requests from the endpoint table.

Each request depends only on the seed and its number, so that it can be generated again without the earlier requests.
"""

import enum
import shlex
from collections.abc import Mapping
from random import Random
from typing import Final
from urllib.parse import quote

import msgspec

from tests.fuzz.bodies import TEXTS, damage_bytes, generate_body
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint, EndpointKind, ParameterKind

HOST: Final = "127.0.0.1"


class SendMode(enum.Enum):
    """How the bytes are sent."""

    WHOLE = "whole"
    CUT = "cut"  # Some of the bytes; then the client disconnects.
    HALF = "half"  # Some of the bytes; then the client closes its sending side and reads the reply.
    SLOW = "slow"  # All bytes in pieces, with pauses.
    DEAF = "deaf"  # All bytes; then the client disconnects without reading.


class FuzzRequest(msgspec.Struct, frozen=True):
    """A generated request and the bytes that are sent for it."""

    number: int
    endpoint: str
    """The name of the endpoint from which the request was generated."""
    method: str
    target: bytes
    headers: tuple[tuple[str, str], ...]
    body: bytes
    send_mode: SendMode
    data: bytes
    """The bytes that are sent."""
    pieces: int = 1
    is_garbled: bool = False
    """Whether the bytes were changed, so that they differ from method, target, headers and body."""

    def as_command(self, port: int) -> str:
        """Return a command line that sends the request again."""
        if self.is_garbled or self.send_mode is not SendMode.WHOLE:
            escaped = "".join(f"\\x{byte:02x}" for byte in self.data)
            return f"printf '{escaped}' | nc -q 5 {HOST} {port}  # {self.send_mode.value}"
        words = ["curl", "-sS", "-i", "--max-time", "5", "--path-as-is", "--globoff", "-X", self.method]
        for name, value in self.headers:
            if name.lower() not in ("host", "content-length"):
                words += ["-H", f"{name}: {value}"]
        line = " ".join(map(shlex.quote, [*words, f"http://{HOST}:{port}{self.target.decode('latin-1')}"]))
        if not self.body:
            return line
        escaped = "".join(f"\\x{byte:02x}" for byte in self.body)
        return f"printf '{escaped}' | {line} -H Expect: --data-binary @-"


class RequestMaterial(msgspec.Struct, frozen=True):
    """Values for requests: existing ids, tokens by frequency, and valid bodies."""

    ids: Mapping[str, tuple[str, ...]]
    """Ids by the name of a path parameter; "" holds ids for any parameter."""
    tokens: tuple[str, ...]
    """The first is a management token; "" stands for no token."""
    samples: Mapping[str, tuple[bytes, ...]]
    excluded_endpoints: frozenset[str] = frozenset()
    """Endpoints that are not requested."""


METHODS: Final = ("GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW", "get")
PATHS: Final = (
    b"/", b"/v1", b"/v1/", b"//v1/jobs", b"/v1/jobs/", b"/v1/../v1/jobs", b"/v1/%2e%2e/jobs", b"/v2/jobs", b"*", b"/v1/jobs%00",
    b"/v1/job/%ff%fe", b"/v1/job/%zz", b"/v1/job/" + b"a" * 20_000, b"/ui/", b"/v1/job//", b"http://other/v1/jobs", b"/v1/job/a%2fb",
)  # fmt: skip
FILTERS: Final = (
    'Name == "shop"', 'ID matches "(a+)+$"', 'Name matches "["', "Name", "not Name is empty", '"x" in Meta', "a.b.c == 1",
    "(" * 200, 'Status != "dead" and (Priority == 50 or Type == "batch")', "any TaskGroups as g { g.Count == 1 }", "",
    'Name == "' + "x" * 20_000 + '"', "Priority == 9" + "9" * 60, '"/Meta/a~1b" == ""', "\x00",
)  # fmt: skip
PARAMETER_VALUES: Final[Mapping[ParameterKind, tuple[str, ...]]] = {
    ParameterKind.TEXT: TEXTS,
    ParameterKind.TEXTS: ("Job", "*", "Job:shop", "Node:*", "x:y:z", ":", *TEXTS),
    ParameterKind.FLAG: ("true", "false", "1", "0", "t", "", "yes", "TRUE", "2"),
    ParameterKind.INTEGER: ("0", "1", "-1", "50", "+7", "1e3", "9" * 30, "", "x", "٣"),
    ParameterKind.UNSIGNED: ("0", "1", "-1", "18446744073709551615", "18446744073709551616", "", "x"),
    ParameterKind.DURATION: ("1s", "5m", "-1h", "0", "1e9h", "10", "", "1d", "9999999999h"),
}
COMMON_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "namespace": ("default", "dev", "*", "absent", "", "a/b", "\x00"),
    "region": ("global", "", "elsewhere", "\x00"),
    "stale": ("", "true", "false", "maybe"),
    "pretty": ("", "1", "0"),
    "prefix": ("", "s", "0000", "zz", "%"),
    "filter": FILTERS,
    "per_page": ("0", "1", "2", "-1", "100000", "2147483648", "x"),
    "next_token": ("", "shop", "default.shop", "1.shop", "9" * 40, "\x00", "x" * 3_000),
    "reverse": ("true", "false", "x"),
    "index": ("0", "1", "2", "18446744073709551615", "18446744073709551616", "-1", "x", "1" * 50),
    "wait": ("1ms", "5ms", "10ms", "20ms", "0", "-1s", "11m", "x"),
}
FIXED_PERIOD: Final = 5
"""One of this many requests goes to the next endpoint of the table, so that a few thousand reach each of them."""
HEADERS: Final = (
    ("Accept-Encoding", ("gzip", "gzip;q=0", "identity;q=0", "*", "br, gzip;q=x", "")),
    ("Content-Type", ("application/json", "text/plain", "multipart/form-data; boundary=x", "")),
    ("Idempotency-Key", ("one", "two", "x" * 5_000, "", "é")),
    ("X-Cluster-Node-Secret", ("00000001-0000-4000-8000-000000000000", "x", "")),
    ("Origin", ("http://elsewhere.example", "null")),
    ("Upgrade", ("websocket", "h2c")),
    ("Connection", ("Upgrade", "keep-alive", "x")),
    ("Expect", ("100-continue", "x")),
    ("X-Odd", ("\x01", "x" * 60_000, "")),
    ("Range", ("bytes=0-1",)),
    ("Transfer-Encoding", ("chunked", "gzip, chunked", "identity")),
    ("Content-Length", ("0", "1", "-1", "99999999", "9" * 40, "x", "+1")),
    ("Authorization", ("Bearer", "Bearer x", "Basic eDp5", "Bearer " + "x" * 20_000, "Bearer a.b.c")),
    ("X-Wharf-Forwarded", ("1", "x")),
)


def build_request(seed: int, number: int, material: RequestMaterial) -> FuzzRequest:
    """Return the request with this number. The same seed and material give the same request."""
    rng = Random(f"{seed}/{number}")
    rows = [row for row in ENDPOINTS if row.name not in material.excluded_endpoints]
    row = rng.choice(rows)
    if row.unsupported_reason and rng.random() < 0.8:  # Their replies are all the same.
        row = rng.choice(rows)
    if number % FIXED_PERIOD == 0:
        row = rows[number // FIXED_PERIOD % len(rows)]
    method = row.method if rng.random() < 0.93 else rng.choice(METHODS)
    if method == "PUT" and rng.random() < 0.2:
        method = "POST"
    target = _generate_target(rng, row, material)
    body = generate_body(rng, row.body_type, material.samples.get(row.name, ()))
    headers = _generate_headers(rng, material, number, body)
    head = b"".join([
        method.encode(), b" ", target, b" HTTP/1.1\r\n",
        *(f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in headers), b"\r\n",
    ])  # fmt: skip
    data, is_garbled = head + body, False
    probability = rng.random()
    if probability < 0.05:
        data, is_garbled = damage_bytes(rng, data), True
    elif probability < 0.07:
        data, is_garbled = damage_bytes(rng, head) + body, True
    send_mode = SendMode.WHOLE
    pieces = 1
    probability = rng.random()
    if probability < 0.04:
        send_mode, data = SendMode.CUT, data[: rng.randrange(len(data) or 1)]
    elif probability < 0.06:
        send_mode, data = SendMode.HALF, data[: rng.randrange(len(data) or 1)]
    elif probability < 0.07:
        send_mode, pieces = SendMode.SLOW, rng.choice((2, 3, 5))
    elif probability < 0.08:
        send_mode = SendMode.DEAF
    return FuzzRequest(number, row.name, method, target, tuple(headers), body, send_mode, data, pieces, is_garbled)


def _generate_target(rng: Random, row: Endpoint, material: RequestMaterial) -> bytes:
    """Return a path with known or random ids, sometimes damaged, and a query."""
    probability = rng.random()
    if probability < 0.02:
        return rng.choice(PATHS)
    segments = []
    for segment in row.path.split("/"):
        if segment.startswith("{"):
            name = segment.strip("{}").removesuffix("...")
            known_ids = material.ids.get(name, ()) if rng.random() < 0.75 else material.ids[""]
            value = rng.choice(known_ids or material.ids[""])
            if rng.random() < 0.05:
                value = rng.choice(TEXTS)
            segments.append(quote(value, safe="/" if segment.endswith("...}") else "", errors="replace"))
        else:
            segments.append(segment)
    path = "/".join(segments).encode()
    if probability < 0.04:
        path = bytes(byte for byte in damage_bytes(rng, path) if byte > 32)
    if not path.startswith(b"/"):
        path = b"/" + path
    query = _generate_query(rng, row)
    return path + (b"?" + query if query else b"")


def _generate_query(rng: Random, row: Endpoint) -> bytes:
    """Return a query of valid and invalid parameters."""
    pairs: list[tuple[str, str]] = []
    for parameter in row.parameters:
        if rng.random() < 0.4:
            values = FILTERS if parameter.name == "filter" else PARAMETER_VALUES[parameter.kind]
            pairs += [(parameter.name, rng.choice(values)) for _ in range(rng.choice((1, 1, 1, 2)))]
    share = 0.12 if row.kind is EndpointKind.READ else 0.03
    for name, choices in COMMON_PARAMETERS.items():
        if rng.random() < share:
            pairs.append((name, rng.choice(choices)))
    if any(name == "index" for name, _ in pairs) and not any(name == "wait" for name, _ in pairs):
        pairs.append(("wait", rng.choice(("1ms", "10ms"))))
    if rng.random() < 0.01:
        pairs += [("x", "y")] * 2_000
    query = "&".join(f"{quote(name)}={quote(value)}" for name, value in pairs).encode()
    if query and rng.random() < 0.03:
        query = bytes(byte for byte in damage_bytes(rng, query) if byte > 32)
    return query


def _generate_headers(rng: Random, material: RequestMaterial, number: int, body: bytes) -> list[tuple[str, str]]:
    """Return headers with a token, and sometimes with further, possibly invalid, headers."""
    headers = [("Host", HOST), ("X-Request-Id", f"fuzz-{number}"), ("Connection", "close")]
    probability = rng.random()
    token = material.tokens[0] if probability < 0.7 else rng.choice(material.tokens)
    if token:
        name = "X-Cluster-Token" if rng.random() < 0.8 else "Authorization"
        headers.append((name, token if name == "X-Cluster-Token" else f"Bearer {token}"))
    for name, values in HEADERS:
        if rng.random() < 0.02:
            headers.append((name, rng.choice(values)))
    if rng.random() < 0.003:
        headers += [(f"X-{header_number}", "y") for header_number in range(rng.choice((100, 300, 1_200)))]
    if body and not any(name in ("Content-Length", "Transfer-Encoding") for name, _ in headers):
        headers.append(("Content-Length", str(len(body))))
    return headers
