"""Strict parsers for the heads of requests and replies: a head that two parsers could read differently is refused.

Pure functions on complete heads, up to the empty line. Does no input or output.
"""

import re
from typing import Final

import msgspec

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.callers.carriers import normalize_header_name
from wharf.limits.core.method_overrides import OVERRIDE_HEADERS
from wharf.limits.decisions.headers import NO_MARKS, ReplyMarks, read_mark

MAX_TARGET_BYTES: Final = 8_192
"""A request with a longer target (path and query) is refused; limits memory, and the length of log lines."""
MAX_REPLY_HEADERS: Final = 1_000
"""A reply with more headers is an error; limits how long one reply holds the event loop."""
MAX_CONNECTION_OPTIONS: Final = 100
"""More options in `Connection` headers are an error; limits how long one head holds the event loop."""
MAX_ECHOED_BYTES: Final = 64
"""Bytes of the name of a refused header that the error message shows; limits its length."""
MAX_KNOWN_LINES: Final = 4_096
"""Header lines of requests whose meaning is remembered; limits memory, with the next constant to 30 MB."""
MAX_KNOWN_BYTES: Final = 2_048
"""The meaning of longer header lines is not remembered; limits memory."""
_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])\r\n")
_NON_ASCII_TARGET: Final = re.compile(rb"[A-Z]{1,32} [\x21-\x7e]*+[\x80-\xff][\x21-\xff]*+ HTTP/1\.[01]\r")
_REQUEST_HEADERS: Final = re.compile(rb"(?:" + _TOKEN + rb"++:[\t\x20-\x7e]*+\r\n)*+")
_PLAIN_HEADERS: Final = re.compile(rb"(?:[-0-9A-Za-z]++:[\t\x20-\x7e]*+\r\n)*+")
_LINES: Final = re.compile(rb"(([^:]++):([^\r]*+)\r\n)")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: ([^\r\n\0]*+))?\r\n")
_LENIENT_HEADERS: Final = re.compile(rb"(?:" + _TOKEN + rb"++:[^\r\n\0]*+\r\n)*+")
_LENGTH: Final = re.compile(rb"\d{1,18}")
_HOST: Final = re.compile(rb"[\w.~!$&'()*+,;=%:\[\]-]*+")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#@]+)((?:[/?#].*)?)", re.IGNORECASE | re.DOTALL)

KNOWN_METHODS: Final = frozenset(
    {b"GET", b"HEAD", b"OPTIONS", b"POST", b"PUT", b"PATCH", b"DELETE", b"CONNECT", b"TRACE"}
)
"""Methods that some services also accept in lower case."""
_METHODS_WITH_PLAIN_HEADS: Final = KNOWN_METHODS - {b"CONNECT"}
CHUNKED: Final = -1
"""The length of a body that is sent in chunks."""
UNTIL_CLOSE: Final = -2
"""The length of a body that ends when the connection is closed."""

HOP_BY_HOP_HEADERS: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"proxy-authorization", b"expect"),
    }
)
"""Headers that are for one connection only, so that the gateway does not forward them."""
ADDRESS_HEADERS: Final = frozenset(
    {
        *(b"x-real-ip", b"true-client-ip", b"x-client-ip", b"x-cluster-client-ip", b"x-original-forwarded-for"),
        *(b"cf-connecting-ip", b"fastly-client-ip"),
    }
)
"""Headers beside `X-Forwarded-For` in which proxies report the address of a caller, and which services believe."""
TARGET_HEADERS: Final = frozenset(
    {
        *(b"x-original-url", b"x-original-uri", b"x-original-host", b"x-original-method", b"x-rewrite-url"),
        *(b"x-host", b"x-http-host-override", b"x-scheme", b"x-url-scheme", b"front-end-https", b"x-forwarded"),
    }
)
"""Headers in which proxies report the host, path or scheme that a caller requested. Services that believe them would handle
another request than the one that was counted.
"""
FORWARDED_PREFIX: Final = b"x-forwarded-"
"""All headers with this prefix, such as `X-Forwarded-Host`, are set by proxies only."""
METHOD_HEADERS: Final = frozenset(name.encode() for name in OVERRIDE_HEADERS)
"""Headers in which requests name another method."""
JUDGED_HEADERS: Final = METHOD_HEADERS | {
    *(b"authorization", b"cookie", b"if-none-match", b"if-modified-since", b"origin", b"content-type"),
}
"""Headers on which a decision depends. They are forwarded even if `Connection` names them: the service must see what was judged."""
_OPTIONS_WITHOUT_HEADER: Final = JUDGED_HEADERS | {b"close", b"keep-alive", b"upgrade", b"host", b"content-length", b""}
_PROTECTED_PREFIXES: Final = (b"x-wharf-", FORWARDED_PREFIX)
_SPECIAL_HEADERS: Final = (
    HOP_BY_HOP_HEADERS
    | ADDRESS_HEADERS
    | TARGET_HEADERS
    | METHOD_HEADERS
    | {
        *(b"host", b"content-length", b"authorization", b"if-none-match", b"if-modified-since", b"origin"),
        *(b"x-forwarded-for", b"x-forwarded-proto", b"forwarded"),
    }
)


