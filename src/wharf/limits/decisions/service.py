"""The decision service: receives every request once, and returns it as admitted or with the reply that refuses it.

It combines the other modules: `CallerResolver` finds the caller, `LimitEvaluator` decides, `HeaderWriter` and
`core.responses` render the reply, `ActivityCounts` and `DecisionLog` record it. It has no logic of limits of its own.

A method whose name ends in `_locally` does the same as the method without this suffix, but needs no await, because the
counters are in this process.
"""

import asyncio
import contextlib
import functools
import hmac
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from wharf.limits.config.settings import LimiterSettings
from wharf.limits.core.callers.addresses import ProxySettings
from wharf.limits.core.callers.caller import Caller, CallerClass
from wharf.limits.core.callers.directory import Directory, MemoryDirectory
from wharf.limits.core.callers.recognition import BAD_CREDENTIALS, UnrecognizedCredential
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.graphql import QueryTooComplex
from wharf.limits.core.large_files import UnreadableBatch, count_objects
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.core.resources import NO_RESOURCES, build_finder, select_organization_resource
from wharf.limits.core.responses import JSON_TYPE, Headers, RefusalResponse, build_headers, build_refusal
from wharf.limits.core.route import find_path_below
from wharf.limits.core.rule import READ_METHODS, Interface
from wharf.limits.credentials import UnlistedCredentials
from wharf.limits.decisions.activity import ActivityCounts
from wharf.limits.decisions.alerts import Alert, AlertQueue
from wharf.limits.decisions.callers import CallerResolver
from wharf.limits.decisions.decision_log import DecisionLog, LoggedDecision, append_private
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.decisions.headers import HeaderWriter, build_challenge, build_token_headers, encode_headers
from wharf.limits.decisions.marked_endpoints import MarkedEndpoints
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

MAX_BODY_BYTES: Final = 1 << 20
"""At most this much of a request body is read before the decision; limits memory."""
MAX_INLINE_BODY_BYTES: Final = 2_048
"""Longer bodies are read on a thread: to compute the cost of a query takes up to 5 µs for each byte."""
MAX_REVOKED: Final = 1_000
"""Credentials or users that one request revokes; limits how long it holds the event loop."""
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


