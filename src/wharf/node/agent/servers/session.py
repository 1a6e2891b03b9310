"""The node's exchange with servers: registration, heartbeats, assignments and reports.

Every failed request is repeated.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.contract.client import AsyncClient, Unreachable
from wharf.contract.client.errors import get_requested_delay_s
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason
from wharf.contract.model.times import SECOND
from wharf.contract.wire.nodes import messages
from wharf.node.agent.servers.contact import ObservedTransport, ServerContact
from wharf.node.agent.servers.repeated_failures import RepeatedFailures
from wharf.node.agent.servers.reports import AssignmentHandler, ReportQueue
from wharf.node.credentials import NodeCredentials
from wharf.world import World
from wharf.world.backoff import Backoff
from wharf.world.failover import MAX_PART_S
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)

MIN_RETRY_DELAY_S: Final = 0.5
"""The longest delay after a first failed request; it doubles with each further failure."""
MAX_RETRY_DELAY_S: Final = 10.0
"""The longest delay before a registration or fetch is repeated. Limits the load of servers that are overloaded."""
MAX_URGENT_RETRY_DELAY_S: Final = 3.0
"""The longest delay before a heartbeat or report is repeated. Servers grant 10 s beyond the TTL, so several heartbeats must
fit; and they place allocations on resources that they consider free until a report says otherwise."""
RETRY_PART: Final = 0.05
"""A failed report, or a heartbeat that failed twice, is repeated after this part of the TTL, or half of it, if that is longer than
the usual delay. Servers grant a fifth of the TTL, so several heartbeats fit. Limits the load while no server leads."""
RETURN_SPREAD_PART: Final = 0.1
"""Nodes that lost their servers request assignments and open their channel again within this part of their TTL. The TTL grows
with the fleet, so the nodes of a large fleet do not return all at once: 5,000 nodes return within 10 to 20 s."""
MAX_RETURN_SPREAD_S: Final = 30.0
"""The longest such time. Limits how late a node receives assignments, and is reached by users, after an outage."""
LAGGING_SERVER_DELAY_S: Final = 1.0
"""Seconds before assignments are requested again from a server that lags behind the ones applied."""
ASSIGNMENT_POLL_S: Final = 60.0
"""How long a server may hold a request for assignments until something changes."""
HEARTBEAT_TIMEOUT_S: Final = 10.0
"""Seconds for a heartbeat, divided among the servers. Without a reply by then, it counts as failed.

