"""Implied constraints of a job (jobs.md 2.1)."""

import pytest

from tests.builders import a_check, a_group, a_job, a_service, a_task, admitted, some_resources
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.identities import Vault
from wharf.contract.model.jobs.implied_constraints import add_implied_constraints
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.jobs.resources import NUMA
from wharf.contract.model.jobs.templates import Template

CNI_PLUGINS = [
    f"${{attr.plugins.cni.version.{plugin}}} semver >= 0.4.0"
    for plugin in ("bridge", "firewall", "host-local", "loopback", "portmap")
]


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (a_group(), []),
        (a_group("g", a_task(kill_signal="SIGINT")), ["${attr.os.signals} set_contains SIGINT"]),
        (
            a_group("g", a_task(kill_signal="SIGINT"), a_task("b", templates=(Template(change_mode="signal"),))),
            ["${attr.os.signals} set_contains SIGHUP,SIGINT"],
        ),
        (a_group(services=(a_service(),)), ["${attr.wharf.service_discovery} = true"]),
        (a_group(services=(a_service(provider="nomad"),)), ["${attr.wharf.service_discovery} = true"]),
        (
            a_group("g", a_task(services=(a_service(checks=(a_check(),)),))),
            ["${attr.wharf.service_discovery} = true", "${attr.wharf.version} semver >= 0.1.0"],
        ),
        (a_group(services=(a_service(provider="consul"),)), ["${attr.wharf.service_discovery} = true"]),
        (
            a_group(
                constraints=(Constraint(l_target="${attr.consul.version}", operand="semver", r_target=">= 1.8.0"),)
            ),
            [],
        ),
        (
            a_group(
                constraints=(Constraint(l_target="${attr.consul.version}", operand="semver", r_target=">= 1.9.0"),)
            ),
            ["${attr.consul.version} semver >= 1.9.0"],
        ),
        (a_group("g", a_task(vault=Vault(cluster="prod"))), ["${attr.vault.prod.version} semver >= 0.6.1"]),
        (a_group(networks=(NetworkResource(mode="bridge"),)), CNI_PLUGINS),
        (a_group(networks=(NetworkResource(mode="host"),)), []),
        (
            a_group("g", a_task(driver="exec", config={"pid_mode": "host", "ipc_mode": "host"})),
            ["${attr.driver.exec.host_pid} = true", "${attr.driver.exec.host_ipc} = true"],
        ),
        (a_group("g", a_task(driver="exec", config={"pid_mode": "private"})), []),
        (a_group("g", a_task(driver="docker", config={"pid_mode": "host"})), []),
        (
            a_group("g", a_task(resources=some_resources(numa=NUMA(affinity="require")))),
            ["${attr.numa.node.count} is_set "],
        ),
        (a_group("g", a_task(resources=some_resources(numa=NUMA(affinity="none")))), []),
    ],
)
def test_nodes_must_support_the_features_that_a_group_uses(group: TaskGroup, expected: list[str]) -> None:
    job = admitted(a_job("shop", group))

    assert [str(constraint) for constraint in job.groups[0].constraints or ()] == expected


def test_a_constraint_on_the_same_attribute_is_not_repeated() -> None:
    own_constraint = Constraint(l_target="${attr.os.signals}", operand="is_set")
    job = a_job("shop", a_group("g", a_task(kill_signal="SIGINT"), constraints=(own_constraint,)))

    assert admitted(job).groups[0].constraints == (own_constraint,)


def test_adding_implied_constraints_twice_changes_nothing() -> None:
    job = admitted(a_job("shop", a_group(networks=(NetworkResource(mode="bridge"),), services=(a_service(),))))

    assert add_implied_constraints(job) == job
