"""Checks of rights: labels, all namespaces at once, and paths of variables (reference 5.4, rules 3 and 4)."""

import pytest

from tests.cluster.access.policies import rights
from wharf.cluster.access import ALL_RIGHTS, NO_RIGHTS, Rights
from wharf.contract.model.acl.capabilities import (
    Capability,
    HostVolumeMountCapability,
    NodePoolCapability,
    OperatorCapability,
    PolicyLevel,
    PolicyScope,
    VariableCapability,
)

READ_JOB, SUBMIT_JOB = Capability.READ_JOB, Capability.SUBMIT_JOB


def test_only_the_exact_label_applies_even_if_a_glob_grants_more() -> None:
    granted_rights = rights('namespace "*" { policy = "write" }', 'namespace "prod" { policy = "read" }')

    assert (True, False) == (
        granted_rights.allows_namespace("prod", READ_JOB),
        granted_rights.allows_namespace("prod", SUBMIT_JOB),
    )
    assert granted_rights.allows_namespace("dev", SUBMIT_JOB)


def test_one_of_several_capabilities_is_enough() -> None:
    granted_rights = rights('namespace "x" { capabilities = ["register-job"] }')

    assert granted_rights.allows_namespace("x", SUBMIT_JOB, Capability.REGISTER_JOB)
    assert not granted_rights.allows_namespace("x", SUBMIT_JOB, Capability.PLAN_JOB)
    assert not granted_rights.allows_namespace("y", SUBMIT_JOB, Capability.REGISTER_JOB)


def test_a_request_for_all_namespaces_needs_the_capability_in_any_namespace() -> None:
    granted_rights = rights('namespace "x" { capabilities = ["read-job"] } namespace "y" { policy = "deny" }')

    assert (True, False) == (
        granted_rights.allows_namespace("*", READ_JOB),
        granted_rights.allows_namespace("*", SUBMIT_JOB),
    )


def test_a_list_of_all_namespaces_shows_only_readable_namespaces() -> None:
    granted_rights = rights('namespace "a-*" { capabilities = ["list-jobs"] } namespace "a-2" { policy = "deny" }')

    shown = granted_rights.build_namespace_filter(Capability.LIST_JOBS)
    assert ["a-1", "a-3"] == [namespace for namespace in ("a-1", "a-2", "a-3", "b") if shown(namespace)]


@pytest.mark.parametrize(
    ("policy", "is_visible"),
    [
        ('namespace "x" { capabilities = ["read-logs"] }', True),
        ('namespace "*" { policy = "scale" }', True),
        ('namespace "x" { variables { path "a" { capabilities = ["list"] } } }', True),
        ('namespace "*" { variables { path "a" { capabilities = ["list"] } } }', True),
        ('namespace "x" { variables { path "a" { capabilities = ["deny"] } } }', False),
        ('namespace "x" { policy = "deny" variables { path "a" { capabilities = ["list"] } } }', False),
        ('namespace "x" {}', False),
        ('namespace "y" { policy = "write" }', False),
    ],
)
def test_a_namespace_is_visible_to_callers_with_any_capability_in_it(policy: str, is_visible: bool) -> None:
    assert is_visible is rights(policy).allows_any_in("x")


# -- variables -----------------------------------------------------------------------------------------------------


def may_read(granted_rights: Rights, path: str, namespace: str = "x") -> bool:
    return granted_rights.allows_variable(namespace, path, VariableCapability.READ)