A frozen server or a dropped network answers nothing. The first server has 2.5 s, so that a node with several servers
is on another one within 3 s. The next heartbeat begins there.
"""
HEARTBEAT_TIMEOUT_PART: Final = 0.1
"""A heartbeat has this part of the TTL, if that is longer. Servers are slow while a large fleet returns to them, and a
repeated heartbeat makes them slower. Servers grant a fifth of the TTL."""
MAX_SERVER_PART: Final = 0.05
"""A server has this part of the TTL for its reply before another one is tried, if that is longer than 2.5 s. Moving a large
fleet from a slow server to another one would make both slower. 2.5 s remain for a TTL of up to 50 s."""
MIN_HEARTBEAT_WAIT_PART: Final = 0.1
"""The shortest wait between two heartbeats, as a part of the TTL, if the reply took almost as long as the TTL."""
WHOLE_LIST_INTERVAL_S: Final = 60.0
"""How often a node requests all of its assignments, also those that ended. Meanwhile it requests only the others: it may have
thousands that ended, and each new one would repeat all of them. Limits how late it deletes those that servers have deleted."""
MAX_ASSIGNMENTS_PER_FETCH: Final = 1_000
"""Limit of one request; each assignment may have a job of its own. Servers refuse more than ten times as many."""
FIRST_ASSIGNMENTS_PER_FETCH: Final = 50
"""The number of assignments in the first request of several; their size decides about the next request."""
TARGET_FETCH_BYTES: Final = 16 << 20
"""How many encoded bytes one request should fetch; limits the memory of decoded jobs until they are shared."""


def describe_failure(error: Refusal | Unreachable) -> str:
    """Return the text of a failed request, and what to check if a server with TLS closed the connection.

    With TLS 1.3, a server that requires a client certificate closes the connection after the request was sent, and the
    client receives no reason.
    """
    is_closed = isinstance(error, Unreachable) and error.is_sent and not error.is_silent and error.tls_failure is None
    if not is_closed or "https://" not in str(error):
        return str(error)
    return (
        f"{error}; if the server has tls.verify_https_client, set tls.cert_file and tls.key_file of this agent to a "
        "certificate of an authority in the server's tls.ca_file"
    )


class ServerSession:
    """One node's exchange with servers: registers, sends heartbeats and reports, and fetches assignments."""

    def __init__(
        self,
        world: World,
        client: AsyncClient,
        identity: NodeCredentials,
        assignment_handler: AssignmentHandler,
        build_node: Callable[[], Awaitable[Node]],
        *,
        log_name: str = "",
    ) -> None:
        """`log_name` names the node in log lines; its id by default."""
        self._world = world
        self._log_name = log_name or identity.id
        self._contact = contact = ServerContact(world)
        self._client = client.with_transports(lambda transport: ObservedTransport(transport, contact))
        self._identity = identity
        self._handler = assignment_handler
        self._build_node = build_node
        self._index = 0
        """The index of the newest assignments that were all applied."""
        self._begun_index = 0
        """The index of the newest assignments of which some were applied. Older ones come from a server that lags."""
        self._reset_count = 0
        """How often the servers had another state than before, so that indexes were reset."""
        self._reports = ReportQueue(world, assignment_handler)
        self._max_fetch_count = MAX_ASSIGNMENTS_PER_FETCH
        """Limits the assignments of one request. A failed request halves it, and it grows with each success."""
        self._whole_list_s = -math.inf
        """When the newest list of all assignments was received."""
        self._report_count_at_fetch = -1
        """How many full reports had been begun when the newest assignments were requested."""
        self._has_changes = asyncio.Event()
        self.has_reported_all = asyncio.Event()
        self.has_reported_all.set()
        self._cluster_id = ""
        """The id of the servers' cluster in the last reply; empty if it has none."""
        self._ttl_s = 0.0
        """The TTL in the last reply to a heartbeat."""
        self.is_registered = asyncio.Event()

    async def run(self) -> None:
        """Register, then send heartbeats and reports and follow assignments until canceled."""
        ttl_s = await self._register()
        parts = (
            (self._run_heartbeats(ttl_s), "heartbeat"),
            (self._exchange_allocations(), "allocations"),
        )
        tasks = [self._world.start_task(coroutine, name=f"{self._log_name} {part}") for coroutine, part in parts]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel_tasks(*tasks)

    def mark_changed(self, allocation_id: str) -> None:
        """Add the allocation to the next report, which is sent soon."""
        self._reports.mark_changed(allocation_id)
        self._has_changes.set()
        self.has_reported_all.clear()

    async def register_again(self) -> None:
        """Send the node's current description to servers. Raises `Refusal` and `Unreachable`."""
        await self._client.node_agents.register(await self._build_node(), self._identity.secret_id)

    async def _send_registration(self) -> None:
        """Register the node, and restart the numbering of its reports at the number that the reply contains.

        That number is higher than all report numbers that this node has used. Raises `Refusal` and `Unreachable`.
        """
        node = replace(await self._build_node(), reports_from=1)
        reply = await self._client.node_agents.register(node, self._identity.secret_id)
        self._cluster_id = reply.cluster_id
        self._reports.start_numbering(reply.reports_from)

    async def _register(self) -> float:
        """Register and send a first heartbeat; repeat until a server accepts both.

        Return the seconds until the next heartbeat. Each failure is passed to the handler as server silence.
        """
        failures, backoff = RepeatedFailures(), self._create_backoff()
        while True:
            try:
                await self._send_registration()
                ttl_s = await self._send_heartbeat()
                self.is_registered.set()
                if not failures.is_empty:
                    log.info("node registered node=%s", self._log_name)
                return ttl_s
            except (Refusal, Unreachable) as error:
                if failures.is_new(error):
                    log.warning("node registration failed node=%s error=%s", self._log_name, describe_failure(error))
                self._handler.on_server_silence(self._contact.get_lost_since_s())
                await asyncio.sleep(backoff.next_delay_s(get_requested_delay_s(error)))

    def _create_backoff(self, max_s: float = MAX_RETRY_DELAY_S) -> Backoff:
        """Return the delays of one kind of request."""
        return Backoff(self._world.random, min_s=MIN_RETRY_DELAY_S, max_s=max_s)

    async def _send_heartbeat(self) -> float:
        """Send a heartbeat. Return the seconds until the next one is due. Raises `Refusal` and `Unreachable`.

        The TTL counts from the time at which the heartbeat was sent: the server received it later, so the next one is in
        time even if this reply took long. The reply may request a full report or higher report numbers.
        """
        sent_s = self._world.monotonic_s()
        reply = await self._client.node_agents.send_heartbeat(
            self._identity.id,
            self._identity.secret_id,
            timeout_s=max(HEARTBEAT_TIMEOUT_S, self._ttl_s * HEARTBEAT_TIMEOUT_PART),
        )
        took_s = self._world.monotonic_s() - sent_s
        self._contact.on_heartbeat_acknowledged(sent_s, reply.heartbeat_ttl / SECOND)
        self._handler.on_server_contact()
        self._cluster_id = reply.cluster_id
        self._reports.skip_to_number(reply.reports_from)
        if reply.must_report:
            self._reports.request_full_report()
            self._has_changes.set()
        self._ttl_s = reply.heartbeat_ttl / SECOND
        self._client.servers.max_part_s = max(MAX_PART_S, self._ttl_s * MAX_SERVER_PART)
        self._client.servers.return_spread_s = min(MAX_RETURN_SPREAD_S, self._ttl_s * RETURN_SPREAD_PART)
        return max(self._ttl_s - took_s, self._ttl_s * MIN_HEARTBEAT_WAIT_PART)

    async def _run_heartbeats(self, first_wait_s: float) -> None:
        """Send heartbeats until canceled, the first after `first_wait_s`; register again if servers do not know the node.

        Each failure is passed to the handler as server silence.
        """
        wait_s, backoff = first_wait_s, self._create_backoff(MAX_URGENT_RETRY_DELAY_S)
        failures = RepeatedFailures()
        is_repeated = False
        while True:
            await asyncio.sleep(wait_s)
            try:
                wait_s = await self._send_heartbeat()
                is_repeated = False
                failures.clear()
                backoff.reset()
            except (Refusal, Unreachable) as error:
                if failures.is_new(error):
                    log.warning("heartbeat failed node=%s error=%s", self._log_name, error)
                self._handler.on_server_silence(self._contact.get_lost_since_s())
                # The first repetition comes soon: it shows whether contact is lost, or only one request.
                wait_s = max(
                    backoff.next_delay_s(get_requested_delay_s(error)),
                    self._draw_retry_delay_s() if is_repeated else 0.0,
                )
                is_repeated = True
                if isinstance(error, Refusal) and error.code is RefusalCode.NOT_FOUND:
                    # The servers have another state than before, for example from a snapshot; read it from the start.
                    self._index = self._begun_index = 0
                    self._reset_count += 1
                    wait_s = await self._register()

    def _draw_retry_delay_s(self) -> float:
        """Return the shortest delay before a heartbeat or report is repeated. It grows with the TTL, and so with the fleet."""
        return self._ttl_s * RETRY_PART * self._world.random.uniform(0.5, 1.0)

    async def _exchange_allocations(self) -> None:
        """Settle what the journal has restored, then follow assignments and send reports, until canceled."""
        await self._confirm_held_allocations()
        tasks = [
            self._world.start_task(coroutine, name=f"{self._log_name} {part}")
            for coroutine, part in ((self._follow_assignments(), "assignments"), (self._send_reports(), "reports"))
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel_tasks(*tasks)

    async def _confirm_held_allocations(self) -> None:
        """Ask servers which of the restored allocations have not ended: only the tasks of these may start.

        Repeated until a server answers. Those that servers do not know are dropped later, with the other assignments.
        """
        backoff, failures = self._create_backoff(MAX_URGENT_RETRY_DELAY_S), RepeatedFailures()
        while held := self._handler.list_held():
            try:
                response = await self._client.node_agents.list_assignments(
                    self._identity.id, self._identity.secret_id, without_ended=True
                )
                ended = [id for id in held if id not in response.value]
                assignments = [each async for batch in self._fetch_assignments(ended) for each in batch]
                self._handler.end_allocations(
                    [each for each in assignments if each.allocation.client_status.is_terminal]
                )
                for id in held:
                    if id in response.value:
                        self._handler.confirm_allocation(id)
                return
            except (Refusal, Unreachable) as error:
                if failures.is_new(error):
                    log.warning("failed to confirm restored allocations node=%s error=%s", self._log_name, error)
                await asyncio.sleep(backoff.next_delay_s(get_requested_delay_s(error)))

    async def _follow_assignments(self) -> None:
        """Wait for changes of the node's assignments and apply them, until canceled."""
        backoff, failures = self._create_backoff(), RepeatedFailures()
        while True:
            requested_index, report_count = self._index, self._reports.full_report_count
            cluster_id, reset_count = self._cluster_id, self._reset_count
            try:
                # A server that lags may send older assignments than the node has; their index is lower. Three replies must
                # not come from such a server. The first one after a full report, because servers give up every allocation
                # that the report omits. The one after assignments of which only some were applied: if the newest
                # allocation was deleted meanwhile, its index is lower too. The first one after a reset of the index.
                may_lag = self._report_count_at_fetch == report_count and self._index == self._begun_index > 0
                is_whole = not may_lag or self._world.monotonic_s() - self._whole_list_s >= WHOLE_LIST_INTERVAL_S
                response = await self._client.node_agents.list_assignments(
                    self._identity.id,
                    self._identity.secret_id,
                    index=requested_index,
                    wait_s=ASSIGNMENT_POLL_S,
                    stale=may_lag,
                    without_ended=not is_whole,
                )
                delay_s = LAGGING_SERVER_DELAY_S
                is_of_former_state = cluster_id != self._cluster_id or reset_count != self._reset_count
                if report_count != self._reports.full_report_count or is_of_former_state:
                    continue
                if response.index >= self._begun_index or not may_lag:
                    self._begun_index = max(self._begun_index, response.index)
                    # Assignments that were not fetched are requested again: the index only advances over all of them.
                    if await self._apply_desired(response.value, report_count, is_whole=is_whole):
                        self._report_count_at_fetch = report_count
                        self._index = self._begun_index  # Zero after a reset during these calls.
                        backoff.reset()
                        failures.clear()
                        continue
            except (Refusal, Unreachable) as error:
                if failures.is_new(error):
                    log.warning("failed to fetch assignments node=%s error=%s", self._log_name, error)
                spread_s = self._client.servers.return_spread_s
                delay_s = max(
                    backoff.next_delay_s(get_requested_delay_s(error)), self._world.random.uniform(0.0, spread_s)
                )
            await asyncio.sleep(delay_s)

    async def _apply_desired(self, desired: Mapping[str, int], report_count: int, *, is_whole: bool) -> bool:
        """Make the node's allocations match `desired`, which maps allocation ids to modify indexes.

        If it is the whole list, drops allocations that are missing in it. Then fetches and applies the new and changed
        ones. Returns
        `False` if it must be repeated: the server lacks an assignment, or a full report was begun meanwhile.
        """
        if is_whole:
            self._whole_list_s = self._world.monotonic_s()
            for dropped_id in self._handler.list_droppable(self._cluster_id, desired):
                self._handler.drop_allocation(dropped_id)
                self._reports.drop_allocation(dropped_id)
        changed = [id for id, index in desired.items() if (self._handler.find_assignment_index(id) or 0) < index]
        async for assignments in self._fetch_assignments(changed):
            if report_count != self._reports.full_report_count:
                return False
            for assignment in assignments:
                # An older assignment than the list announced comes from a server that lags.
                if assignment.allocation.alloc_modify_index >= desired.get(assignment.allocation.id, 0):
                    self._handler.apply_assignment(assignment)
        return all((self._handler.find_assignment_index(id) or 0) >= desired[id] for id in changed)

    async def _fetch_assignments(self, ids: Sequence[str]) -> AsyncIterator[list[messages.Assignment]]:
        """Fetch assignments with their jobs in several requests, and yield those of each reply.

        Raises `Refusal` and `Unreachable`. The next requests are then smaller, because the reply may have been too large
        or too slow.
        """
        start, count = 0, FIRST_ASSIGNMENTS_PER_FETCH
        while start < len(ids):
            batch = ids[start : start + min(count, self._max_fetch_count)]
            try:
                received = await self._client.node_agents.fetch_assignments(
                    self._identity.id, self._identity.secret_id, batch, shares_jobs=True
                )
            except (Refusal, Unreachable):
                self._max_fetch_count = max(1, len(batch) // 2)
                raise
            start += len(batch)
            self._max_fetch_count = min(
                MAX_ASSIGNMENTS_PER_FETCH, self._max_fetch_count + self._max_fetch_count // 2 + 1
            )
            count = _choose_fetch_count(received) if received else count
            yield messages.restore_shared_jobs(received)

    async def _take_next_report(self) -> messages.NodeReportRequest | None:
        """Return the report to send now; `None` if nothing is new. Raises `Refusal` and `Unreachable`.

        Before a full report begins, servers are asked which ends they do not have: a node may remember the ends of a
        hundred thousand allocations. The reply must be newer than the request for the report, so it may not be stale.
        """
        if self._reports.is_full_report_due:
            response = await self._client.node_agents.list_assignments(
                self._identity.id, self._identity.secret_id, without_ended=True
            )
            self._reports.begin_full_report(response.value)
        return self._reports.take_next_report()

    async def _send_reports(self) -> None:
        """Send reports whenever an allocation has changed or a full report was requested, until canceled.

        A report that contains an end waits until the end is on the node's disk.
        """
        backoff, failures = self._create_backoff(MAX_URGENT_RETRY_DELAY_S), RepeatedFailures()
        while True:
            await self._has_changes.wait()
            self._has_changes.clear()
            try:
                while (report := await self._take_next_report()) is not None:
                    if any(update.client_status.is_terminal for update in report.allocations):
                        # If servers knew of an end that this node forgot in a crash, the task would run again.
                        await self._handler.wait_until_stored()
                    reply = await self._client.node_agents.send_report(
                        self._identity.id, self._identity.secret_id, report
                    )
                    self._reports.on_accepted(should_send_full_report=reply.must_report)
                    backoff.reset()
                    failures.clear()
                if not self._has_changes.is_set():
                    self.has_reported_all.set()
            except (Refusal, Unreachable) as error:
                self._log_report_failure(error, failures)
                if isinstance(error, Refusal) and error.code in (RefusalCode.INVALID, RefusalCode.TOO_LARGE):
                    self._reports.on_rejected(is_too_large=error.code is RefusalCode.TOO_LARGE)
                await asyncio.sleep(max(backoff.next_delay_s(get_requested_delay_s(error)), self._draw_retry_delay_s()))
                if isinstance(error, Refusal) and error.code is RefusalCode.INVALID:
                    # If this fails, the next report is rejected too, and it is tried again.
                    with contextlib.suppress(Refusal, Unreachable):
                        await self._send_registration()
                self._has_changes.set()

    def _log_report_failure(self, error: Refusal | Unreachable, failures: RepeatedFailures) -> None:
        """Log why a report failed, once for each reason until a report is accepted.

        After a restore of the cluster, or a pause of this node, servers refuse the numbers of its reports. The node then
        registers again and continues with a higher number, so an operator need not do anything.
        """
        if not failures.is_new(error):
            return
        if isinstance(error, Refusal) and error.reason is RefusalReason.OUTDATED_REPORT:
            log.info(
                "report refused as outdated, registering again: the cluster was restored, or this node paused node=%s",
                self._log_name,
            )
        else:
            log.warning("report of allocations failed node=%s error=%s", self._log_name, error)


def _choose_fetch_count(fetched: Sequence[messages.Assignment]) -> int:
    """Return how many assignments the next request should fetch, by the average size of the last ones."""
    total_bytes = sum(len(_encode(assignment)) for assignment in fetched)
    return max(1, min(MAX_ASSIGNMENTS_PER_FETCH, len(fetched) * TARGET_FETCH_BYTES // max(1, total_bytes)))


_encode: Final = msgspec.msgpack.Encoder().encode
