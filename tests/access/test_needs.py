"""Rights per group of operations (reference 5.5, with the tables of jobs and of nodes and allocations that it points to).

Each need is met by exactly those single grants that its row names: every other capability alone is refused.
"""

from collections.abc import Iterator

import pytest

from tests.access.policies import rights
from wharf.access import EVERY_RIGHT, NO_RIGHTS, Rights
from wharf.model import need
from wharf.model.capability import (
    Capability,
    HostVolumeCapability,
    Level,
    OperatorCapability,
    PoolCapability,
    Scope,
    VariableCapability,
)
from wharf.model.need import Need


def grants() -> Iterator[tuple[str, str]]:
    """Everything that can be granted alone, and the policy that grants it."""
    for capability in Capability:
        yield capability.value, f'namespace "x" {{ capabilities = ["{capability}"] }}'
    for variable in VariableCapability:
        yield (
            f"variables {variable}",
            f'namespace "x" {{ variables {{ path "p" {{ capabilities = ["{variable}"] }} }} }}',
        )
    for pool in PoolCapability:
        yield f"node_pool {pool}", f'node_pool "l" {{ capabilities = ["{pool}"] }}'
    for volume in HostVolumeCapability:
        yield f"host_volume {volume}", f'host_volume "l" {{ capabilities = ["{volume}"] }}'
    for operator in OperatorCapability:
        yield f"operator {operator}", f'operator {{ capabilities = ["{operator}"] }}'
    for scope in (Scope.AGENT, Scope.NODE, Scope.QUOTA, Scope.OPERATOR):
        for level in (Level.DENY, Level.READ, Level.WRITE):
            yield f"{scope}:{level}", f'{scope} {{ policy = "{level}" }}'
    for level in (Level.DENY, Level.LIST, Level.READ, Level.WRITE):
        yield f"plugin:{level}", f'plugin {{ policy = "{level}" }}'


GRANTS = dict(grants())


def meets(given: Rights, asked: Need) -> bool:
    return given.meet(asked, namespace="x", path="p", label="l")


def met_by(asked: Need) -> set[str]:
    return {name for name, policy in GRANTS.items() if meets(rights(policy), asked)}


def named(row: str) -> set[str]:
    return {name.strip() for name in row.split(",") if name.strip()}


# The row of the reference, the need, and the grants that meet it alone.
ROWS: list[tuple[str, Need, str]] = [
    ("jobs list", need.LIST_JOBS, "list-jobs"),
    ("statuses", need.READ_JOB, "read-job"),
    ("job read, versions, allocs, evals, deployments, submission, summary, actions list", need.READ_JOB, "read-job"),
    ("register", need.REGISTER_JOB, "submit-job, register-job"),
    ("plan", need.PLAN_JOB, "submit-job, plan-job"),
    ("stop", need.STOP_JOB, "submit-job, deregister-job, purge-job"),
    ("purge", need.PURGE_JOB, "submit-job, purge-job"),
    ("revert", need.REVERT_JOB, "submit-job, revert-job"),
    ("evaluate", need.EVALUATE_JOB, "submit-job, evaluate-job"),
    ("stable", need.MARK_STABLE, "submit-job, stable-job"),
    ("tag", need.TAG_VERSION, "submit-job, tag-job-version"),
    ("periodic force", need.FORCE_PERIODIC, "submit-job, force-periodic-job, dispatch-job"),
    ("own volumes also mount rights: read-only", need.MOUNT_READ_ONLY, "host_volume mount-readonly, host_volume mount-readwrite"),
    ("own volumes also mount rights: read-write", need.MOUNT_READ_WRITE, "host_volume mount-readwrite"),
    ("own volumes also mount rights: CSI", need.MOUNT_CSI, "csi-mount-volume"),
    ("policy override", need.OVERRIDE_POLICY, "sentinel-override"),
    ("dispatch", need.DISPATCH_JOB, "dispatch-job"),
    ("scale", need.SCALE_JOB, "scale-job, submit-job"),
    ("scale status", need.READ_JOB_SCALE, "read-job, read-job-scaling"),
    ("parse", need.PARSE_JOB, "parse-job, submit-job"),
    ("validate", need.VALIDATE_JOB, "read-job"),
    ("alloc stop, restart, signal", need.STEER_ALLOCATION, "alloc-lifecycle"),
    ("alloc pause", need.PAUSE_ALLOCATION, "submit-job, pause-allocation"),
    ("alloc gc", need.COLLECT_ALLOCATION, "submit-job, gc-allocation"),
    ("alloc exec, job action", need.EXEC, "alloc-exec"),
    ("alloc exec with raw-exec-like drivers", need.EXEC_ON_NODE, ""),
    ("logs", need.READ_LOGS, "read-logs, read-fs"),
    ("fs", need.READ_FILES, "read-fs"),
    ("deployment fail", need.FAIL_DEPLOYMENT, "submit-job, fail-deployment"),
    ("deployment pause", need.PAUSE_DEPLOYMENT, "submit-job, pause-deployment"),
    ("deployment promote", need.PROMOTE_DEPLOYMENT, "submit-job, promote-deployment"),
    ("deployment unblock", need.UNBLOCK_DEPLOYMENT, "submit-job, unblock-deployment"),
    ("deployment cancel", need.CANCEL_DEPLOYMENT, "submit-job, cancel-deployment"),
    ("deployment health", need.SET_HEALTH, "submit-job, set-alloc-health-deployment"),
    ("eval delete", need.DELETE_EVALUATIONS, ""),
    ("nodes read, stats", need.READ_NODE, "node:read, node:write"),
    ("drain, eligibility, purge, meta, client gc", need.WRITE_NODE, "node:write"),
    ("node pool read", need.READ_POOL, "node_pool read"),
    ("node pool write", need.WRITE_POOL, "node_pool write"),
    ("node pool delete", need.DELETE_POOL, "node_pool delete"),
    ("pool's nodes also node read", need.READ_NODES_OF_POOL, ""),
    ("pool's jobs also list-jobs", need.LIST_JOBS_OF_POOL, ""),
    ("variables list", need.LIST_VARIABLES, "variables list, variables read"),
    ("variables read", need.READ_VARIABLE, "variables read"),
    ("variables write", need.WRITE_VARIABLE, "variables write"),
    ("variables destroy", need.DESTROY_VARIABLE, "variables destroy"),
    ("services read", need.READ_JOB, "read-job"),
    ("services delete", need.DELETE_SERVICE, "submit-job, delete-service-registration"),
    ("scaling policies list", need.LIST_SCALING_POLICIES, "list-scaling-policies"),
    ("scaling policy read", need.READ_SCALING_POLICY, "read-scaling-policy"),
    ("CSI volumes list", need.LIST_CSI_VOLUMES, "csi-list-volume"),
    ("CSI volume read (+ plugin read)", need.READ_CSI_VOLUME, ""),
    ("plugin list", need.LIST_PLUGINS, "plugin:list, plugin:read, plugin:write"),
    ("plugin read", need.READ_PLUGIN, "plugin:read, plugin:write"),
    ("host volumes read", need.READ_HOST_VOLUME, "host-volume-read, host-volume-create, host-volume-register, host-volume-write"),
    ("host volumes create", need.CREATE_HOST_VOLUME, "host-volume-create, host-volume-register, host-volume-write"),
    ("host volumes register", need.REGISTER_HOST_VOLUME, "host-volume-register, host-volume-write"),
    ("host volumes delete", need.DELETE_HOST_VOLUME, "host-volume-delete, host-volume-write"),
    ("agent read", need.READ_AGENT, "agent:read, agent:write"),
    ("agent write", need.WRITE_AGENT, "agent:write"),
    ("operator read", need.READ_OPERATOR, "operator:read, operator:write"),
    ("operator write", need.WRITE_OPERATOR, "operator:write"),
    ("snapshot save", need.SAVE_SNAPSHOT, "operator:write, operator snapshot-save"),
    ("keyring list", need.READ_KEYRING, "operator:read, operator:write, operator keyring-read"),
    ("keyring rotate", need.ROTATE_KEYRING, "operator:write, operator keyring-rotate"),
    ("keyring delete", need.DELETE_KEY, "operator:write, operator keyring-delete"),
    ("quota read", need.READ_QUOTA, "quota:read, quota:write"),
    ("quota write", need.WRITE_QUOTA, "quota:write"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "row"), [pytest.param(asked, row, id=group) for group, asked, row in ROWS])
