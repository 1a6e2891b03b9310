"""Endpoints of page sessions: a browser is signed in or out, and its secret is exchanged for its token's."""

import asyncio
from collections.abc import Hashable, Sequence
from itertools import islice
from typing import Final

from wharf.cluster.api.handlers.acl.tokens import TokenSecrets
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler
from wharf.cluster.operations.acl import sessions
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.security.logins import is_allowed_redirect, leads_to_path
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_POLICIES, ACL_ROLES, ACL_TOKENS, PAGE_SESSIONS
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.acl.auth_methods import PAGE_CALLBACK_PATHS, AuthMethod, AuthMethodType
from wharf.contract.model.acl.sessions import PageSession, SignInProvider
from wharf.contract.model.secrets import hash_secret
from wharf.contract.wire import acl as acl_wire
from wharf.world.tasks import wait_for_event

CHECK_INTERVAL_S: Final = 10.0
"""How often the session of an open terminal is checked. It may expire without any change of the state."""
MIN_CHECK_INTERVAL_S: Final = 1.0
"""The shortest time between two checks. Limits the work for many open terminals while tokens are created all the time."""
SESSION_TARGETS: Final = (watch_table(PAGE_SESSIONS), watch_table(ACL_TOKENS))
RIGHTS_TABLES: Final = (ACL_POLICIES, ACL_ROLES)
"""What decides, beside a token, what its holder may do."""
MAX_PROVIDERS: Final = 20
"""How many identity providers the page of the sign-in offers."""


class SessionReads:
    """Reads sessions."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def list_sessions(self, replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
        """Return the valid sessions of the caller's token, the newest first."""
        found = sessions.list_sessions(replica, request.caller, self._server.world.now_ns())
        return ReadResult(
            [build_session_view(session) for session in found],
            replica.get_last_change(PAGE_SESSIONS, ACL_TOKENS),
            [watch_table(PAGE_SESSIONS), watch_table(ACL_TOKENS)],
        )


class SessionActions:
    """Creates and ends sessions."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def create_session(self, request: Request) -> ActionResult:
        """Sign a browser in with the caller's token, and return the secret for its cookie."""
        settings = self._server.access.settings
        body = request.decode_body(acl_wire.SessionCreateRequest) if request.body else acl_wire.SessionCreateRequest()
        secret, caller = self._server.world.new_secret(), request.caller
        description = sessions.SessionRequest(hash_secret(secret), body.address, body.browser)
        result = await self._server.writer.execute(
            lambda snapshot, context: sessions.create_session(
                snapshot, caller, description, context, ttl_ns=settings.page_session_ttl_ns
            )
        )
        view = build_session_view(result.session)
        return ActionResult(
            acl_wire.SessionCreateReply(secret_id=secret, session=view, index=result.index), result.index
        )

    async def end_session(self, request: Request) -> ActionResult:
        """End a session."""
        caller, session_id = request.caller, request.get_path_value("session_id")
        index = await self._server.writer.execute(
            lambda snapshot, _context: sessions.end_session(snapshot, caller, session_id)
        )
        return ActionResult(None, index)


class SessionFinder:
    """Finds the token with which a browser is signed in. Pages then call the API with this token."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._secrets = TokenSecrets(server)

    @property
    def state_index(self) -> int:
        """The log index of the state of this process."""
        return self._server.replica.index

    @property
    def is_required(self) -> bool:
        """Whether pages are shown only to people who are signed in: while access control is on."""
        return self._server.access.settings.is_enabled

    def find_token_secret(self, session_secret: str) -> str:
        """Return the secret of the token of the session with this secret; empty if there is no valid session."""
        replica, world = self._server.replica, self._server.world
        token = sessions.find_session_token(replica, hash_secret(session_secret), world.now_ns())
        return "" if token is None else self._secrets.open_secret(replica, token)

    def find_rights_key(self, session_secret: str) -> Hashable:
        """Return a value that is equal for sessions whose tokens have the same rights, and for browsers without a session."""
        replica, world = self._server.replica, self._server.world
        # What policies and roles allow may change while a page is shared.
        changed_at = replica.get_last_change(*RIGHTS_TABLES)
        token = (
            sessions.find_session_token(replica, hash_secret(session_secret), world.now_ns())
            if session_secret
            else None
        )
        if token is None:
            return changed_at
        roles = frozenset(link.id for link in token.roles or ())
        return token.is_management, frozenset(token.policies or ()), roles, changed_at

    def find_session_id(self, session_secret: str) -> str:
        """Return the public ID of the session with this secret; empty if there is none."""
        session = self._server.replica.get(PAGE_SESSIONS, hash_secret(session_secret))
        return "" if session is None else session.id

    async def wait_until_ended(self, session_secret: str) -> None:
        """Wait until there is no valid session with this secret: it was ended, or has expired, or its token has."""
        replica, digest = self._server.replica, hash_secret(session_secret)
        is_changed = asyncio.Event()
        subscription = replica.watches.subscribe(SESSION_TARGETS, is_changed.set)
        try:
            while sessions.find_session_token(replica, digest, self._server.world.now_ns()) is not None:
                is_changed.clear()
                subscription.rearm()
                await asyncio.sleep(MIN_CHECK_INTERVAL_S)
                await wait_for_event(is_changed, CHECK_INTERVAL_S - MIN_CHECK_INTERVAL_S)
        finally:
            subscription.close()

    def list_providers(self, origin: str) -> Sequence[SignInProvider]:
        """Return the OIDC auth methods that may send browsers back to a page, with that page at the address `origin`."""
        methods = (method for method in self._server.replica.iter_all(ACL_AUTH_METHODS) if is_for_pages(method))
        return [SignInProvider(method.name, find_callback(method, origin)) for method in islice(methods, MAX_PROVIDERS)]


def is_for_pages(method: AuthMethod) -> bool:
    """Return whether people can sign in at pages with this auth method: it may send browsers back to one."""
    if method.type != AuthMethodType.OIDC or method.config is None:
        return False
    allowed = method.config.allowed_redirect_uris or ()
    return any(leads_to_path(uri, PAGE_CALLBACK_PATHS) for uri in allowed)


def find_callback(method: AuthMethod, origin: str) -> str:
    """Return the page at this address to which the auth method may send browsers back; empty if there is none."""
    if method.config is None:
        return ""
    candidates = (f"{origin}{path}" for path in PAGE_CALLBACK_PATHS)
    return next((uri for uri in candidates if is_allowed_redirect(method.config, uri)), "")


def build_session_view(session: PageSession) -> acl_wire.SessionView:
    """Return a session without its digests."""
    return acl_wire.SessionView(**{name: getattr(session, name) for name in acl_wire.SessionView.__struct_fields__})


def build_read_handlers(server: Server) -> dict[str, ReadHandler]:
    return {"acl.session.list": SessionReads(server).list_sessions}


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = SessionActions(server)
    return {"acl.session.create": actions.create_session, "acl.session.end": actions.end_session}
