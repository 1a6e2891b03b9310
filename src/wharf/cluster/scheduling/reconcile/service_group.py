"""One group of a service or batch job: what it has against what it shall have (scheduling.md 5.3 to 5.10).

The steps stand in `run` in the order of the reference; each takes from the sets that the steps before it left.
"""

from collections.abc import Container, Iterable
from typing import Final

from msgspec.structs import replace

from wharf.cluster.scheduling.reconcile.classification import (
    AllocationClass,
    classify_allocation,
    get_lost_after_ns,
    get_unknown_since_ns,
    is_last_state_unknown,
    should_reconnect,
    should_replace_lost,
)
from wharf.cluster.scheduling.reconcile.input import (
    LOST_TEXT,
    MIGRATING_TEXT,
    NOT_NEEDED_TEXT,
    RECONNECTED_TEXT,
    RESCHEDULED_TEXT,
    UNKNOWN_TEXT,
    UPDATING_TEXT,
    ReconcileInput,
    add_state,
    is_replacement_owed,
)
from wharf.cluster.scheduling.reconcile.names import AllocationNames, parse_index
from wharf.cluster.scheduling.reconcile.outcome import (
    AllocationStop,
    FollowUp,
    GroupOutcome,
    PlacementRequest,
    ReplacementRequest,
)
from wharf.cluster.scheduling.reconcile.reconnects import is_obsolete, should_keep_original
from wharf.cluster.scheduling.reconcile.replacement_chain import ReplacementChain
from wharf.cluster.scheduling.reconcile.rescheduling import RescheduleSorter, RetryKind, decide_retry, has_succeeded
from wharf.cluster.scheduling.reconcile.surplus import AllocationsById, order_surplus
from wharf.cluster.scheduling.reconcile.updates import is_destructive_update
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.deployments import DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.plan import DesiredUpdates
from wharf.contract.model.times import SECOND, to_ns

MIN_KILL_TIMEOUT_NS: Final = 5 * SECOND


def reconcile_group(sight: ReconcileInput, group: TaskGroup, allocations: Iterable[Allocation]) -> GroupOutcome:
    return _Group(sight, group).run({each.id: each for each in allocations})


def stop_group(
    sight: ReconcileInput, name: str, group: TaskGroup | None, allocations: Iterable[Allocation]
) -> GroupOutcome:
    """The group, or the job, is no longer wanted: everything that is not over stops, and nothing takes its place."""
    outcome = GroupOutcome(name, is_complete=True)
    for allocation in allocations:
        if allocation.is_server_terminal or (allocation.is_client_terminal and not should_reconnect(allocation)):
            continue
        is_lost = classify_allocation(allocation, group, sight.tainted_nodes, sight.now_ns) in (
            AllocationClass.LOST,
            AllocationClass.EXPIRING,
        )
        outcome.stops.append(_lost(allocation) if is_lost else AllocationStop(allocation, NOT_NEEDED_TEXT))
    outcome.update_counts = DesiredUpdates(stop=len(outcome.stops))
    return outcome


def _lost(allocation: Allocation) -> AllocationStop:
    return AllocationStop(allocation, LOST_TEXT, ClientStatus.LOST)


