"""Endpoints of the rate limiter in front of the API of this process."""

import re
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from wharf.cluster.access import CallerKind
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult
from wharf.cluster.server.limiter_interface import LimiterInterface
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import ACL_TOKENS
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.times import HOUR, SECOND, DurationError, parse_duration_ns
from wharf.contract.wire import limits as limits_wire
from wharf.contract.wire.limits import (
    DEFAULT_ENTRIES,
    DEFAULT_MINUTES,
    MAX_ACTIVITY_PAGE,
    MAX_ENTRIES,
    MAX_MINUTES,
    MAX_ORGANIZATION_CHARS,
    MAX_REASON_CHARS,
)
from wharf.contract.wire.times import DurationText

T = TypeVar("T", bound=msgspec.Struct)

MAX_DURATION_NS: Final = 366 * 24 * HOUR
"""The longest grant or ban: a longer one belongs into the rules."""
USER_PREFIX: Final = "user:"
"""Begins the name of a caller that is a token; its accessor ID follows."""
SECRET_PREFIX: Final = "token:"
"""Begins the subject of a ban of one secret; the beginning of its digest follows."""
SHORT_ACCESSOR_ID: Final = re.compile("[0-9a-f]{8}[0-9a-f-]{0,28}")
MAX_LISTED_TOKENS: Final = 10
"""Limits the length of an error text."""
NO_GATEWAY_TEXT: Final = (
    "this server does not know a gateway: set limits.gateway_admin to the address of its admin port, and "
    "limits.gateway_token_file to the file of its token"
)
OFF_TEXT: Final = "rate limits are off on this server: set limits.enabled = true"


