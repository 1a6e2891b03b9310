"""Finds the caller of a request, and caches callers until the directory changes.

A caller that depends on the path or the query of the request is not cached. A cached caller is valid until its token
expires.
"""

from typing import Final

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.callers.addresses import Address, ProxySettings, find_address, parse_address
from wharf.limits.core.callers.caller import Caller, CredentialKind
from wharf.limits.core.callers.credentials import read_credential
from wharf.limits.core.callers.directory import Directory
from wharf.limits.core.callers.recognition import (
    ACCOUNT_PREFIXES,
    UnrecognizedCredential,
    make_anonymous_caller,
    recognize_caller,
)
from wharf.limits.core.route import find_path_below
from wharf.limits.decisions.requests import IncomingRequest

MAX_CACHED_CALLERS: Final = 65_536
"""Limits the memory of the cache of callers; the oldest entries of a full cache are removed."""
MAX_CACHED_FORWARDED_CHARACTERS: Final = 256
"""Callers with longer forwarding headers are not cached; limits memory."""
LOOPBACK_ADDRESS: Final = "127.0.0.1"
CallerKey = tuple[str | None, str] | tuple[str | None, str, tuple[str, ...], tuple[str, ...]]


class CallerResolver:
    """Finds callers by credential and address, with a cache."""

    def __init__(self, directory: Directory, proxies: ProxySettings) -> None:
        self.directory = directory
        self.api_path = ""
        """The complete path below which the API lies, by the rules in force; empty for the root."""
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
        path = self._get_contract_path(incoming.path)
        caller = recognize_caller(credential, self._find_address(incoming), path, self.directory, now_ms)
        if key is not None and isinstance(caller, Caller) and caller.kind is not CredentialKind.WORKFLOW_TOKEN:
            # The class of a workflow token depends on the path of the request.
            self._cached_callers.store(key, caller)
        return caller

    def _get_contract_path(self, path: str) -> str:
        """Return the path as if the API were the whole site; for a path outside of it, the path itself.

        A path outside of the API that looks like one of the API, such as a page of the user `repos`, becomes `/`.
        """
        relative_path = find_path_below(self.api_path, path)
        if relative_path is not None:
            return relative_path
        return "/" if path.startswith(ACCOUNT_PREFIXES) else path

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
