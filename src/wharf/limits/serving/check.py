"""The check of a request that a proxy asks about: nginx (`auth_request`), Traefik (`forwardAuth`), Caddy (`forward_auth`).

The proxy sends a request without a body, whose headers describe the request of its caller. Does no input or output.
"""

import hmac
import json
import re
from typing import Final

import msgspec

from wharf.limits.core.callers.addresses import parse_address
from wharf.limits.core.callers.carriers import CarrierSettings
from wharf.limits.core.paths import BadPath, normalize_path
from wharf.limits.core.responses import JSON_TYPE, Headers
from wharf.limits.decisions.headers import EXPOSED_HEADERS
from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest, LocalReply
from wharf.limits.decisions.service import DecisionService
from wharf.limits.gateway.heads import MAX_TARGET_BYTES, RequestHead
from wharf.limits.gateway.proxied_request import find_carried_lines

CHECK_PATH: Final = b"/check"
"""For proxies that pass on any refusal: Traefik and Caddy."""
NGINX_PATH: Final = b"/check/nginx"
"""For nginx, which accepts only 2xx, 401 and 403 from a check: the refusal itself is in headers."""
SECRET_HEADER: Final = b"x-check-secret"
STATUS_HEADER: Final = "x-wharf-status"
"""The status of the refusal, for nginx."""
BODY_HEADER: Final = "x-wharf-body"
"""The body of the refusal as JSON in ASCII, for nginx."""
DEFAULT_STATUS: Final = 429
"""Replaces the status of a refusal that a proxy would take for an admission, such as 200 for GraphQL."""
_DESCRIBING_HEADERS: Final = {
    CHECK_PATH: (b"x-forwarded-method", b"x-forwarded-uri"),
    NGINX_PATH: (b"x-original-method", b"x-original-uri"),
}
"""For each path, the headers with method and target of the caller's request."""
_METHOD: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}")
_TARGET: Final = re.compile(rb"/[\x21-\x7e]*|\*")


class InvalidCheck(Exception):
    """A request to the check endpoint that cannot be decided. The text says what to configure."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def read_check(head: RequestHead, secret: str, carriers: CarrierSettings | None = None) -> IncomingRequest:
    """Return the caller's request that a check describes. `carriers`: what else carries credentials. Raises `InvalidCheck`."""
    path = head.target.partition(b"?")[0]
    names = _DESCRIBING_HEADERS.get(path)
    if names is None:
        raise InvalidCheck("unknown path: use /check, or /check/nginx for nginx", 404)
    if head.length:
        raise InvalidCheck(
            "the check has a body: configure the proxy to send none, such as proxy_pass_request_body off"
        )
    headers = _collect_headers(head, (*names, SECRET_HEADER))
    if secret and not hmac.compare_digest(headers.get(SECRET_HEADER, b""), secret.encode()):
        raise InvalidCheck("the header X-Check-Secret is missing or wrong: configure the proxy to send the secret")
    method, target = (_get_header(headers, name) for name in names)
    if _METHOD.fullmatch(method) is None:
        raise InvalidCheck(f"{names[0].decode()} is not a method")
    if _TARGET.fullmatch(target) is None or len(target) > MAX_TARGET_BYTES:
        raise InvalidCheck(
            f"{names[1].decode()} is not a path in ASCII that begins with a slash, of at most {MAX_TARGET_BYTES} bytes"
        )
    peer, others = _split_addresses(head)
    text, _, query = target.decode("ascii").partition("?")
    return IncomingRequest(
        method=method.decode("ascii"),
        path=text,
        query=query,
        peer=peer,
        authorization=None if head.authorization is None else head.authorization.decode("latin-1"),
        is_conditional=head.is_conditional,
        forwarded_for=others,
        forwarded=tuple(value.decode("latin-1") for value in head.forwarded),
        has_origin=head.has_origin,
        carried=() if carriers is None else find_carried_lines(head, carriers),
    )


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
    if value is None:
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


async def check_request(service: DecisionService, incoming: IncomingRequest, path: bytes) -> LocalReply:
    """Decide a request, and return the reply for the proxy. A concurrency slot is freed at once: its end is unknown.

    `path` is the path of the check. The path of the caller's request is judged in its normal form.
    """
    result = await _decide(service, incoming)
    if isinstance(result, AdmittedRequest):
        result.measured_ms = 0  # The proxy reports no time.
        pairs = service.build_header_pairs(result)
        await service.end_request(result)
        return LocalReply(200, tuple((name.decode(), value.decode("latin-1")) for name, value in pairs), b"")
    if incoming.has_origin:
        exposed = ("access-control-expose-headers", EXPOSED_HEADERS)
        result = msgspec.structs.replace(result, headers=(*result.headers, exposed))
    status = result.status if 400 <= result.status < 600 else DEFAULT_STATUS
    if path == NGINX_PATH:
        return _build_nginx_refusal(result, status)
    return msgspec.structs.replace(result, status=status)


async def _decide(service: DecisionService, incoming: IncomingRequest) -> AdmittedRequest | LocalReply:
    """Return the decision on the request of a caller. A path that services read differently is refused.

    The proxy forwards the path as its caller sent it, so segments cannot be removed.
    """
    try:
        normal_path = normalize_path(incoming.path, service.evaluator.limiter.rulebook.unforwarded_paths)
    except BadPath as error:
        return await service.render_error(msgspec.structs.replace(incoming, path="/"), error.status, str(error))
    judged = incoming if normal_path == incoming.path else msgspec.structs.replace(incoming, path=normal_path)
    if service.can_admit_locally(judged, None):
        return service.admit_locally(judged)
    return await service.admit(judged)


def _build_nginx_refusal(refusal: LocalReply, status: int) -> LocalReply:
    """Return a refusal with a status that nginx accepts. The real status and the body are in headers."""
    body = json.dumps(msgspec.json.decode(refusal.body), separators=(",", ":"))  # In ASCII, because it is a header.
    headers = (*refusal.headers, (STATUS_HEADER, str(status)), (BODY_HEADER, body))
    return LocalReply(401 if status == 401 else 403, headers, b"", is_refusal=True)


def build_problem(message: str, status: int) -> LocalReply:
    """Return the reply to a request that is no valid check."""
    headers: Headers = (("content-type", JSON_TYPE), ("cache-control", "no-cache"))
    return LocalReply(status, headers, msgspec.json.encode({"message": message}))