def test_a_group_needs_what_its_row_says_and_nothing_else_will_do(asked: Need, row: str) -> None:
    assert named(row) == met_by(asked)


@pytest.mark.parametrize("asked", [pytest.param(asked, id=group) for group, asked, _ in ROWS])
def test_a_group_is_open_to_management_and_closed_to_those_without_rights(asked: Need) -> None:
    assert (True, False) == (meets(EVERY_RIGHT, asked), meets(NO_RIGHTS, asked))


@pytest.mark.parametrize(
    ("asked", "together"),
    [
        (need.EXEC_ON_NODE, ["alloc-exec", "alloc-node-exec"]),
        (need.READ_NODES_OF_POOL, ["node:read", "node_pool read"]),
        (need.LIST_JOBS_OF_POOL, ["list-jobs", "node_pool read"]),
        (need.READ_CSI_VOLUME, ["csi-read-volume", "plugin:read"]),
        (need.LIST_SCALING_POLICIES, ["list-jobs", "read-job"]),
        (need.READ_SCALING_POLICY, ["list-jobs", "read-job"]),
    ],
)
def test_what_needs_two_rights_is_met_by_both_and_by_neither_alone(asked: Need, together: list[str]) -> None:
    assert meets(rights(*(GRANTS[name] for name in together)), asked)
    assert not any(meets(rights(GRANTS[name]), asked) for name in together)


def test_nothing_and_any_token_are_met_by_everybody_and_management_by_management_alone() -> None:
    assert meets(NO_RIGHTS, need.NOTHING)
    assert meets(NO_RIGHTS, need.ANY_TOKEN)
    assert met_by(need.MANAGEMENT) == set()
    assert meets(EVERY_RIGHT, need.MANAGEMENT)


def test_a_namespace_is_read_with_any_right_in_it() -> None:
    in_namespace = {c.value for c in Capability} | {f"variables {c}" for c in VariableCapability}

    assert in_namespace - {"deny", "variables deny"} == met_by(need.READ_NAMESPACE)


def test_a_right_in_one_place_is_none_in_another() -> None:
    given = rights(GRANTS["submit-job"], GRANTS["variables read"], GRANTS["node_pool read"])

    assert not given.meet(need.REGISTER_JOB, namespace="y")
    assert not given.meet(need.READ_VARIABLE, namespace="x", path="q")
    assert not given.meet(need.READ_POOL, label="m")


def test_every_need_that_is_declared_has_a_row() -> None:
    tested = [asked for _, asked, _ in ROWS]
    declared = {name: value for name, value in vars(need).items() if isinstance(value, need.Need)}

    untold = {name for name, value in declared.items() if value not in tested and not name.startswith("_")}
    assert untold == {"NOTHING", "ANY_TOKEN", "READ_NAMESPACE"}
