"""Finds the caller of a request, and caches callers until the directory changes.

A caller that depends on the path or the query of the request is not cached. A cached caller is valid until its token
expires.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.callers.acceptance import CredentialProof
from wharf.limits.core.callers.addresses import Address, ProxySettings, find_address, parse_address
from wharf.limits.core.callers.caller import Caller, CredentialKind
from wharf.limits.core.callers.credentials import TWO_CREDENTIALS, PresentedClient, PresentedToken, read_credential
from wharf.limits.core.callers.directory import Directory
from wharf.limits.core.callers.recognition import UnrecognizedCredential, make_anonymous_caller, recognize_caller
from wharf.limits.core.resources import ResourceFinder, ResourceName
from wharf.limits.credentials import RequestCredential, UnlistedCredentials
from wharf.limits.decisions.requests import IncomingRequest

MAX_CACHED_CALLERS: Final = 65_536
"""Limits the memory of the cache of callers; the oldest entries of a full cache are removed."""
MAX_CACHED_FORWARDED_CHARACTERS: Final = 256
"""Callers with longer forwarding headers are not cached; limits memory."""
LOOPBACK_ADDRESS: Final = "127.0.0.1"
UNLISTED_KINDS: Final = frozenset({CredentialKind.NONE, CredentialKind.OPAQUE, CredentialKind.RESOLVED})
"""Callers whose credential, if they have one, a reply of the service can prove or reject."""
MAX_CACHED_SENDERS: Final = 8_192
"""Limits the memory of the cache of senders. Each entry has up to `MAX_CACHED_SENDER_CHARACTERS`."""
MAX_CACHED_SENDER_CHARACTERS: Final = 2_048
"""Credentials and forwarding headers that are longer together are read again for each request; limits memory."""
SenderKey = tuple[str | None, str, tuple[tuple[str, str], ...], tuple[str, ...]]
CallerKey = tuple[str | None, str] | tuple[str | None, str, tuple[str, ...], tuple[str, ...]]


class _Sender(msgspec.Struct, frozen=True, gc=False):
    """The sender of a request, as far as its path does not matter."""

    address: Address
    anonymous: Caller
    """The caller at the address without a credential."""
    credentials: tuple[RequestCredential, ...]
    listed: Caller | UnrecognizedCredential | None
    """What the directory has about the credentials; `None` if it has none of them."""
    valid_until_ms: int | None


class CallerResolver:
    """Finds callers by credential and address, with a cache."""

    def __init__(
        self, directory: Directory, proxies: ProxySettings, unlisted: UnlistedCredentials | None = None
    ) -> None:
        self.directory = directory
        self.resource_finder = ResourceFinder()
        """Finds the resource that a path names, by the rules in force."""
        self.unlisted: Final = unlisted
        """Credentials that the directory does not list; `None` if they are rejected."""
        self._cached_callers: BoundedCache[CallerKey, Caller] = BoundedCache(MAX_CACHED_CALLERS)
        self._senders: BoundedCache[SenderKey, _Sender] = BoundedCache(MAX_CACHED_SENDERS)
        self._proxies = proxies
        self._has_proxies = bool(proxies.trusted or proxies.hops)

    def set_directory(self, directory: Directory) -> None:
        """Replace the directory and clear the cache, so that changes apply from the next request on."""
        self.directory = directory
        self._cached_callers.clear()
        self._senders.clear()
        if self.unlisted is not None:
            self.unlisted.clear_callers()

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
        names = self.resource_finder.find_names(incoming.method, incoming.path)
        caller = recognize_caller(credential, self._find_address(incoming), names, self.directory, now_ms)
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
        sender = self._find_sender(unlisted, incoming, now_ms)
        listed = sender.listed
        if listed is not None:
            return listed
        return unlisted.find_caller(sender.credentials, sender.address, self.directory, now_ms) or sender.anonymous

    def _find_sender(self, unlisted: UnlistedCredentials, incoming: IncomingRequest, now_ms: int) -> _Sender:
        """Return what is known about the sender of a request without its path, from the cache if possible."""
        key = self._build_sender_key(unlisted, incoming)
        sender = self._senders.get(key) if key is not None else None
        if sender is not None and (sender.valid_until_ms is None or now_ms < sender.valid_until_ms):
            return sender
        address = self._find_address(incoming)
        if incoming.authorization == TWO_CREDENTIALS:
            credentials: tuple[RequestCredential, ...] = ()
            listed: Caller | UnrecognizedCredential | None = UnrecognizedCredential()
        else:
            credentials = unlisted.read(incoming)
            names = self.resource_finder.find_names(incoming.method, incoming.path)
            listed = self._find_listed(credentials, address, names, now_ms)
        valid_until_ms = listed.expires_ms if isinstance(listed, Caller) else None
        sender = _Sender(address, make_anonymous_caller(address), credentials, listed, valid_until_ms)
        # The class of a workflow token depends on the path of the request.
        if key is not None and not (isinstance(listed, Caller) and listed.kind is CredentialKind.WORKFLOW_TOKEN):
            self._senders.pop(key, None)
            self._senders.store(key, sender)
        return sender

    def _build_sender_key(self, unlisted: UnlistedCredentials, incoming: IncomingRequest) -> SenderKey | None:
        """Return the cache key of the sender of a request; `None` if it must not be cached, which limits memory."""
        names = unlisted.settings.carriers.query
        # A query can spell the name of a carrier with escapes, so one with escapes may carry a credential too.
        if names and any(text in incoming.query for text in ("%", "+", *names)):
            return None
        length = len(incoming.authorization or "") + sum(len(value) for _, value in incoming.carried)
        if self._has_proxies:
            length += sum(map(len, incoming.forwarded_for)) + sum(map(len, incoming.forwarded))
        if length > MAX_CACHED_SENDER_CHARACTERS:
            return None
        if self._has_proxies:
            forwarding = (*incoming.forwarded_for, "", *incoming.forwarded)
            return (incoming.authorization, incoming.peer, incoming.carried, forwarding)
        return (incoming.authorization, incoming.peer, incoming.carried, ())

    def _find_listed(
        self,
        credentials: Iterable[RequestCredential],
        address: Address,
        names: Sequence[ResourceName],
        now_ms: int,
    ) -> Caller | UnrecognizedCredential | None:
        """Return the caller of the first credential that the directory lists, or the reason for a 401; `None` without one."""
        for entry in credentials:
            presented = entry.credential.presented
            if not isinstance(presented, PresentedToken | PresentedClient):
                continue
            caller = recognize_caller(presented, address, names, self.directory, now_ms)
            if isinstance(caller, Caller) or not caller.is_unknown:
                return caller
        return None

    def must_wait(self, incoming: IncomingRequest, now_ms: int) -> bool:
        """Return whether `prepare` must be awaited before the caller of a request can be found."""
        if self.unlisted is None or not self.unlisted.has_questions:
            return False
        sender = self._find_sender(self.unlisted, incoming, now_ms)
        return (
            bool(sender.credentials)
            and sender.listed is None
            and self.unlisted.must_wait(sender.credentials, sender.anonymous.address, now_ms)
        )

    async def prepare(self, incoming: IncomingRequest, now_ms: int) -> None:
        """Find out who owns the unlisted credentials of a request, so that `resolve_caller` knows it."""
        if self.unlisted is not None and self.must_wait(incoming, now_ms):
            sender = self._find_sender(self.unlisted, incoming, now_ms)
            await self.unlisted.prepare(sender.credentials, sender.anonymous.address, str(sender.address), now_ms)

    def has_login(self, incoming: IncomingRequest, now_ms: int) -> bool:
        """Return whether a request carries credentials that need not be in the directory, besides session cookies."""
        if self.unlisted is None:
            return False
        credentials = self._find_sender(self.unlisted, incoming, now_ms).credentials
        return any(not entry.credential.is_cookie for entry in credentials)

    def build_proof(self, incoming: IncomingRequest, caller: Caller, now_ms: int) -> CredentialProof | None:
        """Return what the reply to a request can prove about its unlisted credential; `None` for other requests."""
        if self.unlisted is None or caller.kind not in UNLISTED_KINDS:
            return None
        sender = self._find_sender(self.unlisted, incoming, now_ms)
        if not sender.credentials:
            return None
        if caller.kind is CredentialKind.RESOLVED:
            return self.unlisted.build_resolved_proof(sender.credentials, sender.anonymous, now_ms)
        return self.unlisted.build_proof(incoming, sender.credentials, sender.anonymous, now_ms)

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
