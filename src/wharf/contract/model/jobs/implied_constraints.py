"""Implied constraints: a node must support the features that a group uses (jobs.md 2.1, end).

They are added to the groups at admission, and stored and shown with the job. An attribute that the job or the group already
constrains gets no implied constraint. Wharf's own attributes have the prefix `wharf`; nodes also publish them under Nomad's
prefix, so that constraints written for Nomad keep working.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from wharf.contract.model.jobs.constraints import Constraint, Operand
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.identities import DEFAULT_CLUSTER_NAME
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.templates import ChangeMode

NATIVE_SERVICES_CONSTRAINT: Final = Constraint(
    l_target="${attr.wharf.service_discovery}", operand=Operand.EQUALS, r_target="true"
)
"""Added to groups with services that the cluster itself registers."""
NATIVE_CHECKS_CONSTRAINT: Final = Constraint(
    l_target="${attr.wharf.version}", operand=Operand.SEMVER, r_target=">= 0.1.0"
)
"""Added to groups with health checks of such services."""
# The CNI plugins that bridge networking needs.
BRIDGE_CONSTRAINTS: Final = tuple(
    Constraint(l_target=f"${{attr.plugins.cni.version.{plugin}}}", operand=Operand.SEMVER, r_target=">= 0.4.0")
    for plugin in ("bridge", "firewall", "host-local", "loopback", "portmap")
)
NUMA_CONSTRAINT: Final = Constraint(l_target="${attr.numa.node.count}", operand=Operand.IS_SET, r_target="")
"""Added to groups with tasks that request cores of one NUMA node."""
EXEC_HOST_PID_ATTRIBUTE: Final = "driver.exec.host_pid"
EXEC_HOST_IPC_ATTRIBUTE: Final = "driver.exec.host_ipc"
"""Node attributes: whether tasks of the driver `exec` may share these namespaces with the host."""
HOST_MODE_ATTRIBUTES: Final = {"pid_mode": EXEC_HOST_PID_ATTRIBUTE, "ipc_mode": EXEC_HOST_IPC_ATTRIBUTE}
"""Keys in the config of such a task that request it."""
REQUIRED_VAULT_VERSION: Final = ">= 0.6.1"
IMPLIED_CONSUL_VERSION: Final = ">= 1.8.0"
"""The version of Consul that Nomad requires for services."""
_CONSUL_VERSION: Final = re.compile(r"\$\{attr\.consul(\.[\w-]+)?\.version\}\Z")


def add_implied_constraints(job: Job) -> Job:
    """Return the job with the constraints that follow from the features of its groups.

    A job that already has them is returned with the same content.
    """
    if job.task_groups is None:
        return job
    groups = tuple([_add_to_group(group, job) for group in job.task_groups])
    return msgspec.structs.replace(job, task_groups=groups)


def _add_to_group(group: TaskGroup, job: Job) -> TaskGroup:
    """Return the group with the constraints that follow from its features.

    An attribute that the group or its job already constrains gets no further constraint.
    """
    constraints = [each for each in group.constraints or () if not _is_implied_consul_constraint(each)]
    targets = {constraint.l_target for constraint in (*constraints, *(job.constraints or ()))}
    for constraint in _iter_implied_constraints(group):
        if constraint.l_target not in targets:
            targets.add(constraint.l_target)
            constraints.append(constraint)
    if constraints == list(group.constraints or ()):
        return group
    return msgspec.structs.replace(group, constraints=tuple(constraints) or None)


def _iter_implied_constraints(group: TaskGroup) -> Iterator[Constraint]:
    """Yield the constraints on nodes that follow from the features of a group.

    The features are signals, services, bridge networks, Vault, NUMA and namespaces of the host. A constraint may occur
    twice.
    """
    signals = _list_signals(group)
    if signals:
        yield Constraint(
            l_target="${attr.os.signals}", operand=Operand.SET_CONTAINS, r_target=",".join(sorted(signals))
        )
    services = [*(group.services or ()), *(service for task in group.tasks or () for service in task.services or ())]
    if any(service.is_native for service in services):
        yield NATIVE_SERVICES_CONSTRAINT
    if any(service.is_native and service.checks for service in services):
        yield NATIVE_CHECKS_CONSTRAINT
    if any(network.mode == "bridge" for network in group.networks or ()):
        yield from BRIDGE_CONSTRAINTS
    for task in group.tasks or ():
        for key, attribute in HOST_MODE_ATTRIBUTES.items():
            if task.driver == "exec" and (task.config or {}).get(key) == "host":
                yield Constraint(l_target=f"${{attr.{attribute}}}", operand=Operand.EQUALS, r_target="true")
        if task.vault is not None:
            yield _build_version_constraint("vault", task.vault.cluster, REQUIRED_VAULT_VERSION)
        numa = task.resources.numa
        if numa is not None and numa.affinity not in ("", "none"):
            yield NUMA_CONSTRAINT


def _list_signals(group: TaskGroup) -> set[str]:
    """Return the names of the signals that the group's tasks may receive, without the driver's default signal."""
    signals: set[str] = set()
    for task in group.tasks or ():
        signals.add(task.kill_signal)
        signals.update(
            template.change_signal for template in task.templates or () if template.change_mode == ChangeMode.SIGNAL
        )
        if task.vault is not None and task.vault.change_mode == ChangeMode.SIGNAL:
            signals.add(task.vault.change_signal)
        identities = (*(task.identities or ()), *((task.identity,) if task.identity is not None else ()))
        signals.update(identity.change_signal for identity in identities if identity.change_mode == ChangeMode.SIGNAL)
    return signals - {""}


def _is_implied_consul_constraint(constraint: Constraint) -> bool:
    """Return whether Nomad added this constraint to a job because of a service in Consul, such as in an exported job.

    No node satisfies it, and the service is in the catalog of the cluster instead.
    """
    is_version = constraint.operand == Operand.SEMVER and constraint.r_target == IMPLIED_CONSUL_VERSION
    return is_version and _CONSUL_VERSION.match(constraint.l_target) is not None


def _build_version_constraint(product: str, cluster: str, version: str) -> Constraint:
    """Return a constraint on nodes: the Vault cluster that they use must have this version.

    `product` is "vault"; `version` is a condition such as `>= 0.6.1`.
    """
    name = product if cluster in ("", DEFAULT_CLUSTER_NAME) else f"{product}.{cluster}"
    return Constraint(l_target=f"${{attr.{name}.version}}", operand=Operand.SEMVER, r_target=version)