@pytest.mark.parametrize(
    ("policy", "path", "allowed"),
    [
        ('namespace "x" { variables { path "a/b" { capabilities = ["read"] } } }', "a/b", True),
        ('namespace "x" { variables { path "a/b" { capabilities = ["read"] } } }', "a/b/c", False),
        ('namespace "x" { variables { path "a/*" { capabilities = ["read"] } } }', "a/b/c", True),
        ('namespace "x" { variables { path "a/*" { capabilities = ["read"] } path "a/b" { capabilities = ["list"] } } }', "a/b", False),
        ('namespace "x" { variables { path "a/*" { capabilities = ["deny"] } path "a/b" { capabilities = ["read"] } } }', "a/b", True),
        ('namespace "x" { variables { path "*" { capabilities = ["read"] } path "a/*" { capabilities = ["deny"] } } }', "a/b", False),
        ('namespace "x" { variables { path "*" { capabilities = ["read"] } path "a/*" { capabilities = ["deny"] } } }', "b", True),
        ('namespace "x" { variables { path "*" { capabilities = ["read"] } path "a/b" {} } }', "a/b", False),
        # Neither rights in a namespace nor its denial apply to its variables.
        ('namespace "x" { policy = "write" }', "a", False),
        ('namespace "x" { policy = "deny" variables { path "a" { capabilities = ["read"] } } }', "a", True),
        # If the label of the namespace is a glob, the path counts as a glob too.
        ('namespace "*" { variables { path "a" { capabilities = ["read"] } } }', "a", True),
        ('namespace "*" { variables { path "a/b" { capabilities = ["deny"] } } } namespace "x" { variables { path "a/*" { capabilities = ["read"] } } }', "a/b", False),
        ('namespace "*" { variables { path "a/b" { capabilities = ["deny"] } } } namespace "x" { variables { path "a/b" { capabilities = ["read"] } } }', "a/b", True),
        ('namespace "y*" { variables { path "*" { capabilities = ["read"] } } }', "a", False),
    ],
)  # fmt: skip
def test_the_exact_path_applies_or_else_the_closest_glob(policy: str, path: str, allowed: bool) -> None:
    assert allowed is may_read(rights(policy), path)


def test_a_glob_of_a_namespace_does_not_match_characters_of_the_path() -> None:
    granted_rights = rights('namespace "x*" { variables { path "c" { capabilities = ["read"] } } }')

    assert (True, False) == (may_read(granted_rights, "c", "xb"), may_read(granted_rights, "b/c", "x"))


IMPLICIT = frozenset({("x", "nomad/jobs/web")})


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        ("", "list read"),
        ('namespace "x" { variables { path "nomad/jobs/web" { capabilities = ["deny"] } } }', ""),
        ('namespace "x" { variables { path "nomad/jobs/web" { capabilities = ["list"] } } }', "list"),
        ('namespace "x" { variables { path "*" { capabilities = ["deny"] } } }', "list read"),
        ('namespace "*" { variables { path "nomad/jobs/web" { capabilities = ["deny"] } } }', "list read"),
        ('namespace "x" { variables { path "nomad/*" { capabilities = ["write"] } } }', "list read write"),
    ],
)
def test_the_rights_of_a_workload_rank_after_an_exact_path_and_before_globs(policy: str, allowed: str) -> None:
    granted_rights = rights(policy).with_implicit_paths(IMPLICIT)

    found = {c.value for c in VariableCapability if granted_rights.allows_variable("x", "nomad/jobs/web", c)} - {"deny"}
    assert set(allowed.split()) == found


def test_the_rights_of_a_workload_are_limited_to_its_paths_in_its_namespace() -> None:
    granted_rights = NO_RIGHTS.with_implicit_paths(IMPLICIT)

    assert not may_read(granted_rights, "nomad/jobs/web", "y")
    assert not may_read(granted_rights, "nomad/jobs/web/group")
    assert not granted_rights.allows_any_in("x")


def test_rights_show_whether_any_variable_can_be_listed() -> None:
    listing, reading = VariableCapability.LIST, VariableCapability.READ

    assert rights('namespace "x" { variables { path "a" { capabilities = ["read"] } } }').allows_any_variable(listing)
    assert not rights('namespace "x" { variables { path "a" { capabilities = ["write"] } } }').allows_any_variable(
        reading
    )
    assert NO_RIGHTS.with_implicit_paths(IMPLICIT).allows_any_variable(listing)
    assert not NO_RIGHTS.allows_any_variable(listing)


# -- all and nothing -----------------------------------------------------------------------------------------------


def collect_results(granted_rights: Rights) -> set[bool]:
    """Return the results of one check of each kind."""
    return {
        granted_rights.allows_namespace("x", READ_JOB),
        granted_rights.allows_namespace("*", READ_JOB),
        granted_rights.allows_any_in("x"),
        granted_rights.build_namespace_filter(READ_JOB)("x"),
        may_read(granted_rights, "a"),
        granted_rights.allows_any_variable(VariableCapability.LIST),
        granted_rights.allows_node_pool("x", NodePoolCapability.READ),
        granted_rights.allows_host_volume("x", HostVolumeMountCapability.MOUNT_READ_ONLY),
        granted_rights.allows_operator(OperatorCapability.SNAPSHOT_SAVE),
        *(granted_rights.allows_level(scope, PolicyLevel.WRITE) for scope in PolicyScope),
    }


def test_management_may_do_everything_and_no_policy_allows_nothing() -> None:
    assert ({True}, {False}) == (collect_results(ALL_RIGHTS), collect_results(NO_RIGHTS))