class LimitActions:
    """Shows the state of the limiter, and changes grants and bans."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def read_status(self, request: Request) -> ActionResult:
        """Return rules, limited callers, refusals, callers, grants and bans."""
        minutes = _read_number(request, "minutes", DEFAULT_MINUTES, least=1, most=MAX_MINUTES)
        limit = _read_number(request, "limit", DEFAULT_ENTRIES, least=0, most=MAX_ENTRIES)
        limiter, has_gateway = self._server.limiter, self._server.gateway is not None
        if limiter is None:
            return ActionResult(limits_wire.LimiterStatus(is_enabled=False, has_gateway=has_gateway))
        status = await limiter.read_status(minutes=minutes, limit=limit)
        return ActionResult(
            msgspec.structs.replace(
                status,
                limited=self._name_tokens(request, status.limited, "caller"),
                refusals=self._name_tokens(request, status.refusals, "caller"),
                callers=self._name_tokens(request, status.callers, "caller"),
                grants=self._name_tokens(request, status.grants, "caller"),
                bans=self._name_tokens(request, status.bans, "subject"),
                has_gateway=has_gateway,
            )
        )

    async def read_caller(self, request: Request) -> ActionResult:
        """Return the counters, grants and ban of a caller."""
        limiter = self._require_limiter()
        found = await limiter.read_caller(self._expand_caller(request, request.get_path_value("caller")))
        return ActionResult(self._name_tokens(request, (found,), "caller")[0])

    async def read_own(self, request: Request) -> ActionResult:
        """Return the counters and grants of the caller's own token."""
        limiter = self._require_limiter()
        if not request.caller.accessor_id:
            raise invalid_request("your requests have no token: they count for your address")
        found = await limiter.read_caller(f"{USER_PREFIX}{request.caller.accessor_id}")
        token = request.caller.token
        return ActionResult(msgspec.structs.replace(found, token_name="" if token is None else token.name))

    async def estimate_cost(self, request: Request) -> ActionResult:
        """Return what a request would cost now."""
        caller, path = request.get_text("caller"), request.get_text("path")
        if not caller:
            raise invalid_request("caller: name a caller, such as address:192.0.2.7")
        if not path.startswith("/"):
            raise invalid_request(f'path: expected a path such as /v1/jobs, got "{path[:64]}"')
        method = request.get_text("method").upper() or "GET"
        limiter = self._require_limiter()
        cost = await limiter.estimate_cost(self._expand_caller(request, caller), method, path.partition("?")[0])
        return ActionResult(self._name_tokens(request, (cost,), "caller")[0])

    async def read_activity(self, request: Request) -> ActionResult:
        """Return who has sent requests about the resources of an organization. The gateway of this server knows it."""
        organization = _check_organization(request.get_path_value("organization"))
        minutes = _read_number(request, "minutes", DEFAULT_MINUTES, least=1, most=MAX_MINUTES)
        page = _read_number(request, "page", 1, least=1, most=MAX_ACTIVITY_PAGE)
        if self._server.gateway is None:
            raise invalid_request(NO_GATEWAY_TEXT)
        return ActionResult(await self._server.gateway.read_activity(organization, minutes=minutes, page=page))

    async def add_grant(self, request: Request) -> ActionResult:
        """Raise the ceiling of a caller's bucket for some time."""
        body = request.decode_body(limits_wire.LimitGrantRequest)
        limiter = self._require_limiter()
        grant = await limiter.add_grant(
            self._expand_caller(request, _require_text("Caller", body.caller)),
            bucket=body.bucket,
            amount=body.amount,
            duration_ns=_read_duration(body.duration),
            by=get_operator(request),
            reason=_check_reason(body.reason, is_required=True),
        )
        return ActionResult(self._name_tokens(request, (grant,), "caller")[0])

    async def end_grants(self, request: Request) -> ActionResult:
        """End the grants of a caller."""
        ended = await self._require_limiter().end_grants(
            request.get_path_value("caller"),
            bucket=request.get_text("bucket"),
            by=get_operator(request),
            reason=_check_reason(request.get_text("reason")),
        )
        return ActionResult(list(self._name_tokens(request, ended, "caller")))

    async def add_ban(self, request: Request) -> ActionResult:
        """Refuse all requests of a caller for some time."""
        body = request.decode_body(limits_wire.LimitBanRequest)
        limiter = self._require_limiter()
        ban = await limiter.set_ban(
            self._expand_caller(request, _require_text("Subject", body.subject)),
            duration_ns=_read_duration(body.duration),
            by=get_operator(request),
            reason=_check_reason(body.reason, is_required=True),
            message=body.message,
        )
        return ActionResult(self._name_tokens(request, (ban,), "subject")[0])

    async def end_ban(self, request: Request) -> ActionResult:
        """End the ban of a caller."""
        ban = await self._require_limiter().set_ban(
            request.get_path_value("subject"),
            duration_ns=0,
            by=get_operator(request),
            reason=_check_reason(request.get_text("reason")),
            message="",
        )
        return ActionResult(self._name_tokens(request, (ban,), "subject")[0])

    def _require_limiter(self) -> LimiterInterface:
        """Return the limiter. Raises `Refusal` if rate limits are off."""
        if self._server.limiter is None:
            raise invalid_request(OFF_TEXT)
        return self._server.limiter

    def _name_tokens(self, request: Request, entries: Iterable[T], field: str) -> tuple[T, ...]:
        """Return the entries with the names of the tokens that they are about, for callers that may read all tokens."""
        if not request.caller.rights.is_management:
            return tuple(entries)
        return tuple(
            msgspec.structs.replace(entry, token_name=self._find_token_name(getattr(entry, field))) for entry in entries
        )

    def _find_token_name(self, caller: str) -> str:
        """Return the name of the token that a caller is, or that a ban is about; empty if it is not a token."""
        if caller.startswith(SECRET_PREFIX):
            prefix = caller.removeprefix(SECRET_PREFIX)
            tokens = self._server.replica.iter_by_key(ACL_TOKENS)
            return next((each.name for each in tokens if each.secret_digest.startswith(prefix)), "")
        if not caller.startswith(USER_PREFIX):
            return ""
        token = self._server.replica.get(ACL_TOKENS, caller.removeprefix(USER_PREFIX))
        return "" if token is None else token.name

    def _expand_caller(self, request: Request, name: str) -> str:
        """Return the caller that an operator names: a token by its name, its accessor ID or the beginning of the ID.

        Raises `Refusal` if there is no such token: a grant or ban of a name that nobody has would have no effect. Other
        callers, such as addresses, are returned as they are.
        """
        if not name.startswith(USER_PREFIX) and (":" in name or " " in name):
            return name
        text = name.removeprefix(USER_PREFIX)
        if self._server.replica.get(ACL_TOKENS, text) is not None:
            return f"{USER_PREFIX}{text}"
        is_short_id = SHORT_ACCESSOR_ID.fullmatch(text) is not None
        found = [
            each
            for each in self._server.replica.iter_by_key(ACL_TOKENS)
            # Only who may read all tokens learns which names exist.
            if (request.caller.rights.is_management and each.name == text)
            or (is_short_id and each.accessor_id.startswith(text))
        ]
        if len(found) == 1:
            return f"{USER_PREFIX}{found[0].accessor_id}"
        if found:
            listed = ", ".join(f"{USER_PREFIX}{each.accessor_id}" for each in found[:MAX_LISTED_TOKENS])
            raise invalid_request(f'"{text[:64]}" is the name of {len(found)} tokens: use one of {listed}')
        if request.caller.rights.is_management:
            raise not_found(
                f'no token has the name or the accessor ID "{text[:64]}": name a token, or an address such as '
                "address:192.0.2.7"
            )
        raise not_found(
            f'no token has the accessor ID "{text[:64]}": write an accessor ID, or an address such as '
            "address:192.0.2.7; only management tokens may use the names of tokens"
        )


