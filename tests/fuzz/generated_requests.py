"""Valid and invalid requests from the endpoint table. Each depends only on the seed and its number, so that one can be
generated again without the earlier ones."""

import enum
import shlex
from collections.abc import Mapping
from random import Random
from typing import Final
from urllib.parse import quote

import msgspec

from tests.fuzz.bodies import TEXTS, body_for, spoiled_bytes
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint, EndpointKind, ParameterKind

HOST: Final = "127.0.0.1"


class SendMode(enum.Enum):
    """How the bytes are sent."""

    WHOLE = "whole"
    CUT = "cut"  # Some of them; then the caller hangs up.
    HALF = "half"  # Some of them; then the caller sends no more, and listens.
    SLOW = "slow"  # In pieces, with pauses.
    DEAF = "deaf"  # All of them; then the caller hangs up without listening.


class FuzzRequest(msgspec.Struct, frozen=True):
    number: int
    endpoint: str
    """The endpoint that it was derived from."""
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
    """The material of requests: existing ids, tokens by frequency, and valid bodies."""

    ids: Mapping[str, tuple[str, ...]]
    """Ids by the name of a path parameter; "" holds ids for any parameter."""
    tokens: tuple[str, ...]
    """The first is a management token; "" stands for no token."""
    samples: Mapping[str, tuple[bytes, ...]]
    without: frozenset[str] = frozenset()
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
VALUES: Final[Mapping[ParameterKind, tuple[str, ...]]] = {
    ParameterKind.TEXT: TEXTS,
    ParameterKind.TEXTS: ("Job", "*", "Job:shop", "Node:*", "x:y:z", ":", *TEXTS),
    ParameterKind.FLAG: ("true", "false", "1", "0", "t", "", "yes", "TRUE", "2"),
    ParameterKind.INTEGER: ("0", "1", "-1", "50", "+7", "1e3", "9" * 30, "", "x", "٣"),
    ParameterKind.UNSIGNED: ("0", "1", "-1", "18446744073709551615", "18446744073709551616", "", "x"),
    ParameterKind.DURATION: ("1s", "5m", "-1h", "0", "1e9h", "10", "", "1d", "9999999999h"),
}
COMMON: Final[Mapping[str, tuple[str, ...]]] = {
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
    chance = Random(f"{seed}/{number}")
    rows = [row for row in ENDPOINTS if row.name not in material.without]
    row = chance.choice(rows)
    if row.unsupported_reason and chance.random() < 0.8:  # Their replies are all the same.
        row = chance.choice(rows)
    method = row.method if chance.random() < 0.93 else chance.choice(METHODS)
    if method == "PUT" and chance.random() < 0.2:
        method = "POST"
    target = _target(chance, row, material)
    body = body_for(chance, row.body_type, material.samples.get(row.name, ()))
    headers = _headers(chance, material, number, body)
    head = b"".join([
        method.encode(), b" ", target, b" HTTP/1.1\r\n",
        *(f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in headers), b"\r\n",
    ])  # fmt: skip
    data, is_garbled = head + body, False
    draw = chance.random()
    if draw < 0.05:
        data, is_garbled = spoiled_bytes(chance, data), True
    elif draw < 0.07:
        data, is_garbled = spoiled_bytes(chance, head) + body, True
    send_mode = SendMode.WHOLE
    pieces = 1
    draw = chance.random()
    if draw < 0.04:
        send_mode, data = SendMode.CUT, data[: chance.randrange(len(data) or 1)]
    elif draw < 0.06:
        send_mode, data = SendMode.HALF, data[: chance.randrange(len(data) or 1)]
    elif draw < 0.07:
        send_mode, pieces = SendMode.SLOW, chance.choice((2, 3, 5))
    elif draw < 0.08:
        send_mode = SendMode.DEAF
    return FuzzRequest(number, row.name, method, target, tuple(headers), body, send_mode, data, pieces, is_garbled)


def _target(chance: Random, row: Endpoint, material: RequestMaterial) -> bytes:
    draw = chance.random()
    if draw < 0.02:
        return chance.choice(PATHS)
    segments = []
    for segment in row.path.split("/"):
        if segment.startswith("{"):
            name = segment.strip("{}").removesuffix("...")
            known_ids = material.ids.get(name, ()) if chance.random() < 0.75 else material.ids[""]
            value = chance.choice(known_ids or material.ids[""])
            if chance.random() < 0.05:
                value = chance.choice(TEXTS)
            segments.append(quote(value, safe="/" if segment.endswith("...}") else "", errors="replace"))
        else:
            segments.append(segment)
    path = "/".join(segments).encode()
    if draw < 0.04:
        path = bytes(byte for byte in spoiled_bytes(chance, path) if byte > 32)
    if not path.startswith(b"/"):
        path = b"/" + path
    query = _query(chance, row)
    return path + (b"?" + query if query else b"")


def _query(chance: Random, row: Endpoint) -> bytes:
    pairs: list[tuple[str, str]] = []
    for parameter in row.parameters:
        if chance.random() < 0.4:
            values = FILTERS if parameter.name == "filter" else VALUES[parameter.kind]
            pairs += [(parameter.name, chance.choice(values)) for _ in range(chance.choice((1, 1, 1, 2)))]
    share = 0.12 if row.kind is EndpointKind.READ else 0.03
    for name, choices in COMMON.items():
        if chance.random() < share:
            pairs.append((name, chance.choice(choices)))
    if any(name == "index" for name, _ in pairs) and not any(name == "wait" for name, _ in pairs):
        pairs.append(("wait", chance.choice(("1ms", "10ms"))))
    if chance.random() < 0.01:
        pairs += [("x", "y")] * 2_000
    query = "&".join(f"{quote(name)}={quote(value)}" for name, value in pairs).encode()
    if query and chance.random() < 0.03:
        query = bytes(byte for byte in spoiled_bytes(chance, query) if byte > 32)
    return query


def _headers(chance: Random, material: RequestMaterial, number: int, body: bytes) -> list[tuple[str, str]]:
    headers = [("Host", HOST), ("X-Request-Id", f"fuzz-{number}"), ("Connection", "close")]
    draw = chance.random()
    token = material.tokens[0] if draw < 0.7 else chance.choice(material.tokens)
    if token:
        name = "X-Cluster-Token" if chance.random() < 0.8 else "Authorization"
        headers.append((name, token if name == "X-Cluster-Token" else f"Bearer {token}"))
    for name, values in HEADERS:
        if chance.random() < 0.02:
            headers.append((name, chance.choice(values)))
    if chance.random() < 0.003:
        headers += [(f"X-{header_number}", "y") for header_number in range(chance.choice((100, 300, 1_200)))]
    if body and not any(name in ("Content-Length", "Transfer-Encoding") for name, _ in headers):
        headers.append(("Content-Length", str(len(body))))
    return headers
