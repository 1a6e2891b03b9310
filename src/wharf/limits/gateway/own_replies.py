"""Replies that are ours and not the service's, as bytes: refusals, pages, and what went wrong on the way."""

from typing import Final

from wharf.limits.desk.arrival import Reply

REASONS: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 413: "Content Too Large", 414: "URI Too Long", 417: "Expectation Failed",
    429: "Too Many Requests", 431: "Request Header Fields Too Large", 502: "Bad Gateway", 503: "Service Unavailable",
    504: "Gateway Timeout",
}  # fmt: skip


def reply_head(reply: Reply, *, date: str, stays: bool) -> bytes:
    """The head of a reply; `stays`: whether the connection goes on after it."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
    more = "" if stays else "connection: close\r\n"
    reason = REASONS.get(reply.status, "Answered")
    head = f"HTTP/1.1 {reply.status} {reason}\r\ndate: {date}\r\n{lines}content-length: {len(reply.body)}\r\n{more}\r\n"
    return head.encode("latin-1")
