"""Strict parsers for the heads of requests and replies: a head that two parsers could read differently is refused.

Pure functions on complete heads, up to the empty line. Does no input or output.
"""

import re
from typing import Final

import msgspec

MAX_TARGET_BYTES: Final = 8_192
METHOD_BYTES_MOST: Final = 32
_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])\r\n")
_REQUEST_HEADERS: Final = re.compile(rb"(?:" + _TOKEN + rb"++:[\t\x20-\x7e]*+\r\n)*+")
_LINES: Final = re.compile(rb"(([^:]++):([^\r]*+)\r\n)")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: ([^\r\n\0]*+))?\r\n")
_REPLY_HEADERS: Final = re.compile(rb"(?:" + _TOKEN + rb"++:[^\r\n\0]*+\r\n)*+")
_LENGTH: Final = re.compile(rb"\d{1,18}")
_HOST: Final = re.compile(rb"[\w.~!$&'()*+,;=%:\[\]-]*+")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#@]+)(.*)", re.IGNORECASE | re.DOTALL)

CHUNKED: Final = -1
UNTIL_CLOSE: Final = -2

HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"proxy-authorization", b"expect"),
    }
)
_SPECIAL_HEADERS: Final = HOP_BY_HOP | {
    *(b"host", b"content-length", b"authorization", b"if-none-match", b"if-modified-since", b"origin"),
    *(b"x-forwarded-for", b"x-forwarded-proto", b"forwarded"),
}


