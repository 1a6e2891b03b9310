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

from wharf.limits.config.settings import LimiterSettings
from wharf.limits.core.callers.caller import Caller, CallerClass
from wharf.limits.core.callers.directory import Directory, MemoryDirectory
from wharf.limits.core.callers.recognition import UnrecognizedCredential
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.graphql import QueryTooComplex
from wharf.limits.core.large_files import UnreadableBatch, count_objects
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.core.responses import JSON_TYPE, Headers, RefusalResponse, build_headers, build_refusal
from wharf.limits.core.rule import Interface
from wharf.limits.decisions.activity import ActivityCounts
from wharf.limits.decisions.alerts import Alert, AlertQueue
from wharf.limits.decisions.callers import CallerResolver
from wharf.limits.decisions.decision_log import DecisionLog, LoggedDecision, append_private
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.decisions.headers import HeaderWriter, build_token_headers, encode_headers
from wharf.limits.decisions.overrides import OperatorOverrides
from wharf.limits.decisions.pages import Pages
from wharf.limits.decisions.requests import AdmittedRequest, CpuMeter, IncomingRequest, LocalReply
from wharf.limits.decisions.shared_records import SharedRecords
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.port import RefundReason, StoreUnavailable
from wharf.world import World

log = logging.getLogger(__name__)
T = TypeVar("T")

BATCH_PATH_SUFFIX: Final = "/objects/batch"
MAX_BODY_BYTES: Final = 1 << 20
"""Of a body that is read before a decision."""
RENEW_INTERVAL_S: Final = 10
LONG_REQUEST_S: Final = 1.0


