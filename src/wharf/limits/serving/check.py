"""The check of a request that a proxy asks about: nginx (`auth_request`), Traefik (`forwardAuth`), Caddy (`reverse_proxy`).

The proxy sends a request without a body, whose headers describe the request of its caller. Does no input or output. Decision
records 0226 and 0190.
"""

import base64
import binascii
import hmac
import re
from typing import Final

import msgspec

from wharf.limits.core.callers.addresses import parse_address
from wharf.limits.core.callers.carriers import CarrierSettings
from wharf.limits.core.method_overrides import is_form, is_json
from wharf.limits.core.paths import BadPath, normalize_path
from wharf.limits.core.responses import JSON_TYPE, Headers
from wharf.limits.decisions.headers import EXPOSED_HEADERS
from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest, LocalReply
from wharf.limits.decisions.service import DecisionService
from wharf.limits.gateway.heads import BadHead, RequestHead, read_request_head
from wharf.limits.gateway.proxied_request import find_carried_lines, find_content_types

CHECK_PATH: Final = b"/check"
"""For proxies that admit a request if the status is 2xx, and pass on any other reply: Traefik, and `forward_auth` of Caddy."""
CADDY_PATH: Final = b"/check/caddy"
"""For proxies that admit a request if ADMITTED_HEADER is there, and pass on any other reply."""
NGINX_PATH: Final = b"/check/nginx"
"""For nginx, which accepts only 2xx, 401 and 403 from a check, and drops the body. The reply for the caller is in REPLY_HEADER."""
NGINX_REPLY_PATH: Final = b"/check/nginx/reply"
"""Returns the reply in REPLY_HEADER as it is: nginx sends it to the caller."""
PAGES_PREFIX: Final = b"/pages/"
"""The limiter's own pages, such as `/pages/rate_limit`, for proxies that route their paths to the limiter."""
SECRET_HEADER: Final = b"x-check-secret"
REPLIED_HEADER: Final = b"x-check-reply"
"""What REPLY_HEADER had, in the request to NGINX_REPLY_PATH."""
ADMITTED_HEADER: Final = "x-wharf-admitted"
REPLY_HEADER: Final = "x-wharf-reply"
"""The complete reply for the caller, encoded; or PAGE_REPLY."""
PAGE_REPLY: Final = "page"
"""The reply is one of the limiter's pages, which can be longer than a header: NGINX_REPLY_PATH decides and renders it."""
NGINX_REFUSAL_STATUS: Final = 403
"""The status of each refusal for nginx. To the caller of a refusal with 401, nginx would send two `WWW-Authenticate` headers."""
DEFAULT_STATUS: Final = 429
"""Replaces the status of a refusal that a proxy would take for an admission, such as 200 for GraphQL."""
_FORWARDED_NAMES: Final = (b"x-forwarded-method", b"x-forwarded-uri")
_ORIGINAL_NAMES: Final = (b"x-original-method", b"x-original-uri")
_DESCRIBING_HEADERS: Final = {
    CHECK_PATH: _FORWARDED_NAMES,
    CADDY_PATH: _FORWARDED_NAMES,
    NGINX_PATH: _ORIGINAL_NAMES,
    NGINX_REPLY_PATH: _ORIGINAL_NAMES,
}
"""For each path, the headers with method and target of the caller's request."""
_OWN_HEADERS: Final = frozenset({b"host", SECRET_HEADER, REPLIED_HEADER})
"""Headers of the check itself, not of the caller's request."""
_REPLY_LINE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class InvalidCheck(Exception):
    """A request to the check endpoint that cannot be decided. The text says what to configure."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Check(msgspec.Struct, frozen=True):
    """A check of a proxy, and the caller's request that it describes."""

    path: bytes
    """The path of the check, or PAGES_PREFIX."""
    incoming: IncomingRequest
    problem: BadHead | None = None
    """Why the caller's request is refused although no limit does: the gateway would refuse its head too."""
    reply: str = ""
    """The value of REPLIED_HEADER."""


