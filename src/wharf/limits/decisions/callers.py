"""Finds the caller of a request, and caches callers until the directory changes.

A caller that depends on the path or the query of the request is not cached. A cached caller is valid until its token
expires.
"""

from collections.abc import Iterable
from typing import Final

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.callers.acceptance import CredentialProof
from wharf.limits.core.callers.addresses import (
    Address,
    ProxySettings,
    build_address_scope,
    find_address,
    parse_address,
)
from wharf.limits.core.callers.caller import Caller, CredentialKind
from wharf.limits.core.callers.credentials import TWO_CREDENTIALS, PresentedClient, PresentedToken, read_credential
from wharf.limits.core.callers.directory import Directory
from wharf.limits.core.callers.recognition import UnrecognizedCredential, make_anonymous_caller, recognize_caller
from wharf.limits.credentials import RequestCredential, UnlistedCredentials
from wharf.limits.decisions.requests import IncomingRequest

MAX_CACHED_CALLERS: Final = 65_536
"""Limits the memory of the cache of callers; the oldest entries of a full cache are removed."""
MAX_CACHED_FORWARDED_CHARACTERS: Final = 256
"""Callers with longer forwarding headers are not cached; limits memory."""
LOOPBACK_ADDRESS: Final = "127.0.0.1"
UNPROVED_KINDS: Final = frozenset({CredentialKind.NONE, CredentialKind.OPAQUE})
"""Callers whose credential, if they have one, a reply of the service can prove or reject."""
CallerKey = tuple[str | None, str] | tuple[str | None, str, tuple[str, ...], tuple[str, ...]]


class CallerResolver:
    """Finds callers by credential and address, with a cache."""

    def __init__(
        self, directory: Directory, proxies: ProxySettings, unlisted: UnlistedCredentials | None = None
    ) -> None:
        self.directory = directory
        self.unlisted: Final = unlisted
        """Credentials that the directory does not list; `None` if they are rejected."""
        self._cached_callers: BoundedCache[CallerKey, Caller] = BoundedCache(MAX_CACHED_CALLERS)
        self._proxies = proxies
        self._has_proxies = bool(proxies.trusted or proxies.hops)

    def set_directory(self, directory: Directory) -> None:
        """Replace the directory and clear the cache, so that changes apply from the next request on."""
        self.directory = directory
        self._cached_callers.clear()

    def __len__(self) -> int:
        return len(self._cached_callers)

    def resolve_caller(self, incoming: IncomingRequest, now_ms: int) -> Caller | UnrecognizedCredential:
        """Return the caller of a request, from the cache if possible, or `UnrecognizedCredential` with the reason for a 401."""
        if self.unlisted is not None:
            return self._resolve_any(self.unlisted, incoming, now_ms)
        key: CallerKey | None
        key = (
            self._build_key(incoming)
            if incoming.query or self._has_proxies
            else (incoming.authorization, incoming.peer)
        )
        cached = self._cached_callers.get(key) if key is not None else None
        if cached is not None and (cached.expires_ms is None or now_ms < cached.expires_ms):
            return cached
        credential = read_credential(incoming.authorization, incoming.query)
        caller = recognize_caller(credential, self._find_address(incoming), incoming.path, self.directory, now_ms)
        if key is not None and isinstance(caller, Caller) and caller.kind is not CredentialKind.WORKFLOW_TOKEN:
            # The class of a workflow token depends on the path of the request.
            self._cached_callers.store(key, caller)
        return caller

    def _resolve_any(
        self, unlisted: UnlistedCredentials, incoming: IncomingRequest, now_ms: int
    ) -> Caller | UnrecognizedCredential:
        """Return the caller of a request whose credentials need not be in the directory.

        A credential that the directory lists as revoked or expired is rejected. A request without a known credential is
        counted by its address.
        """
        if incoming.authorization == TWO_CREDENTIALS:
            return UnrecognizedCredential()
        address = self._find_address(incoming)
        credentials = unlisted.read(incoming)
        listed = self._find_listed(credentials, address, incoming.path, now_ms)
        if listed is not None:
            return listed
        return unlisted.find_caller(credentials, address, self.directory, now_ms) or make_anonymous_caller(address)

    def _find_listed(
        self, credentials: Iterable[RequestCredential], address: Address, path: str, now_ms: int
    ) -> Caller | UnrecognizedCredential | None:
        """Return the caller of the first credential that the directory lists, or the reason for a 401; `None` without one."""
        for entry in credentials:
            presented = entry.credential.presented
            if not isinstance(presented, PresentedToken | PresentedClient):
                continue
            caller = recognize_caller(presented, address, path, self.directory, now_ms)
            if isinstance(caller, Caller) or not caller.is_unknown:
                return caller
        return None

    def must_wait(self, incoming: IncomingRequest, now_ms: int) -> bool:
        """Return whether `prepare` must be awaited before the caller of a request can be found."""
        if self.unlisted is None or not self.unlisted.has_questions:
            return False
        if incoming.authorization is None and not incoming.carried and not incoming.query:
            return False
        credentials, address = self.unlisted.read(incoming), self._find_address(incoming)
        return (
            bool(credentials)
            and self._find_listed(credentials, address, incoming.path, now_ms) is None
            and self.unlisted.must_wait(credentials, build_address_scope(address), now_ms)
        )

    async def prepare(self, incoming: IncomingRequest, now_ms: int) -> None:
        """Find out who owns the unlisted credentials of a request, so that `resolve_caller` knows it."""
        if self.unlisted is not None and self.must_wait(incoming, now_ms):
            address = self._find_address(incoming)
            await self.unlisted.prepare(
                self.unlisted.read(incoming), build_address_scope(address), str(address), now_ms
            )

    def build_proof(self, incoming: IncomingRequest, caller: Caller, now_ms: int) -> CredentialProof | None:
        """Return what the reply to a request can prove about its unlisted credential; `None` for other requests."""
        if self.unlisted is None or caller.kind not in UNPROVED_KINDS:
            return None
        credentials = self.unlisted.read(incoming)
        if not credentials:
            return None
        address = caller if caller.is_anonymous else self.resolve_address(incoming)
        return self.unlisted.build_proof(incoming, credentials, address, now_ms)

    def _build_key(self, incoming: IncomingRequest) -> CallerKey | None:
        """Return the cache key of a request, or `None` if its caller must not be cached.

        Requests with a credential in their query are not cached.
        """
        query = incoming.query
        if query and ("access_token" in query or "client_secret" in query):
            return None
        if self._has_proxies:
            if (
                sum(map(len, incoming.forwarded_for)) + sum(map(len, incoming.forwarded))
                > MAX_CACHED_FORWARDED_CHARACTERS
            ):
                return None  # Clients choose these headers: long ones would fill the memory.
            return (incoming.authorization, incoming.peer, incoming.forwarded_for, incoming.forwarded)
        return (incoming.authorization, incoming.peer)

    def resolve_address(self, incoming: IncomingRequest) -> Caller:
        """Return the anonymous caller at the request's address, for replies sent before the caller is known."""
        return make_anonymous_caller(self._find_address(incoming))

    def _find_address(self, incoming: IncomingRequest) -> Address:
        """Return the address of the caller: that of the socket, or the one that trusted proxies report in a header."""
        peer = (
            incoming.peer if parse_address(incoming.peer) is not None else LOOPBACK_ADDRESS
        )  # A Unix socket has no address.
        return find_address(peer, self._proxies, forwarded_for=incoming.forwarded_for, forwarded=incoming.forwarded)
