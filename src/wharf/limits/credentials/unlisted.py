"""Credentials that the directory does not list: who owns them, which ones the service has accepted, and what was revoked.

Decision records 0216 and 0217 describe the states of a credential. Decisions about limits are made elsewhere.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wharf.limits.config.credential_settings import CredentialSettings
from wharf.limits.config.settings import Upstream
from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.callers.acceptance import (
    HOUR_MS,
    UNAUTHORIZED,
    AcceptedCredentials,
    CredentialProof,
    NewCredentialCounts,
    Revocations,
    name_credential,
    name_user,
    proves_credential,
)
from wharf.limits.core.callers.addresses import Address
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.callers.carriers import CarriedCredential, list_credentials, normalize_cookie
from wharf.limits.core.callers.directory import Directory
from wharf.limits.core.callers.recognition import CredentialOwner, make_opaque_caller, make_owner_caller
from wharf.limits.core.method_overrides import find_methods
from wharf.limits.core.placed_routes import PlacedRoutes, place_patterns
from wharf.limits.core.rule import RuleSet
from wharf.limits.credentials.keyed_hash import KeyedHash
from wharf.limits.credentials.questions import build_question
from wharf.limits.credentials.resolver import OwnerResolver
from wharf.limits.credentials.tokens import REFETCH_DELAY_MS, TokenVerifier, VerifiedToken
from wharf.limits.stores.port import SharedCredentials, StoreUnavailable
from wharf.world import World
from wharf.world.durable_file import replace_file
from wharf.world.tasks import cancel_tasks

if TYPE_CHECKING:
    from wharf.limits.decisions.requests import IncomingRequest

log = logging.getLogger(__name__)

SAVE_INTERVAL_MS: Final = 10_000
"""Accepted credentials are saved this often at most. A killed gateway forgets those of the last interval."""
SHARED_TIMEOUT_S: Final = 0.25
"""How long a request waits for the shared store; after that the credential is unknown for this request."""
SHARED_RETRY_DELAY_MS: Final = 2_000
"""After a failure, nothing is read from the shared store for this time, so that an outage does not delay each request."""
MAX_SHARED_WRITES: Final = 1_000
"""Writes to the shared store at a time; further ones are left out, and the next proof writes again. Limits memory."""
MAX_CACHED_CALLERS: Final = 16_384
"""Callers of unlisted credentials in the cache; limits memory."""
TOKEN_LIFETIME_MS: Final = 300_000
"""How long the result of a verification is cached; then the keys of the issuer may have changed."""
INVALID_TOKEN_LIFETIME_MS: Final = REFETCH_DELAY_MS
"""How long a token counts as invalid. Then its key may have been fetched."""
METHODS_WITHOUT_CREDENTIALS: Final = frozenset({"OPTIONS", "TRACE"})
"""Services answer such requests without a look at the credential, as those of browsers that ask about other origins."""
MAX_VERIFIED_TOKENS: Final = 65_536
"""Cached results of verifications; limits memory."""


class RequestCredential(msgspec.Struct, frozen=True):
    """A credential of a request with its keyed hash."""

    credential: CarriedCredential
    key: str


class _SavedCredentials(msgspec.Struct):
    """The content of the file with accepted credentials."""

    form: int = 1
    accepted: list[tuple[str, int]] = []


class _CachedToken(msgspec.Struct, frozen=True, gc=False):
    result: VerifiedToken
    until_ms: int


class UnlistedCredentials:
    """The state of all unlisted credentials of one limiter.

    `file` is the file for accepted credentials over restarts; `None` without one.
    """

    def __init__(
        self,
        settings: CredentialSettings,
        world: World,
        key: bytes,
        *,
        upstream: Upstream | None = None,
        upstream_ca_file: str = "",
        file: Path | None = None,
    ) -> None:
        self.settings: Final = settings
        self.accepted: Final = AcceptedCredentials(
            max_entries=settings.opaque.accepted_most, lifetime_ms=settings.opaque.accepted_ms
        )
        self.revocations: Final = Revocations()
        self._shared: SharedCredentials | None = None
        self.resolver: OwnerResolver | None = None
        """`None` if nobody is asked."""
        self._upstream_ca_file = upstream_ca_file
        if settings.resolver is not None:
            question = build_question(settings.resolver, upstream, upstream_ca_file)
            self.resolver = OwnerResolver(
                settings.resolver, question, world, self.revocations, new_most=settings.opaque.new_most
            )
        self._verifier = TokenVerifier(settings.tokens, world) if settings.tokens is not None else None
        self._tokens: BoundedCache[str, _CachedToken] = BoundedCache(MAX_VERIFIED_TOKENS)
        self._callers: BoundedCache[tuple[str, Address, CredentialOwner | None], Caller] = BoundedCache(
            MAX_CACHED_CALLERS
        )
        self._new_counts = NewCredentialCounts(settings.opaque.new_most)
        self._proving_routes: PlacedRoutes[str] | None = None
        self._session_routes: PlacedRoutes[str] | None = None
        """The requests that prove a credential, by the rules in force; `None` if all do."""
        self._world = world
        self._hash = KeyedHash(key)
        self._file = file
        self._saved_version = 0
        self._saved_ms = 0
        self._shared_silent_until_ms = 0
        self._writes: set[asyncio.Task[None]] = set()
        self._last_read: tuple[IncomingRequest | None, tuple[RequestCredential, ...]] = (None, ())

    @property
    def shared(self) -> SharedCredentials | None:
        """Where several gateways share accepted credentials, and count new ones; `None` if this one is alone."""
        return self._shared

    @shared.setter
    def shared(self, shared: SharedCredentials | None) -> None:
        self._shared = shared
        if self.resolver is not None:
            self.resolver.shared = shared

    def set_upstream(self, upstream: Upstream) -> None:
        """Ask this service from now on, if the question has only a path."""
        if self.resolver is not None and self.settings.resolver is not None:
            self.resolver.question = build_question(self.settings.resolver, upstream, self._upstream_ca_file)

    def set_rules(self, rules: RuleSet) -> None:
        """Find the requests that prove a credential by these rules from now on: they say where the API is, and how paths are read."""
        opaque = self.settings.opaque
        self._proving_routes = place_patterns(opaque.accepted_on, rules) if opaque.accepted_on else None
        self._session_routes = (
            place_patterns(opaque.sessions_accepted_on, rules) if opaque.sessions_accepted_on else None
        )

    @property
    def lacks_service(self) -> bool:
        """Whether the question has only a path, and the service is not known: then nobody could be asked."""
        return self.resolver is not None and not self.resolver.question.has_address

    # -- beginning and end -----------------------------------------------------------------------------------------

    def open(self, now_ms: int) -> None:
        """Load the accepted credentials of the file. A damaged file is ignored: they are proved again."""
        if self._file is None or not self._file.exists():
            return
        try:
            saved = msgspec.json.decode(self._file.read_bytes(), type=_SavedCredentials)
        except (msgspec.DecodeError, OSError) as error:
            log.warning("accepted credentials not loaded path=%s error=%s", self._file, error)
            return
        self.accepted.load_all(saved.accepted, now_ms)
        self._saved_version = self.accepted.version

    async def save(self, now_ms: int, *, is_last: bool = False) -> None:
        """Write the accepted credentials to the file, if they changed and the last write is long ago. Raises `OSError`."""
        version = self.accepted.version
        if self._file is None or version == self._saved_version:
            return
        if not is_last and now_ms - self._saved_ms < SAVE_INTERVAL_MS:
            return
        self._saved_ms = now_ms
        file, entries = self._file, self.accepted.copy_entries()

        def write() -> None:
            valid = [entry for entry in entries if now_ms < entry[1]]
            replace_file(file, msgspec.json.encode(_SavedCredentials(accepted=valid)))

        await self._world.run_off_loop(write)
        self._saved_version = version

    async def close(self) -> None:
        """End all questions and writes."""
        await cancel_tasks(*self._writes)
        if self.resolver is not None:
            await self.resolver.close()
        if self._verifier is not None:
            await self._verifier.close()

    # -- the credentials of a request ------------------------------------------------------------------------------

    def hash_secret(self, secret: str) -> str:
        """Return the keyed hash of a credential."""
        return self._hash.hash(secret)

    def read(self, incoming: "IncomingRequest") -> tuple[RequestCredential, ...]:
        """Return the credentials of a request with their keyed hashes."""
        last, credentials = self._last_read
        if last is not incoming:
            found = list_credentials(incoming.authorization, incoming.carried, incoming.query, self.settings.carriers)
            credentials = tuple(
                RequestCredential(credential, self._hash.hash(credential.secret)) for credential in found
            )
            self._last_read = (incoming, credentials)
        return credentials

    def find_caller(
        self, credentials: Iterable[RequestCredential], address: Address, directory: Directory, now_ms: int
    ) -> Caller | None:
        """Return the caller of the first credential that is resolved or accepted; `None` if none is."""
        for entry in credentials:
            owner = self._find_owner(entry, now_ms)
            if owner is None and (not self.accepted.is_accepted(entry.key, now_ms) or self._is_rejected(entry, now_ms)):
                continue
            cache_key = (entry.key, address, owner)
            caller = self._callers.get(cache_key)
            if caller is None:
                caller = (
                    make_opaque_caller(entry.key, address)
                    if owner is None
                    else make_owner_caller(owner, entry.key, address, directory)
                )
                self._callers.store(cache_key, caller)
            return caller
        return None

    def clear_callers(self) -> None:
        """Build callers again, because the directory has changed."""
        self._callers.clear()

    def _find_owner(self, entry: RequestCredential, now_ms: int) -> CredentialOwner | None:
        """Return the owner of a credential, if it is known."""
        token = self._verify(entry, now_ms)
        if token is not None:
            return token.owner
        answer = self.resolver.find_answer(entry.key, now_ms) if self.resolver is not None else None
        return answer.owner if answer is not None else None

    def _verify(self, entry: RequestCredential, now_ms: int) -> VerifiedToken | None:
        """Return the result for a token of the configured issuer; `None` for other credentials, and without keys."""
        verifier = self._verifier
        if verifier is None or not self._is_of_issuer(verifier, entry):
            return None
        cached = self._tokens.get(entry.key)
        if cached is None or now_ms >= cached.until_ms:
            if not verifier.has_keys:
                return None
            result = verifier.verify(entry.credential.secret, now_ms)
            until_ms = now_ms + TOKEN_LIFETIME_MS
            if result.owner is None:
                until_ms = now_ms + INVALID_TOKEN_LIFETIME_MS
            elif result.owner is not None and result.owner.expires_ms is not None:
                until_ms = min(until_ms, result.owner.expires_ms)
            self._tokens.pop(entry.key, None)
            cached = self._tokens.store(entry.key, _CachedToken(result, until_ms))
        return self._drop_revoked(entry, cached.result)

    def _is_of_issuer(self, verifier: TokenVerifier, entry: RequestCredential) -> bool:
        """Return whether a credential is a token of the configured issuer. It is decoded only once."""
        return entry.key in self._tokens or verifier.is_of_issuer(entry.credential.secret)

    def _drop_revoked(self, entry: RequestCredential, result: VerifiedToken) -> VerifiedToken:
        """Return the result without its owner if the token, or its user after it was issued, was revoked."""
        owner = result.owner
        if owner is None:
            return result
        is_revoked = self.revocations.get_ms(name_credential(entry.key)) >= 0 or (
            owner.user is not None and result.issued_ms <= self.revocations.get_ms(name_user(owner.user))
        )
        return VerifiedToken(None) if is_revoked else result

    def _is_rejected(self, entry: RequestCredential, now_ms: int) -> bool:
        """Return whether the issuer or the answer to a question shows that nobody owns the credential.

        Its requests then count by address, whatever the service replies.
        """
        token = self._verify(entry, now_ms)
        if token is not None:
            return token.owner is None
        settings, resolver = self.settings.resolver, self.resolver
        if settings is None or resolver is None or settings.accepts_unknown:
            return False
        answer = resolver.find_answer(entry.key, now_ms)
        return answer is not None and not answer.is_known

    @property
    def has_questions(self) -> bool:
        """Whether anything outside this process can say more about a credential."""
        return self.resolver is not None or self._verifier is not None or self.shared is not None

    # -- before the decision ---------------------------------------------------------------------------------------

    def must_wait(self, credentials: Iterable[RequestCredential], address: str, now_ms: int) -> bool:
        """Return whether `prepare` must be awaited before the caller can be found. `address` is as counters contain it."""
        return any(
            self._needs_answer(entry, address, now_ms) or self._needs_shared(entry, now_ms) for entry in credentials
        )

    def _needs_answer(self, entry: RequestCredential, address: str, now_ms: int) -> bool:
        """Return whether keys must be fetched or a question asked to find the owner of a credential."""
        if self._verifier is not None and self._is_of_issuer(self._verifier, entry):
            cached = self._tokens.get(entry.key)
            is_cached = cached is not None and now_ms < cached.until_ms
            return not is_cached and self._verifier.needs_keys(entry.credential.secret, now_ms)
        resolver = self.resolver
        return (
            resolver is not None
            and resolver.find_answer(entry.key, now_ms) is None
            and resolver.can_ask(entry.key, entry.credential, address, now_ms)
        )

    def _needs_shared(self, entry: RequestCredential, now_ms: int) -> bool:
        return (
            self.shared is not None
            and now_ms >= self._shared_silent_until_ms
            and not self.accepted.is_accepted(entry.key, now_ms)
        )

    async def prepare(
        self, credentials: Iterable[RequestCredential], address: str, address_text: str, now_ms: int
    ) -> None:
        """Ask who owns the credentials of a request, until one is known, and read what other gateways have accepted.

        Questions have a timeout. Nothing is raised: without an answer, the credentials are treated as opaque.
        """
        for entry in credentials:
            if self._needs_answer(entry, address, now_ms):
                if self._verifier is not None and self._is_of_issuer(self._verifier, entry):
                    await self._verifier.fetch_keys()
                elif self.resolver is not None:
                    await self.resolver.ask(entry.key, entry.credential, address, address_text, now_ms)
            if self._find_owner(entry, now_ms) is not None:
                return
            if self._needs_shared(entry, now_ms) and self.shared is not None:
                await self._read_shared(self.shared, entry.key, now_ms)

    async def _read_shared(self, shared: SharedCredentials, key: str, now_ms: int) -> None:
        """Read whether another gateway has accepted a credential. After a failure nothing is read for a while."""
        try:
            async with asyncio.timeout(SHARED_TIMEOUT_S):
                until_ms = await shared.find(key)
        except (StoreUnavailable, TimeoutError) as error:
            self._shared_silent_until_ms = now_ms + SHARED_RETRY_DELAY_MS
            log.debug("accepted credentials of other gateways not read error=%s", error)
            return
        if until_ms is not None and now_ms < until_ms:
            self.accepted.load(key, until_ms)

    # -- after the reply -------------------------------------------------------------------------------------------

    def build_proof(
        self, incoming: "IncomingRequest", credentials: tuple[RequestCredential, ...], address: Caller, now_ms: int
    ) -> CredentialProof | None:
        """Return what the reply to a request can prove; `None` for a request without a credential.

        A reply to a request with several credentials proves none of them.
        """
        if not credentials:
            return None
        entry = credentials[0]
        can_prove = (
            len(credentials) == 1
            and self._is_proving_request(incoming, entry)
            and not self._is_rejected(entry, now_ms)
            and not (
                self.resolver is not None and self.resolver.is_exhausted(entry.credential, address.address, now_ms)
            )
        )
        is_session = all(other.credential.is_cookie for other in credentials)
        return CredentialProof(entry.key, address, can_prove, now_ms, is_session=is_session)

    def build_known_proof(
        self, credentials: tuple[RequestCredential, ...], address: Caller, now_ms: int, *, is_resolved: bool
    ) -> CredentialProof | None:
        """Return what the reply to a request of a known owner can show; `None` if it can show nothing.

        `is_resolved`: the answer to a question named the owner. With several credentials it is unclear which one the service
        rejects, so a 401 is a failed login: one of them may be guessed.
        """
        if sum(not entry.credential.is_cookie for entry in credentials) > 1:
            return CredentialProof("", address, can_prove=False, began_ms=now_ms)
        if not is_resolved or self.resolver is None or len(credentials) != 1:
            return None
        return CredentialProof(credentials[0].key, address, can_prove=False, began_ms=now_ms, is_resolved=True)

    def _is_proving_request(self, incoming: "IncomingRequest", entry: RequestCredential) -> bool:
        """Return whether the service looks at the credential of such a request, as far as the settings say."""
        is_cookie = entry.credential.is_cookie
        routes = self._session_routes if is_cookie else self._proving_routes
        methods = find_methods(incoming.method, incoming.method_overrides, incoming.query, has_form=False)
        if not METHODS_WITHOUT_CREDENTIALS.isdisjoint(methods):
            return False
        if routes is None:
            return not is_cookie
        return all(routes.matches_all_readings(method, incoming.path) for method in methods)

    def on_reply(self, proof: CredentialProof, status: int, now_ms: int) -> bool:
        """Store what a reply of the service shows about a credential. Return whether the service has rejected it."""
        if proof.is_resolved:
            if status == UNAUTHORIZED and self.resolver is not None:
                self.resolver.distrust(proof.key, now_ms)
            return False
        if status == UNAUTHORIZED:
            # A path that cannot prove a session may be one where the service takes no sessions.
            if (proof.can_prove or not proof.is_session) and self.accepted.remove(proof.key):
                self._write_shared(proof.key, 0, 0)
            return not proof.is_session
        if not proof.can_prove or not proves_credential(status, is_session=proof.is_session):
            return False
        if proof.began_ms <= self.revocations.get_ms(name_credential(proof.key)):
            return False  # The service may have replied before the revocation.
        if self.accepted.is_accepted(proof.key, now_ms):
            if not self.accepted.needs_renewal(proof.key, now_ms):
                return False
        elif self._new_counts.is_exhausted(proof.address.address, now_ms):
            return False
        elif self.shared is not None:
            self._start_write(self._accept_new(self.shared, proof, now_ms))
            return False
        else:
            self._new_counts.add(proof.address.address, now_ms)
        self._write_shared(proof.key, self.accepted.accept(proof.key, now_ms), self.settings.opaque.accepted_ms)
        return False

    async def _accept_new(self, shared: SharedCredentials, proof: CredentialProof, now_ms: int) -> None:
        """Accept a credential that is new here, if all gateways together have not accepted too many of its address.

        While the shared store is unavailable, the credentials that this process has accepted decide.
        """
        address = proof.address.address
        try:
            can_accept = await shared.add_new(
                f"{address}:{now_ms // HOUR_MS}", proof.key, most=self.settings.opaque.new_most, lifetime_ms=HOUR_MS
            )
        except StoreUnavailable as error:
            log.debug("new credentials of an address not counted by all gateways error=%s", error)
            can_accept = not self._new_counts.is_exhausted(address, now_ms)
        if not can_accept:
            self._new_counts.exhaust(address, now_ms)
            return
        if proof.began_ms <= self.revocations.get_ms(name_credential(proof.key)):
            return
        self._new_counts.add(address, now_ms)
        await self._run_shared_write(
            shared, proof.key, self.accepted.accept(proof.key, now_ms), self.settings.opaque.accepted_ms
        )

    @property
    def has_writes(self) -> bool:
        """Whether proofs or revocations are being stored for other gateways."""
        return bool(self._writes)

    def _write_shared(self, key: str, until_ms: int, lifetime_ms: int) -> None:
        """Store an accepted credential for the other gateways, or delete it if `lifetime_ms` is 0. Nobody waits for it."""
        if self.shared is not None:
            self._start_write(self._run_shared_write(self.shared, key, until_ms, lifetime_ms))

    def _start_write(self, write: Coroutine[Any, Any, None]) -> None:
        """Run a write to the shared store in a task. With too many at a time, it is left out."""
        if len(self._writes) >= MAX_SHARED_WRITES:
            write.close()
            return
        task = self._world.start_task(write, name="limits: share a credential")
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _run_shared_write(self, shared: SharedCredentials, key: str, until_ms: int, lifetime_ms: int) -> None:
        try:
            if lifetime_ms:
                await shared.store(key, until_ms, lifetime_ms)
            else:
                await shared.remove(key)
        except StoreUnavailable as error:
            log.debug("accepted credential not shared error=%s", error)

    # -- revocation ------------------------------------------------------------------------------------------------

    def apply_revocation(self, subject: str, at_ms: int) -> bool:
        """Forget what was learned about a credential or user before this time. Return whether the revocation is new.

        `subject` is `credential:` and a keyed hash, or `user:` and a login.
        """
        if not self.revocations.add(subject, at_ms):
            return False
        kind, _, name = subject.partition(":")
        if kind == "credential" and self.accepted.remove(name):
            self._write_shared(name, 0, 0)
        return True

    def list_subjects(
        self, *, credentials: Iterable[str] = (), users: Iterable[str] = (), hashes: Iterable[str] = ()
    ) -> list[str]:
        """Return the subjects of a revocation. A credential is given as its token, or as `name:password`."""
        subjects = [name_user(login) for login in users] + [name_credential(key) for key in hashes]
        for text in credentials:
            subjects.append(name_credential(self._hash.hash(text)))
            if ":" in text:
                subjects.append(name_credential(self._hash.hash(f"basic {text}")))
            subjects += [
                name_credential(self._hash.hash(f"cookie {name} {normalize_cookie(text)}"))
                for name in self.settings.carriers.cookies
            ]
        return subjects
