"""The desk: every request is brought here once, and comes back admitted or answered.

It joins what others decide: who is calling (`core.recognition`), whether there is room (`LimitService`), what is told
(`telling`, `core.answer`), what is remembered (`tally`, `journal`). It takes no decision of its own about a limit.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from wharf.limits.configuration.settings import Settings
from wharf.limits.core.answer import JSON, Headers, Refusal, headers_of, refusal_of
from wharf.limits.core.caller import Caller, Case
from wharf.limits.core.decision import Decision, Verdict
from wharf.limits.core.directory import Directory, Register
from wharf.limits.core.graphql import TooComplex
from wharf.limits.core.large_files import UnreadableBatch, count_objects
from wharf.limits.core.recognition import Unrecognised
from wharf.limits.core.request import QueryFacts, Request
from wharf.limits.core.rule import Interface
from wharf.limits.desk.alerts import Alert, Alerts
from wharf.limits.desk.arrival import Arrival, Reply
from wharf.limits.desk.callers import Callers
from wharf.limits.desk.journal import Journal, Noted, append
from wharf.limits.desk.orders import Orders
from wharf.limits.desk.pages import Pages
from wharf.limits.desk.passage import Passage
from wharf.limits.desk.sharing import Sharing
from wharf.limits.desk.tally import Tally
from wharf.limits.desk.telling import Telling, head_lines, token_lines
from wharf.limits.desk.work import Work
from wharf.limits.service import LimitService
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.port import GaveBack, StoreLost
from wharf.world import World

log = logging.getLogger(__name__)
T = TypeVar("T")

BATCH_ENDING: Final = "/objects/batch"
BODY_BYTES_MOST: Final = 1 << 20
"""Of a body that is read before a decision."""
RENEWED_EVERY_S: Final = 10
LONG_S: Final = 1.0


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run what waits for nothing to its end, without a loop. A store in this process is such a thing."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("a store in memory waits for nothing")


class Desk:
    def __init__(
        self,
        service: LimitService,
        world: World,
        settings: Settings | None = None,
        *,
        directory: Directory | None = None,
        folder: Path | None = None,
    ) -> None:
        self.service: Final = service
        self.settings: Final = settings or Settings()
        self.world: Final = world
        self.tally: Final = Tally()
        self.orders: Final = Orders(folder, self.now_ms, lambda grants: self.service.limiter.set_grants(grants))
        self.callers: Final = Callers(directory or Register(), self.settings.proxies)
        self.running: Final[dict[str, Passage]] = {}
        self.is_immediate: Final = isinstance(service.store, MemoryStore)
        """Whether nothing here waits: then `drive` may be used."""
        self.revived = 0
        """Slots that had run out while their requests went on."""
        self.alerts: Alerts | None = None
        """Kept where somebody wants them: see `send_alerts`."""
        self.send_alerts: Callable[[list[Alert]], Coroutine[Any, Any, None]] | None = None
        self.telling = Telling(service.rules, self.settings.request_id_header)
        self._folder = folder
        self._work = Work()
        chance = world.token_bytes(9).hex().upper()
        self._id_begins = f"{chance[:4]}:{chance[4:10]}:{chance[10:]}"
        self._id_number = 0
        self._id_second = 0
        self._id_ends = ""
        decisions = self.settings.decisions
        self.sharing: Final = Sharing(self.tally, self._id_begins, kept_ms=decisions.kept_ms)
        self.journal: Final = Journal(folder, decisions, self.sharing.note)
        self._sharer: asyncio.Task[None] | None = None
        self.pages: Final = Pages(self.sharing, self.settings.meta, has_insights=self.settings.has_insights)
        self._ticker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- beginning and end -----------------------------------------------------------------------------------------

    def open(self) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self.orders.open()
        self._ticker = self.world.start(self._keep_ticking(), name="limits: renew, charge and write")
        if self.sharing.records is not None:
            self._sharer = self.world.start(self._keep_sharing(), name="limits: tell other processes")

    async def close(self) -> None:
        """Free what is held, and write what is not written."""
        beside = [task for task in (self._ticker, self._sharer) if task is not None]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        self._ticker = self._sharer = None
        for passage in list(self.running.values()):
            await self.end(passage)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.tally.fold(self.now_ms())
        await self.journal.write(self.now_ms())
        with contextlib.suppress(StoreLost):
            await self.sharing.write(self.now_ms(), is_last=True)

    def now_ms(self) -> int:
        return self.world.now_ns() // 1_000_000

    async def use_rules(self, text: str, file: str) -> None:
        await self.service.reload(text, file)
        self.telling = Telling(self.service.rules, self.settings.request_id_header)

    # -- who is calling --------------------------------------------------------------------------------------------

    def new_id(self, now_ms: int) -> str:
        """Five groups of hexadecimal digits, the last one the second: as existing clients show and log it."""
        self._id_number += 1
        second = now_ms // 1_000
        if second != self._id_second:
            self._id_second, self._id_ends = second, f"{second:X}"
        return f"{self._id_begins}:{self._id_number:04X}:{self._id_ends}"

    # -- deciding --------------------------------------------------------------------------------------------------

    def wants_body(self, method: str, path: str) -> bool:
        """Whether a decision needs the body: of a GraphQL request, and of a large-file batch."""
        if method != "POST":
            return False
        interface = self.service.limiter.book.endpoint(method, path).interface
        return interface is Interface.GRAPHQL or (interface is Interface.LARGE_FILES and path.endswith(BATCH_ENDING))

    async def admit(self, arrival: Arrival, body: bytes | None = None) -> Passage | Reply:
        if self.is_immediate:
            return self.admit_here(arrival, body)
        now_ms = self.now_ms()
        request_id = self.new_id(now_ms)
        if self.orders.off_until_ms and self.orders.is_off:
            return self._pass_freely(request_id, arrival)
        caller = self.callers.find(arrival, now_ms)
        if isinstance(caller, Unrecognised):
            return await self._refuse_credential(request_id, arrival, caller.message)
        request, problem = self._request(request_id, arrival, caller, body)
        service = self.service
        decision = await (service.refuse_complex(request, problem) if problem else service.decide(request))
        return self._decided(request_id, arrival, caller, decision, now_ms)

    def admit_here(self, arrival: Arrival, body: bytes | None = None) -> Passage | Reply:
        """`admit` by counters in this process: nothing is waited for."""
        now_ms = self.world.now_ns() // 1_000_000
        request_id = self.new_id(now_ms)
        if self.orders.off_until_ms and self.orders.is_off:
            return self._pass_freely(request_id, arrival)
        caller = self.callers.find(arrival, now_ms)
        if isinstance(caller, Unrecognised):
            return drive(self._refuse_credential(request_id, arrival, caller.message))
        service = self.service
        if body is None:
            request = Request(request_id, arrival.method, arrival.path, caller, None, None, arrival.connection)
            decision = service.decide_here(request, now_ms)
        else:
            request, problem = self._request(request_id, arrival, caller, body)
            decision = drive(service.refuse_complex(request, problem) if problem else service.decide(request))
        return self._decided(request_id, arrival, caller, decision, now_ms)

    def _request(self, request_id: str, arrival: Arrival, caller: Caller, body: bytes | None) -> tuple[Request, str]:
        """The facts that a decision needs; and what is wrong with the body, if anything is."""
        query: QueryFacts | None = None
        objects: int | None = None
        problem = ""
        if body is not None:
            try:
                if arrival.path.endswith(BATCH_ENDING):
                    objects = count_objects(body)
                else:
                    query = self.service.queries.of_body(body)
            except (TooComplex, UnreadableBatch) as refused:
                problem = str(refused)
        request = Request(request_id, arrival.method, arrival.path, caller, query, objects, arrival.connection)
        return request, problem

    def _decided(
        self, request_id: str, arrival: Arrival, caller: Caller, decision: Decision, now_ms: int
    ) -> Passage | Reply:
        if decision.verdict is not Verdict.ADMITTED:
            self.journal.note(Noted(request_id, now_ms, arrival.method, arrival.path, decision, caller))
            self.tally.refuse(decision, caller, now_ms)
            return self._reply(request_id, refusal_of(decision, caller, self.service.rules), caller)
        self.journal.note_admitted(request_id, now_ms, arrival.method, arrival.path, decision, caller)
        self.tally.admit(decision, caller)
        if self.alerts is not None:
            self.alerts.note(decision, caller)
        now_s = self.world.monotonic_s()
        passage = self.running[request_id] = Passage(request_id, decision, caller, arrival.is_conditional, now_s, now_s)
        return passage

    def pass_machine(self, arrival: Arrival) -> Passage:
        """A node agent or a server, as was proven by whom it is sent to. No store is asked, so none can refuse it."""
        self.tally.pass_machine(rule.name for rule in self.service.rules.rules if Case.MACHINE in rule.ceilings)
        return self._pass_freely(self.new_id(self.now_ms()), arrival)

    def _pass_freely(self, request_id: str, arrival: Arrival) -> Passage:
        now_s = self.world.monotonic_s()
        return Passage(request_id, None, self.callers.address_alone(arrival), False, now_s, now_s)

    def _reply(self, request_id: str, refusal: Refusal, caller: Caller | None = None) -> Reply:
        of_token = () if caller is None else token_lines(caller)
        headers = (*refusal.headers, *of_token, (self.settings.request_id_header, request_id))
        return Reply(refusal.status, headers, refusal.body, is_refusal=True)

    async def _refuse_credential(self, request_id: str, arrival: Arrival, message: str) -> Reply:
        caller = self.callers.address_alone(arrival)
        decision = await self.service.failed_login(request_id, caller)
        rules, now_ms = self.service.rules, self.now_ms()
        self.tally.unauthorized += 1
        if not decision.is_admitted:
            self.journal.note(Noted(request_id, now_ms, arrival.method, arrival.path, decision, caller))
            self.tally.refuse(decision, caller, now_ms)
            return self._reply(request_id, refusal_of(decision, caller, rules))
        body: dict[str, Any] = {"message": message, "documentation_url": rules.documentation, "status": "401"}
        headers = (*headers_of(decision, rules), ("content-type", JSON), ("cache-control", "no-cache"))
        if self.service.limiter.book.endpoint(arrival.method, arrival.path).interface is Interface.LARGE_FILES:
            headers = (*headers, ("lfs-authenticate", 'Basic realm="large files"'))
            body["request_id"] = request_id
        return self._reply(request_id, Refusal(401, headers, msgspec.json.encode(body)))

    async def error(self, arrival: Arrival, status: int, message: str, passage: Passage | None = None) -> Reply:
        """A reply of ours to what no limit refused: the headers of the request's bucket, or of its address's."""
        body = msgspec.json.encode(
            {"message": message, "documentation_url": self.service.rules.documentation, "status": str(status)}
        )
        plain: Headers = (("content-type", JSON), ("cache-control", "no-cache"))
        now_ms = self.now_ms()
        if self.orders.is_off or (passage is not None and passage.decision is None):
            return Reply(status, plain, body)
        if passage is not None and passage.decision is not None:
            told: Headers = (*headers_of(passage.decision, self.service.rules), *token_lines(passage.caller))
            request_id = passage.id
        else:
            told = await self.service.headers_for_unknown(self.callers.address_alone(arrival))
            request_id = self.new_id(now_ms)
        return Reply(status, (*told, *plain, (self.settings.request_id_header, request_id)), body)

    async def page(self, arrival: Arrival, passage: Passage) -> Reply | None:
        """What is answered here and not by the service."""
        if arrival.method not in ("GET", "HEAD") or not self.pages.answers(arrival.path):
            return None
        decision, caller = passage.decision, passage.caller
        if decision is None:
            found = self.pages.while_off(arrival.path)
            return None if found is None else Reply(found[0], (("content-type", found[1]),), found[2])
        directory = self.callers.directory
        try:
            status, kind, body = await self.pages.page(arrival, caller, self.service, directory, self.now_ms())
        except Exception:
            # Here a request is answered from beginning to end, as a service would: who asks must hear of a fault, and
            # those who carry the request must go on, or its slot and its connection would be held for ever.
            log.exception("%s could not be answered", arrival.path)
            await self.on_status(passage, 500)
            return await self.error(arrival, 500, "Server Error", passage)
        told = headers_of(decision, self.service.rules)
        more = (("content-type", kind), ("cache-control", "no-cache"), (self.settings.request_id_header, passage.id))
        return Reply(status, (*told, *token_lines(caller), *more), body)

    # -- what a request is told and costs --------------------------------------------------------------------------

    async def on_status(self, passage: Passage, status: int) -> None:
        """The service's status is known, and nothing is told yet: some replies give the primary charge back."""
        decision = passage.decision
        if decision is None:
            return
        if status == 304 and passage.is_conditional and not passage.caller.is_anonymous:
            passage.decision = await self.service.give_back(decision, GaveBack.UNCHANGED)
        elif status >= 500:
            passage.decision = await self.service.give_back(decision, GaveBack.FAULT)

    async def on_gone(self, passage: Passage) -> None:
        """The caller left before the request was handed on."""
        if passage.decision is not None:
            await self.service.give_back(passage.decision, GaveBack.GONE)
        await self.end(passage)

    async def on_content(self, passage: Passage) -> None:
        """The service says that content was made."""
        if passage.decision is not None:
            await self.service.spend_content(passage.decision, passage.caller)

    def pairs(self, passage: Passage) -> list[tuple[bytes, bytes]]:
        if passage.decision is None:
            return []
        told = self.telling.pairs(passage.id, passage.decision)
        caller = passage.caller
        if caller.scopes or caller.expires_ms is not None:
            told += [(name.encode(), value.encode()) for name, value in token_lines(caller)]
        return told

    def block(self, passage: Passage) -> bytes:
        if passage.decision is None:
            return b""
        told = self.telling.block(passage.id, passage.decision)
        caller = passage.caller
        if caller.scopes or caller.expires_ms is not None:
            told += head_lines(token_lines(caller))
        return told

    async def end(self, passage: Passage) -> None:
        """The last byte is out, or the caller is gone. A second time does nothing."""
        if passage.ended:
            return
        if self.is_immediate:
            self.end_here(passage)
            return
        passage.ended = True
        passage.on_long = None
        self.running.pop(passage.id, None)
        decision = passage.decision
        if decision is None:
            return
        due_ms = self._work.due_ms(passage, decision, self.world.monotonic_s())
        if due_ms:
            try:
                await self.service.spend_cpu(decision, due_ms)
            except StoreLost:
                log.debug("CPU time of %s could not be charged: the store is away", passage.caller.owner)
        await self.service.end(passage.id)

    def end_here(self, passage: Passage) -> None:
        """`end` by counters in this process."""
        if passage.ended:
            return
        passage.ended = True
        passage.on_long = None
        self.running.pop(passage.id, None)
        decision, here = passage.decision, self.service.here
        if decision is None or here is None:
            return
        # Of a passage that waits for its caller no moment is asked for: what it worked is known.
        now_s = 0.0 if passage.since_s is None else self.world.monotonic_s()
        due_ms = self._work.due_ms(passage, decision, now_s)
        now_ms = self.world.now_ns() // 1_000_000
        if due_ms:
            here.spend(decision.plan.meters, due_ms, now_ms)
        here.release(passage.id, now_ms, is_asked_again=False)

    def end_soon(self, passage: Passage) -> None:
        """`end` for those who wait for nothing."""
        if self.is_immediate:
            self.end_here(passage)
        elif not passage.ended:
            self.start(self.end(passage))

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        task = self.world.start(work, name="limits: at the desk")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- now and then ----------------------------------------------------------------------------------------------

    async def _keep_ticking(self) -> None:
        count = 0
        while True:
            await asyncio.sleep(1.0)
            count += 1
            try:
                await self.tick(renews=count % RENEWED_EVERY_S == 0)
                await self.orders.follow_board()
            except StoreLost:
                log.debug("slots could not be renewed: the store is away")
            except OSError as problem:
                log.warning("the decision log could not be written: %s", problem)

    async def _keep_sharing(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            try:
                await self.sharing.write(self.now_ms())
            except StoreLost:
                log.debug("other processes could not be told: the store is away")

    async def tick(self, *, renews: bool) -> None:
        now_ms, now_s = self.now_ms(), self.world.monotonic_s()
        for passage in list(self.running.values()):
            if passage.on_long is not None and now_s - passage.started_s >= LONG_S:
                on_long, passage.on_long = passage.on_long, None
                on_long()
            slice_ms = self._work.slice_ms(passage, now_s)
            if slice_ms and passage.decision is not None:
                await self.service.spend_cpu(passage.decision, slice_ms)
        if renews and self.running:
            held = [p.id for p in self.running.values() if p.decision is not None and p.decision.plan.leases]
            if held:
                self.revived += await self.service.store.renew(held)
        self.tally.fold(now_ms)
        ended = self.orders.end_grants(now_ms)
        for grant in ended:
            self.audit("grant ended", by="time", owner=grant.owner, resource=grant.resource, amount=grant.amount)
        if ended:
            self.start(self.orders.take_down(ended))
        if self.orders.end_off(now_ms):
            self.audit("limits are on again", by="time")
        if self.alerts is not None and self.send_alerts is not None:
            alerts = self.alerts.take()
            if alerts:
                self.start(self.send_alerts(alerts))
        await self.journal.write(now_ms)

    def audit(self, act: str, *, by: str, **facts: object) -> None:
        """What an operator did, or what ended by itself: in the log and in a file of its own."""
        entry = {"at_ms": self.now_ms(), "act": act, "by": by, **facts}
        log.warning("limits: %s by %s", act, by, extra=facts)
        if self._folder is not None:
            append(self._folder / "audit.jsonl", msgspec.json.encode(entry) + b"\n")