class BadHead(Exception):
    """A head that is refused, because it is malformed or ambiguous.

    For a request, the text is the error message for the caller, and `status` the status of the reply. For a reply of the
    service, the text is only the reason.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class RequestHead(msgspec.Struct, gc=False):
    """The head of a request: its header lines that are forwarded, and the values that the gateway needs."""

    method: bytes
    target: bytes
    """Path and query, as they are sent to the service."""
    is_http_10: bool
    lines: list[bytes]
    """The unchanged header lines that are forwarded."""
    length: int = 0
    """Length of the body in bytes, or CHUNKED."""
    host: bytes | None = None
    """The value of the `Host` header."""
    authorization: bytes | None = None
    is_conditional: bool = False
    """Whether the request has `If-None-Match` or `If-Modified-Since`."""
    has_origin: bool = False
    """Whether the request has an `Origin` header, which browsers send for pages of another origin."""
    has_close: bool = False
    """Whether the caller asks to close the connection after the reply."""
    has_expect_continue: bool = False
    """Whether the caller waits for `100 Continue` before it sends the body."""
    has_upgrade: bool = False
    """Whether the request has an `Upgrade` header, whatever its protocol."""
    is_websocket: bool = False
    forwarded_for: list[bytes] = []
    """The values of the `X-Forwarded-For` headers, in order."""
    forwarded: list[bytes] = []
    """The values of the `Forwarded` headers, in order."""
    forwarded_proto: bytes = b""
    """The value of the last `X-Forwarded-Proto` header; empty unless it is `http` or `https`."""
    method_overrides: list[bytes] = []
    """The values of the headers that name another method."""
    proxy_lines: list[bytes] = []
    """The header lines that only proxies may set. They are forwarded only if a configured proxy sent the request."""


class ReplyHead(msgspec.Struct, gc=False):
    """The head of the service's reply: its header lines that are forwarded, and the values that the gateway needs."""

    status: int
    status_line: bytes
    """The status line for the caller."""
    lines: list[bytes]
    """The unchanged header lines that are forwarded."""
    length: int
    """Length of the body in bytes, CHUNKED or UNTIL_CLOSE."""
    is_reusable: bool
    """Whether the connection to the service can be used again."""
    marks: ReplyMarks = NO_MARKS
    """What the service reports to the limiter in `x-wharf-*` headers."""
    has_upgrade: bool = False
    """Whether the reply has an `Upgrade` header."""
    has_limits: bool = False
    """Whether the service sent rate limit headers of its own."""
    has_date: bool = False


def read_request_head(data: bytes, end: int, *, max_headers: int, is_strict: bool = True) -> RequestHead:
    """Return the head of the request at the start of `data`. `end` is the position after its empty line.

    `is_strict`: whether values of headers must be printable ASCII, and no name may resemble one that the gateway interprets. Raises
    `BadHead` if the head is malformed, ambiguous, too long or not supported.
    """
    line = _REQUEST_LINE.match(data, 0, end)
    if line is None:
        raise BadHead(_explain_request_line(data))
    method, target, minor = line.groups()
    if len(target) > MAX_TARGET_BYTES:
        raise BadHead(
            f"The target of the request has {len(target)} bytes: at most {MAX_TARGET_BYTES} are allowed.", 414
        )
    start = line.end()
    header_count = data.count(b"\r\n", start, end - 2)
    if header_count > max_headers:
        raise BadHead(f"The request has {header_count} headers: at most {max_headers} are allowed.", 431)
    checked = _PLAIN_HEADERS.match(data, start, end - 2)
    are_names_plain = checked is not None and checked.end() == end - 2
    if not are_names_plain:
        checked = (_REQUEST_HEADERS if is_strict else _LENIENT_HEADERS).match(data, start, end - 2)
    if checked is None or checked.end() != end - 2:
        raise BadHead(
            "A header is malformed: it must be a name, a colon and a value in ASCII, on one line that ends with CR LF."
        )
    lines = _LINES.findall(data, start, end - 2)
    if is_strict and not are_names_plain:
        for _, name, _ in lines:
            _check_name(name)
    head = RequestHead(method, target, minor == b"0", [], forwarded_for=[], forwarded=[], proxy_lines=[])
    forwarded_lines = head.lines
    special_headers: list[tuple[bytes, bytes, bytes]] | None = None
    for whole, name, value in lines:
        lower = name.lower()
        if lower in _SPECIAL_HEADERS or lower[:12] == FORWARDED_PREFIX:
            if special_headers is None:
                special_headers = []
            special_headers.append((whole, lower, value.strip(b" \t")))
        elif lower[:8] != b"x-wharf-":
            forwarded_lines.append(whole)
    if special_headers is not None:
        _apply_special_headers(head, special_headers)
    _check_request(head)
    return head