class BadHead(Exception):
    """A head is refused. The text is the error message for the sender, and `status` the status of the reply."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class RequestHead(msgspec.Struct, gc=False):
    method: bytes
    target: bytes
    """Path and query, as they are sent to the service."""
    is_http_10: bool
    """HTTP/1.0."""
    lines: list[bytes]
    """The unchanged header lines that are forwarded."""
    length: int = 0
    """Length of the body in bytes, or CHUNKED."""
    host: bytes | None = None
    authorization: bytes | None = None
    is_conditional: bool = False
    has_origin: bool = False
    has_close: bool = False
    has_expect_continue: bool = False
    is_websocket: bool = False
    forwarded_for: list[bytes] = []
    forwarded: list[bytes] = []


class ReplyHead(msgspec.Struct, gc=False):
    status: int
    status_line: bytes
    """The status line for the caller."""
    lines: list[bytes]
    length: int
    is_reusable: bool
    """Whether the connection can be used again."""
    measured_ms: int | None = None
    is_content: bool = False
    has_upgrade: bool = False
    has_limits: bool = False
    """Whether the service sent rate limit headers of its own."""
    has_date: bool = False


def read_request_head(data: bytes, end: int, *, max_headers: int) -> RequestHead:
    """Parse the head in `data`. `end` is the position after its empty line. Raises BadHead."""
    line = _REQUEST_LINE.match(data, 0, end)
    if line is None:
        raise BadHead(_explain_request_line(data))
    method, target, minor = line.groups()
    if len(target) > MAX_TARGET_BYTES:
        raise BadHead(f"The target of the request has {len(target)} bytes; at most {MAX_TARGET_BYTES} are read.", 414)
    start = line.end()
    checked = _REQUEST_HEADERS.match(data, start, end - 2)
    if checked is None or checked.end() != end - 2:
        raise BadHead(
            "A header is malformed: each is a name, a colon and a value of ASCII signs, in one line that ends with CR LF."
        )
    lines = _LINES.findall(data, start, end - 2)
    if len(lines) > max_headers:
        raise BadHead(f"The request has {len(lines)} headers; at most {max_headers} are read.", 431)
    head = RequestHead(method, target, minor == b"0", [], forwarded_for=[], forwarded=[])
    forwarded_lines = head.lines
    special_headers: list[tuple[bytes, bytes, bytes]] | None = None
    for whole, name, value in lines:
        lower = name.lower()
        if lower in _SPECIAL_HEADERS:
            if special_headers is None:
                special_headers = []
            special_headers.append((whole, lower, value.strip(b" \t")))
        elif lower[:8] != b"x-wharf-":
            forwarded_lines.append(whole)
    if special_headers is not None:
        _apply_special_headers(head, special_headers)
    _check_request(head)
    return head


def _apply_special_headers(head: RequestHead, special_headers: list[tuple[bytes, bytes, bytes]]) -> None:
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
                raise BadHead("Content-Length is no number of bytes.")
            has_length = True
            head.length = int(value)
        elif name == b"transfer-encoding":
            if has_encoding or value.lower() != b"chunked":
                raise BadHead("Of transfer encodings only one `chunked` is read.")
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
            options += [option.strip(b" \t").lower() for option in value.split(b",")]
        elif name == b"upgrade":
            upgrade = value.lower()
        elif name == b"expect":
            if value.lower() != b"100-continue":
                raise BadHead("Of expectations only `100-continue` is met.", 417)
            head.has_expect_continue = not head.is_http_10
        elif name == b"x-forwarded-for":
            head.forwarded_for.append(value)
        elif name == b"forwarded":
            head.forwarded.append(value)
    if has_length and has_encoding:
        raise BadHead("The request has both Content-Length and Transfer-Encoding: send one of them.")
    if has_encoding and head.is_http_10:
        raise BadHead("HTTP/1.0 knows no Transfer-Encoding: send a Content-Length.")
    if options:
        head.has_close = b"close" in options
        head.is_websocket = b"upgrade" in options and upgrade == b"websocket" and head.method == b"GET"
        _drop_connection_headers(forwarded_lines, options)


def _drop_connection_headers(forwarded_lines: list[bytes], options: list[bytes]) -> None:
    """Remove the headers that `Connection` names, because they apply to one connection only."""
    dropped_names = {option for option in options if option not in (b"close", b"keep-alive", b"upgrade", b"host", b"")}
    if dropped_names:
        forwarded_lines[:] = [line for line in forwarded_lines if line.partition(b":")[0].lower() not in dropped_names]


def _check_request(head: RequestHead) -> None:
    target = head.target
    if head.method == b"CONNECT":
        raise BadHead("This is no proxy that connects to others.", 405)
    if target[:1] != b"/" and not (target == b"*" and head.method == b"OPTIONS"):
        found = _ABSOLUTE.fullmatch(target)
        if found is None:
            raise BadHead("The target of a request is a path that begins with a slash.")
        head.host = found[1]
        head.lines[:] = [line for line in head.lines if line[:5].lower() != b"host:"]
        head.lines.append(b"Host: %s\r\n" % found[1])
        head.target = found[2] if found[2][:1] == b"/" else b"/" + found[2]
    if b"#" in head.target:
        raise BadHead("The target of a request has no fragment: leave out what begins with `#`.")
    if head.host is None:
        if not head.is_http_10:
            raise BadHead("The request has no Host header.")
    elif _HOST.fullmatch(head.host) is None:
        raise BadHead("The Host header is no name of a host.")


def _explain_request_line(data: bytes) -> str:
    line = data.partition(b"\n")[0]
    if b" HTTP/" in line and b" HTTP/1." not in line:
        return "The version of HTTP is not spoken here: send HTTP/1.1."
    return "This is no HTTP request: its first line is a method, a path and HTTP/1.1, and ends with CR LF."


def read_reply_head(data: bytes, end: int, *, is_head: bool) -> ReplyHead:
    """Parse the head of the service's reply. Raises BadHead if it cannot be forwarded."""
    line = _STATUS_LINE.match(data, 0, end)
    if line is None:
        raise BadHead("the reply begins with no status line")
    checked = _REPLY_HEADERS.match(data, line.end(), end - 2)
    if checked is None or checked.end() != end - 2:
        raise BadHead("a header of the reply is malformed")
    minor, code, reason = line.groups()
    status = int(code)
    head = ReplyHead(status, b"HTTP/1.1 %s %s\r\n" % (code, reason or b""), [], UNTIL_CLOSE, minor == b"1")
    forwarded_lines = head.lines
    length: int | None = None
    is_chunked = False
    options: list[bytes] = []
    for whole, name, value in _LINES.findall(data, line.end(), end - 2):
        lower = name.lower()
        if lower == b"content-length":
            value = value.strip(b" \t")
            if _LENGTH.fullmatch(value) is None or (length is not None and length != int(value)):
                raise BadHead("the reply has no one length")
            if length is None:
                forwarded_lines.append(whole)
            length = int(value)
        elif lower in HOP_BY_HOP:
            if lower == b"connection":
                options += [option.strip(b" \t").lower() for option in value.split(b",")]
            elif lower == b"transfer-encoding":
                if value.strip(b" \t").lower() != b"chunked" or is_chunked:
                    raise BadHead("the reply has a transfer encoding that is not known")
                is_chunked = True
            elif lower == b"upgrade":
                head.has_upgrade = True
        elif lower[:8] == b"x-wharf-":
            _apply_mark_header(head, lower, value.strip(b" \t"))
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
        raise BadHead("the reply has both a length and a transfer encoding")
    if is_head or status in (204, 304) or status < 200:
        head.length = 0
    elif is_chunked:
        head.length = CHUNKED
    elif length is not None:
        head.length = length
    else:
        head.is_reusable = False
    return head


def _apply_mark_header(head: ReplyHead, name: bytes, value: bytes) -> None:
    if name == b"x-wharf-cpu-ms" and value.isdigit() and len(value) <= 9:
        head.measured_ms = int(value)
    elif name == b"x-wharf-content":
        head.is_content = value == b"1"


def drop_limit_headers(lines: list[bytes]) -> list[bytes]:
    """Return the header lines without rate limit headers, which the limiter replaces by its own."""
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