class _EncodedReply(msgspec.Struct, array_like=True, frozen=True):
    """The content of REPLY_HEADER."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def read_check(head: RequestHead, secret: str, carriers: CarrierSettings | None = None) -> Check:
    """Return the check in a request of a proxy. `carriers`: what else carries credentials. Raises `InvalidCheck`."""
    path, mark, query = head.target.partition(b"?")
    is_page = path.startswith(PAGES_PREFIX)
    names = () if is_page else _DESCRIBING_HEADERS.get(path)
    if names is None:
        raise InvalidCheck("unknown path: use /check, or /check/caddy for Caddy, or /check/nginx for nginx", 404)
    if head.length:
        raise InvalidCheck(
            "the check has a body: configure the proxy to send none, such as proxy_pass_request_body off"
        )
    headers = _collect_headers(head, (*names, SECRET_HEADER, REPLIED_HEADER))
    if secret and not hmac.compare_digest(headers.get(SECRET_HEADER, b""), secret.encode()):
        raise InvalidCheck("the header X-Check-Secret is missing or wrong: configure the proxy to send the secret")
    if is_page:
        path, method, target = PAGES_PREFIX, head.method, path[len(PAGES_PREFIX) - 1 :] + mark + query
    else:
        method, target = (_get_header(headers, name) for name in names)
    peer, others = _split_addresses(head)
    sender = IncomingRequest("GET", "/", "", peer, forwarded_for=others, has_origin=head.has_origin)
    reply = headers.get(REPLIED_HEADER, b"").decode("ascii", "replace")
    try:
        return Check(path, _read_request(head, method, target, sender, carriers), reply=reply)
    except BadHead as problem:
        return Check(path, sender, problem, reply)


def _collect_headers(head: RequestHead, names: tuple[bytes, ...]) -> dict[bytes, bytes]:
    """Return the values of these headers by name. Raises `InvalidCheck` if one occurs twice."""
    found: dict[bytes, bytes] = {}
    for line in (*head.lines, *head.proxy_lines):
        name, _, value = line.partition(b":")
        lower = name.lower()
        if lower in names:
            if lower in found:
                raise InvalidCheck(f"the header {lower.decode()} occurs twice: configure the proxy to replace it")
            found[lower] = value.strip(b" \t\r\n")
    return found


def _get_header(headers: dict[bytes, bytes], name: bytes) -> bytes:
    """Return the value of a header. Raises `InvalidCheck` if the proxy did not send it."""
    value = headers.get(name)
    if not value:
        raise InvalidCheck(f"the header {name.decode()} is missing: configure the proxy to set it")
    return value


def _split_addresses(head: RequestHead) -> tuple[str, tuple[str, ...]]:
    """Return the address from which the proxy got the request, and the entries of `X-Forwarded-For` before it.

    The proxy adds the address of its own caller as the last entry. Raises `InvalidCheck` if it is not an address.
    """
    entries = b",".join(head.forwarded_for).decode("latin-1")
    before, comma, last = entries.rpartition(",")
    if not last.strip():
        raise InvalidCheck(
            "the header x-forwarded-for is missing: configure the proxy to send the caller's address in it"
        )
    if parse_address(last) is None:
        raise InvalidCheck(f"the last entry of x-forwarded-for is not an address: {last.strip()[:60]!r}")
    return str(parse_address(last)), (before,) if comma else ()


def _read_request(
    head: RequestHead, method: bytes, target: bytes, sender: IncomingRequest, carriers: CarrierSettings | None
) -> IncomingRequest:
    """Return the caller's request, read as if the caller had sent it to the gateway. `sender` has its addresses.

    Raises `BadHead` if the gateway would refuse it.
    """
    lines = [line for line in head.lines if line.partition(b":")[0].lower() not in _OWN_HEADERS]
    data = b"%b %b HTTP/1.1\r\nhost: limits\r\n%b\r\n" % (method, target, b"".join(lines))
    described = read_request_head(data, len(data), max_headers=len(lines) + 1)
    path, _, query = described.target.decode("ascii").partition("?")
    content_types = find_content_types(described)
    return msgspec.structs.replace(
        sender,
        method=described.method.decode("ascii"),
        path=path,
        query=query,
        authorization=None if described.authorization is None else described.authorization.decode("ascii"),
        is_conditional=described.is_conditional,
        forwarded=tuple(value.decode("latin-1") for value in head.forwarded),
        carried=() if carriers is None else find_carried_lines(described, carriers),
        method_overrides=tuple(value.decode("ascii") for value in described.method_overrides),
        has_form=bool(content_types) and is_form("POST", content_types),  # The proxy does not send the body.
        has_json=bool(content_types) and is_json("POST", content_types),
    )


async def check_request(service: DecisionService, check: Check) -> LocalReply:
    """Decide the request of a caller, and return the reply for the proxy. Raises `InvalidCheck`.

    A concurrency slot is freed at once: the end of the request is unknown.
    """
    if check.path == NGINX_REPLY_PATH and check.reply != PAGE_REPLY:
        return _decode_reply(check.reply)
    incoming = check.incoming
    result = await _judge(service, check)
    if isinstance(result, LocalReply):
        reply = result
    elif check.path == NGINX_PATH and service.has_page(result):
        headers: Headers = ((REPLY_HEADER, PAGE_REPLY), ("cache-control", "no-cache"))
        return LocalReply(NGINX_REFUSAL_STATUS, headers, b"")
    else:
        decision = await _decide(service, result, has_pages=check.path != CHECK_PATH)
        if isinstance(decision, AdmittedRequest):
            if check.path in (NGINX_REPLY_PATH, PAGES_PREFIX):
                raise InvalidCheck("the limiter has no page at this path: route only its own pages to it", 404)
            return _build_admission(service, decision, has_origin=incoming.has_origin)
        reply = decision
    reply = _expose_headers(reply, has_origin=incoming.has_origin)
    if check.path == NGINX_PATH:
        return _encode_reply(reply)
    if check.path == CHECK_PATH and not 400 <= reply.status < 600:
        return msgspec.structs.replace(reply, status=DEFAULT_STATUS)
    return reply


async def _judge(service: DecisionService, check: Check) -> IncomingRequest | LocalReply:
    """Return the request with its path in normal form, or the reply that refuses a head that services read differently.

    The proxy forwards the path as its caller sent it, so segments cannot be removed.
    """
    incoming, problem = check.incoming, check.problem
    if problem is None:
        try:
            path = normalize_path(incoming.path, service.evaluator.limiter.rulebook.unforwarded_paths)
        except BadPath as error:
            problem = BadHead(str(error), error.status)
        else:
            return incoming if path == incoming.path else msgspec.structs.replace(incoming, path=path)
    return await service.render_error(msgspec.structs.replace(incoming, path="/"), problem.status, str(problem))


async def _decide(
    service: DecisionService, incoming: IncomingRequest, *, has_pages: bool
) -> AdmittedRequest | LocalReply:
    """Return the request as admitted and ended, the reply that refuses it, or with `has_pages` the limiter's own page."""
    result = (
        service.admit_locally(incoming) if service.can_admit_locally(incoming, None) else await service.admit(incoming)
    )
    if isinstance(result, LocalReply):
        return result
    result.measured_ms = 0  # The proxy reports no time.
    page = await service.render_page(incoming, result) if has_pages else None
    await service.end_request(result)
    return result if page is None else page