class _Group:
    def __init__(self, sight: ReconcileInput, group: TaskGroup) -> None:
        self._sight = sight
        self._job = sight.job
        self._group = group
        self._retries = RescheduleSorter(sight, group)
        self._out = GroupOutcome(group.name)
        self._counts: dict[str, int] = dict.fromkeys(DesiredUpdates.__struct_fields__, 0)
        deployment = sight.deployment
        self._is_paused = deployment is not None and deployment.status is not DeploymentStatus.RUNNING
        self._is_failed = deployment is not None and deployment.status is DeploymentStatus.FAILED
        known = (deployment.task_groups or {}).get(group.name) if deployment is not None else None
        self._had_state = known is not None
        self._state = known if known is not None else self._new_state()
        self._tried = dict.fromkeys(self._state.placed_canaries or ())
        """The canaries of this try, whatever became of them."""
        self._now: list[Allocation] = []
        """To be rescheduled now."""
        self._now_staying: list[tuple[Allocation, int]] = []
        """To be replaced though they are not stopped, with the time from which delays count."""
        self._watched: list[Allocation] = []
        """Failed, and whoever watches the deployment has not said yet what is to become of them."""
        self._owed = 0
        """Stopped to be replaced where there was no room yet: these are placed, whatever became of the deployment."""
        self._standing: set[str] = set()
        """Those that are not over, or failed and keep their place, by id."""
        self._succession = ReplacementChain({})
        self._is_held = False
        """Nothing is placed for the moment: what is lost may still be running where it was."""

    @property
    def _update(self) -> UpdatePolicy | None:
        """How updates are rolled out; None: all at once."""
        update = self._group.update
        return update if update is not None and update.max_parallel > 0 else None

    def _new_state(self) -> DeploymentGroup:
        update = self._group.update
        if update is None:
            return DeploymentGroup()
        return DeploymentGroup(
            auto_revert=update.auto_revert, auto_promote=update.auto_promote, progress_deadline=update.progress_deadline
        )

    def run(self, everyone: AllocationsById) -> GroupOutcome:
        out = self._out
        self._succession = ReplacementChain(dict(everyone))
        self._standing = {key for key, each in everyone.items() if not each.is_terminal}
        self._owed = sum(map(is_replacement_owed, everyone.values()))
        self._hold_while_lost_may_run(everyone.values())
        everyone = self._without_the_settled(everyone)
        canaries = self._sort_out_canaries(everyone)
        classes: dict[AllocationClass, AllocationsById] = {each: {} for each in AllocationClass}
        for allocation in everyone.values():
            classes[self._class_of(allocation)][allocation.id] = allocation
        untainted = classes[AllocationClass.UNTAINTED]
        # An allocation that was stopped while its node was out of contact is not replaced when the node reconnects.
        migrating = {
            key: each for key, each in classes[AllocationClass.MIGRATING].items() if not each.is_server_terminal
        }
        lost = {**classes[AllocationClass.LOST], **classes[AllocationClass.EXPIRING]}
        retried = self._retries.split_allocations(untainted)
        untainted, self._now, self._watched = retried.remaining, retried.reschedule_now, retried.awaiting_watcher
        self._standing.update(untainted, (each.id for each in self._now))
        for each in retried.follow_ups:
            self._out.follow_ups.append(each)
            self._counts["reschedule_later"] += 1
        self._reconnect(classes[AllocationClass.RECONNECTING], untainted)
        self._disconnect(classes[AllocationClass.DISCONNECTING], untainted)
        self._stop_migrating_with_replacement(migrating)
        untainted = {key: untainted[key] for key in everyone if key in untainted}  # The oldest first again.
        self._give_up(lost)

        is_canarying = self._state.desired_canaries > 0 and not self._state.promoted and self._is_deploying
        if is_canarying:
            # Whatever becomes of them, they take nobody's place before they are promoted.
            for canary_id in self._tried:
                untainted.pop(canary_id, None)
        self._stop_surplus(untainted, migrating, canaries, is_canarying=is_canarying)
        destructive = self._update_in_place(untainted)
        self._stop_what_nobody_knows_of(untainted, destructive, len(migrating))
        counted = [each for each in untainted.values() if not self._has_stand_in(each)]
        beside = self._tried if is_canarying else {}
        self._give_up_what_is_too_many(self._group.count - len(counted) - len(migrating), beside)
        in_group = [each for each in self._now if each.id not in beside]
        existing = [*counted, *migrating.values(), *in_group]
        self._now_staying = self._now_staying[: max(0, self._group.count - len(existing))]
        existing += [each for each, _ in self._now_staying]
        replaced_lost = [*lost.values()][: max(0, self._group.count - len(existing))]
        existing += replaced_lost
        # Every stop without a replacement is decided by now, so the name of each such allocation is free.
        names = AllocationNames(self._job.id, self._group.name, self._group.count, (each.name for each in existing))
        self._place_canaries(destructive, canaries, names)
        is_canarying = self._state.desired_canaries > 0 and not self._state.promoted and self._update is not None
        budget = self._budget(untainted, destructive, migrating, is_canarying=is_canarying)
        missing = self._group.count - len(existing)
        self._place(counted, migrating, replaced_lost, missing, names, is_canarying=is_canarying)
        # While nothing is placed, what is missing counts as down: an update takes down that much less.
        withheld = max(0, self._group.count - len(counted) - len(migrating)) if self._is_held else 0
        replaced = destructive[: max(0, budget - len(out.placements) - withheld)]
        taken = self._replace(replaced, counted, names)
        self._migrate(migrating, taken, names, is_canarying=is_canarying)
        self._tell_deployment(everyone.values(), destructive)
        out.is_complete = self._is_complete(destructive, migrating)
        self._counts["ignore"] += len(destructive) - len(replaced)
        out.update_counts = DesiredUpdates(**self._counts)
        return out

    # -- who is concerned ------------------------------------------------------------------------------------------

    def _without_the_settled(self, everyone: AllocationsById) -> AllocationsById:
        """Those that are over for good say nothing of what is missing."""
        kept = {}
        for key, allocation in everyone.items():
            if self._sight.is_batch:
                is_older = (allocation.job_version, allocation.job_create_index) != (
                    self._job.version,
                    self._job.create_index,
                )
                if allocation.is_terminal and is_older:
                    continue
                if allocation.is_server_terminal and not has_succeeded(allocation) and not should_reconnect(allocation):
                    continue
            elif allocation.is_server_terminal and not should_reconnect(allocation):
                continue
            kept[key] = allocation
        return kept

    def _class_of(self, allocation: Allocation) -> AllocationClass:
        if self._sight.is_batch and allocation.is_server_terminal and not should_reconnect(allocation):
            return (
                AllocationClass.UNTAINTED
            )  # Only what ran well is still here: it is done, though it was told to stop.
        return classify_allocation(allocation, self._group, self._sight.tainted_nodes, self._sight.now_ns)

    def _sort_out_canaries(self, everyone: AllocationsById) -> AllocationsById:
        """AllocationStop those of tries that are over, and those on nodes that are not fine. The others of this try are given back."""
        sight = self._sight
        for over in [each for each in everyone.values() if self._is_of_a_try_that_is_over(each)]:
            del everyone[over.id]
            # One that failed is stopped too: nobody is to try it again.
            if not over.is_server_terminal and over.client_status not in (ClientStatus.COMPLETE, ClientStatus.LOST):
                is_lost = (
                    classify_allocation(over, self._group, sight.tainted_nodes, sight.now_ns) is AllocationClass.LOST
                )
                self._stop(_lost(over) if is_lost else AllocationStop(over, NOT_NEEDED_TEXT))
        if sight.deployment is None or self._is_failed:
            return {}
        found: AllocationsById = {}
        for canary_id in self._state.placed_canaries or ():
            canary = everyone.get(canary_id)
            if canary is None:
                continue
            match classify_allocation(canary, self._group, sight.tainted_nodes, sight.now_ns):
                case AllocationClass.MIGRATING:
                    self._stop(AllocationStop(everyone.pop(canary_id), MIGRATING_TEXT))
                case AllocationClass.LOST:
                    self._stop(_lost(everyone.pop(canary_id)))
                case _:
                    found[canary_id] = canary
        return {key: canary for key, canary in found.items() if _is_still_tried(canary)}

    def _is_of_a_try_that_is_over(self, allocation: Allocation) -> bool:
        """A canary loses its mark when it is promoted, so one that has it and is not of this try never will be."""
        status, deployment = allocation.deployment_status, self._sight.deployment
        if status is None or not status.canary:
            return False
        return deployment is None or self._is_failed or allocation.deployment_id != deployment.id

    # -- what failed, what is out of contact, what came back ---------------------------------------------------------

    def _reconnect(self, reconnecting: AllocationsById, untainted: AllocationsById) -> None:
        for key, original in reconnecting.items():
            if original.client_status is ClientStatus.FAILED and not original.is_server_terminal:
                self._stop(AllocationStop(original, RESCHEDULED_TEXT))
                continue
            if is_obsolete(original, self._job):
                self._stop(AllocationStop(original, NOT_NEEDED_TEXT))
                continue
            stays = True
            for replacement in self._succession.iter_replacements(original):
                if replacement.is_terminal:
                    continue
                if should_keep_original(original, replacement, self._group):
                    if untainted.pop(replacement.id, None) is not None:
                        self._stop(AllocationStop(replacement, RECONNECTED_TEXT))
                else:
                    stays = False
            if not stays:
                self._stop(AllocationStop(original, RECONNECTED_TEXT))
                continue
            if original.client_status is not ClientStatus.UNKNOWN:
                self._out.reconnects.append(add_state(original, original.client_status, self._sight.now_ns))
                self._counts["reconnect"] += 1
            untainted[key] = original

    def _disconnect(self, disconnecting: AllocationsById, untainted: AllocationsById) -> None:
        now_ns, window = self._sight.now_ns, get_lost_after_ns(self._group)
        for key, allocation in disconnecting.items():
            unknown = replace(
                add_state(allocation, ClientStatus.UNKNOWN, now_ns),
                client_status=ClientStatus.UNKNOWN,
                client_description=UNKNOWN_TEXT,
            )
            self._out.disconnects.append(unknown)
            self._counts["disconnect"] += 1
            if window:
                self._out.follow_ups.append(
                    FollowUp(unknown, now_ns + window, EvaluationTrigger.MAX_DISCONNECT_TIMEOUT)
                )
            untainted[key] = unknown
        for key, allocation in [*untainted.items()]:
            if allocation.client_status is ClientStatus.UNKNOWN and self._replace_unknown(allocation):
                untainted.pop(key)

    def _stop_migrating_with_replacement(self, migrating: AllocationsById) -> None:
        """Stop allocations that were replaced while their node was out of contact: they have migrated already."""
        for allocation in [*migrating.values()]:
            if is_last_state_unknown(allocation) and self._is_followed(allocation):
                del migrating[allocation.id]
                if not allocation.is_terminal:
                    self._stop(AllocationStop(allocation, MIGRATING_TEXT))

    def _replace_unknown(self, allocation: Allocation) -> bool:
        """Whether another takes its place now, while nobody knows what it does."""
        since = get_unknown_since_ns(allocation)
        if allocation.next_allocation or since is None or not should_replace_lost(self._group):
            return False
        if self._retries.waits_for_watcher(allocation):
            return False
        retry = decide_retry(allocation, self._group, self._sight.now_ns, failed_at_ns=since)
        if retry.kind is RetryKind.LATER:
            self._out.follow_ups.append(
                FollowUp(allocation, retry.due_at_ns, EvaluationTrigger.ALLOC_RESCHEDULE, is_linked=False)
            )
        if retry.kind is not RetryKind.NOW:
            return False
        self._now_staying.append((allocation, since))
        return True

    def _give_up(self, lost: AllocationsById) -> None:
        wait_ns = self._wait_for_lost_ns()
        for allocation in lost.values():
            self._stop(_lost(allocation))
            if wait_ns is not None:
                self._is_held = True
                self._out.follow_ups.append(
                    FollowUp(allocation, self._sight.now_ns + wait_ns, EvaluationTrigger.ALLOC_FAILURE)
                )

    def _wait_for_lost_ns(self) -> int | None:
        """How long the node itself takes to stop what it lost contact for; None: nobody waits for that."""
        disconnect = self._group.disconnect
        if disconnect is None or disconnect.stop_on_client_after is None:
            return None
        kill_timeouts = [task.kill_timeout or 0 for task in self._group.tasks or ()]
        return disconnect.stop_on_client_after + max(MIN_KILL_TIMEOUT_NS, *kill_timeouts)

    def _hold_while_lost_may_run(self, everyone: Iterable[Allocation]) -> None:
        wait_ns = self._wait_for_lost_ns()
        if wait_ns is None:
            return
        for allocation in everyone:
            if allocation.client_status is ClientStatus.LOST and not allocation.next_allocation:
                states = allocation.alloc_states or ()
                at = states[-1].time if states and states[-1].value == ClientStatus.LOST else None
                lost_at_ns = to_ns(at) if at is not None else allocation.modify_time
                self._is_held = self._is_held or lost_at_ns + wait_ns > self._sight.now_ns

    # -- too many, or of an old version --------------------------------------------------------------------------------

    def _stop_surplus(
        self, untainted: AllocationsById, migrating: AllocationsById, canaries: AllocationsById, *, is_canarying: bool
    ) -> None:
        known = {key: each for key, each in untainted.items() if each.client_status is not ClientStatus.UNKNOWN}
        surplus = len(known) + len(migrating) - self._group.count
        if surplus <= 0:
            return
        for is_leaving, key in order_surplus(known, migrating, canaries, is_canarying=is_canarying):
            source = migrating if is_leaving else untainted
            if surplus <= 0:
                break
            allocation = source.pop(key, None)
            if allocation is None:
                continue
            # Work that is done is no longer counted, that is all.
            if allocation.client_status is not ClientStatus.COMPLETE:
                self._stop(AllocationStop(allocation, NOT_NEEDED_TEXT))
            surplus -= 1

    def _stop_what_nobody_knows_of(
        self, untainted: AllocationsById, destructive: list[Allocation], leaving: int
    ) -> None:
        """Stop unknown allocations of an older version that have a replacement, and others beyond the group's count.

        They are of no use when they reconnect. A destructive update of one would place more than the group's count.
        """
        spare = sum(not self._has_stand_in(each) for each in untainted.values()) + leaving - self._group.count
        for allocation in [each for each in destructive if each.client_status is ClientStatus.UNKNOWN]:
            if not self._has_stand_in(allocation):
                if spare <= 0:
                    continue
                spare -= 1
            destructive.remove(allocation)
            untainted.pop(allocation.id)
            self._stop(AllocationStop(allocation, NOT_NEEDED_TEXT))

    def _update_in_place(self, untainted: AllocationsById) -> list[Allocation]:
        """Those that need to start anew; the others are left alone, or become part of the new version where they are."""
        destructive: list[Allocation] = []
        for allocation in untainted.values():
            if self._is_current(allocation):
                self._counts["ignore"] += 1
                continue
            old_job = self._sight.find_job_version(allocation)
            old = old_job.find_group(allocation.task_group) if old_job is not None else None
            if old_job is None or old is None or is_destructive_update(old_job, old, self._job, self._group):
                destructive.append(allocation)
            elif allocation.is_terminal:
                self._counts["ignore"] += 1
            elif self._sight.can_update_in_place(allocation, self._group):
                self._out.in_place_updates.append(allocation)
                self._counts["in_place_update"] += 1
            else:
                destructive.append(allocation)
        return sorted(destructive, key=lambda allocation: parse_index(allocation.name))

    def _is_current(self, allocation: Allocation) -> bool:
        return (allocation.job_version, allocation.job_create_index) == (self._job.version, self._job.create_index)

    # -- canaries, placements ------------------------------------------------------------------------------------------

    @property
    def _is_deploying(self) -> bool:
        return self._update is not None

    def _place_canaries(self, destructive: list[Allocation], canaries: AllocationsById, names: AllocationNames) -> None:
        update = self._update
        if update is None or not update.canary or not destructive or self._state.promoted:
            return
        if self._is_paused or self._is_failed:
            return
        self._state = replace(self._state, desired_canaries=update.canary)
        missing = update.canary - len(canaries)
        if missing <= 0 or self._is_held:
            return
        taken = (canary.name for canary in canaries.values())
        for name in names.take_canary_names(missing, taken, (each.name for each in destructive)):
            self._out.placements.append(PlacementRequest(name, self._job, self._group, is_canary=True))
            self._counts["canary"] += 1

    def _budget(
        self,
        untainted: AllocationsById,
        destructive: list[Allocation],
        migrating: AllocationsById,
        *,
        is_canarying: bool,
    ) -> int:
        """How many may be exchanged now."""
        update, deployment = self._update, self._sight.deployment
        if update is None or not (destructive or migrating):
            return self._group.count
        if self._is_paused or self._is_failed or is_canarying:
            return 0
        # What leaves its node is down for a while too, and goes in any case: the update waits for it.
        leaving = sum(not each.is_terminal for each in migrating.values())
        if deployment is None:
            return max(0, update.max_parallel - leaving)
        undecided = leaving
        for allocation in untainted.values():
            if allocation.deployment_id != deployment.id:
                continue
            status = allocation.deployment_status
            if status is not None and status.healthy is False:
                return 0
            undecided += status is None or status.healthy is None
        return max(0, update.max_parallel - undecided)

    def _place(
        self,
        counted: list[Allocation],
        migrating: AllocationsById,
        lost: list[Allocation],
        missing: int,
        names: AllocationNames,
        *,
        is_canarying: bool,
    ) -> None:
        """Place failed allocations first, then the lost ones that are replaced, then `missing` new ones."""
        may_place_new = not (self._is_paused or self._is_failed)
        deployment = self._sight.deployment
        placed = 0
        taken = {each.name for each in (*counted, *migrating.values())}
        for allocation in self._now:
            of_failed = self._is_failed and deployment is not None and allocation.deployment_id == deployment.id
            if of_failed or self._is_held:
                continue
            placement = self._placement(allocation.name, allocation, is_canarying, is_reschedule=True)
            placement = _under_a_free_name(placement, taken, names)
            self._out.placements.append(replace(placement, stop=AllocationStop(allocation, RESCHEDULED_TEXT)))
            self._counts["reschedule_now"] += 1
            placed += 1
        for allocation, since in self._now_staying:
            if self._is_held:
                continue
            placement = self._placement(allocation.name, allocation, is_canarying, is_reschedule=True)
            placement = _under_a_free_name(placement, taken, names)
            self._out.placements.append(replace(placement, failed_at_ns=since))
            self._counts["reschedule_now"] += 1
            placed += 1
        for allocation in lost:
            if self._is_held:
                break
            placement = self._placement(allocation.name, allocation, is_canarying)
            self._out.placements.append(_under_a_free_name(placement, taken, names))
            placed += 1
        if not may_place_new:
            missing = min(missing, self._owed)
        if missing > 0 and not self._is_held:
            for name in names.take_names(missing):
                self._out.placements.append(self._placement(name, None, is_canarying))
            placed += missing
        self._counts["place"] += placed

    def _give_up_what_is_too_many(self, room: int, beside: Container[str]) -> None:
        """What failed is tried again only where it is missing: never more of the group are made than are wanted."""
        kept = []
        for allocation in self._now:
            if allocation.id in beside:
                kept.append(allocation)
            elif room > 0:
                kept.append(allocation)
                room -= 1
            else:
                self._stop(AllocationStop(allocation, NOT_NEEDED_TEXT))
        self._now = kept

    def _has_stand_in(self, allocation: Allocation) -> bool:
        """Nobody knows what it does, and another that is counted itself has its place."""
        return allocation.client_status is ClientStatus.UNKNOWN and self._is_followed(allocation)

    def _is_followed(self, allocation: Allocation) -> bool:
        """Return whether an allocation that took its place, directly or in several steps, still has that place."""
        return any(each.id in self._standing for each in self._succession.iter_replacements(allocation))

    def _placement(
        self, name: str, previous: Allocation | None, is_canarying: bool, *, is_reschedule: bool = False
    ) -> PlacementRequest:
        status = previous.deployment_status if previous is not None else None
        if is_canarying and is_reschedule and status is not None and status.canary:
            return PlacementRequest(name, self._job, self._group, previous, is_canary=True, is_reschedule=True)
        job, group, deployment_id = self._job, self._group, ""
        if is_canarying:
            job, group, deployment_id = self._older_version(previous)
        return PlacementRequest(name, job, group, previous, is_reschedule=is_reschedule, deployment_id=deployment_id)

    def _older_version(self, previous: Allocation | None) -> tuple[Job, TaskGroup, str]:
        """While canaries are tried, what else is missing comes back as it was."""
        this = self._job, self._group, ""
        stable = self._sight.find_stable_version(self._group.name)
        if stable is not None:
            job, deployment_id = stable
            group = job.find_group(self._group.name)
            if group is not None and (previous is None or job.version >= previous.job_version):
                return job, group, deployment_id
        old = self._sight.find_job_version(previous) if previous is not None else None
        group = old.find_group(self._group.name) if old is not None else None
        if old is not None and group is not None and group.update is None:
            return old, group, ""
        return this

    def _replace(self, replaced: list[Allocation], staying: Iterable[Allocation], names: AllocationNames) -> set[str]:
        """Replace each under its own name, or under a free one if another allocation has that name too.

        Return the names that are in use.
        """
        going = {allocation.id for allocation in replaced}
        taken = {each.name for each in staying if each.id not in going}
        for allocation in replaced:
            name = allocation.name if allocation.name not in taken else names.take_free(allocation.name)
            taken.add(name)
            placement = PlacementRequest(name, self._job, self._group, allocation)
            self._out.replacements.append(ReplacementRequest(AllocationStop(allocation, UPDATING_TEXT), placement))
            self._counts["destructive_update"] += 1
        return taken

    def _migrate(
        self, migrating: AllocationsById, taken: set[str], names: AllocationNames, *, is_canarying: bool
    ) -> None:
        """Always, whatever the deployment does: their nodes are to be empty. A canary that was promoted may have the name of
        one that was not stopped for it yet."""
        for allocation in migrating.values():
            transition = allocation.desired_transition
            if not allocation.is_terminal:
                self._stop(AllocationStop(allocation, MIGRATING_TEXT), count=False)
                self._counts["migrate"] += 1
            if self._is_held or (transition is not None and transition.migrate_disable_placement):
                continue
            placement = self._placement(allocation.name, allocation, is_canarying)
            self._out.placements.append(_under_a_free_name(placement, taken, names))

    # -- the deployment --------------------------------------------------------------------------------------------------

    def _tell_deployment(self, everyone: Iterable[Allocation], destructive: list[Allocation]) -> None:
        out = self._out
        if self._sight.deployment is not None:
            if self._had_state:
                out.deployment = self._state
            return
        total = len(destructive) + len(out.in_place_updates) + sum(not place.is_canary for place in out.placements)
        if self._update is None or total == 0:
            return
        is_updating = bool(destructive or out.in_place_updates)
        if not is_updating and any(self._is_current(each) for each in everyone):
            return
        out.is_new_deployment = True
        out.deployment = replace(self._state, desired_total=total)

    def _is_complete(self, destructive: list[Allocation], migrating: AllocationsById) -> bool:
        out = self._out
        if destructive or out.in_place_updates or out.placements or migrating or self._now or self._now_staying:
            return False
        if any(each.trigger is EvaluationTrigger.ALLOC_RESCHEDULE for each in out.follow_ups):
            return False
        # A deployment that ends is watched no more: who waits for that word would wait for ever.
        stopped = {each.allocation.id for each in out.stops}
        if any(_is_unwell(each) and each.id not in stopped for each in self._watched):
            return False
        state = self._state
        if state.desired_canaries and not state.promoted:
            return False
        return state.healthy_allocs >= max(state.desired_total, state.desired_canaries)

    # -- saying it -------------------------------------------------------------------------------------------------------

    def _stop(self, stop: AllocationStop, *, count: bool = True) -> None:
        self._out.stops.append(stop)
        self._standing.discard(stop.allocation.id)  # Whoever it stood in for counts again.
        if count:
            self._counts["stop"] += 1


def _under_a_free_name(placement: PlacementRequest, taken: set[str], names: AllocationNames) -> PlacementRequest:
    """Under its own, unless another that stays has that too. A canary shares the name of what it may replace."""
    if placement.is_canary:
        return placement
    if placement.name in taken:
        placement = replace(placement, name=names.take_free(placement.name))
    taken.add(placement.name)
    return placement


def _is_unwell(allocation: Allocation) -> bool:
    return allocation.deployment_status is not None and allocation.deployment_status.healthy is False


def _is_still_tried(canary: Allocation) -> bool:
    """It runs, or failed and is to be tried again: no other canary takes its place meanwhile."""
    waits = canary.client_status is ClientStatus.FAILED and not canary.next_allocation
    return not canary.is_server_terminal and (waits or not canary.is_client_terminal)