class HeadReader:
    """Reads the heads of requests, and remembers the meaning of header lines: callers send most of them again and again.

    Only header lines whose meaning does not depend on the request line are remembered.
    """

    def __init__(self, max_headers: int) -> None:
        self._max_headers = max_headers
        self._heads_by_lines: BoundedCache[bytes, RequestHead] = BoundedCache(MAX_KNOWN_LINES)

    def read(self, data: bytes, end: int) -> RequestHead:
        """Return what `read_request_head` returns for the same bytes, or raise what it raises.

        The lists of the head must not be changed, because heads share them.
        """
        line = _REQUEST_LINE.match(data, 0, end)
        if line is None:
            return read_request_head(data, end, max_headers=self._max_headers)
        method, target, minor = line.groups()
        if minor == b"0" or target[:1] != b"/" or b"#" in target or method not in _METHODS_WITH_PLAIN_HEADS:
            return read_request_head(data, end, max_headers=self._max_headers)
        lines = data[line.end() : end]
        known = self._heads_by_lines.get(lines)
        if known is None or len(target) > MAX_TARGET_BYTES:
            head = read_request_head(data, end, max_headers=self._max_headers)
            if (
                not head.length
                and not head.has_upgrade
                and not head.has_expect_continue
                and len(lines) <= MAX_KNOWN_BYTES
            ):
                self._heads_by_lines.store(lines, head)
            return head
        return RequestHead(
            *(method, target, False, known.lines, 0, known.host, known.authorization, known.is_conditional),
            *(known.has_origin, known.has_close, False, False, False, known.forwarded_for, known.forwarded),
            *(known.forwarded_proto, known.method_overrides, known.proxy_lines),
        )


def _check_name(name: bytes) -> None:
    """Check that a service cannot take a header for another one that the gateway interprets, sets or removes.

    CGI, WSGI and similar interfaces write `_` for `-`, and some of them for every sign that is not a letter or digit. So
    they cannot tell `X_Forwarded_For` from `X-Forwarded-For`. Raises `BadHead`.
    """
    lower = name.lower()
    similar_name = normalize_header_name(lower)
    is_protected = similar_name in _SPECIAL_HEADERS or similar_name in JUDGED_HEADERS
    if similar_name != lower and (is_protected or similar_name.startswith(_PROTECTED_PREFIXES)):
        raise BadHead(
            f'The header "{name[:MAX_ECHOED_BYTES].decode()}" is refused, because services can take it for '
            f'"{similar_name[:MAX_ECHOED_BYTES].decode()}": leave it out.'
        )


