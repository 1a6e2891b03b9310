"""Who owns which credential: asks once for each, and caches the answers. Decision record 0217."""

import asyncio
import contextlib
import logging
from typing import Final

import msgspec

from wharf.limits.config.credential_settings import ResolverSettings
from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.callers.acceptance import HOUR_MS, NewCredentialCounts, Revocations, name_credential, name_user
from wharf.limits.core.callers.carriers import CarriedCredential
from wharf.limits.credentials.questions import UNKNOWN, Answer, NoAnswer, Question
from wharf.limits.stores.port import SharedCredentials, StoreUnavailable
from wharf.world import World
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)

COOKIE_FACTOR: Final = 10
"""How many more unknown cookies than unknown tokens of an address are asked about: hosts give visitors sessions too."""
RETRY_DELAY_MS: Final = 2_000
"""After a question without an answer, its credential is not asked about for this time."""
MIN_DISTRUSTED_AGE_MS: Final = 10_000
"""A 401 of the service makes only older answers invalid; limits the questions that a caller can cause."""
MAX_FAILURES: Final = 3
"""After this many questions in a row without an answer, nothing is asked for `RETRY_DELAY_MS`, so that requests do not wait
for a host that is away. One credential that breaks the host must not stop the questions about others."""
SHARED_TIMEOUT_S: Final = 0.25
"""How long a question waits for the shared store; after that this process counts alone."""
MAX_UNANSWERED: Final = 1_024
"""Credentials without an answer that are remembered; limits memory."""


class _CachedAnswer(msgspec.Struct, frozen=True, gc=False):
    """An answer, when the question was asked, and until when the answer is valid."""

    answer: Answer
    asked_ms: int
    until_ms: int


