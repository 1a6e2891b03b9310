"""The decision service: receives every request once, and returns it as admitted or with the reply that refuses it.

It combines the other modules: `CallerResolver` finds the caller, `FactReader` reads the request, `LimitEvaluator` decides, `ReplyRenderer` renders the reply,
`ActivityCounts`, `DecisionLog` and `RecordPublisher` record it, `CredentialRevoker` revokes credentials. It has no logic of limits of
its own.

A method whose name ends in `_locally` does the same as the method without this suffix, but needs no await, because the
counters are in this process.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from wharf.limits.config.settings import LimiterSettings
from wharf.limits.core.callers.caller import Caller, CallerClass
from wharf.limits.core.callers.directory import Directory, MemoryDirectory
from wharf.limits.core.callers.recognition import BAD_CREDENTIALS, UnrecognizedCredential
from wharf.limits.core.counting.bans import OperatorBan
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.method_overrides import METHOD_SEPARATOR
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.resources import NO_RESOURCES, build_finder, select_organization_resource
from wharf.limits.core.rule import MethodOverride
from wharf.limits.credentials import UnlistedCredentials
from wharf.limits.decisions.activity import ActivityCounts
from wharf.limits.decisions.alerts import Alert, AlertQueue
from wharf.limits.decisions.callers import CallerResolver
from wharf.limits.decisions.cpu_meter import CpuMeter, plan_take_back
from wharf.limits.decisions.decision_log import DecisionLog, LoggedDecision
from wharf.limits.decisions.evaluator import LimitEvaluator, add_user_ban
from wharf.limits.decisions.fact_reader import FactReader
from wharf.limits.decisions.overrides import OperatorOverrides
from wharf.limits.decisions.record_publisher import RecordPublisher
from wharf.limits.decisions.replies import ReplyRenderer
from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest, LocalReply, RequestIds
from wharf.limits.decisions.revocations import CredentialRevoker
from wharf.limits.decisions.shared_records import SharedRecords
from wharf.limits.stores.port import RefundReason, StoreUnavailable
from wharf.world import World
from wharf.world.log_limit import LogLimit
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_BODY_BYTES: Final = 1 << 20
"""At most this much of a request body is read before the decision; limits memory."""
RENEW_INTERVAL_S: Final = 10
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
        unlisted: UnlistedCredentials | None = None,
    ) -> None:
        self.evaluator: Final = evaluator
        self.settings: Final = settings or LimiterSettings()
        self.world: Final = world
        self.activity: Final = ActivityCounts()
        self._directory_failures = LogLimit(world)
        self.overrides: Final = OperatorOverrides(
            folder, self.now_ms, lambda grants: self.evaluator.limiter.set_grants(grants)
        )
        self.caller_resolver: Final = CallerResolver(directory or MemoryDirectory(), self.settings.proxies, unlisted)
        self.caller_resolver.resource_finder = build_finder(evaluator.rules, self.settings.owner_paths)
        if unlisted is not None:
            unlisted.set_rules(evaluator.rules)
        self.unlisted: Final = unlisted
        """Credentials that the directory does not list; `None` if they are rejected."""
        carriers = self.settings.credentials.carriers
        self.carriers: Final = carriers if carriers.has_extra else None
        """Headers and cookies that carry credentials; `None` if only `Authorization` does."""
        self.running_requests: Final[dict[str, AdmittedRequest]] = {}
        self.is_local: Final = evaluator.local_counters is not None
        """Whether the counters are in this process: then no decision waits, and `run_immediately` may be used."""
        self.revived_leases = 0
        """Concurrency slots that expired although their requests were running, and were taken again."""
        self.alerts: AlertQueue | None = None
        """`None` if no alerts are configured."""
        self.send_alerts: Callable[[list[Alert]], Coroutine[Any, Any, None]] | None = None
        self._folder = folder
        self._cpu_meter = CpuMeter()
        request_ids = RequestIds(world.token_bytes(9))
        self.make_request_id: Final = request_ids.make
        decisions = self.settings.decisions
        self.shared_records: Final = SharedRecords(self.activity, request_ids.prefix, world, kept_ms=decisions.kept_ms)
        self.decision_log: Final = DecisionLog(
            folder, decisions, self.shared_records.record_decision, lambda logged: self.records.queue_decision(logged)
        )
        self.records: Final = RecordPublisher(
            folder, world, render_entry=self.decision_log.render_entry, find_resource=self._find_resource
        )
        self.write_audit_entry: Final = self.records.write_audit_entry
        self.replies: Final = ReplyRenderer(
            evaluator,
            self.settings,
            self.caller_resolver,
            self.overrides,
            self.shared_records,
            request_ids,
            self.now_ms,
        )
        self.render_error: Final = self.replies.render_error
        self.is_own_path: Final = self.replies.is_own_path
        self.build_header_pairs: Final = self.replies.build_header_pairs
        self.build_header_block: Final = self.replies.build_header_block
        self.revoker: Final = (
            None
            if unlisted is None
            else CredentialRevoker(unlisted, self.settings, self.overrides, self.records, self.replies, self.now_ms)
        )
        """Revokes unlisted credentials; `None` if they are rejected."""
        self.reader: Final = FactReader(
            evaluator,
            self.now_ms,
            revocation_path=self.settings.credentials.revocation_path,
            is_revocation=None if self.revoker is None else self.revoker.is_revocation,
        )
        self.needs_body: Final = self.reader.needs_body
        self.needs_body_of: Final = self.reader.needs_body_of
        self.takes_long: Final = self.reader.takes_long
        self.can_lack_body: Final = self.reader.can_lack_body
        self._sharing_task: asyncio.Task[None] | None = None
        self._maintenance_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- beginning and end -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Load the grants and start the periodic tasks."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self.overrides.open()
        if self.unlisted is not None:
            self.unlisted.open(self.now_ms())
        self._maintenance_task = self.world.start_task(
            self._run_maintenance_loop(), name="limits: renew, charge and write"
        )
        self.records.open()
        if self.shared_records.record_store is not None:
            self._sharing_task = self.world.start_task(self._run_sharing_loop(), name="limits: write shared records")

    async def close(self) -> None:
        """Stop the periodic tasks, end all requests, and write the decision log and the shared records."""
        tasks = (self._maintenance_task, self._sharing_task)
        await cancel_tasks(*(task for task in tasks if task is not None))
        self._maintenance_task = self._sharing_task = None
        for admitted in list(self.running_requests.values()):
            await self.end_request(admitted)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.activity.add_admissions_to_rows(self.now_ms())
        await self.records.close()
        await self.decision_log.write(self.now_ms())
        if self.unlisted is not None:
            await self.unlisted.close()
            with contextlib.suppress(OSError):
                await self.unlisted.save(self.now_ms(), is_last=True)
        with contextlib.suppress(StoreUnavailable):
            await self.shared_records.write(self.now_ms(), is_last=True)

    def now_ms(self) -> int:
        return self.world.now_ns() // 1_000_000

    async def set_rules(self, text: str, file: str) -> None:
        """Replace the rules by those in `text`, the content of the file `file`. Raises an error if they are invalid."""
        await self.evaluator.reload_rules(text, file)
        self.caller_resolver.resource_finder = build_finder(self.evaluator.rules, self.settings.owner_paths)
        if self.unlisted is not None:
            self.unlisted.set_rules(self.evaluator.rules)
        self.replies.apply_rules()

    # -- deciding --------------------------------------------------------------------------------------------------

    async def _refuse_override(self, incoming: IncomingRequest) -> LocalReply | None:
        """Return the reply to a request that names another method, if the rules refuse such requests; else `None`."""
        if self.evaluator.rules.paths.method_override is not MethodOverride.REFUSE:
            return None
        methods = self.reader.find_judged_method(incoming).split(METHOD_SEPARATOR)
        named = next((method for method in methods if method != incoming.method), None)
        if named is None:
            return None
        message = (
            f"The request is a {incoming.method} that names the method {named}: send it with the method {named} itself."
        )
        return await self.render_error(incoming, 400, message)

    def can_admit_locally(self, incoming: IncomingRequest, body: bytes | None) -> bool:
        """Return whether `admit_locally` may decide the request; otherwise `admit` must be awaited."""
        if body is None and not incoming.query and self.unlisted is None:
            return self.is_local  # The usual case, checked first: nothing to read, and no credential to ask about.
        return self.is_local and not self.takes_long(incoming, body) and not self.must_wait(incoming)

    def must_wait(self, incoming: IncomingRequest) -> bool:
        """Return whether `admit` must be awaited, although the counters are in this process.

        It is awaited to ask for the owner of a credential, and for requests that revoke credentials.
        """
        if self.revoker is None:
            return False
        return self.revoker.is_revocation(incoming) or self.caller_resolver.must_wait(incoming, self.now_ms())

    async def admit(self, incoming: IncomingRequest, body: bytes | None = None) -> AdmittedRequest | LocalReply:
        """Return the request as admitted, or the reply that refuses it.

        `body` is required if `needs_body` returns true for the request. A long one is read on a thread.
        """
        takes_long = self.takes_long(incoming, body)
        if self.revoker is not None:
            if self.revoker.is_revocation(incoming):
                return await self._serve_revocation(self.revoker, incoming, body or b"")
            if not self.overrides.is_off:
                await self.caller_resolver.prepare(incoming, self.now_ms())
        if self.is_local and not takes_long:
            return self.admit_locally(incoming, body)
        now_ms = self.now_ms()
        request_id = self.make_request_id(now_ms)
        if self.overrides.off_until_ms and self.overrides.is_off:
            return self._admit_without_decision(request_id, incoming)
        if (refusal := await self._refuse_override(incoming)) is not None:
            return refusal
        caller = self.caller_resolver.resolve_caller(incoming, now_ms)
        if isinstance(caller, UnrecognizedCredential):
            return await self._refuse_credential(request_id, incoming, caller.message)
        if await self._is_login_refused(incoming, caller):
            return await self._refuse_credential(request_id, incoming, BAD_CREDENTIALS)
        if self.overrides.has_user_bans and (ban := self._find_user_ban(caller, now_ms)) is not None:
            request = self.reader.build_facts(request_id, incoming, caller)
            decision = await self.evaluator.refuse_banned(request, ban)
            return self._apply_decision(request, incoming, decision, now_ms)
        if takes_long:
            work = functools.partial(self.reader.read_facts, request_id, incoming, caller, body)
            request, problem = await self.world.run_off_loop(work)
        else:
            request, problem = self.reader.read_facts(request_id, incoming, caller, body)
        evaluator = self.evaluator
        decision = await (
            evaluator.refuse_unreadable_body(request, problem) if problem else evaluator.evaluate(request)
        )
        return self._apply_decision(request, incoming, decision, now_ms)

    def admit_locally(self, incoming: IncomingRequest, body: bytes | None = None) -> AdmittedRequest | LocalReply:
        """Return the request as admitted, or the reply that refuses it, without awaiting: the counters are in this process.

        `body` is required if `needs_body` returns true for the request. Use `admit` if `can_admit_locally` returns false.
        """
        now_ms = self.world.now_ns() // 1_000_000
        request_id = self.make_request_id(now_ms)
        if self.overrides.off_until_ms and self.overrides.is_off:
            return self._admit_without_decision(request_id, incoming)
        if incoming.method_overrides or incoming.query:
            refusal = run_immediately(self._refuse_override(incoming))
            if refusal is not None:
                return refusal
        caller = self.caller_resolver.resolve_caller(incoming, now_ms)
        if isinstance(caller, UnrecognizedCredential):
            return run_immediately(self._refuse_credential(request_id, incoming, caller.message))
        if self.unlisted is not None and run_immediately(self._is_login_refused(incoming, caller)):
            return run_immediately(self._refuse_credential(request_id, incoming, BAD_CREDENTIALS))
        evaluator = self.evaluator
        if self.overrides.has_user_bans and (ban := self._find_user_ban(caller, now_ms)) is not None:
            request = self.reader.build_facts(request_id, incoming, caller)
            decision = run_immediately(evaluator.refuse_banned(request, ban))
            return self._apply_decision(request, incoming, decision, now_ms)
        if body is None and not (incoming.query and self.reader.has_graphql_query(incoming)):
            request = self.reader.read_plain_facts(request_id, incoming, caller, now_ms)
            decision = evaluator.evaluate_locally(request, now_ms)
        else:
            request, problem = self.reader.read_facts(request_id, incoming, caller, body)
            decision = run_immediately(
                evaluator.refuse_unreadable_body(request, problem) if problem else evaluator.evaluate(request)
            )
        return self._apply_decision(request, incoming, decision, now_ms)

    def _find_user_ban(self, caller: Caller, now_ms: int) -> OperatorBan | None:
        """Return the ban of the whole user that a credential acts for; `None` without one, and if bans are in shadow mode."""
        return None if self.evaluator.rules.ban.shadow else self.overrides.find_ban(caller.user, now_ms)

    def _add_operator_ban(self, decision: LimitDecision, caller: Caller, now_ms: int) -> LimitDecision:
        """Return a decision with the ban by an operator that refused the request, or would refuse it without shadow mode."""
        overrides = self.overrides
        if decision.is_admitted:
            user_ban = overrides.find_ban(caller.user, now_ms)
            return decision if user_ban is None else add_user_ban(decision, user_ban)
        if decision.verdict is not Verdict.BANNED or decision.operator_ban is not None:
            return decision
        ban = overrides.find_ban(caller.ban_subject, now_ms)
        return decision if ban is None else msgspec.structs.replace(decision, operator_ban=ban)

    def _apply_decision(
        self, request: RequestFacts, incoming: IncomingRequest, decision: LimitDecision, now_ms: int
    ) -> AdmittedRequest | LocalReply:
        """Record a decision in decision log, activity and alerts, and return the admitted request or the refusing reply.

        An admitted request is added to `running_requests`.
        """
        request_id, caller = request.id, request.caller
        if self.overrides.bans:
            decision = self._add_operator_ban(decision, caller, now_ms)
        if decision.verdict is not Verdict.ADMITTED:
            self.decision_log.record(
                LoggedDecision(request_id, now_ms, incoming.method, incoming.path, decision, caller)
            )
            self.activity.record_refusal(
                decision, caller, now_ms, self._find_resource(incoming.method, incoming.path, caller)
            )
            return self.replies.build_refusal(request_id, decision, caller)
        method, path = incoming.method, incoming.path
        self.decision_log.record_admission(request_id, now_ms, method, path, decision, caller)
        self.activity.record_admission(decision, caller, self._find_resource(method, path, caller))
        if self.alerts is not None:
            self.alerts.check_usage(decision, caller)
        now_s = self.world.monotonic_s()
        is_timed = not decision.plan.is_waiting
        working_since_s = now_s if is_timed else None
        admitted = self.running_requests[request_id] = AdmittedRequest(
            # By position: names cost half a microsecond.
            *(request_id, decision, caller, incoming.is_conditional, now_s, working_since_s, is_timed),
            *(request.method, path, method),
        )
        if self.unlisted is not None:
            admitted.proof = self.caller_resolver.build_proof(incoming, caller, now_ms)
        return admitted

    def _find_resource(self, method: str, path: str, caller: Caller) -> str:
        """Return the resource of an organization that a request is about, such as `acme/site`; empty without one."""
        names = self.caller_resolver.resource_finder.find_names(method, path)
        if names is NO_RESOURCES and caller.installation is None and caller.repository is None:
            return ""
        directory, first = self.caller_resolver.directory, names[0]
        try:
            if first.owner:  # Most paths name one owner, in its usual spelling: nothing else to look up.
                organization = directory.find_organization(first.owner)
                if organization is None and len(names) == 1:
                    return ""
                if organization is not None and organization.login == first.owner:
                    return first.resource
            return select_organization_resource(names, caller, directory)
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
        return AdmittedRequest(
            id=request_id,
            decision=None,
            caller=self.caller_resolver.resolve_address(incoming),
            is_conditional=False,
            started_s=now_s,
            working_since_s=now_s,
        )

    async def _refuse_credential(self, request_id: str, incoming: IncomingRequest, message: str) -> LocalReply:
        """Charge a wrong credential to the caller's address, and return the reply.

        It is 401 with `message`, or a refusal if the address has sent too many wrong credentials.
        """
        caller = self.caller_resolver.resolve_address(incoming)
        decision = await self.evaluator.charge_failed_login(request_id, caller)
        now_ms = self.now_ms()
        self.activity.unauthorized += 1
        if not decision.is_admitted:
            self.decision_log.record(
                LoggedDecision(request_id, now_ms, incoming.method, incoming.path, decision, caller)
            )
            self.activity.record_refusal(
                decision, caller, now_ms, self._find_resource(incoming.method, incoming.path, caller)
            )
            return self.replies.build_refusal(request_id, decision, caller)
        return self.replies.build_unauthorized(request_id, incoming, decision, message)

    # -- unlisted credentials --------------------------------------------------------------------------------------

    async def _is_login_refused(self, incoming: IncomingRequest, caller: Caller) -> bool:
        """Return whether an unproved credential is refused, because its address has sent too many wrong ones.

        A session cookie is not refused: visitors have one too, also to sign in. Of two credentials, one may be unproved.
        """
        least = 1 if caller.is_anonymous else 2
        if self.caller_resolver.count_logins(incoming, self.now_ms()) < least:
            return False
        address = caller if caller.is_anonymous else self.caller_resolver.resolve_address(incoming)
        return await self.evaluator.is_login_refused(address)

    def on_reply_status(self, admitted: AdmittedRequest, status: int) -> None:
        """Store what the status of the service's reply shows about the credential of a request.

        Call this for every reply of the service to a request with a `proof`. A wrong credential is charged to its address.
        """
        proof, unlisted = admitted.proof, self.unlisted
        if proof is None or unlisted is None or not unlisted.on_reply(proof, status, self.now_ms()):
            return
        self.activity.unauthorized += 1
        charge = self.evaluator.add_failed_login(proof.address)
        if self.is_local:
            run_immediately(charge)
        else:
            self.start_task(self._charge_failed_login(charge))

    async def _charge_failed_login(self, charge: Coroutine[Any, Any, None]) -> None:
        try:
            await charge
        except StoreUnavailable:
            log.debug("charging a failed login failed: store unavailable")

    async def _serve_revocation(self, revoker: CredentialRevoker, incoming: IncomingRequest, body: bytes) -> LocalReply:
        """Serve the webhook that revokes credentials. A wrong secret is a failed login."""
        if not revoker.is_authorized(incoming):
            request_id = self.make_request_id(self.now_ms())
            return await self._refuse_credential(request_id, incoming, BAD_CREDENTIALS)
        return await revoker.serve(incoming, body)

    # -- pages -----------------------------------------------------------------------------------------------------

    def has_page(self, incoming: IncomingRequest) -> bool:
        """Return whether `render_page` returns a page for an admitted request."""
        return self.replies.has_page(incoming)

    async def render_page(self, incoming: IncomingRequest, admitted: AdmittedRequest) -> LocalReply | None:
        """Return one of the limiter's own pages as the reply, or `None` if the service must reply.

        If the page cannot be rendered, refund the request and return a reply with status 500.
        """
        try:
            return await self.replies.render_page(incoming, admitted)
        except Exception:
            # Reply with 500 instead of raising: otherwise the slot and the connection of the request stay occupied.
            log.exception("rendering own page failed path=%s", incoming.path)
            await self.on_status(admitted, 500)
            return await self.render_error(incoming, 500, "Server Error", admitted)

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

    async def on_content_created(self, admitted: AdmittedRequest, route: str = "") -> None:
        """Charge the content limits, because the service reported in its reply that the request created content.

        `route` is the route that the service named, such as `/{owner}/{repository}/wiki/{page}`; empty if it named none. From
        now on, requests of the same action are refused while a content limit of their caller is full.
        """
        if admitted.decision is None:
            return
        rulebook, caller, now_ms = self.evaluator.limiter.rulebook, admitted.caller, self.now_ms()
        path, sent_method = admitted.path, admitted.sent_method
        endpoint = rulebook.get_endpoint(admitted.method, path)
        # Not the methods that the caller only names: routes and endpoints are marked for all callers.
        was_unknown = not endpoint.content and self.reader.marked_endpoints.add(
            *(caller.owner, sent_method, path, rulebook.get_endpoint(sent_method, path).name),
            route=route,
            rules=rulebook.rules.paths,
            now_ms=now_ms,
        )
        await self.evaluator.charge_content(admitted.decision, caller, endpoint)
        if was_unknown and await self.evaluator.is_content_exceeded(caller, endpoint):
            self.reader.marked_endpoints.add_unexpected_mark(caller.owner, now_ms)

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
        try:
            await self._settle_cpu(admitted, decision, due_ms)
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
        if due_ms > 0:
            counters.add_usage(decision.plan.meter_charges, due_ms, now_ms)
        elif due_ms:
            for charges, excess_ms in plan_take_back(admitted, -due_ms, now_ms):
                counters.add_usage(charges, -excess_ms, now_ms)
        counters.release(admitted.id, now_ms, should_remember=False)

    async def _settle_cpu(self, admitted: AdmittedRequest, decision: LimitDecision, due_ms: int) -> None:
        """Charge CPU time, or take back what was charged too much if the amount is below 0. Raises `StoreUnavailable`."""
        if due_ms > 0:
            await self.evaluator.charge_cpu(decision, due_ms)
        elif due_ms:
            for charges, excess_ms in plan_take_back(admitted, -due_ms, self.now_ms()):
                await self.evaluator.take_back_cpu(charges, excess_ms)

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
            if admitted.is_ended:
                continue  # It has ended while an earlier one was charged, and so was all of its work.
            slice_ms = self._cpu_meter.take_slice_ms(admitted, now_s, now_ms)
            if slice_ms and admitted.decision is not None:
                await self._settle_cpu(admitted, admitted.decision, slice_ms)
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
        if self.overrides.bans:
            await self.overrides.drop_expired_bans(now_ms)
        if self.overrides.end_expired_off(now_ms):
            self.write_audit_entry("limits are on again", by="time")
        if self.alerts is not None and self.send_alerts is not None:
            alerts = self.alerts.take_pending()
            if alerts:
                self.start_task(self.send_alerts(alerts))
        await self.decision_log.write(now_ms)
        if self.unlisted is not None:
            await self.unlisted.save(now_ms)
