"""Who calls: recognised once, and remembered as long as the directory stays as it is.

What is remembered is bounded, and never what a path, a moment or a query may change.
"""

from typing import Final

from wharf.limits.core.address import Address, Proxies, find_address, parse_address
from wharf.limits.core.caller import Caller, CredentialKind
from wharf.limits.core.credential import Shown, read_credential
from wharf.limits.core.directory import Directory
from wharf.limits.core.recognition import Recognition, Unrecognised, anonymous
from wharf.limits.desk.arrival import Arrival

REMEMBERED_MOST: Final = 65_536
FORWARDED_REMEMBERED_MOST: Final = 256
LOCAL: Final = "127.0.0.1"
Key = tuple[str | None, str] | tuple[str | None, str, tuple[str, ...], tuple[str, ...]]


class Callers:
    def __init__(self, directory: Directory, proxies: Proxies) -> None:
        self.directory = directory
        self._recognition = Recognition(directory)
        self._remembered: dict[Key, Caller] = {}
        self._proxies = proxies
        self._has_proxies = bool(proxies.trusted or proxies.hops)

    def use(self, directory: Directory) -> None:
        """Tiers, memberships and revocations hold from the next request on."""
        self.directory = directory
        self._recognition = Recognition(directory)
        self._remembered = {}

    def __len__(self) -> int:
        return len(self._remembered)

    def find(self, arrival: Arrival, now_ms: int) -> Caller | Unrecognised:
        key: Key | None
        key = self._key(arrival) if arrival.query or self._has_proxies else (arrival.authorization, arrival.peer)
        known = self._remembered.get(key) if key is not None else None
        if known is not None:
            return known
        shown = read_credential(arrival.authorization, arrival.query)
        caller = self._recognition.caller(shown, self._address_of(arrival), arrival.path, now_ms)
        if key is not None and isinstance(caller, Caller) and self._may_remember(caller, shown):
            if len(self._remembered) >= REMEMBERED_MOST:
                self._remembered.clear()
            self._remembered[key] = caller
        return caller

    def _key(self, arrival: Arrival) -> Key | None:
        """What a caller is remembered by; None where nothing is to be remembered. A query may hold a credential."""
        query = arrival.query
        if query and ("access_token" in query or "client_secret" in query):
            return None
        if self._has_proxies:
            if sum(map(len, arrival.forwarded_for)) + sum(map(len, arrival.forwarded)) > FORWARDED_REMEMBERED_MOST:
                return None  # Callers choose what these say: long ones would fill the memory.
            return (arrival.authorization, arrival.peer, arrival.forwarded_for, arrival.forwarded)
        return (arrival.authorization, arrival.peer)

    def _may_remember(self, caller: Caller, shown: Shown) -> bool:
        """Not where the path or the moment matters: a workflow token's path, and a token that will expire."""
        return caller.kind is not CredentialKind.WORKFLOW_TOKEN and not self._recognition.expires(shown)

    def address_alone(self, arrival: Arrival) -> Caller:
        """For what is answered before a caller is known."""
        return anonymous(self._address_of(arrival))

    def _address_of(self, arrival: Arrival) -> Address:
        peer = arrival.peer if parse_address(arrival.peer) is not None else LOCAL  # A Unix socket has no address.
        return find_address(peer, self._proxies, forwarded_for=arrival.forwarded_for, forwarded=arrival.forwarded)