def get_operator(request: Request) -> str:
    """Return the name of the caller for the audit log of the limiter."""
    if request.caller.kind is CallerKind.UNCHECKED:
        return "anonymous"
    token = request.caller.token
    return request.caller.accessor_id if token is None or not token.name else f"{token.name} ({token.accessor_id})"


def _read_number(request: Request, name: str, default: int, *, least: int, most: int) -> int:
    """Return a parameter of the query. Raises `Refusal` if it is not between the bounds."""
    number = request.get_number(name, default=default)
    if not least <= number <= most:
        raise invalid_request(f"{name}: expected a number from {least} to {most}, got {number}")
    return number


def _check_organization(name: str) -> str:
    """Return the login of an organization. Raises `Refusal` if it cannot be one segment of the path of a request."""
    if not name.strip(".") or "/" in name or len(name) > MAX_ORGANIZATION_CHARS or not name.isprintable():
        raise invalid_request(
            f'expected the login of an organization, such as acme, of at most {MAX_ORGANIZATION_CHARS} characters, got "{name[:64]}"'
        )
    return name


def _require_text(name: str, text: str) -> str:
    """Return a field of the body. Raises `Refusal` if it is empty."""
    if not text.strip():
        raise invalid_request(f"{name}: name a caller, such as address:192.0.2.7")
    return text.strip()


def _read_duration(duration: DurationText) -> int:
    """Return the duration of a grant or ban in nanoseconds. Raises `Refusal` if it is not one, or too short or too long."""
    try:
        duration_ns = duration if isinstance(duration, int) else parse_duration_ns(duration)
    except DurationError as error:
        raise invalid_request(f"Duration: {error}") from None
    if not SECOND <= duration_ns <= MAX_DURATION_NS:
        raise invalid_request(f"Duration: expected a duration from 1s to {MAX_DURATION_NS // HOUR}h, such as 2h")
    return duration_ns


def _check_reason(reason: str, *, is_required: bool = False) -> str:
    """Return the reason for the audit log. Raises `Refusal` if it is missing, too long or has control characters."""
    reason = reason.strip()
    if is_required and not reason:
        raise invalid_request("Reason: say why, for those who read the audit log")
    if len(reason) > MAX_REASON_CHARS or not reason.isprintable():
        raise invalid_request(f"Reason: write one line of at most {MAX_REASON_CHARS} characters")
    return reason


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = LimitActions(server)
    return {
        "limits.read": actions.read_status,
        "limits.caller": actions.read_caller,
        "limits.own": actions.read_own,
        "limits.cost": actions.estimate_cost,
        "limits.activity": actions.read_activity,
        "limits.grant": actions.add_grant,
        "limits.end_grants": actions.end_grants,
        "limits.ban": actions.add_ban,
        "limits.end_ban": actions.end_ban,
    }
