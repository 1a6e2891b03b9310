"""Inheritance of policy fields: a group inherits from its job, and a task from its group.

A submitted block may set only two fields of a policy. The others come from the block one level above, and finally from the
defaults of the job type (jobs.md 2.1, 2.4). Only the submitted form shows which fields were set, so this module works on JSON
objects with wire names, before they are converted to records. It does not check values; the conversion reports wrong types.
"""

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from wharf.contract.model.jobs import defaults

JsonObject = dict[str, object]


def _as_block(policy: msgspec.Struct) -> JsonObject:
    """Return a policy record as a JSON object with wire names."""
    # msgspec always converts a struct to a dict.
    return cast(JsonObject, msgspec.to_builtins(policy))


RESTART_BLOCKS: Final = {name: _as_block(policy) for name, policy in defaults.RESTART_POLICIES.items()}
RESCHEDULE_BLOCKS: Final = {name: _as_block(policy) for name, policy in defaults.RESCHEDULE_POLICIES.items()}
UPDATE_BLOCKS: Final = {name: _as_block(policy) for name, policy in defaults.UPDATE_POLICIES.items()}
MIGRATE_BLOCKS: Final = {name: _as_block(policy) for name, policy in defaults.MIGRATE_POLICIES.items()}

JOB_UPDATE_FIELDS: Final = ("Stagger", "MaxParallel")
"""The fields of an update block that the job itself retains; the others belong to its groups."""
EMPTY_UPDATE_BLOCK: Final[JsonObject] = {name: type(value)() for name, value in UPDATE_BLOCKS["service"].items()}
"""An update block in which every field has the zero value of its type."""


ZERO_IF_ABSENT: Final = frozenset({"Limit", "IgnoreWarnings"})
"""The fields of a restart rule that are zero in the JSON of a job file in HCL if the file does not set them."""


def complete_job(job: JsonObject) -> JsonObject:
    """Complete a submitted job: copy its policies into its groups, and the restart policy of each group into its tasks.

    Defaults of the job type fill the remaining fields. Modifies and returns the JSON object.
    """
    job_type = str(job.get("Type") or "service")
    reschedule = job.pop("Reschedule", None)
    migrate = job.pop("Migrate", None)
    update = _inherit_update(job, job_type)
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
    """Complete a submitted group: its count and the minimum of its scaling block default to each other.

    Modifies and returns the JSON object.
    """
    scaling = group.get("Scaling")
    if not isinstance(scaling, dict):
        return group
    if "Count" not in group:
        group["Count"] = scaling.get("Min", 1)
    scaling.setdefault("Min", group["Count"])
    return group


def complete_service(service: JsonObject) -> JsonObject:
    """Complete a submitted service: copy its restart rule into each of its checks, and leave an absent provider empty.

    An empty provider differs from `consul`, which the job names itself: only that one causes a warning.
    Fields that a check sets itself take precedence. The zeros of `ZERO_IF_ABSENT` count as absent. Modifies and returns the
    JSON object.
    """
    if service.get("Provider") is None:
        service["Provider"] = ""
    restart, checks = service.get("CheckRestart"), service.get("Checks")
    if isinstance(restart, dict) and isinstance(checks, list):
        for check in checks:
            if isinstance(check, dict):
                _merge(check, "CheckRestart", restart, zero_if_absent=ZERO_IF_ABSENT)
    return service


def _complete_tasks(group: JsonObject) -> None:
    """Copy the restart policy of a submitted group into its tasks. Fields that a task sets itself take precedence."""
    tasks, restart = group.get("Tasks"), group["RestartPolicy"]
    if not isinstance(tasks, list):
        return
    for task in tasks:
        if isinstance(task, dict):
            _merge(task, "RestartPolicy", restart)


def _inherit_update(job: JsonObject, job_type: str) -> object:
    """Return the update block that the groups of a submitted job inherit; `None` if they inherit none.

    The job's own block is reduced to the fields that it retains.
    """
    submitted = job.get("Update")
    if not isinstance(submitted, Mapping):
        if submitted is None and job_type in UPDATE_BLOCKS:
            job["Update"] = _build_job_update(UPDATE_BLOCKS[job_type])
        return submitted
    if job_type not in UPDATE_BLOCKS and not any(submitted.values()):
        # An all-zero block: other servers show one for job types that have no update block.
        job.pop("Update")
        submitted = {}
    elif not submitted.get("HealthCheck") and not submitted.get("HealthyDeadline") and "HealthyDeadline" in submitted:
        # A stored job that is submitted again: its own block has only these two fields, its groups have the rest.
        submitted = {name: submitted[name] for name in JOB_UPDATE_FIELDS if name in submitted}
    if job_type in UPDATE_BLOCKS:
        job["Update"] = _build_job_update(UPDATE_BLOCKS[job_type] | dict(submitted))
        return submitted
    return None  # Validation rejects the job's block; copies in the groups would repeat the same error.


def _build_job_update(update: JsonObject) -> JsonObject:
    """Return the job's own update block: the two fields that it retains, and zeros for all others."""
    return EMPTY_UPDATE_BLOCK | {name: update[name] for name in JOB_UPDATE_FIELDS}


def _merge(target: JsonObject, name: str, *inherited: object, zero_if_absent: frozenset[str] = frozenset()) -> None:
    """Replace the block `target[name]` by the inherited blocks and itself, merged by field.

    Later blocks take precedence, and the target's own block comes last. A zero of its fields `zero_if_absent` replaces
    nothing. A value that is not a JSON object is not changed.
    """
    own_block = target.get(name)
    if own_block is not None and not isinstance(own_block, dict):
        return
    blocks = [block for block in (*inherited, own_block) if isinstance(block, dict)]
    if not blocks:
        return
    merged: JsonObject = {}
    for block in blocks:
        if zero_if_absent:
            block = {
                field: value
                for field, value in block.items()
                if field not in merged or field not in zero_if_absent or value != 0
            }
        merged |= block
    target[name] = merged
