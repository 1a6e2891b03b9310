"""Constraints that a job implies: what its groups use, a node must be able to do (jobs.md 2.1, end).

They are added to the groups at admission, are stored and shown with the job, and are not repeated where the job, or the
group, already says something about the same attribute. Attributes of our own carry the prefix `wharf`; nodes show each of them
under the reference's prefix too, so that constraints written for the peer go on working.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from wharf.contract.model.jobs.constraints import Constraint, Operand
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.identities import DEFAULT_CLUSTER_NAME
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.services import Service, ServiceProvider
from wharf.contract.model.jobs.templates import ChangeMode

NATIVE_SERVICES_CONSTRAINT: Final = Constraint(
    l_target="${attr.wharf.service_discovery}", operand=Operand.EQUALS, r_target="true"
)
NATIVE_CHECKS_CONSTRAINT: Final = Constraint(
    l_target="${attr.wharf.version}", operand=Operand.SEMVER, r_target=">= 0.1.0"
)
# Names and version of the plugins that a bridge is made of.
BRIDGE_CONSTRAINTS: Final = tuple(
    Constraint(l_target=f"${{attr.plugins.cni.version.{plugin}}}", operand=Operand.SEMVER, r_target=">= 0.4.0")
    for plugin in ("bridge", "firewall", "host-local", "loopback", "portmap")
)
NUMA_CONSTRAINT: Final = Constraint(l_target="${attr.numa.node.count}", operand=Operand.IS_SET, r_target="")
REQUIRED_VAULT_VERSION: Final = ">= 0.6.1"
REQUIRED_CONSUL_VERSION: Final = ">= 1.8.0"


def add_implied_constraints(job: Job) -> Job:
    """The job, its groups constrained to nodes that can do what they use. Applying it twice changes nothing."""
    if job.task_groups is None:
        return job
    groups = tuple([_constrained(group, job) for group in job.task_groups])
    return msgspec.structs.replace(job, task_groups=groups)


def _constrained(group: TaskGroup, job: Job) -> TaskGroup:
    constraints = list(group.constraints or ())
    targets = {constraint.l_target for constraint in (*constraints, *(job.constraints or ()))}
    for constraint in _implied(group):
        if constraint.l_target not in targets:
            targets.add(constraint.l_target)
            constraints.append(constraint)
    if len(constraints) == len(group.constraints or ()):
        return group
    return msgspec.structs.replace(group, constraints=tuple(constraints))


def _implied(group: TaskGroup) -> Iterator[Constraint]:
    signals = _signals(group)
    if signals:
        yield Constraint(
            l_target="${attr.os.signals}", operand=Operand.SET_CONTAINS, r_target=",".join(sorted(signals))
        )
    services = [*(group.services or ()), *(service for task in group.tasks or () for service in task.services or ())]
    if any(service.is_native for service in services):
        yield NATIVE_SERVICES_CONSTRAINT
    if any(service.is_native and service.checks for service in services):
        yield NATIVE_CHECKS_CONSTRAINT
    yield from _of_consul(services)
    if any(network.mode == "bridge" for network in group.networks or ()):
        yield from BRIDGE_CONSTRAINTS
    for task in group.tasks or ():
        if task.vault is not None:
            yield _version_of("vault", task.vault.cluster, REQUIRED_VAULT_VERSION)
        numa = task.resources.numa
        if numa is not None and numa.affinity not in ("", "none"):
            yield NUMA_CONSTRAINT


def _signals(group: TaskGroup) -> set[str]:
    """The signals that the group's tasks must be able to get."""
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


def _of_consul(services: list[Service]) -> Iterator[Constraint]:
    clusters = {service.cluster for service in services if service.provider == ServiceProvider.CONSUL}
    for cluster in sorted(clusters):
        yield _version_of("consul", cluster, REQUIRED_CONSUL_VERSION)


def _version_of(product: str, cluster: str, version: str) -> Constraint:
    name = product if cluster in ("", DEFAULT_CLUSTER_NAME) else f"{product}.{cluster}"
    return Constraint(l_target=f"${{attr.{name}.version}}", operand=Operand.SEMVER, r_target=version)
