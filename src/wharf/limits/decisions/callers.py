"""Who calls: recognised once, and remembered as long as the directory stays as it is.

What is remembered is bounded, and never what a path, a moment or a query may change.
"""

from typing import Final

from wharf.limits.core.callers.addresses import Address, ProxySettings, find_address, parse_address
from wharf.limits.core.callers.caller import Caller, CredentialKind
from wharf.limits.core.callers.credentials import PresentedCredential, read_credential
from wharf.limits.core.callers.directory import Directory
from wharf.limits.core.callers.recognition import CallerRecognizer, UnrecognizedCredential, make_anonymous_caller
from wharf.limits.decisions.requests import IncomingRequest

MAX_CACHED_CALLERS: Final = 65_536
MAX_CACHED_FORWARDED_CHARACTERS: Final = 256
LOOPBACK_ADDRESS: Final = "127.0.0.1"
CallerKey = tuple[str | None, str] | tuple[str | None, str, tuple[str, ...], tuple[str, ...]]


class CallerResolver:
    def __init__(self, directory: Directory, proxies: ProxySettings) -> None:
        self.directory = directory
        self._recognition = CallerRecognizer(directory)
        self._remembered: dict[CallerKey, Caller] = {}
        self._proxies = proxies
        self._has_proxies = bool(proxies.trusted or proxies.hops)

    def set_directory(self, directory: Directory) -> None:
        """Tiers, memberships and revocations hold from the next request on."""
        self.directory = directory
        self._recognition = CallerRecognizer(directory)
        self._remembered = {}

    def __len__(self) -> int:
        return len(self._remembered)

    def resolve_caller(self, arrival: IncomingRequest, now_ms: int) -> Caller | UnrecognizedCredential:
        key: CallerKey | None
        key = self._key(arrival) if arrival.query or self._has_proxies else (arrival.authorization, arrival.peer)
        known = self._remembered.get(key) if key is not None else None
        if known is not None:
            return known
        shown = read_credential(arrival.authorization, arrival.query)
        caller = self._recognition.recognize(shown, self._address_of(arrival), arrival.path, now_ms)
        if key is not None and isinstance(caller, Caller) and self._may_remember(caller, shown):
            if len(self._remembered) >= MAX_CACHED_CALLERS:
                self._remembered.clear()
            self._remembered[key] = caller
        return caller

    def _key(self, arrival: IncomingRequest) -> CallerKey | None:
        """What a caller is remembered by; None where nothing is to be remembered. A query may hold a credential."""
        query = arrival.query
        if query and ("access_token" in query or "client_secret" in query):
            return None
        if self._has_proxies:
            if (
                sum(map(len, arrival.forwarded_for)) + sum(map(len, arrival.forwarded))
                > MAX_CACHED_FORWARDED_CHARACTERS
            ):
                return None  # Callers choose what these say: long ones would fill the memory.
            return (arrival.authorization, arrival.peer, arrival.forwarded_for, arrival.forwarded)
        return (arrival.authorization, arrival.peer)

    def _may_remember(self, caller: Caller, shown: PresentedCredential) -> bool:
        """Not where the path or the moment matters: a workflow token's path, and a token that will expire."""
        return caller.kind is not CredentialKind.WORKFLOW_TOKEN and not self._recognition.can_expire(shown)

    def resolve_address(self, arrival: IncomingRequest) -> Caller:
        """For what is answered before a caller is known."""
        return make_anonymous_caller(self._address_of(arrival))

    def _address_of(self, arrival: IncomingRequest) -> Address:
        peer = (
            arrival.peer if parse_address(arrival.peer) is not None else LOOPBACK_ADDRESS
        )  # A Unix socket has no address.
        return find_address(peer, self._proxies, forwarded_for=arrival.forwarded_for, forwarded=arrival.forwarded)
