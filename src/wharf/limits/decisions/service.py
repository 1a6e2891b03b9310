"""The decision service: receives every request once, and returns it as admitted or with the reply that refuses it.

It combines the other modules: `CallerResolver` finds the caller, `LimitEvaluator` decides, `HeaderWriter` and
`core.responses` render the reply, `ActivityCounts` and `DecisionLog` record it. It has no logic of limits of its own.

A method whose name ends in `_locally` does the same as the method without this suffix, but needs no await, because the
counters are in this process.
"""

import asyncio
import contextlib
import functools
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from wharf.limits.config.settings import LimiterSettings
from wharf.limits.core.callers.addresses import ProxySettings
from wharf.limits.core.callers.caller import Caller, CallerClass
from wharf.limits.core.callers.directory import Directory, MemoryDirectory
from wharf.limits.core.callers.recognition import UnrecognizedCredential
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.graphql import QueryTooComplex
from wharf.limits.core.large_files import UnreadableBatch, count_objects
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.core.resources import ResourceFinder, select_organization_resource
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
from wharf.limits.decisions.records import AUDIT_TYPE, DECISION_TYPE, build_change_record, build_decision_record
from wharf.limits.decisions.requests import AdmittedRequest, CpuMeter, IncomingRequest, LocalReply
from wharf.limits.decisions.shared_records import SharedRecords
from wharf.limits.stores.port import RefundReason, StoreUnavailable
from wharf.sinks.build import build_source
from wharf.sinks.records import encode_record
from wharf.sinks.stream import RecordStream
from wharf.world import World
from wharf.world.log_limit import LogLimit
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)
T = TypeVar("T")

BATCH_PATH_SUFFIX: Final = "/objects/batch"
"""The end of the paths of large-file batches (Git LFS)."""
MAX_BODY_BYTES: Final = 1 << 20
"""At most this much of a request body is read before the decision; limits memory."""
MAX_INLINE_BODY_BYTES: Final = 2_048
"""Longer bodies are read on a thread: to compute the cost of a query takes up to 5 µs for each byte."""
RENEW_INTERVAL_S: Final = 10
AUDIT_FILE: Final = "audit.jsonl"
"""The file with the changes by operators, in the data folder."""
PUBLISH_INTERVAL_S: Final = 0.25
"""How long a decision may wait before sinks and followers get it."""
DECISIONS_PER_STEP: Final = 64
"""Decisions that are encoded at once, which takes about 2 ms; between two steps the event loop can serve requests."""
MAX_UNPUBLISHED_DECISIONS: Final = 20_000
"""Decisions that wait to be encoded for sinks and followers; more are dropped and counted."""
LONG_REQUEST_S: Final = 1.0
"""A request that runs for this time is long: its `on_long_running` is called."""


