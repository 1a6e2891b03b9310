"""What a group inherits from its job, and a task from its group, where only some fields of a block were given.

A submitted block may name two fields of a policy; the others come from the block above it, and in the end from the
defaults of the job's type (jobs.md 2.1, 2.4). Which fields were given is known only in the submitted form, so this
works on plain objects with the wire's names, right before they become records. Values are moved, never looked into:
a wrong type is told later, by conversion.
"""

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from wharf.contract.model.jobs import defaults

JsonObject = dict[str, object]


def _as_block(policy: msgspec.Struct) -> JsonObject:
    # A struct always becomes a dict of wire names.
    return cast(JsonObject, msgspec.to_builtins(policy))


RESTART_BLOCKS: Final = {name: _as_block(policy) for name, policy in defaults.RESTART_POLICIES.items()}
RESCHEDULE_BLOCKS: Final = {name: _as_block(policy) for name, policy in defaults.RESCHEDULE_POLICIES.items()}
UPDATE_BLOCKS: Final = {name: _as_block(policy) for name, policy in defaults.UPDATE_POLICIES.items()}
MIGRATE_BLOCKS: Final = {name: _as_block(policy) for name, policy in defaults.MIGRATE_POLICIES.items()}

# What survives of an update block at the level of the job.
JOB_UPDATE_FIELDS: Final = ("Stagger", "MaxParallel")
EMPTY_UPDATE_BLOCK: Final[JsonObject] = {name: type(value)() for name, value in UPDATE_BLOCKS["service"].items()}


def complete_job(job: JsonObject) -> JsonObject:
    """Hands the policies of the job down to its groups, and those of a group to its tasks."""
    job_type = str(job.get("Type") or "service")
    reschedule = job.pop("Reschedule", None)
    migrate = job.pop("Migrate", None)
    update = _update_of_job(job, job_type)
    groups = job.get("TaskGroups")
    if not isinstance(groups, list):
        return job
    for group in groups:
        if not isinstance(group, dict):
            continue
        _merge(group, "Update", UPDATE_BLOCKS.get(job_type), update)
        _merge(group, "ReschedulePolicy", RESCHEDULE_BLOCKS.get(job_type), reschedule)
        _merge(group, "Migrate", MIGRATE_BLOCKS.get(job_type), migrate)
        _merge(group, "RestartPolicy", RESTART_BLOCKS.get(job_type, RESTART_BLOCKS["service"]))
        _complete_tasks(group)
    return job


def complete_group(group: JsonObject) -> JsonObject:
    """The count and the lower bound of scaling stand for each other."""
    scaling = group.get("Scaling")
    if not isinstance(scaling, dict):
        return group
    if "Count" not in group:
        group["Count"] = scaling.get("Min", 1)
    scaling.setdefault("Min", group["Count"])
    return group


def complete_service(service: JsonObject) -> JsonObject:
    """A service's rule for restarts holds for each of its checks, under what the check says itself."""
    restart, checks = service.get("CheckRestart"), service.get("Checks")
    if isinstance(restart, dict) and isinstance(checks, list):
        for check in checks:
            if isinstance(check, dict):
                _merge(check, "CheckRestart", restart)
    return service


def _complete_tasks(group: JsonObject) -> None:
    tasks, restart = group.get("Tasks"), group["RestartPolicy"]
    if not isinstance(tasks, list):
        return
    for task in tasks:
        if isinstance(task, dict):
            _merge(task, "RestartPolicy", restart)


def _update_of_job(job: JsonObject, job_type: str) -> object:
    """What the groups inherit of the job's update block; the job keeps what belongs to it."""
    given = job.get("Update")
    if not isinstance(given, Mapping):
        if given is None and job_type in UPDATE_BLOCKS:
            job["Update"] = _kept_by_the_job(UPDATE_BLOCKS[job_type])
        return given
    if job_type not in UPDATE_BLOCKS and not any(given.values()):
        # The block of a job whose type has none, as it is shown by other servers.
        job.pop("Update")
        given = {}
    elif not given.get("HealthCheck") and not given.get("HealthyDeadline") and "HealthyDeadline" in given:
        # A stored job that is submitted again: its block holds only these two, the groups have the rest.
        given = {name: given[name] for name in JOB_UPDATE_FIELDS if name in given}
    if job_type in UPDATE_BLOCKS:
        job["Update"] = _kept_by_the_job(UPDATE_BLOCKS[job_type] | dict(given))
        return given
    return None  # Refused by validation where it stands, once, and not again in every group.


def _kept_by_the_job(update: JsonObject) -> JsonObject:
    return EMPTY_UPDATE_BLOCK | {name: update[name] for name in JOB_UPDATE_FIELDS}


def _merge(holder: JsonObject, name: str, *inherited: object) -> None:
    """Puts under the block of that name what is inherited, the nearest last. Without any block there is none."""
    given = holder.get(name)
    if given is not None and not isinstance(given, dict):
        return
    blocks = [block for block in (*inherited, given) if isinstance(block, dict)]
    if not blocks:
        return
    merged: JsonObject = {}
    for block in blocks:
        merged |= block
    holder[name] = merged
