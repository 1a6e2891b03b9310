"""Replies that the limiter makes itself, with their rate limit headers: refusals, errors and its own pages.

Decides nothing and charges nothing. `core.responses` has the texts of refusals, `Pages` the content of pages.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from wharf.limits.config.settings import LimiterSettings
from wharf.limits.core.callers.addresses import ProxySettings
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision
from wharf.limits.core.responses import JSON_TYPE, Headers, RefusalResponse, build_headers, build_refusal
from wharf.limits.core.route import find_path_below
from wharf.limits.core.rule import Interface
from wharf.limits.decisions.callers import CallerResolver
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.decisions.headers import HeaderWriter, build_challenge, build_token_headers, encode_headers
from wharf.limits.decisions.overrides import OperatorOverrides
from wharf.limits.decisions.pages import Pages
from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest, LocalReply, RequestIds
from wharf.limits.decisions.shared_records import SharedRecords


class ReplyRenderer:
    """Renders the limiter's own replies, and the headers that it adds to the replies of the service."""

    def __init__(
        self,
        evaluator: LimitEvaluator,
        settings: LimiterSettings,
        caller_resolver: CallerResolver,
        overrides: OperatorOverrides,
        shared_records: SharedRecords,
        request_ids: RequestIds,
        now_ms: Callable[[], int],
    ) -> None:
        self._evaluator = evaluator
        self._id_header = settings.request_id_header
        self._caller_resolver = caller_resolver
        self._overrides = overrides
        self._request_ids = request_ids
        self._now_ms = now_ms
        self.header_writer = HeaderWriter(evaluator.rules, self._id_header)
        self._pages: Final = Pages(
            shared_records,
            settings.meta,
            has_insights=settings.has_insights,
            has_proxies=settings.proxies != ProxySettings(),
        )

    def apply_rules(self) -> None:
        """Render headers by the rules in force from now on, because they have changed."""
        self.header_writer = HeaderWriter(self._evaluator.rules, self._id_header)

    # -- refusals and errors ---------------------------------------------------------------------------------------

    def build_refusal(self, request_id: str, decision: LimitDecision, caller: Caller) -> LocalReply:
        """Return the reply to a request that a limit refuses."""
        refusal = build_refusal(decision, caller, self._evaluator.rules)
        return self._build_refusal_reply(request_id, refusal, build_token_headers(caller))

    def build_unauthorized(
        self, request_id: str, incoming: IncomingRequest, decision: LimitDecision, message: str
    ) -> LocalReply:
        """Return the reply with status 401 to a request with a wrong credential. `decision` is the charge of the address."""
        rules = self._evaluator.rules
        body: dict[str, Any] = {"message": message, "documentation_url": rules.documentation, "status": "401"}
        headers = (
            *build_headers(decision, rules),
            ("www-authenticate", build_challenge(incoming.authorization)),
            ("content-type", JSON_TYPE),
            ("cache-control", "no-cache"),
        )
        endpoint = self._evaluator.limiter.rulebook.get_endpoint(incoming.method, incoming.path)
        if endpoint.interface is Interface.LARGE_FILES:
            headers = (*headers, ("lfs-authenticate", 'Basic realm="large files"'))
            body["request_id"] = request_id
        return self._build_refusal_reply(request_id, RefusalResponse(401, headers, msgspec.json.encode(body)), ())

    def _build_refusal_reply(self, request_id: str, refusal: RefusalResponse, token_headers: Headers) -> LocalReply:
        """Return the complete reply of a refusal, with the header for the request id and those for the token added."""
        headers = (*refusal.headers, *token_headers, (self._id_header, request_id))
        return LocalReply(refusal.status, headers, refusal.body, is_refusal=True)

    async def render_error(
        self, incoming: IncomingRequest, status: int, message: str, admitted: AdmittedRequest | None = None
    ) -> LocalReply:
        """Return an error reply to a request that no limit refused.

        Its rate limit headers show the bucket of the admitted request, or the bucket of the address before admission.
        """
        body = msgspec.json.encode(
            {"message": message, "documentation_url": self._evaluator.rules.documentation, "status": str(status)}
        )
        content_headers: Headers = (("content-type", JSON_TYPE), ("cache-control", "no-cache"))
        now_ms = self._now_ms()
        if self._overrides.is_off or (admitted is not None and admitted.decision is None):
            return LocalReply(status, content_headers, body)
        if admitted is not None and admitted.decision is not None:
            rate_headers: Headers = (
                *build_headers(admitted.decision, self._evaluator.rules),
                *build_token_headers(admitted.caller),
            )
            request_id = admitted.id
        else:
            rate_headers = await self._evaluator.render_address_headers(self._caller_resolver.resolve_address(incoming))
            request_id = self._request_ids.make(now_ms)
        return LocalReply(status, (*rate_headers, *content_headers, (self._id_header, request_id)), body)

    # -- pages -----------------------------------------------------------------------------------------------------

    def is_own_path(self, path: str) -> bool:
        """Return whether the limiter, and not the service, replies to GET and HEAD requests for this path."""
        api_path = self._evaluator.rules.api_path
        return self._find_page_path(path) is not None if api_path else self._pages.is_own_path(path)

    def _find_page_path(self, path: str) -> str | None:
        """Return the path of one of the limiter's own pages, relative to the base path; `None` for any other path."""
        relative_path = find_path_below(self._evaluator.rules.api_path, path)
        return relative_path if relative_path is not None and self._pages.is_own_path(relative_path) else None

    def has_page(self, incoming: IncomingRequest) -> bool:
        """Return whether `render_page` returns a page for an admitted request."""
        path = self._find_requested_page(incoming)
        return path is not None and (not self._overrides.is_off or self._pages.render_while_off(path) is not None)

    def _find_requested_page(self, incoming: IncomingRequest) -> str | None:
        """Return the path of the page that the request reads, relative to the base path; `None` if it reads none."""
        return self._find_page_path(incoming.path) if incoming.method in ("GET", "HEAD") else None

    async def render_page(self, incoming: IncomingRequest, admitted: AdmittedRequest) -> LocalReply | None:
        """Return one of the limiter's own pages as the reply, or `None` if the service must reply.

        Raises whatever error prevents rendering.
        """
        path = self._find_requested_page(incoming)
        if path is None:
            return None
        decision, caller = admitted.decision, admitted.caller
        if decision is None:
            page = self._pages.render_while_off(path)
            return None if page is None else LocalReply(page.status, (("content-type", page.content_type),), page.body)
        directory = self._caller_resolver.directory
        page = await self._pages.render_page(path, incoming, caller, self._evaluator, directory, self._now_ms())
        rate_headers = build_headers(decision, self._evaluator.rules)
        page_headers = (
            ("content-type", page.content_type),
            ("cache-control", "no-cache"),
            *page.headers,
            (self._id_header, admitted.id),
        )
        return LocalReply(page.status, (*rate_headers, *build_token_headers(caller), *page_headers), page.body)

    # -- headers of admitted requests ------------------------------------------------------------------------------

    def build_header_pairs(self, admitted: AdmittedRequest) -> list[tuple[bytes, bytes]]:
        """Return the rate limit, request id and token headers of the reply as pairs; none if the request was not evaluated."""
        if admitted.decision is None:
            return []
        rate_headers = self.header_writer.render_pairs(admitted.id, admitted.decision)
        caller = admitted.caller
        if caller.scopes or caller.expires_ms is not None:
            rate_headers += [(name.encode(), value.encode()) for name, value in build_token_headers(caller)]
        return rate_headers

    def build_header_block(self, admitted: AdmittedRequest) -> bytes:
        """Return the rate limit, request id and token headers of the reply as lines; none if the request was not evaluated."""
        if admitted.decision is None:
            return b""
        rate_headers = self.header_writer.render_block(admitted.id, admitted.decision)
        caller = admitted.caller
        if caller.scopes or caller.expires_ms is not None:
            rate_headers += encode_headers(build_token_headers(caller))
        return rate_headers