def run_immediately(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, without an event loop, and return its result.

    Used if the store is in the memory of this process.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("run_immediately: the coroutine waited, but a store in memory never waits")


def is_long_body(body: bytes | None) -> bool:
    """Return whether the event loop must not wait until a body is read, because it is long."""
    return body is not None and len(body) > MAX_INLINE_BODY_BYTES


class DecisionService:
    """Admits or refuses requests, and runs the periodic tasks of the limiter.

    `folder` is for logs and grants; with `None`, no files are written.
    """

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
        self._directory_failures = LogLimit(world)
        self._resource_finder = ResourceFinder(self.settings.owner_paths)
        self.overrides: Final = OperatorOverrides(
            folder, self.now_ms, lambda grants: self.evaluator.limiter.set_grants(grants)
        )
        self.caller_resolver: Final = CallerResolver(directory or MemoryDirectory(), self.settings.proxies)
        self.running_requests: Final[dict[str, AdmittedRequest]] = {}
        self.is_local: Final = evaluator.local_counters is not None
        """Whether the counters are in this process: then no decision waits, and `run_immediately` may be used."""
        self.revived_leases = 0
        """Concurrency slots that expired although their requests were running, and were taken again."""
        self.alerts: AlertQueue | None = None
        """`None` if no alerts are configured."""
        self.send_alerts: Callable[[list[Alert]], Coroutine[Any, Any, None]] | None = None
        self.header_writer = HeaderWriter(evaluator.rules, self.settings.request_id_header)
        self._folder = folder
        self._cpu_meter = CpuMeter()
        random_digits = world.token_bytes(9).hex().upper()
        self._id_prefix = f"{random_digits[:4]}:{random_digits[4:10]}:{random_digits[10:]}"
        self._id_number = 0
        self._id_second = 0
        self._id_suffix = ""
        decisions = self.settings.decisions
        self.shared_records: Final = SharedRecords(self.activity, self._id_prefix, kept_ms=decisions.kept_ms)
        self.decision_log: Final = DecisionLog(
            folder, decisions, self.shared_records.record_decision, self._queue_decision_record
        )
        self.stream = RecordStream()
        """The sinks and followers of the records of this process."""
        self.source: Final = build_source(f"limits-{os.getpid()}")
        self.dropped_records = 0
        """Decisions that sinks and followers did not get because too many waited."""
        self._unpublished: deque[LoggedDecision] = deque()
        self._stream_task: asyncio.Task[None] | None = None
        self._sharing_task: asyncio.Task[None] | None = None
        self.pages: Final = Pages(
            self.shared_records,
            self.settings.meta,
            has_insights=self.settings.has_insights,
            has_proxies=self.settings.proxies != ProxySettings(),
        )
        self._maintenance_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- beginning and end -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Load the grants and start the periodic tasks."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self.overrides.open()
        self._maintenance_task = self.world.start_task(
            self._run_maintenance_loop(), name="limits: renew, charge and write"
        )
        self._stream_task = self.world.start_task(self._run_stream_loop(), name="limits: publish decisions")
        if self.shared_records.record_store is not None:
            self._sharing_task = self.world.start_task(self._run_sharing_loop(), name="limits: write shared records")

    async def close(self) -> None:
        """Stop the periodic tasks, end all requests, and write the decision log and the shared records."""
        tasks = (self._maintenance_task, self._sharing_task, self._stream_task)
        await cancel_tasks(*(task for task in tasks if task is not None))
        self._maintenance_task = self._sharing_task = self._stream_task = None
        for admitted in list(self.running_requests.values()):
            await self.end_request(admitted)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.activity.add_admissions_to_rows(self.now_ms())
        await self.publish_decisions()
        await self.stream.close()
        await self.decision_log.write(self.now_ms())
        with contextlib.suppress(StoreUnavailable):
            await self.shared_records.write(self.now_ms(), is_last=True)

    def now_ms(self) -> int:
        return self.world.now_ns() // 1_000_000

    async def set_rules(self, text: str, file: str) -> None:
        """Replace the rules by those in `text`, the content of the file `file`. Raises an error if they are invalid."""
        await self.evaluator.reload_rules(text, file)
        self.header_writer = HeaderWriter(self.evaluator.rules, self.settings.request_id_header)

    # -- request ids -----------------------------------------------------------------------------------------------

    def make_request_id(self, now_ms: int) -> str:
        """Return a new request id: five groups of hexadecimal digits, as existing clients expect.

        The first three identify this process, the fourth is a number, and the last is the Unix time in seconds.
        """
        self._id_number += 1
        second = now_ms // 1_000
        if second != self._id_second:
            self._id_second, self._id_suffix = second, f"{second:X}"
        return f"{self._id_prefix}:{self._id_number:04X}:{self._id_suffix}"

    # -- deciding --------------------------------------------------------------------------------------------------

    def needs_body(self, method: str, path: str) -> bool:
        """Return whether the decision needs the body: it does for GraphQL requests and batches of large files."""
        if method != "POST":
            return False
        interface = self.evaluator.limiter.rulebook.get_endpoint(method, path).interface
        return interface is Interface.GRAPHQL or (
            interface is Interface.LARGE_FILES and path.endswith(BATCH_PATH_SUFFIX)
        )

    async def admit(self, incoming: IncomingRequest, body: bytes | None = None) -> AdmittedRequest | LocalReply:
        """Return the request as admitted, or the reply that refuses it.

        `body` is required if `needs_body` returns true for the request. A long one is read on a thread.
        """
        if self.is_local and not is_long_body(body):
            return self.admit_locally(incoming, body)
        now_ms = self.now_ms()
        request_id = self.make_request_id(now_ms)
        if self.overrides.off_until_ms and self.overrides.is_off:
            return self._admit_without_decision(request_id, incoming)
        caller = self.caller_resolver.resolve_caller(incoming, now_ms)
        if isinstance(caller, UnrecognizedCredential):
            return await self._refuse_credential(request_id, incoming, caller.message)
        if is_long_body(body):
            work = functools.partial(self._read_facts, request_id, incoming, caller, body)
            request, problem = await self.world.run_off_loop(work)
        else:
            request, problem = self._read_facts(request_id, incoming, caller, body)
        evaluator = self.evaluator
        decision = await (
            evaluator.refuse_unreadable_body(request, problem) if problem else evaluator.evaluate(request)
        )
        return self._apply_decision(request_id, incoming, caller, decision, now_ms)

    def admit_locally(self, incoming: IncomingRequest, body: bytes | None = None) -> AdmittedRequest | LocalReply:
        """Return the request as admitted, or the reply that refuses it, without awaiting: the counters are in this process.

        `body` is required if `needs_body` returns true for the request. Use `admit` for a long one: see `is_long_body`.
        """
        now_ms = self.world.now_ns() // 1_000_000
        request_id = self.make_request_id(now_ms)
        if self.overrides.off_until_ms and self.overrides.is_off:
            return self._admit_without_decision(request_id, incoming)
        caller = self.caller_resolver.resolve_caller(incoming, now_ms)
        if isinstance(caller, UnrecognizedCredential):
            return run_immediately(self._refuse_credential(request_id, incoming, caller.message))
        evaluator = self.evaluator
        if body is None:
            request = RequestFacts(request_id, incoming.method, incoming.path, caller, None, None, incoming.connection)
            decision = evaluator.evaluate_locally(request, now_ms)
        else:
            request, problem = self._read_facts(request_id, incoming, caller, body)
            decision = run_immediately(
                evaluator.refuse_unreadable_body(request, problem) if problem else evaluator.evaluate(request)
            )
        return self._apply_decision(request_id, incoming, caller, decision, now_ms)

    def _read_facts(
        self, request_id: str, incoming: IncomingRequest, caller: Caller, body: bytes | None
    ) -> tuple[RequestFacts, str]:
        """Return a pair: the facts that the decision needs, and what is wrong with the body (empty if nothing)."""
        query: QueryFacts | None = None
        objects: int | None = None
        problem = ""
        if body is not None:
            try:
                if incoming.path.endswith(BATCH_PATH_SUFFIX):
                    objects = count_objects(body)
                else:
                    query = self.evaluator.query_costs.compute_body_cost(body)
            except (QueryTooComplex, UnreadableBatch) as error:
                problem = str(error)
        request = RequestFacts(request_id, incoming.method, incoming.path, caller, query, objects, incoming.connection)
        return request, problem

    def _apply_decision(
        self, request_id: str, incoming: IncomingRequest, caller: Caller, decision: LimitDecision, now_ms: int
    ) -> AdmittedRequest | LocalReply:
        """Record a decision in decision log, activity and alerts, and return the admitted request or the refusing reply.

        An admitted request is added to `running_requests`.
        """
        if decision.verdict is not Verdict.ADMITTED:
            self.decision_log.record(
                LoggedDecision(request_id, now_ms, incoming.method, incoming.path, decision, caller)
            )
            self.activity.record_refusal(
                decision, caller, now_ms, self._find_resource(incoming.method, incoming.path, caller)
            )
            return self._build_refusal_reply(request_id, build_refusal(decision, caller, self.evaluator.rules), caller)
        self.decision_log.record_admission(request_id, now_ms, incoming.method, incoming.path, decision, caller)
        self.activity.record_admission(decision, caller, self._find_resource(incoming.method, incoming.path, caller))
        if self.alerts is not None:
            self.alerts.check_usage(decision, caller)
        now_s = self.world.monotonic_s()
        admitted = self.running_requests[request_id] = AdmittedRequest(
            request_id, decision, caller, incoming.is_conditional, now_s, now_s
        )
        return admitted

    def _find_resource(self, method: str, path: str, caller: Caller) -> str:
        """Return the resource of an organization that a request is about, such as `acme/site`; empty without one."""
        owner, resource = self._resource_finder.find_name(method, path)
        if not owner and caller.installation is None and caller.repository is None:
            return ""
        directory = self.caller_resolver.directory
        try:
            if (
                owner
                and (organization := directory.find_organization(owner)) is not None
                and organization.login == owner
            ):
                return resource  # The usual spelling: nothing else to look up.
            return select_organization_resource(resource, caller, directory)
        except Exception as error:  # The limits are charged already, so a broken directory must not fail the request.
            left_out = self._directory_failures.count_event()
            if left_out is not None:
                log.error("organization of a request not found error=%r earlier_requests=%d", error, left_out)
            return ""

    def admit_machine(self, incoming: IncomingRequest) -> AdmittedRequest:
        """Admit a request of a node agent or a server without calling the store.

        The server that receives the request has verified that it comes from a machine of the cluster.
        """
        self.activity.record_machine(
            rule.name for rule in self.evaluator.rules.rules if CallerClass.MACHINE in rule.ceilings
        )
        return self._admit_without_decision(self.make_request_id(self.now_ms()), incoming)

    def _admit_without_decision(self, request_id: str, incoming: IncomingRequest) -> AdmittedRequest:
        """Return an admitted request that charges no limit, because limits are off or a machine of the cluster sent it."""
        now_s = self.world.monotonic_s()
        return AdmittedRequest(request_id, None, self.caller_resolver.resolve_address(incoming), False, now_s, now_s)

    def _build_refusal_reply(
        self, request_id: str, refusal: RefusalResponse, caller: Caller | None = None
    ) -> LocalReply:
        """Return the complete reply of a refusal, with the headers for the request id and the caller's token added."""
        token_headers = () if caller is None else build_token_headers(caller)
        headers = (*refusal.headers, *token_headers, (self.settings.request_id_header, request_id))
        return LocalReply(refusal.status, headers, refusal.body, is_refusal=True)

    async def _refuse_credential(self, request_id: str, incoming: IncomingRequest, message: str) -> LocalReply:
        """Charge a wrong credential to the caller's address, and return the reply.

        It is 401 with `message`, or a refusal if the address has sent too many wrong credentials.
        """
        caller = self.caller_resolver.resolve_address(incoming)
        decision = await self.evaluator.charge_failed_login(request_id, caller)
        rules, now_ms = self.evaluator.rules, self.now_ms()
        self.activity.unauthorized += 1
        if not decision.is_admitted:
            self.decision_log.record(
                LoggedDecision(request_id, now_ms, incoming.method, incoming.path, decision, caller)
            )
            self.activity.record_refusal(
                decision, caller, now_ms, self._find_resource(incoming.method, incoming.path, caller)
            )
            return self._build_refusal_reply(request_id, build_refusal(decision, caller, rules))
        body: dict[str, Any] = {"message": message, "documentation_url": rules.documentation, "status": "401"}
        headers = (*build_headers(decision, rules), ("content-type", JSON_TYPE), ("cache-control", "no-cache"))
        if (
            self.evaluator.limiter.rulebook.get_endpoint(incoming.method, incoming.path).interface
            is Interface.LARGE_FILES
        ):
            headers = (*headers, ("lfs-authenticate", 'Basic realm="large files"'))
            body["request_id"] = request_id
        return self._build_refusal_reply(request_id, RefusalResponse(401, headers, msgspec.json.encode(body)))

    async def render_error(
        self, incoming: IncomingRequest, status: int, message: str, admitted: AdmittedRequest | None = None
    ) -> LocalReply:
        """Return an error reply to a request that no limit refused.

        Its rate limit headers show the bucket of the admitted request, or the bucket of the address before admission.
        """
        body = msgspec.json.encode(
            {"message": message, "documentation_url": self.evaluator.rules.documentation, "status": str(status)}
        )
        content_headers: Headers = (("content-type", JSON_TYPE), ("cache-control", "no-cache"))
        now_ms = self.now_ms()
        if self.overrides.is_off or (admitted is not None and admitted.decision is None):
            return LocalReply(status, content_headers, body)
        if admitted is not None and admitted.decision is not None:
            rate_headers: Headers = (
                *build_headers(admitted.decision, self.evaluator.rules),
                *build_token_headers(admitted.caller),
            )
            request_id = admitted.id
        else:
            rate_headers = await self.evaluator.render_address_headers(self.caller_resolver.resolve_address(incoming))
            request_id = self.make_request_id(now_ms)
        return LocalReply(
            status, (*rate_headers, *content_headers, (self.settings.request_id_header, request_id)), body
        )

    async def render_page(self, incoming: IncomingRequest, admitted: AdmittedRequest) -> LocalReply | None:
        """Return one of the limiter's own pages as the reply, or `None` if the service must reply.

        If the page cannot be rendered, refund the request and return a reply with status 500.
        """
        if incoming.method not in ("GET", "HEAD") or not self.pages.is_own_path(incoming.path):
            return None
        decision, caller = admitted.decision, admitted.caller
        if decision is None:
            page = self.pages.render_while_off(incoming.path)
            return None if page is None else LocalReply(page.status, (("content-type", page.content_type),), page.body)
        directory = self.caller_resolver.directory
        try:
            page = await self.pages.render_page(incoming, caller, self.evaluator, directory, self.now_ms())
        except Exception:
            # Reply with 500 instead of raising: otherwise the slot and the connection of the request stay occupied.
            log.exception("rendering own page failed path=%s", incoming.path)
            await self.on_status(admitted, 500)
            return await self.render_error(incoming, 500, "Server Error", admitted)
        rate_headers = build_headers(decision, self.evaluator.rules)
        page_headers = (
            ("content-type", page.content_type),
            ("cache-control", "no-cache"),
            *page.headers,
            (self.settings.request_id_header, admitted.id),
        )
        return LocalReply(page.status, (*rate_headers, *build_token_headers(caller), *page_headers), page.body)

    # -- headers and charges of admitted requests ------------------------------------------------------------------

    async def on_status(self, admitted: AdmittedRequest, status: int) -> None:
        """Refund the primary charge if the service's status is 304 or 5xx. Call this before headers are rendered.

        A 304 is refunded only to authenticated callers.
        """
        decision = admitted.decision
        if decision is None:
            return
        if status == 304 and admitted.is_conditional and not admitted.caller.is_anonymous:
            admitted.decision = await self.evaluator.refund(decision, RefundReason.UNCHANGED)
        elif status >= 500:
            admitted.decision = await self.evaluator.refund(decision, RefundReason.FAULT)

    async def on_caller_gone(self, admitted: AdmittedRequest) -> None:
        """Refund and end a request whose caller disconnected before it was sent to the service."""
        if admitted.decision is not None:
            await self.evaluator.refund(admitted.decision, RefundReason.GONE)
        await self.end_request(admitted)

    async def on_content_created(self, admitted: AdmittedRequest) -> None:
        """Charge the content limits, because the service reported in its reply that the request created content."""
        if admitted.decision is not None:
            await self.evaluator.charge_content(admitted.decision, admitted.caller)

    def build_header_pairs(self, admitted: AdmittedRequest) -> list[tuple[bytes, bytes]]:
        """Return the rate limit, request id and token headers of the reply as pairs; none if the request was not evaluated."""
        if admitted.decision is None:
            return []
        rate_headers = self.header_writer.render_pairs(admitted.id, admitted.decision)
        caller = admitted.caller
        if caller.scopes or caller.expires_ms is not None:
            rate_headers += [(name.encode(), value.encode()) for name, value in build_token_headers(caller)]
        return rate_headers

    def build_header_block(self, admitted: AdmittedRequest) -> bytes:
        """Return the rate limit, request id and token headers of the reply as lines; none if the request was not evaluated."""
        if admitted.decision is None:
            return b""
        rate_headers = self.header_writer.render_block(admitted.id, admitted.decision)
        caller = admitted.caller
        if caller.scopes or caller.expires_ms is not None:
            rate_headers += encode_headers(build_token_headers(caller))
        return rate_headers

    async def end_request(self, admitted: AdmittedRequest) -> None:
        """Charge the CPU time of a request and free its concurrency slots.

        Call this after the last byte of the reply, or when the caller has disconnected.

        A second call does nothing.
        """
        if admitted.is_ended:
            return
        if self.is_local:
            self.end_request_locally(admitted)
            return
        admitted.is_ended = True
        admitted.on_long_running = None
        self.running_requests.pop(admitted.id, None)
        decision = admitted.decision
        if decision is None:
            return
        due_ms = self._cpu_meter.take_due_ms(admitted, decision, self.world.monotonic_s())
        if due_ms:
            try:
                await self.evaluator.charge_cpu(decision, due_ms)
            except StoreUnavailable:
                log.debug("charging CPU time failed: store unavailable owner=%s", admitted.caller.owner)
        await self.evaluator.release(admitted.id)

    def end_request_locally(self, admitted: AdmittedRequest) -> None:
        """Charge the CPU time of a request and free its concurrency slots without awaiting, if the counters are in this process.

        A second call does nothing.
        """
        if admitted.is_ended:
            return
        admitted.is_ended = True
        admitted.on_long_running = None
        self.running_requests.pop(admitted.id, None)
        decision, counters = admitted.decision, self.evaluator.local_counters
        if decision is None or counters is None:
            return
        # Without a running measurement the work is known, so the clock need not be read.
        now_s = 0.0 if admitted.working_since_s is None else self.world.monotonic_s()
        due_ms = self._cpu_meter.take_due_ms(admitted, decision, now_s)
        now_ms = self.world.now_ns() // 1_000_000
        if due_ms:
            counters.add_usage(decision.plan.meter_charges, due_ms, now_ms)
        counters.release(admitted.id, now_ms, should_remember=False)

    def end_request_later(self, admitted: AdmittedRequest) -> None:
        """End a request from code that cannot await: at once if the counters are in this process, else in a task."""
        if self.is_local:
            self.end_request_locally(admitted)
        elif not admitted.is_ended:
            self.start_task(self.end_request(admitted))

    def start_task(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine in a task of this service; `close` waits for it."""
        task = self.world.start_task(coroutine, name="limits: decision service")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- periodic tasks --------------------------------------------------------------------------------------------

    async def _run_maintenance_loop(self) -> None:
        """Run `run_maintenance` and read the shared overrides once a second, until the task is cancelled."""
        round_count = 0
        while True:
            await asyncio.sleep(1.0)
            round_count += 1
            try:
                await self.run_maintenance(should_renew=round_count % RENEW_INTERVAL_S == 0)
                await self.overrides.sync_shared()
            except StoreUnavailable:
                log.debug("maintenance failed: store unavailable")
            except OSError as problem:
                log.warning("writing the decision log failed error=%s", problem)

    async def _run_sharing_loop(self) -> None:
        """Write the shared records once a second, until the task is cancelled."""
        while True:
            await asyncio.sleep(1.0)
            try:
                await self.shared_records.write(self.now_ms())
            except StoreUnavailable:
                log.debug("writing shared records failed: store unavailable")

    async def run_maintenance(self, *, should_renew: bool) -> None:
        """Do the periodic work of one second.

        Charge the CPU time of running requests, report requests that have become long, update the activity rows, end
        expired grants and the time without limits, send alerts, and write the decision log. With `should_renew`, also
        renew the concurrency slots of running requests in the store.
        """
        now_ms, now_s = self.now_ms(), self.world.monotonic_s()
        for admitted in list(self.running_requests.values()):
            if admitted.on_long_running is not None and now_s - admitted.started_s >= LONG_REQUEST_S:
                callback, admitted.on_long_running = admitted.on_long_running, None
                callback()
            slice_ms = self._cpu_meter.take_slice_ms(admitted, now_s)
            if slice_ms and admitted.decision is not None:
                await self.evaluator.charge_cpu(admitted.decision, slice_ms)
        if should_renew:
            leased_ids = [
                p.id for p in self.running_requests.values() if p.decision is not None and p.decision.plan.lease_indexes
            ]
            if leased_ids:
                self.revived_leases += await self.evaluator.store.renew(leased_ids)
        self.activity.add_admissions_to_rows(now_ms)
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
        """Record an operator's action or the expiry of one, in the process log and in the audit file."""
        entry = {"at_ms": self.now_ms(), "act": action, "by": by, **facts, "id": self.world.new_id()}
        log.warning("limits changed", extra={"action": action, "by": by, **facts})
        if self._folder is not None:
            try:
                append_private(self._folder / AUDIT_FILE, msgspec.json.encode(entry) + b"\n")
            except OSError as error:  # The action is done already, and the process log has it.
                log.error("audit entry of the limiter not written action=%s error=%s", action, error)
        record = build_change_record(entry, source=self.source)
        self.stream.publish(AUDIT_TYPE, record.id, encode_record(record))

    # -- records for sinks and followers -----------------------------------------------------------------------------

    def _queue_decision_record(self, logged: LoggedDecision) -> None:
        """Queue a decision for sinks and followers, if any gets decisions. If too many wait, it is dropped and counted."""
        if not self.stream.wants(DECISION_TYPE):
            return
        if len(self._unpublished) >= MAX_UNPUBLISHED_DECISIONS:
            self.dropped_records += 1
            return
        self._unpublished.append(logged)

    async def _run_stream_loop(self) -> None:
        """Publish the queued decisions several times a second, until the task is cancelled."""
        while True:
            await asyncio.sleep(PUBLISH_INTERVAL_S)
            await self.publish_decisions()

    async def publish_decisions(self) -> None:
        """Encode the queued decisions and pass them to sinks and followers. Requests are served in between."""
        while self._unpublished:
            for _ in range(min(len(self._unpublished), DECISIONS_PER_STEP)):
                logged = self._unpublished.popleft()
                record = build_decision_record(
                    self.decision_log.render_entry(logged),
                    list(logged.decision.list_limits()),
                    resource=self._find_resource(logged.method, logged.path, logged.caller),
                    source=self.source,
                )
                self.stream.publish(DECISION_TYPE, record.id, encode_record(record))
            await asyncio.sleep(0)