def _apply_special_headers(head: RequestHead, special_headers: list[tuple[bytes, bytes, bytes]]) -> None:
    """Set the fields of the head, and add the forwarded lines, from the headers that the gateway interprets.

    Each header is a tuple of its whole line, its name in lower case, and its value. Raises `BadHead` if they contradict
    each other or are not supported.
    """
    forwarded_lines = head.lines
    has_length = has_encoding = False
    upgrade = b""
    options: list[bytes] = []
    for whole, name, value in special_headers:
        if name == b"host":
            if head.host is not None:
                raise BadHead("The request has two Host headers: send one.")
            head.host = value
            forwarded_lines.append(whole)
        elif name == b"content-length":
            if has_length:
                raise BadHead("The request has two Content-Length headers: send one.")
            if _LENGTH.fullmatch(value) is None:
                raise BadHead("Content-Length is not a number of bytes.")
            has_length = True
            head.length = int(value)
        elif name == b"transfer-encoding":
            if has_encoding or value.lower() != b"chunked":
                raise BadHead("The Transfer-Encoding is not supported: send `chunked` once, or a Content-Length.")
            has_encoding = True
            head.length = CHUNKED
        elif name == b"authorization":
            # With two credentials it is unclear which one counts: "twice" is never a valid credential.
            head.authorization = value if head.authorization is None else b"twice"
            forwarded_lines.append(whole)
        elif name in (b"if-none-match", b"if-modified-since"):
            head.is_conditional = True
            forwarded_lines.append(whole)
        elif name == b"origin":
            head.has_origin = True
            forwarded_lines.append(whole)
        elif name == b"connection":
            if not _add_options(options, value):
                raise BadHead(f"The Connection headers have more than {MAX_CONNECTION_OPTIONS} options.", 431)
        elif name == b"upgrade":
            upgrade = value.lower()
            head.has_upgrade = True
        elif name == b"expect":
            if value.lower() != b"100-continue":
                raise BadHead("The expectation is not supported: only `100-continue` is.", 417)
            head.has_expect_continue = not head.is_http_10
        elif name in METHOD_HEADERS:
            head.method_overrides = [*head.method_overrides, value]
            forwarded_lines.append(whole)
        elif name == b"x-forwarded-for":
            head.forwarded_for.append(value)
        elif name == b"forwarded":
            head.forwarded.append(value)
        elif name == b"x-forwarded-proto":
            head.forwarded_proto = value.lower() if value.lower() in (b"http", b"https") else b""
        elif name in ADDRESS_HEADERS or name in TARGET_HEADERS or name[:12] == FORWARDED_PREFIX:
            head.proxy_lines.append(whole)
    if has_length and has_encoding:
        raise BadHead("The request has both Content-Length and Transfer-Encoding: send one of them.")
    if has_encoding and head.is_http_10:
        raise BadHead("HTTP/1.0 has no Transfer-Encoding: send a Content-Length.")
    if options:
        head.has_close = b"close" in options
        head.is_websocket = b"upgrade" in options and upgrade == b"websocket" and head.method == b"GET"
        _drop_connection_headers(forwarded_lines, options)
        _drop_connection_headers(head.proxy_lines, options)


def _add_options(options: list[bytes], value: bytes) -> bool:
    """Add the options in the value of a `Connection` header to `options`. Return false if they are too many."""
    if len(options) + value.count(b",") >= MAX_CONNECTION_OPTIONS:
        return False
    options += [option.strip(b" \t").lower() for option in value.split(b",")]
    return True


def _drop_connection_headers(forwarded_lines: list[bytes], options: list[bytes]) -> None:
    """Remove the lines of headers that `Connection` names (`options`), because they are for one connection only.

    The lines with the length of the body, the host and `JUDGED_HEADERS` always stay.
    """
    dropped_names = set(options) - _OPTIONS_WITHOUT_HEADER
    if dropped_names:
        forwarded_lines[:] = [line for line in forwarded_lines if line.partition(b":")[0].lower() not in dropped_names]


def _check_request(head: RequestHead) -> None:
    """Check the target and host of a request, and replace a target such as `http://host/path` by its path and host.

    Raises `BadHead` if one of them is invalid or missing.
    """
    target = head.target
    if head.method not in KNOWN_METHODS and head.method.upper() in KNOWN_METHODS:
        raise BadHead("The method is not in upper case, and services read it differently: send it in upper case.")
    if head.method == b"CONNECT":
        raise BadHead("CONNECT is not supported: this is a reverse proxy.", 405)
    if target[:1] != b"/" and not (target == b"*" and head.method == b"OPTIONS"):
        found = _ABSOLUTE.fullmatch(target)
        if found is None:
            raise BadHead("The target of the request is not a path: begin it with a slash.")
        head.host = found[1]
        head.lines[:] = [line for line in head.lines if line[:5].lower() != b"host:"]
        head.lines.append(b"Host: %s\r\n" % found[1])
        head.target = found[2] if found[2][:1] == b"/" else b"/" + found[2]
    if b"#" in head.target:
        raise BadHead("The target of the request has a fragment: leave out `#` and everything after it.")
    if head.host is None:
        if not head.is_http_10:
            raise BadHead("The request has no Host header: send one.")
    elif _HOST.fullmatch(head.host) is None:
        raise BadHead("The Host header is not the name of a host.")