class RevocationRequest(msgspec.Struct, frozen=True):
    """The JSON body of a request that revokes credentials. At most `MAX_REVOKED` of each."""

    credentials: Annotated[list[str], msgspec.Meta(max_length=MAX_REVOKED)] = []
    """Tokens, or user names and passwords as `name:password`."""
    users: Annotated[list[str], msgspec.Meta(max_length=MAX_REVOKED)] = []
    """Logins: all credentials of these users are resolved again."""
    hashes: Annotated[
        list[Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]], msgspec.Meta(max_length=MAX_REVOKED)
    ] = []
    """Keyed hashes, as `wharf limits top` shows them after `credential:`."""


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
        self.header_writer = HeaderWriter(evaluator.rules, self.settings.request_id_header)
        self._folder = folder
        self._cpu_meter = CpuMeter()
        self._marked_endpoints = MarkedEndpoints()
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
        if self.unlisted is not None:
            self.unlisted.open(self.now_ms())
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
        """Return whether the decision needs the body, if there is one, of a request with this path in normal form.

        It does for GraphQL requests, batches of large files, and revocations. The method does not matter: some services also read the
        body of a GET.
        """
        if path == self.settings.credentials.revocation_path and method == "POST":
            return True
        endpoint = self.evaluator.limiter.rulebook.get_endpoint(method, path)
        return endpoint.is_batch or endpoint.interface is Interface.GRAPHQL

    def takes_long(self, incoming: IncomingRequest, body: bytes | None) -> bool:
        """Return whether the event loop must not wait until body and query are read, because one of them is long."""
        return is_long_body(body) or (len(incoming.query) > MAX_INLINE_BODY_BYTES and self._has_graphql_query(incoming))

    @staticmethod
    def can_lack_body(incoming: IncomingRequest) -> bool:
        """Return whether a request that needs the body may come without one: a read, or with parameters in its URL."""
        return bool(incoming.query) or incoming.method in READ_METHODS

    def _has_graphql_query(self, incoming: IncomingRequest) -> bool:
        """Return whether the query of the target may contain a GraphQL query."""
        if not incoming.query:
            return False
        endpoint = self.evaluator.limiter.rulebook.get_endpoint(incoming.method, incoming.path)
        return endpoint.interface is Interface.GRAPHQL

    def can_admit_locally(self, incoming: IncomingRequest, body: bytes | None) -> bool:
        """Return whether `admit_locally` may decide the request; otherwise `admit` must be awaited."""
        return self.is_local and not self.takes_long(incoming, body) and not self.must_wait(incoming)

    def must_wait(self, incoming: IncomingRequest) -> bool:
        """Return whether `admit` must be awaited, although the counters are in this process.

        It is awaited to ask for the owner of a credential, and for requests that revoke credentials.
        """
        if self.unlisted is None:
            return False
        return self.is_revocation(incoming) or self.caller_resolver.must_wait(incoming, self.now_ms())

    async def admit(self, incoming: IncomingRequest, body: bytes | None = None) -> AdmittedRequest | LocalReply:
        """Return the request as admitted, or the reply that refuses it.

        `body` is required if `needs_body` returns true for the request. A long one is read on a thread.
        """
        takes_long = self.takes_long(incoming, body)
        if self.unlisted is not None:
            if self.is_revocation(incoming):
                return await self._serve_revocation(self.unlisted, incoming, body or b"")
            if not self.overrides.is_off:
                await self.caller_resolver.prepare(incoming, self.now_ms())
        if self.is_local and not takes_long:
            return self.admit_locally(incoming, body)
        now_ms = self.now_ms()
        request_id = self.make_request_id(now_ms)
        if self.overrides.off_until_ms and self.overrides.is_off:
            return self._admit_without_decision(request_id, incoming)
        caller = self.caller_resolver.resolve_caller(incoming, now_ms)
        if isinstance(caller, UnrecognizedCredential):
            return await self._refuse_credential(request_id, incoming, caller.message)
        if await self._is_login_refused(incoming, caller):
            return await self._refuse_credential(request_id, incoming, BAD_CREDENTIALS)
        if takes_long:
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

        `body` is required if `needs_body` returns true for the request. Use `admit` if `can_admit_locally` returns false.
        """
        now_ms = self.world.now_ns() // 1_000_000
        request_id = self.make_request_id(now_ms)
        if self.overrides.off_until_ms and self.overrides.is_off:
            return self._admit_without_decision(request_id, incoming)
        caller = self.caller_resolver.resolve_caller(incoming, now_ms)
        if isinstance(caller, UnrecognizedCredential):
            return run_immediately(self._refuse_credential(request_id, incoming, caller.message))
        if self.unlisted is not None and run_immediately(self._is_login_refused(incoming, caller)):
            return run_immediately(self._refuse_credential(request_id, incoming, BAD_CREDENTIALS))
        evaluator = self.evaluator
        if body is None and not self._has_graphql_query(incoming):
            request = RequestFacts(
                *(request_id, incoming.method, incoming.path, caller, None, None, incoming.connection),
                bool(self._marked_endpoints) and self._may_create_content(incoming, caller, now_ms),
            )
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
        """Return a pair: the facts that the decision needs, and what is wrong with body or query (empty if nothing)."""
        query: QueryFacts | None = None
        objects: int | None = None
        problem = ""
        endpoint = self.evaluator.limiter.rulebook.get_endpoint(incoming.method, incoming.path)
        try:
            if endpoint.is_batch:
                objects = count_objects(body) if body is not None else None
            elif endpoint.interface is Interface.GRAPHQL:
                query = self.evaluator.query_costs.compute_request_cost(body, incoming.query)
        except (QueryTooComplex, UnreadableBatch) as error:
            problem = str(error)
        request = RequestFacts(
            *(request_id, incoming.method, incoming.path, caller, query, objects, incoming.connection),
            bool(self._marked_endpoints) and self._may_create_content(incoming, caller, self.now_ms()),
        )
        return request, problem

    def _may_create_content(self, incoming: IncomingRequest, caller: Caller, now_ms: int) -> bool:
        """Return whether the service has marked an earlier request of the same action as one that created content."""
        rulebook, method, path = self.evaluator.limiter.rulebook, incoming.method, incoming.path
        endpoint = rulebook.get_endpoint(method, path)
        return self._marked_endpoints.may_create_content(
            caller.owner, method, path, endpoint.name, rules=rulebook.rules.paths, now_ms=now_ms
        )

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
        is_timed = not decision.plan.is_waiting
        admitted = self.running_requests[request_id] = AdmittedRequest(
            request_id,
            decision,
            caller,
            incoming.is_conditional,
            now_s,
            now_s if is_timed else None,
            is_timed=is_timed,
            method=incoming.method,
            path=incoming.path,
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
        headers = (
            *build_headers(decision, rules),
            ("www-authenticate", build_challenge(incoming.authorization)),
            ("content-type", JSON_TYPE),
            ("cache-control", "no-cache"),
        )
        if (
            self.evaluator.limiter.rulebook.get_endpoint(incoming.method, incoming.path).interface
            is Interface.LARGE_FILES
        ):
            headers = (*headers, ("lfs-authenticate", 'Basic realm="large files"'))
            body["request_id"] = request_id
        return self._build_refusal_reply(request_id, RefusalResponse(401, headers, msgspec.json.encode(body)))

    # -- unlisted credentials --------------------------------------------------------------------------------------

    async def _is_login_refused(self, incoming: IncomingRequest, caller: Caller) -> bool:
        """Return whether an unproved credential is refused, because its address has sent too many wrong ones."""
        if not caller.is_anonymous or not self.caller_resolver.has_credentials(incoming, self.now_ms()):
            return False
        return await self.evaluator.is_login_refused(caller)

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

    async def revoke_credentials(self, subjects: Sequence[str]) -> int:
        """Forget what is known about credentials and users, in all processes. Return how many were given.

        `subjects` come from `UnlistedCredentials.list_subjects`. Raises `StoreUnavailable`.
        """
        assert self.unlisted is not None, "credentials are revoked only if unlisted ones are accepted"
        now_ms = self.now_ms()
        for subject in subjects:
            self.unlisted.apply_revocation(subject, now_ms)
        await self.overrides.share_revocations(subjects, now_ms)
        return len(subjects)

    def is_revocation(self, incoming: IncomingRequest) -> bool:
        """Return whether a request is for the path that revokes credentials."""
        path = self.settings.credentials.revocation_path
        return bool(path) and incoming.path == path and incoming.method == "POST"

    async def _serve_revocation(
        self, unlisted: UnlistedCredentials, incoming: IncomingRequest, body: bytes
    ) -> LocalReply:
        """Revoke the credentials and users in the body of a request, and return the reply: 200, 400, 401 or 503."""
        request_id = self.make_request_id(self.now_ms())
        expected = f"Bearer {self.settings.credentials.revocation_secret}"
        if not hmac.compare_digest((incoming.authorization or "").encode(), expected.encode()):
            return await self._refuse_credential(request_id, incoming, BAD_CREDENTIALS)
        try:
            request = msgspec.json.decode(body, type=RevocationRequest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return await self.render_error(incoming, 400, f"The body does not name credentials to revoke: {error}.")
        subjects = unlisted.list_subjects(credentials=request.credentials, users=request.users, hashes=request.hashes)
        try:
            count = await self.revoke_credentials(subjects)
        except StoreUnavailable:
            return await self.render_error(incoming, 503, "The revocation is in force in this process only: repeat it.")
        self.write_audit_entry("credentials revoked", by="webhook", count=count, users=request.users)
        return LocalReply(200, (("content-type", JSON_TYPE),), msgspec.json.encode({"revoked": count}))

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

    def is_own_path(self, path: str) -> bool:
        """Return whether the limiter, and not the service, replies to GET and HEAD requests for this path."""
        return self._find_page_path(path) is not None

    def _find_page_path(self, path: str) -> str | None:
        """Return the path of one of the limiter's own pages, relative to the base path; `None` for any other path."""
        relative_path = find_path_below(self.evaluator.rules.api_path, path)
        return relative_path if relative_path is not None and self.pages.is_own_path(relative_path) else None

    async def render_page(self, incoming: IncomingRequest, admitted: AdmittedRequest) -> LocalReply | None:
        """Return one of the limiter's own pages as the reply, or `None` if the service must reply.

        If the page cannot be rendered, refund the request and return a reply with status 500.
        """
        path = self._find_page_path(incoming.path) if incoming.method in ("GET", "HEAD") else None
        if path is None:
            return None
        decision, caller = admitted.decision, admitted.caller
        if decision is None:
            page = self.pages.render_while_off(path)
            return None if page is None else LocalReply(page.status, (("content-type", page.content_type),), page.body)
        directory = self.caller_resolver.directory
        try:
            page = await self.pages.render_page(path, incoming, caller, self.evaluator, directory, self.now_ms())
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

    async def on_content_created(self, admitted: AdmittedRequest, route: str = "") -> None:
        """Charge the content limits, because the service reported in its reply that the request created content.

        `route` is the route that the service named, such as `/{owner}/{repository}/wiki/{page}`; empty if it named none. From
        now on, requests of the same action are refused while a content limit of their caller is full.
        """
        if admitted.decision is None:
            return
        rulebook, caller, now_ms = self.evaluator.limiter.rulebook, admitted.caller, self.now_ms()
        method, path = admitted.method, admitted.path
        endpoint = rulebook.get_endpoint(method, path)
        was_unknown = not endpoint.content and self._marked_endpoints.add(
            caller.owner, method, path, endpoint.name, route=route, rules=rulebook.rules.paths, now_ms=now_ms
        )
        await self.evaluator.charge_content(admitted.decision, caller, endpoint)
        if was_unknown and await self.evaluator.is_content_exceeded(caller, endpoint):
            self._marked_endpoints.add_unexpected_mark(caller.owner, now_ms)

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
        if self.unlisted is not None:
            await self.unlisted.save(now_ms)

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