class OwnerResolver:
    """The answers to questions for owners, and the questions that wait for an answer."""

    def __init__(
        self,
        settings: ResolverSettings,
        question: Question,
        world: World,
        revocations: Revocations,
        *,
        new_most: int,
    ) -> None:
        self.question = question
        """Replaced when the service behind the gateway is known."""
        self.question_count = 0
        """The number of questions since the start, for the metrics."""
        self.unanswered_count = 0
        """The number of questions without an answer since the start."""
        self.shared: SharedCredentials | None = None
        """Where several gateways count unknown credentials; `None` if this one is alone."""
        self._new_most = new_most
        self._settings: Final = settings
        self._world = world
        self._answers: BoundedCache[str, _CachedAnswer] = BoundedCache(settings.answers_most)
        self._questions: dict[str, asyncio.Task[None]] = {}
        self._unknown_counts = {
            is_cookie: NewCredentialCounts(self._get_most(is_cookie=is_cookie)) for is_cookie in (False, True)
        }
        self._failure_count = 0
        """Questions without an answer since the last answer."""
        self._silent_until_ms = 0
        self._unanswered_until_ms: BoundedCache[str, int] = BoundedCache(MAX_UNANSWERED)
        self._revocations = revocations

    def find_answer(self, key: str, now_ms: int) -> Answer | None:
        """Return the valid answer about a credential; `None` if there is none."""
        cached = self._answers.get(key)
        if cached is None or now_ms >= cached.until_ms:
            return None
        if cached.asked_ms <= self._revocations.get_ms(name_credential(key)):
            return None
        owner = cached.answer.owner
        if owner is not None and owner.user is not None:
            return None if cached.asked_ms <= self._revocations.get_ms(name_user(owner.user)) else cached.answer
        return cached.answer

    def can_ask(self, key: str, credential: CarriedCredential, address: str, now_ms: int) -> bool:
        """Return whether a question about this credential can be asked or is being asked now."""
        if key in self._questions:
            return True
        return (
            now_ms >= max(self._silent_until_ms, self._unanswered_until_ms.get(key, 0))
            and len(self._questions) < self._settings.questions_most
            and not self.is_exhausted(credential, address, now_ms)
        )

    def is_exhausted(self, credential: CarriedCredential, address: str, now_ms: int) -> bool:
        """Return whether an address has shown the maximum number of unknown credentials of this kind.

        Cookies count apart: the sessions of visitors must not stop questions about tokens.
        """
        return self._unknown_counts[credential.is_cookie].is_exhausted(address, now_ms)

    async def ask(self, key: str, credential: CarriedCredential, address: str, address_text: str, now_ms: int) -> None:
        """Ask who owns a credential, or wait for the question that another request has asked.

        After the call, `find_answer` returns the answer, if there is one. `address` is the address as counters contain
        it, and `address_text` as the question contains it.
        """
        task = self._questions.get(key)
        if task is None:
            if not self.can_ask(key, credential, address, now_ms):
                return
            task = self._questions[key] = self._world.start_task(
                self._run_question(key, credential, address, address_text), name="limits: ask for an owner"
            )
            task.add_done_callback(lambda _: self._questions.pop(key, None))
        await asyncio.shield(task)

    async def _run_question(self, key: str, credential: CarriedCredential, address: str, address_text: str) -> None:
        """Ask and store the answer. A question without an answer starts a pause."""
        asked_ms = self._now_ms()
        if await self._is_exhausted_elsewhere(credential, address, asked_ms):
            self._unknown_counts[credential.is_cookie].exhaust(address, asked_ms)
            return
        self.question_count += 1
        try:
            answer = await self.question.ask(credential, address_text)
        except Exception as error:
            # Any failure is no answer: otherwise the requests that wait for it would get no reply.
            if not isinstance(error, NoAnswer):
                log.exception("question for an owner failed")
            self.unanswered_count += 1
            self._failure_count += 1
            retry_ms = self._now_ms() + RETRY_DELAY_MS
            self._unanswered_until_ms.pop(key, None)
            self._unanswered_until_ms.store(key, retry_ms)
            if self._failure_count >= MAX_FAILURES:
                self._silent_until_ms = retry_ms
            log.warning("owner of a credential not resolved error=%s", error)
            return
        self._failure_count = 0
        now_ms = self._now_ms()
        if answer == UNKNOWN:
            self._unknown_counts[credential.is_cookie].add(address, now_ms)
            await self._share_unknown(key, credential, address, now_ms)
        lifetime_ms = self._settings.unknown_ms if answer == UNKNOWN else self._settings.lifetime_ms
        until_ms = now_ms + lifetime_ms
        if answer.owner is not None and answer.owner.expires_ms is not None:
            until_ms = min(until_ms, answer.owner.expires_ms)
        self._answers.pop(key, None)
        self._answers.store(key, _CachedAnswer(answer, asked_ms, until_ms))

    async def _is_exhausted_elsewhere(self, credential: CarriedCredential, address: str, now_ms: int) -> bool:
        """Return whether all gateways together have counted the maximum of unknown credentials of an address."""
        if self.shared is None:
            return False
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(SHARED_TIMEOUT_S):
                count = await self.shared.count_new(_name_group(credential, address, now_ms))
            return count >= self._get_most(is_cookie=credential.is_cookie)
        return False

    async def _share_unknown(self, key: str, credential: CarriedCredential, address: str, now_ms: int) -> None:
        """Count an unknown credential of an address for all gateways. While the store is unavailable, only this one counts."""
        if self.shared is None:
            return
        most = self._get_most(is_cookie=credential.is_cookie)
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(SHARED_TIMEOUT_S):
                group = _name_group(credential, address, now_ms)
                await self.shared.add_new(group, key, most=most, lifetime_ms=HOUR_MS)

    def _get_most(self, *, is_cookie: bool) -> int:
        """Return the maximum number of unknown credentials of an address in an hour, for cookies or for all others."""
        return self._new_most * (COOKIE_FACTOR if is_cookie else 1)

    def _now_ms(self) -> int:
        return self._world.now_ns() // 1_000_000

    def distrust(self, key: str, now_ms: int) -> None:
        """Ask again about a credential that the service has rejected, unless the answer is new: some replies 401 have other
        reasons.
        """
        cached = self._answers.get(key)
        if cached is not None and now_ms - cached.asked_ms >= MIN_DISTRUSTED_AGE_MS:
            del self._answers[key]

    async def close(self) -> None:
        """End all questions."""
        await cancel_tasks(*self._questions.values())
        with contextlib.suppress(NoAnswer):
            await self.question.close()


def _name_group(credential: CarriedCredential, address: str, now_ms: int) -> str:
    """Return the name of the group of unknown credentials of an address in the current hour. Cookies count apart."""
    return f"{'cookies' if credential.is_cookie else 'asked'}:{address}:{now_ms // HOUR_MS}"
