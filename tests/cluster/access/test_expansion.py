"""The capabilities of each level, row by row of the table in the reference (5.4), checked on the resulting rights."""

import pytest

from tests.cluster.access.policies import allowed_in, rights
from wharf.cluster.access import Rights
from wharf.contract.model.acl.capabilities import (
    Capability,
    HostVolumeMountCapability,
    NodePoolCapability,
    OperatorCapability,
    PolicyLevel,
    PolicyScope,
    VariableCapability,
)

READ = (
    "list-jobs parse-job read-job csi-list-volume csi-read-volume read-job-scaling list-scaling-policies "
    "read-scaling-policy host-volume-read"
)
# The capabilities that `submit-job` includes (5.4, rule 1).
SUBMIT = (
    "register-job revert-job deregister-job purge-job evaluate-job plan-job tag-job-version stable-job fail-deployment "
    "pause-deployment promote-deployment unblock-deployment cancel-deployment set-alloc-health-deployment gc-allocation "
    "pause-allocation force-periodic-job delete-service-registration"
)
WRITE = (
    f"{READ} {SUBMIT} scale-job submit-job dispatch-job read-logs read-fs alloc-exec alloc-lifecycle "
    "csi-mount-volume csi-write-volume submit-recommendation host-volume-create"
)
SCALE = "list-scaling-policies read-scaling-policy read-job-scaling scale-job read-job submit-recommendation"


@pytest.mark.parametrize(("level", "capabilities"), [("read", READ), ("write", WRITE), ("scale", SCALE), ("deny", "")])
def test_a_level_of_a_namespace_expands_to_its_row(level: str, capabilities: str) -> None:
    assert set(capabilities.split()) == allowed_in(rights(f'namespace "x" {{ policy = "{level}" }}'), "x")


@pytest.mark.parametrize(
    ("capability", "included"),
    [
        ("submit-job", SUBMIT),
        ("host-volume-write", "host-volume-register host-volume-create host-volume-delete host-volume-read"),
        ("host-volume-register", "host-volume-create host-volume-read"),
        ("host-volume-create", "host-volume-read"),
        ("alloc-lifecycle", ""),
        ("read-fs", ""),
    ],
)
def test_a_capability_includes_the_capabilities_of_its_row(capability: str, included: str) -> None:
    granted_rights = rights(f'namespace "x" {{ capabilities = ["{capability}"] }}')

    assert {capability, *included.split()} == allowed_in(granted_rights, "x")


@pytest.mark.parametrize(
    "capability",
    [
        "alloc-node-exec",
        "csi-register-plugin",
        "sentinel-override",
        "host-volume-register",
        "host-volume-write",
        "host-volume-delete",
    ],
)
def test_a_capability_outside_every_level_must_be_granted_by_name(capability: str) -> None:
    assert capability not in allowed_in(rights('namespace "x" { policy = "write" }'), "x")
    assert capability in allowed_in(rights(f'namespace "x" {{ capabilities = ["{capability}"] }}'), "x")


def list_pool_capabilities(granted_rights: Rights) -> set[str]:
    return {c.value for c in NodePoolCapability if granted_rights.allows_node_pool("x", c)} - {"deny"}


def list_volume_capabilities(granted_rights: Rights) -> set[str]:
    return {c.value for c in HostVolumeMountCapability if granted_rights.allows_host_volume("x", c)} - {"deny"}


def list_operator_capabilities(granted_rights: Rights) -> set[str]:
    return {c.value for c in OperatorCapability if granted_rights.allows_operator(c)} - {"deny"}


def list_variable_capabilities(granted_rights: Rights) -> set[str]:
    return {c.value for c in VariableCapability if granted_rights.allows_variable("x", "p", c)} - {"deny"}


@pytest.mark.parametrize(("level", "capabilities"), [("read", "read"), ("write", "delete read write"), ("deny", "")])
def test_a_level_of_a_node_pool_expands_to_its_row(level: str, capabilities: str) -> None:
    assert set(capabilities.split()) == list_pool_capabilities(rights(f'node_pool "x" {{ policy = "{level}" }}'))


@pytest.mark.parametrize(
    ("level", "capabilities"), [("read", "mount-readonly"), ("write", "mount-readonly mount-readwrite"), ("deny", "")]
)
def test_a_level_of_a_host_volume_expands_to_its_row(level: str, capabilities: str) -> None:
    assert set(capabilities.split()) == list_volume_capabilities(rights(f'host_volume "x" {{ policy = "{level}" }}'))


@pytest.mark.parametrize(
    ("level", "capabilities"),
    [
        ("read", "license-read keyring-read"),
        ("write", "license-read keyring-read snapshot-save keyring-rotate keyring-delete"),
        ("deny", ""),
        ("scale", ""),
    ],
)
def test_a_level_of_operator_expands_to_its_row(level: str, capabilities: str) -> None:
    assert set(capabilities.split()) == list_operator_capabilities(rights(f'operator {{ policy = "{level}" }}'))


@pytest.mark.parametrize(
    ("capabilities", "granted"),
    [("list", "list"), ("read", "read list"), ("write", "write"), ("destroy", "destroy"), ("deny", "")],
)
def test_reading_variables_implies_listing_them_and_writing_implies_nothing(capabilities: str, granted: str) -> None:
    granted_rights = rights(f'namespace "x" {{ variables {{ path "p" {{ capabilities = ["{capabilities}"] }} }} }}')

    assert set(granted.split()) == list_variable_capabilities(granted_rights)


@pytest.mark.parametrize("scope", ["agent", "node", "operator", "quota"])
def test_a_level_of_a_scope_grants_reading_writing_or_neither(scope: str) -> None:
    expected = {"read": {"list", "read"}, "write": {"list", "read", "write"}, "deny": set(), "scale": set()}
    for level, granted in expected.items():
        granted_rights = rights(f'{scope} {{ policy = "{level}" }}')
        assert granted == {
            at
            for at in (PolicyLevel.LIST, PolicyLevel.READ, PolicyLevel.WRITE)
            if granted_rights.allows_level(PolicyScope(scope), at)
        }


@pytest.mark.parametrize(
    ("level", "granted"), [("list", "list"), ("read", "list read"), ("write", "list read write"), ("deny", "")]
)
def test_plugins_can_be_listed_without_being_read(level: str, granted: str) -> None:
    granted_rights = rights(f'plugin {{ policy = "{level}" }}')

    found = {
        at
        for at in (PolicyLevel.LIST, PolicyLevel.READ, PolicyLevel.WRITE)
        if granted_rights.allows_level(PolicyScope.PLUGIN, at)
    }
    assert set(granted.split()) == found


def test_every_capability_is_spelled_as_the_reference_spells_it() -> None:
    outside_levels = "alloc-node-exec csi-register-plugin sentinel-override host-volume-register host-volume-write host-volume-delete deny"

    assert set(f"{WRITE} {SCALE} {outside_levels}".split()) == {capability.value for capability in Capability}
