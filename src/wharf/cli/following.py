"""Following a job to the end of its rollout, or of its work: what is seen of it, when that is over, and how it went.

It only looks. Whoever stops following changes nothing.
"""

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from wharf.cli.speaking import Talk
    from wharf.model.allocation import AllocationStub
    from wharf.model.deployment import Deployment
    from wharf.model.evaluation import Evaluation
    from wharf.model.job import Job
    from wharf.model.metric import AllocMetric

LOOK_AGAIN_S: Final = 1.0
EVALUATION_WAIT_S: Final = 10.0
_ENDED: Final = {"failed": "failed", "cancelled": "was given up"}


class Exit(enum.IntEnum):
    WELL = 0
    FAILED = 1
    NOT_PLACED = 2


class Sight(NamedTuple):
    """What is known of a job at one moment. `version`: the one that is followed."""

    job: "Job"
    version: int
    allocations: "tuple[AllocationStub, ...]"
    evaluations: "tuple[Evaluation, ...]"
    deployment: "Deployment | None"
    unplaced: "Mapping[str, AllocMetric]"
    at_index: int

    @property
    def current(self) -> "list[AllocationStub]":
        """Those of the version that is followed, the newest of each name."""
        newest: dict[str, AllocationStub] = {}
        for one in sorted(self.allocations, key=lambda one: one.create_index):
            if one.job_version == self.version:
                newest[f"{one.name} {one.node_id if self.is_everywhere else ''}"] = one
        return list(newest.values())

    @property
    def is_batch(self) -> bool:
        return self.job.type in ("batch", "sysbatch")

    @property
    def is_everywhere(self) -> bool:
        return self.job.type in ("system", "sysbatch")

    @property
    def is_scheduled(self) -> bool:
        """Nothing is to be decided just now."""
        return bool(self.evaluations) and all(one.status != "pending" for one in self.evaluations)

    @property
    def awaits_promotion(self) -> bool:
        """The canaries are well, and a person must say so."""
        groups = (self.deployment.task_groups or {}).values() if self.deployment else ()
        waiting = [group for group in groups if group.awaits_promotion and not group.auto_promote]
        return bool(waiting) and all(group.healthy_allocs >= group.desired_canaries for group in waiting)


class End(NamedTuple):
    how: Exit
    said: str
    exit_code: int = 0
    """Of work that failed, where all of it has the same."""


def look(talk: "Talk", job_id: str, namespace: str, version: int) -> Sight:
    client = talk.client
    job = client.jobs.read(job_id, namespace=namespace).value
    evaluations = client.jobs.evaluations(job_id, namespace=namespace).value
    deployments = client.jobs.deployments(job_id, namespace=namespace).value
    allocations = client.jobs.allocations(job_id, namespace=namespace)  # Last: no end is told before its allocations.
    mine = [one for one in deployments if one.job_version == version and one.job_create_index == job.create_index]
    return Sight(
        job=job,
        version=version,
        allocations=tuple(allocations.value),
        evaluations=tuple(evaluations),
        deployment=max(mine, key=lambda one: one.create_index, default=None),
        unplaced=unplaced(evaluations),
        at_index=allocations.index,
    )


def unplaced(evaluations: "list[Evaluation]") -> "Mapping[str, AllocMetric]":
    from wharf.cli.reasons import unplaced_of

    return unplaced_of(evaluations)


def end_of(sight: Sight) -> End | None:
    """None while it goes on."""
    if sight.deployment is not None:
        if not sight.deployment.status.is_terminal:
            return None
        if sight.deployment.status == "successful":
            return End(Exit.WELL, "the rollout succeeded")
        why = sight.deployment.status_description or sight.deployment.status
        return End(
            Exit.NOT_PLACED if sight.unplaced else Exit.FAILED, f"the rollout {_ENDED[sight.deployment.status]}: {why}"
        )
    if sight.job.version != sight.version:
        return End(Exit.FAILED, f"version {sight.job.version} was submitted in the meantime")
    if sight.job.stop:
        return End(Exit.FAILED, "the job was stopped in the meantime")
    if not sight.is_scheduled:
        return None
    return _end_of_batch(sight) if sight.is_batch else _end_without_rollout(sight)


def _end_of_batch(sight: Sight) -> End | None:
    if sight.job.status != "dead":
        return None
    ended = sight.current
    failed = [one for one in ended if one.client_status in ("failed", "lost")]
    if failed:
        from wharf.cli.reasons import common_exit_code

        said = f"the work failed: {len(failed)} of {len(ended)} did not come to a good end"
        return End(Exit.FAILED, said, common_exit_code(failed))
    return End(Exit.WELL, f"the work is done: {len(ended)} of {len(ended)} complete")


def _end_without_rollout(sight: Sight) -> End | None:
    waiting = [one for one in sight.current if one.client_status == "pending"]
    if waiting:
        return None
    failed = [one for one in sight.current if one.client_status in ("failed", "lost")]
    if failed:
        return End(Exit.FAILED, f"{len(failed)} of {len(sight.current)} allocations failed")
    if sight.unplaced:
        return End(Exit.NOT_PLACED, "not all of it was placed; what is missing is placed as soon as there is room")
    needs_rollout = sight.job.type == "service" and any(
        group.count and group.update is not None and group.update.max_parallel for group in sight.job.groups
    )
    if needs_rollout and sight.current and sight.version == 0 and not _is_everyone_running(sight):
        return None
    count = len(sight.current)
    return End(Exit.WELL, "1 allocation runs" if count == 1 else f"{count} allocations run")


def _is_everyone_running(sight: Sight) -> bool:
    return all(one.client_status == "running" for one in sight.current)


def follow(talk: "Talk", job_id: str, namespace: str, version: int) -> int:
    """To the end. On a terminal as a picture that changes in place, else line by line."""
    from wharf.cli.last_words import last_line
    from wharf.cli.live import Lines, Picture
    from wharf.cli.reasons import what_went_wrong

    view = Picture(talk) if talk.is_terminal else Lines(talk)
    began_ns = talk.now_ns()
    with view:
        try:
            sight = look(talk, job_id, namespace, version)
            while (end := end_of(sight)) is None:
                view.show(sight, talk.now_ns() - began_ns)
                talk.client.jobs.allocations(job_id, namespace=namespace, index=sight.at_index, wait_s=LOOK_AGAIN_S)
                sight = look(talk, job_id, namespace, version)
            view.show(sight, talk.now_ns() - began_ns)
        except KeyboardInterrupt:
            view.leave()
            raise LeftRunning(job_id) from None
    if end.how == Exit.FAILED and not talk.is_for_programs:
        view.leave()
        for each in what_went_wrong(sight.current):
            talk.say(f"  {each.said}")
            if each.task and (last := last_line(talk, each.newest, each.task)):
                talk.say(f"    {last}")
    view.tell(end.how == Exit.WELL, f"{job_id}: {end.said}")
    return end.exit_code or end.how


class LeftRunning(Exception):
    """Whoever followed has had enough."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


def follow_evaluation(talk: "Talk", eval_id: str, namespace: str) -> "Evaluation":
    """Until it is decided."""
    answer = talk.client.evaluations.read(eval_id, namespace=namespace)
    while answer.value.status == "pending":
        answer = talk.client.evaluations.read(
            eval_id, namespace=namespace, index=answer.index, wait_s=EVALUATION_WAIT_S
        )
    return answer.value
