"""The permission of each group of operations (reference 5.5 and the tables that it refers to).

Exactly the grants in the row of a permission satisfy it alone. Every other single grant is refused.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.access.policies import rights
from wharf.cluster.access import ALL_RIGHTS, NO_RIGHTS, Rights
from wharf.contract.model.acl import permissions
from wharf.contract.model.acl.capabilities import (
    Capability,
    HostVolumeMountCapability,
    NodePoolCapability,
    OperatorCapability,
    PolicyLevel,
    PolicyScope,
    VariableCapability,
)
from wharf.contract.model.acl.permissions import Permission


def iterate_grants() -> Iterator[tuple[str, str]]:
    """Yield the name of each single grant, and a policy that grants only it."""
    for capability in Capability:
        yield capability.value, f'namespace "x" {{ capabilities = ["{capability}"] }}'
    for variable in VariableCapability:
        yield (
            f"variables {variable}",
            f'namespace "x" {{ variables {{ path "p" {{ capabilities = ["{variable}"] }} }} }}',
        )
    for pool in NodePoolCapability:
        yield f"node_pool {pool}", f'node_pool "l" {{ capabilities = ["{pool}"] }}'
    for volume in HostVolumeMountCapability:
        yield f"host_volume {volume}", f'host_volume "l" {{ capabilities = ["{volume}"] }}'
    for operator in OperatorCapability:
        yield f"operator {operator}", f'operator {{ capabilities = ["{operator}"] }}'
    for scope in (PolicyScope.AGENT, PolicyScope.NODE, PolicyScope.QUOTA, PolicyScope.OPERATOR):
        for level in (PolicyLevel.DENY, PolicyLevel.READ, PolicyLevel.WRITE):
            yield f"{scope}:{level}", f'{scope} {{ policy = "{level}" }}'
    for level in (PolicyLevel.DENY, PolicyLevel.LIST, PolicyLevel.READ, PolicyLevel.WRITE):
        yield f"plugin:{level}", f'plugin {{ policy = "{level}" }}'


GRANTS = dict(iterate_grants())


def satisfies(granted_rights: Rights, permission: Permission) -> bool:
    return granted_rights.satisfies(permission, namespace="x", path="p", label="l")


def list_sufficient_grants(permission: Permission) -> set[str]:
    return {name for name, policy in GRANTS.items() if satisfies(rights(policy), permission)}


def split_names(row: str) -> set[str]:
    return {name.strip() for name in row.split(",") if name.strip()}


# The row of the reference, the permission, and the grants that satisfy it alone.
ROWS: list[tuple[str, Permission, str]] = [
    ("jobs list", permissions.LIST_JOBS, "list-jobs"),
    ("statuses", permissions.READ_JOB, "read-job"),
    ("job read, versions, allocs, evals, deployments, submission, summary, actions list", permissions.READ_JOB, "read-job"),
    ("register", permissions.REGISTER_JOB, "submit-job, register-job"),
    ("plan", permissions.PLAN_JOB, "submit-job, plan-job"),
    ("stop", permissions.STOP_JOB, "submit-job, deregister-job, purge-job"),
    ("purge", permissions.PURGE_JOB, "submit-job, purge-job"),
    ("revert", permissions.REVERT_JOB, "submit-job, revert-job"),
    ("evaluate", permissions.EVALUATE_JOB, "submit-job, evaluate-job"),
    ("stable", permissions.MARK_JOB_STABLE, "submit-job, stable-job"),
    ("tag", permissions.TAG_JOB_VERSION, "submit-job, tag-job-version"),
    ("periodic force", permissions.FORCE_PERIODIC_LAUNCH, "submit-job, force-periodic-job, dispatch-job"),
    ("own volumes also mount rights: read-only", permissions.MOUNT_HOST_VOLUME_READ_ONLY, "host_volume mount-readonly, host_volume mount-readwrite"),
    ("own volumes also mount rights: read-write", permissions.MOUNT_HOST_VOLUME_READ_WRITE, "host_volume mount-readwrite"),
    ("own volumes also mount rights: CSI", permissions.MOUNT_CSI_VOLUME, "csi-mount-volume"),
    ("policy override", permissions.OVERRIDE_POLICY, "sentinel-override"),
    ("dispatch", permissions.DISPATCH_JOB, "dispatch-job"),
    ("scale", permissions.SCALE_JOB, "scale-job, submit-job"),
    ("scale status", permissions.READ_JOB_SCALING, "read-job, read-job-scaling"),
    ("parse", permissions.PARSE_JOB, "parse-job, submit-job"),
    ("validate", permissions.VALIDATE_JOB, "read-job"),
    ("alloc stop, restart, signal", permissions.CONTROL_ALLOCATION, "alloc-lifecycle"),
    ("alloc pause", permissions.PAUSE_ALLOCATION, "submit-job, pause-allocation"),
    ("alloc gc", permissions.COLLECT_ALLOCATION, "submit-job, gc-allocation"),
    ("alloc exec, job action", permissions.EXEC_IN_TASK, "alloc-exec"),
    ("alloc exec with raw-exec-like drivers", permissions.EXEC_ON_NODE, ""),
    ("logs", permissions.READ_LOGS, "read-logs, read-fs"),
    ("fs", permissions.READ_FILES, "read-fs"),
    ("deployment fail", permissions.FAIL_DEPLOYMENT, "submit-job, fail-deployment"),
    ("deployment pause", permissions.PAUSE_DEPLOYMENT, "submit-job, pause-deployment"),
    ("deployment promote", permissions.PROMOTE_DEPLOYMENT, "submit-job, promote-deployment"),
    ("deployment unblock", permissions.UNBLOCK_DEPLOYMENT, "submit-job, unblock-deployment"),
    ("deployment cancel", permissions.CANCEL_DEPLOYMENT, "submit-job, cancel-deployment"),
    ("deployment health", permissions.SET_ALLOCATION_HEALTH, "submit-job, set-alloc-health-deployment"),
    ("eval delete", permissions.DELETE_EVALUATIONS, ""),
    ("nodes read, stats", permissions.READ_NODE, "node:read, node:write"),
    ("drain, eligibility, purge, meta, client gc", permissions.WRITE_NODE, "node:write"),
    ("node pool read", permissions.READ_NODE_POOL, "node_pool read"),
    ("node pool write", permissions.WRITE_NODE_POOL, "node_pool write"),
    ("node pool delete", permissions.DELETE_NODE_POOL, "node_pool delete"),
    ("pool's nodes also node read", permissions.READ_NODE_POOL_NODES, ""),
    ("pool's jobs also list-jobs", permissions.LIST_NODE_POOL_JOBS, ""),
    ("variables list", permissions.LIST_VARIABLES, "variables list, variables read"),
    ("variables read", permissions.READ_VARIABLE, "variables read"),
    ("variables write", permissions.WRITE_VARIABLE, "variables write"),
    ("variables destroy", permissions.DESTROY_VARIABLE, "variables destroy"),
    ("services read", permissions.READ_JOB, "read-job"),
    ("services delete", permissions.DELETE_SERVICE, "submit-job, delete-service-registration"),
    ("scaling policies list", permissions.LIST_SCALING_POLICIES, "list-scaling-policies"),
    ("scaling policy read", permissions.READ_SCALING_POLICY, "read-scaling-policy"),
    ("CSI volumes list", permissions.LIST_CSI_VOLUMES, "csi-list-volume"),
    ("CSI volume read (+ plugin read)", permissions.READ_CSI_VOLUME, ""),
    ("plugin list", permissions.LIST_PLUGINS, "plugin:list, plugin:read, plugin:write"),
    ("plugin read", permissions.READ_PLUGIN, "plugin:read, plugin:write"),
    ("host volumes read", permissions.READ_HOST_VOLUME, "host-volume-read, host-volume-create, host-volume-register, host-volume-write"),
    ("host volumes create", permissions.CREATE_HOST_VOLUME, "host-volume-create, host-volume-register, host-volume-write"),
    ("host volumes register", permissions.REGISTER_HOST_VOLUME, "host-volume-register, host-volume-write"),
    ("host volumes delete", permissions.DELETE_HOST_VOLUME, "host-volume-delete, host-volume-write"),
    ("agent read", permissions.READ_AGENT, "agent:read, agent:write"),
    ("agent write", permissions.WRITE_AGENT, "agent:write"),
    ("operator read", permissions.READ_OPERATOR, "operator:read, operator:write"),
    ("operator write", permissions.WRITE_OPERATOR, "operator:write"),
    ("snapshot save", permissions.SAVE_SNAPSHOT, "operator:write, operator snapshot-save"),
    ("keyring list", permissions.READ_KEYRING, "operator:read, operator:write, operator keyring-read"),
    ("keyring rotate", permissions.ROTATE_KEYRING, "operator:write, operator keyring-rotate"),
    ("keyring delete", permissions.DELETE_KEY, "operator:write, operator keyring-delete"),
    ("quota read", permissions.READ_QUOTA, "quota:read, quota:write"),
    ("quota write", permissions.WRITE_QUOTA, "quota:write"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("permission", "row"), [pytest.param(permission, row, id=group) for group, permission, row in ROWS]
)
def test_an_endpoint_group_requires_exactly_the_capabilities_of_its_row(permission: Permission, row: str) -> None:
    assert split_names(row) == list_sufficient_grants(permission)


@pytest.mark.parametrize("permission", [pytest.param(permission, id=group) for group, permission, _ in ROWS])
def test_an_endpoint_group_admits_management_tokens_and_rejects_tokens_without_rights(permission: Permission) -> None:
    assert (True, False) == (satisfies(ALL_RIGHTS, permission), satisfies(NO_RIGHTS, permission))


@pytest.mark.parametrize(
    ("permission", "grant_names"),
    [
        (permissions.EXEC_ON_NODE, ["alloc-exec", "alloc-node-exec"]),
        (permissions.READ_NODE_POOL_NODES, ["node:read", "node_pool read"]),
        (permissions.LIST_NODE_POOL_JOBS, ["list-jobs", "node_pool read"]),
        (permissions.READ_CSI_VOLUME, ["csi-read-volume", "plugin:read"]),
        (permissions.LIST_SCALING_POLICIES, ["list-jobs", "read-job"]),
        (permissions.READ_SCALING_POLICY, ["list-jobs", "read-job"]),
    ],
)
def test_a_request_that_needs_two_capabilities_needs_both(permission: Permission, grant_names: list[str]) -> None:
    assert satisfies(rights(*(GRANTS[name] for name in grant_names)), permission)
    assert not any(satisfies(rights(GRANTS[name]), permission) for name in grant_names)


def test_every_caller_has_public_access_and_only_management_tokens_have_the_management_permission() -> None:
    assert satisfies(NO_RIGHTS, permissions.PUBLIC_ACCESS)
    assert satisfies(NO_RIGHTS, permissions.ANY_TOKEN)
    assert list_sufficient_grants(permissions.MANAGEMENT_TOKEN) == set()
    assert satisfies(ALL_RIGHTS, permissions.MANAGEMENT_TOKEN)


def test_a_namespace_is_read_with_any_right_in_it() -> None:
    in_namespace = {c.value for c in Capability} | {f"variables {c}" for c in VariableCapability}

    assert in_namespace - {"deny", "variables deny"} == list_sufficient_grants(permissions.READ_NAMESPACE)


def test_a_capability_in_one_namespace_does_not_apply_to_another() -> None:
    granted_rights = rights(GRANTS["submit-job"], GRANTS["variables read"], GRANTS["node_pool read"])

    assert not granted_rights.satisfies(permissions.REGISTER_JOB, namespace="y")
    assert not granted_rights.satisfies(permissions.READ_VARIABLE, namespace="x", path="q")
    assert not granted_rights.satisfies(permissions.READ_NODE_POOL, label="m")


def test_every_declared_permission_has_a_row() -> None:
    tested = [permission for _, permission, _ in ROWS]
    declared = {name: value for name, value in vars(permissions).items() if isinstance(value, permissions.Permission)}

    without_row = {name for name, value in declared.items() if value not in tested and not name.startswith("_")}
    assert without_row == {"PUBLIC_ACCESS", "ANY_TOKEN", "READ_NAMESPACE"}