def run_immediately(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run what waits for nothing to its end, without a loop. A store in this process is such a thing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("a store in memory waits for nothing")


class DecisionService:
    def __init__(
        self,
        evaluator: LimitEvaluator,
        world: World,
        settings: LimiterSettings | None = None,
        *,
        directory: Directory | None = None,
        folder: Path | None = None,
    ) -> None:
        self.evaluator: Final = evaluator
        self.settings: Final = settings or LimiterSettings()
        self.world: Final = world
        self.activity: Final = ActivityCounts()
        self.overrides: Final = OperatorOverrides(
            folder, self.now_ms, lambda grants: self.evaluator.limiter.set_grants(grants)
        )
        self.caller_resolver: Final = CallerResolver(directory or MemoryDirectory(), self.settings.proxies)
        self.running_requests: Final[dict[str, AdmittedRequest]] = {}
        self.is_local: Final = isinstance(evaluator.store, MemoryStore)
        """Whether nothing here waits: then `drive` may be used."""
        self.revived_leases = 0
        """Slots that had run out while their requests went on."""
        self.alerts: AlertQueue | None = None
        """Kept where somebody wants them: see `send_alerts`."""
        self.send_alerts: Callable[[list[Alert]], Coroutine[Any, Any, None]] | None = None
        self.header_writer = HeaderWriter(evaluator.rules, self.settings.request_id_header)
        self._folder = folder
        self._work = CpuMeter()
        chance = world.token_bytes(9).hex().upper()
        self._id_begins = f"{chance[:4]}:{chance[4:10]}:{chance[10:]}"
        self._id_number = 0
        self._id_second = 0
        self._id_ends = ""
        decisions = self.settings.decisions
        self.shared_records: Final = SharedRecords(self.activity, self._id_begins, kept_ms=decisions.kept_ms)
        self.decision_log: Final = DecisionLog(folder, decisions, self.shared_records.record_decision)
        self._sharer: asyncio.Task[None] | None = None
        self.pages: Final = Pages(self.shared_records, self.settings.meta, has_insights=self.settings.has_insights)
        self._ticker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- beginning and end -----------------------------------------------------------------------------------------

    def open(self) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self.overrides.open()
        self._ticker = self.world.start_task(self._keep_ticking(), name="limits: renew, charge and write")
        if self.shared_records.record_store is not None:
            self._sharer = self.world.start_task(self._keep_sharing(), name="limits: tell other processes")

    async def close(self) -> None:
        """Free what is held, and write what is not written."""
        beside = [task for task in (self._ticker, self._sharer) if task is not None]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        self._ticker = self._sharer = None
        for passage in list(self.running_requests.values()):
            await self.end_request(passage)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.activity.fold_counts(self.now_ms())
        await self.decision_log.write(self.now_ms())
        with contextlib.suppress(StoreUnavailable):
            await self.shared_records.write(self.now_ms(), is_last=True)

    def now_ms(self) -> int:
        return self.world.now_ns() // 1_000_000

    async def set_rules(self, text: str, file: str) -> None:
        await self.evaluator.reload_rules(text, file)
        self.header_writer = HeaderWriter(self.evaluator.rules, self.settings.request_id_header)

    # -- who is calling --------------------------------------------------------------------------------------------

    def make_request_id(self, now_ms: int) -> str:
        """Five groups of hexadecimal digits, the last one the second: as existing clients show and log it."""
        self._id_number += 1
        second = now_ms // 1_000
        if second != self._id_second:
            self._id_second, self._id_ends = second, f"{second:X}"
        return f"{self._id_begins}:{self._id_number:04X}:{self._id_ends}"

    # -- deciding --------------------------------------------------------------------------------------------------

    def needs_body(self, method: str, path: str) -> bool:
        """Whether a decision needs the body: of a GraphQL request, and of a large-file batch."""
        if method != "POST":
            return False
        interface = self.evaluator.limiter.rulebook.get_endpoint(method, path).interface
        return interface is Interface.GRAPHQL or (
            interface is Interface.LARGE_FILES and path.endswith(BATCH_PATH_SUFFIX)
        )

    async def admit(self, arrival: IncomingRequest, body: bytes | None = None) -> AdmittedRequest | LocalReply:
        if self.is_local:
            return self.admit_locally(arrival, body)
        now_ms = self.now_ms()
        request_id = self.make_request_id(now_ms)
        if self.overrides.off_until_ms and self.overrides.is_off:
            return self._pass_freely(request_id, arrival)
        caller = self.caller_resolver.resolve_caller(arrival, now_ms)
        if isinstance(caller, UnrecognizedCredential):
            return await self._refuse_credential(request_id, arrival, caller.message)
        request, problem = self._request(request_id, arrival, caller, body)
        service = self.evaluator
        decision = await (service.refuse_unreadable_body(request, problem) if problem else service.evaluate(request))
        return self._decided(request_id, arrival, caller, decision, now_ms)

    def admit_locally(self, arrival: IncomingRequest, body: bytes | None = None) -> AdmittedRequest | LocalReply:
        """`admit` by counters in this process: nothing is waited for."""
        now_ms = self.world.now_ns() // 1_000_000
        request_id = self.make_request_id(now_ms)
        if self.overrides.off_until_ms and self.overrides.is_off:
            return self._pass_freely(request_id, arrival)
        caller = self.caller_resolver.resolve_caller(arrival, now_ms)
        if isinstance(caller, UnrecognizedCredential):
            return run_immediately(self._refuse_credential(request_id, arrival, caller.message))
        service = self.evaluator
        if body is None:
            request = RequestFacts(request_id, arrival.method, arrival.path, caller, None, None, arrival.connection)
            decision = service.evaluate_locally(request, now_ms)
        else:
            request, problem = self._request(request_id, arrival, caller, body)
            decision = run_immediately(
                service.refuse_unreadable_body(request, problem) if problem else service.evaluate(request)
            )
        return self._decided(request_id, arrival, caller, decision, now_ms)

    def _request(
        self, request_id: str, arrival: IncomingRequest, caller: Caller, body: bytes | None
    ) -> tuple[RequestFacts, str]:
        """The facts that a decision needs; and what is wrong with the body, if anything is."""
        query: QueryFacts | None = None
        objects: int | None = None
        problem = ""
        if body is not None:
            try:
                if arrival.path.endswith(BATCH_PATH_SUFFIX):
                    objects = count_objects(body)
                else:
                    query = self.evaluator.query_costs.compute_body_cost(body)
            except (QueryTooComplex, UnreadableBatch) as refused:
                problem = str(refused)
        request = RequestFacts(request_id, arrival.method, arrival.path, caller, query, objects, arrival.connection)
        return request, problem

    def _decided(
        self, request_id: str, arrival: IncomingRequest, caller: Caller, decision: LimitDecision, now_ms: int
    ) -> AdmittedRequest | LocalReply:
        if decision.verdict is not Verdict.ADMITTED:
            self.decision_log.record(LoggedDecision(request_id, now_ms, arrival.method, arrival.path, decision, caller))
            self.activity.record_refusal(decision, caller, now_ms)
            return self._reply(request_id, build_refusal(decision, caller, self.evaluator.rules), caller)
        self.decision_log.record_admission(request_id, now_ms, arrival.method, arrival.path, decision, caller)
        self.activity.record_admission(decision, caller)
        if self.alerts is not None:
            self.alerts.check_usage(decision, caller)
        now_s = self.world.monotonic_s()
        passage = self.running_requests[request_id] = AdmittedRequest(
            request_id, decision, caller, arrival.is_conditional, now_s, now_s
        )
        return passage

    def admit_machine(self, arrival: IncomingRequest) -> AdmittedRequest:
        """A node agent or a server, as was proven by whom it is sent to. No store is asked, so none can refuse it."""
        self.activity.record_machine(
            rule.name for rule in self.evaluator.rules.rules if CallerClass.MACHINE in rule.ceilings
        )
        return self._pass_freely(self.make_request_id(self.now_ms()), arrival)

    def _pass_freely(self, request_id: str, arrival: IncomingRequest) -> AdmittedRequest:
        now_s = self.world.monotonic_s()
        return AdmittedRequest(request_id, None, self.caller_resolver.resolve_address(arrival), False, now_s, now_s)

    def _reply(self, request_id: str, refusal: RefusalResponse, caller: Caller | None = None) -> LocalReply:
        of_token = () if caller is None else build_token_headers(caller)
        headers = (*refusal.headers, *of_token, (self.settings.request_id_header, request_id))
        return LocalReply(refusal.status, headers, refusal.body, is_refusal=True)

    async def _refuse_credential(self, request_id: str, arrival: IncomingRequest, message: str) -> LocalReply:
        caller = self.caller_resolver.resolve_address(arrival)
        decision = await self.evaluator.charge_failed_login(request_id, caller)
        rules, now_ms = self.evaluator.rules, self.now_ms()
        self.activity.unauthorized += 1
        if not decision.is_admitted:
            self.decision_log.record(LoggedDecision(request_id, now_ms, arrival.method, arrival.path, decision, caller))
            self.activity.record_refusal(decision, caller, now_ms)
            return self._reply(request_id, build_refusal(decision, caller, rules))
        body: dict[str, Any] = {"message": message, "documentation_url": rules.documentation, "status": "401"}
        headers = (*build_headers(decision, rules), ("content-type", JSON_TYPE), ("cache-control", "no-cache"))
        if (
            self.evaluator.limiter.rulebook.get_endpoint(arrival.method, arrival.path).interface
            is Interface.LARGE_FILES
        ):
            headers = (*headers, ("lfs-authenticate", 'Basic realm="large files"'))
            body["request_id"] = request_id
        return self._reply(request_id, RefusalResponse(401, headers, msgspec.json.encode(body)))

    async def render_error(
        self, arrival: IncomingRequest, status: int, message: str, passage: AdmittedRequest | None = None
    ) -> LocalReply:
        """A reply of ours to what no limit refused: the headers of the request's bucket, or of its address's."""
        body = msgspec.json.encode(
            {"message": message, "documentation_url": self.evaluator.rules.documentation, "status": str(status)}
        )
        plain: Headers = (("content-type", JSON_TYPE), ("cache-control", "no-cache"))
        now_ms = self.now_ms()
        if self.overrides.is_off or (passage is not None and passage.decision is None):
            return LocalReply(status, plain, body)
        if passage is not None and passage.decision is not None:
            told: Headers = (
                *build_headers(passage.decision, self.evaluator.rules),
                *build_token_headers(passage.caller),
            )
            request_id = passage.id
        else:
            told = await self.evaluator.render_address_headers(self.caller_resolver.resolve_address(arrival))
            request_id = self.make_request_id(now_ms)
        return LocalReply(status, (*told, *plain, (self.settings.request_id_header, request_id)), body)

    async def render_page(self, arrival: IncomingRequest, passage: AdmittedRequest) -> LocalReply | None:
        """What is answered here and not by the service."""
        if arrival.method not in ("GET", "HEAD") or not self.pages.is_own_path(arrival.path):
            return None
        decision, caller = passage.decision, passage.caller
        if decision is None:
            found = self.pages.render_while_off(arrival.path)
            return None if found is None else LocalReply(found[0], (("content-type", found[1]),), found[2])
        directory = self.caller_resolver.directory
        try:
            status, kind, body = await self.pages.render_page(arrival, caller, self.evaluator, directory, self.now_ms())
        except Exception:
            # Here a request is answered from beginning to end, as a service would: who asks must hear of a fault, and
            # those who carry the request must go on, or its slot and its connection would be held for ever.
            log.exception("%s could not be answered", arrival.path)
            await self.on_status(passage, 500)
            return await self.render_error(arrival, 500, "Server Error", passage)
        told = build_headers(decision, self.evaluator.rules)
        more = (("content-type", kind), ("cache-control", "no-cache"), (self.settings.request_id_header, passage.id))
        return LocalReply(status, (*told, *build_token_headers(caller), *more), body)

    # -- what a request is told and costs --------------------------------------------------------------------------

    async def on_status(self, passage: AdmittedRequest, status: int) -> None:
        """The service's status is known, and nothing is told yet: some replies give the primary charge back."""
        decision = passage.decision
        if decision is None:
            return
        if status == 304 and passage.is_conditional and not passage.caller.is_anonymous:
            passage.decision = await self.evaluator.refund(decision, RefundReason.UNCHANGED)
        elif status >= 500:
            passage.decision = await self.evaluator.refund(decision, RefundReason.FAULT)

    async def on_caller_gone(self, passage: AdmittedRequest) -> None:
        """The caller left before the request was handed on."""
        if passage.decision is not None:
            await self.evaluator.refund(passage.decision, RefundReason.GONE)
        await self.end_request(passage)

    async def on_content_created(self, passage: AdmittedRequest) -> None:
        """The service says that content was made."""
        if passage.decision is not None:
            await self.evaluator.charge_content(passage.decision, passage.caller)

    def build_header_pairs(self, passage: AdmittedRequest) -> list[tuple[bytes, bytes]]:
        if passage.decision is None:
            return []
        told = self.header_writer.render_pairs(passage.id, passage.decision)
        caller = passage.caller
        if caller.scopes or caller.expires_ms is not None:
            told += [(name.encode(), value.encode()) for name, value in build_token_headers(caller)]
        return told

    def build_header_block(self, passage: AdmittedRequest) -> bytes:
        if passage.decision is None:
            return b""
        told = self.header_writer.render_block(passage.id, passage.decision)
        caller = passage.caller
        if caller.scopes or caller.expires_ms is not None:
            told += encode_headers(build_token_headers(caller))
        return told

    async def end_request(self, passage: AdmittedRequest) -> None:
        """The last byte is out, or the caller is gone. A second time does nothing."""
        if passage.is_ended:
            return
        if self.is_local:
            self.end_request_locally(passage)
            return
        passage.is_ended = True
        passage.on_long_running = None
        self.running_requests.pop(passage.id, None)
        decision = passage.decision
        if decision is None:
            return
        due_ms = self._work.take_due_ms(passage, decision, self.world.monotonic_s())
        if due_ms:
            try:
                await self.evaluator.charge_cpu(decision, due_ms)
            except StoreUnavailable:
                log.debug("CPU time of %s could not be charged: the store is away", passage.caller.owner)
        await self.evaluator.release(passage.id)

    def end_request_locally(self, passage: AdmittedRequest) -> None:
        """`end` by counters in this process."""
        if passage.is_ended:
            return
        passage.is_ended = True
        passage.on_long_running = None
        self.running_requests.pop(passage.id, None)
        decision, here = passage.decision, self.evaluator.local_counters
        if decision is None or here is None:
            return
        # Of a passage that waits for its caller no moment is asked for: what it worked is known.
        now_s = 0.0 if passage.working_since_s is None else self.world.monotonic_s()
        due_ms = self._work.take_due_ms(passage, decision, now_s)
        now_ms = self.world.now_ns() // 1_000_000
        if due_ms:
            here.add_usage(decision.plan.meter_charges, due_ms, now_ms)
        here.release(passage.id, now_ms, should_remember=False)

    def end_request_later(self, passage: AdmittedRequest) -> None:
        """`end` for those who wait for nothing."""
        if self.is_local:
            self.end_request_locally(passage)
        elif not passage.is_ended:
            self.start_task(self.end_request(passage))

    def start_task(self, coroutine: Coroutine[Any, Any, object]) -> None:
        task = self.world.start_task(coroutine, name="limits: at the desk")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- now and then ----------------------------------------------------------------------------------------------

    async def _keep_ticking(self) -> None:
        count = 0
        while True:
            await asyncio.sleep(1.0)
            count += 1
            try:
                await self.run_maintenance(should_renew=count % RENEW_INTERVAL_S == 0)
                await self.overrides.sync_shared()
            except StoreUnavailable:
                log.debug("slots could not be renewed: the store is away")
            except OSError as problem:
                log.warning("the decision log could not be written: %s", problem)

    async def _keep_sharing(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            try:
                await self.shared_records.write(self.now_ms())
            except StoreUnavailable:
                log.debug("other processes could not be told: the store is away")

    async def run_maintenance(self, *, should_renew: bool) -> None:
        now_ms, now_s = self.now_ms(), self.world.monotonic_s()
        for passage in list(self.running_requests.values()):
            if passage.on_long_running is not None and now_s - passage.started_s >= LONG_REQUEST_S:
                on_long, passage.on_long_running = passage.on_long_running, None
                on_long()
            slice_ms = self._work.take_slice_ms(passage, now_s)
            if slice_ms and passage.decision is not None:
                await self.evaluator.charge_cpu(passage.decision, slice_ms)
        if should_renew and self.running_requests:
            held = [
                p.id for p in self.running_requests.values() if p.decision is not None and p.decision.plan.lease_indexes
            ]
            if held:
                self.revived_leases += await self.evaluator.store.renew(held)
        self.activity.fold_counts(now_ms)
        ended = self.overrides.drop_expired_grants(now_ms)
        for grant in ended:
            self.write_audit_entry(
                "grant ended", by="time", owner=grant.owner, resource=grant.resource, amount=grant.amount
            )
        if ended:
            self.start_task(self.overrides.remove_shared_grants(ended))
        if self.overrides.end_expired_off(now_ms):
            self.write_audit_entry("limits are on again", by="time")
        if self.alerts is not None and self.send_alerts is not None:
            alerts = self.alerts.take_pending()
            if alerts:
                self.start_task(self.send_alerts(alerts))
        await self.decision_log.write(now_ms)

    def write_audit_entry(self, action: str, *, by: str, **facts: object) -> None:
        """What an operator did, or what ended by itself: in the log and in a file of its own."""
        entry = {"at_ms": self.now_ms(), "act": action, "by": by, **facts}
        log.warning("limits: %s by %s", action, by, extra=facts)
        if self._folder is not None:
            append_private(self._folder / "audit.jsonl", msgspec.json.encode(entry) + b"\n")