def _build_admission(service: DecisionService, admitted: AdmittedRequest, *, has_origin: bool) -> LocalReply:
    """Return the reply that admits a request, with the headers for the caller."""
    pairs = service.build_header_pairs(admitted)
    headers: Headers = tuple((name.decode(), value.decode("latin-1")) for name, value in pairs)
    reply = LocalReply(200, (*headers, (ADMITTED_HEADER, "1")), b"")
    return _expose_headers(reply, has_origin=has_origin)


def _expose_headers(reply: LocalReply, *, has_origin: bool) -> LocalReply:
    """Return a reply whose headers scripts of other origins may read, if one of them has sent the request."""
    if not has_origin:
        return reply
    return msgspec.structs.replace(reply, headers=(*reply.headers, ("access-control-expose-headers", EXPOSED_HEADERS)))


def _encode_reply(reply: LocalReply) -> LocalReply:
    """Return a refusal that nginx accepts, with the reply for the caller in a header."""
    content = msgspec.msgpack.encode(_EncodedReply(reply.status, reply.headers, reply.body))
    text = base64.urlsafe_b64encode(content).decode("ascii")
    return LocalReply(NGINX_REFUSAL_STATUS, ((REPLY_HEADER, text), ("cache-control", "no-cache")), b"", is_refusal=True)


def _decode_reply(text: str) -> LocalReply:
    """Return the reply that `_encode_reply` has written. Without one, nginx itself has refused the request."""
    try:
        reply = msgspec.msgpack.decode(base64.urlsafe_b64decode(text), type=_EncodedReply)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        return build_problem("Forbidden", 403)
    lines = [text for pair in reply.headers for text in pair]
    if not 200 <= reply.status < 600 or not all(map(_REPLY_LINE.fullmatch, lines)):
        return build_problem("Forbidden", 403)
    return LocalReply(reply.status, reply.headers, reply.body, is_refusal=True)


def build_problem(message: str, status: int) -> LocalReply:
    """Return the reply to a request that is no valid check."""
    headers: Headers = (("content-type", JSON_TYPE), ("cache-control", "no-cache"))
    return LocalReply(status, headers, msgspec.json.encode({"message": message}))