def _explain_request_line(data: bytes) -> str:
    """Return the error message for a head whose first line cannot be read."""
    line = data.partition(b"\n")[0]
    if b" HTTP/" in line and b" HTTP/1." not in line:
        return "The version of HTTP is not supported: send HTTP/1.1."
    if _NON_ASCII_TARGET.match(line):
        return "The target of the request has a byte that is not ASCII: send such characters percent-encoded, such as %C3%BC."
    return "This is not an HTTP request: its first line must be a method, a path and HTTP/1.1, and end with CR LF."


def read_reply_head(data: bytes, end: int, *, is_head: bool) -> ReplyHead:
    """Return the head of the service's reply at the start of `data`. `end` is the position after its empty line.

    `is_head` is set for the reply to a HEAD request, which has no body. Raises `BadHead` if the head is malformed.
    """
    line = _STATUS_LINE.match(data, 0, end)
    if line is None:
        raise BadHead("it does not begin with a status line")
    if data.count(b"\r\n", line.end(), end - 2) > MAX_REPLY_HEADERS:
        raise BadHead(f"it has more than {MAX_REPLY_HEADERS} headers")
    checked = _LENIENT_HEADERS.match(data, line.end(), end - 2)
    if checked is None or checked.end() != end - 2:
        raise BadHead("one of its headers is malformed")
    minor, code, reason = line.groups()
    status = int(code)
    head = ReplyHead(status, b"HTTP/1.1 %s %s\r\n" % (code, reason or b""), [], UNTIL_CLOSE, minor == b"1")
    if status < 200 and status != 101:
        head.length = 0
        return head  # The gateway forwards no informational reply.
    forwarded_lines = head.lines
    length: int | None = None
    is_chunked = False
    options: list[bytes] = []
    for whole, name, value in _LINES.findall(data, line.end(), end - 2):
        lower = name.lower()
        if lower == b"content-length":
            value = value.strip(b" \t")
            if _LENGTH.fullmatch(value) is None or (length is not None and length != int(value)):
                raise BadHead("its Content-Length is not a number, or it has two different ones")
            if length is None:
                forwarded_lines.append(whole)
            length = int(value)
        elif lower in HOP_BY_HOP_HEADERS:
            if lower == b"connection":
                if not _add_options(options, value):
                    raise BadHead(f"its Connection headers have more than {MAX_CONNECTION_OPTIONS} options")
            elif lower == b"transfer-encoding":
                if value.strip(b" \t").lower() != b"chunked" or is_chunked:
                    raise BadHead("its Transfer-Encoding is not supported")
                is_chunked = True
            elif lower == b"upgrade":
                head.has_upgrade = True
        elif lower[:8] == b"x-wharf-":
            head.marks = read_mark(head.marks, lower, value.strip(b" \t"))
        elif lower[:11] == b"x-ratelimit" or lower in (b"ratelimit", b"ratelimit-policy"):
            head.has_limits = True
            forwarded_lines.append(whole)  # Removed if limits are on: see `drop_limit_headers`.
        else:
            if lower == b"date":
                head.has_date = True
            forwarded_lines.append(whole)
    if options:
        if b"close" in options:
            head.is_reusable = False
        elif b"keep-alive" in options:
            head.is_reusable = True
        _drop_connection_headers(forwarded_lines, options)
    if is_chunked and length is not None:
        raise BadHead("it has both Content-Length and Transfer-Encoding")
    if is_chunked and minor == b"0":
        head.is_reusable = False  # HTTP/1.0 has no chunks, so it is uncertain where the reply ends.
    if is_head or status in (101, 204, 304):
        head.length = 0
        if status in (101, 204) and length is not None:
            # Such a reply never has a body. A caller that believed the length would wait for it.
            forwarded_lines[:] = [line for line in forwarded_lines if line[:15].lower() != b"content-length:"]
    elif is_chunked:
        head.length = CHUNKED
    elif length is not None:
        head.length = length
    else:
        head.is_reusable = False
    return head


def drop_limit_headers(lines: list[bytes]) -> list[bytes]:
    """Return the header lines of the service's reply without rate limit headers, which the limiter replaces by its own."""
    return [
        line
        for line in lines
        if not (
            line[:11].lower() == b"x-ratelimit"
            or (
                line[:9].lower() == b"ratelimit" and line[:17].lower().startswith((b"ratelimit:", b"ratelimit-policy:"))
            )
        )
    ]
