"""The checks before a record is written: each rule with its error text."""

import datetime
from typing import Any

import pytest

from wharf.contract.model import namespaces, node_pools, quotas, variables
from wharf.contract.model.acl import auth_methods, binding_rules, policies, roles, tokens
from wharf.contract.model.acl.auth_methods import AuthMethod, AuthMethodConfig
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.acl.policies import JobACL, Policy
from wharf.contract.model.acl.roles import PolicyLink, Role
from wharf.contract.model.acl.tokens import LifetimeLimits, RoleLink, Token
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.namespaces import AllowedNames, Namespace
from wharf.contract.model.node_pools import NodePool, NodePoolSchedulerConfiguration
from wharf.contract.model.operator import scheduler_configuration
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit
from wharf.contract.model.times import HOUR, MINUTE, SECOND
from wharf.contract.model.variables import VariableLock

NOON = datetime.datetime(2030, 1, 1, 12, tzinfo=datetime.UTC)
TOO_LONG_TEXT = "x" * 257
NAME_RULE = "Must match regex ^[a-zA-Z0-9-]{1,128}$"


@pytest.mark.parametrize(
    ("submitted", "problems"),
    [
        ({"name": "team-7"}, []),
        ({"name": "x" * 128, "description": "x" * 256, "weight": 1000}, []),
        ({"name": ""}, [f'invalid name "". {NAME_RULE}']),
        ({"name": "a_b"}, [f'invalid name "a_b". {NAME_RULE}']),
        ({"name": "a\n"}, [f'invalid name "a\n". {NAME_RULE}']),
        (
            {"name": "ä", "description": TOO_LONG_TEXT},
            [f'invalid name "ä". {NAME_RULE}', "description longer than 256"],
        ),
        ({"name": "a", "weight": 0}, ["weight must be between 1 and 1000"]),
        (
            {"name": "a", "node_pool_configuration": AllowedNames(allowed=("a",), denied=("b",))},
            ["node pool configuration: allowed and denied cannot both be set"],
        ),
        ({"name": "a", "node_pool_configuration": AllowedNames(allowed=())}, []),
    ],
)
def test_problems_of_namespaces(submitted: dict[str, Any], problems: list[str]) -> None:
    assert namespaces.list_namespace_problems(Namespace(**submitted)) == problems


@pytest.mark.parametrize(
    ("submitted", "problems"),
    [
        ({"name": "gpu_large-2"}, []),
        ({"name": "a.b"}, ['invalid name "a.b". Must match regex ^[a-zA-Z0-9-_]{1,128}$']),
        ({"name": "all"}, ['modifying node pool "all" is not allowed']),
        ({"name": "default", "description": TOO_LONG_TEXT}, ['modifying node pool "default" is not allowed']),
        ({"name": "a", "description": TOO_LONG_TEXT}, ["description longer than 256"]),
        ({"name": "a", "node_identity_ttl": 0}, ["node identity TTL must be positive"]),
        ({"name": "a", "scheduler_configuration": NodePoolSchedulerConfiguration()}, []),
        (
            {"name": "a", "scheduler_configuration": NodePoolSchedulerConfiguration(scheduler_algorithm="best")},
            ["invalid scheduler algorithm: best"],
        ),
    ],
)
def test_problems_of_node_pools(submitted: dict[str, Any], problems: list[str]) -> None:
    assert node_pools.list_node_pool_problems(NodePool(**submitted)) == problems


@pytest.mark.parametrize(
    ("submitted", "problems"),
    [
        ({"name": "small", "limits": (QuotaLimit(region="global"),)}, []),
        ({"name": "small"}, ["at least one limit should be specified"]),
        ({"name": "no good", "limits": (QuotaLimit(region="g"),)}, [f'invalid name "no good". {NAME_RULE}']),
        ({"name": "a", "limits": (QuotaLimit(region=""),)}, ["each limit must name its region"]),
        (
            {"name": "a", "limits": (QuotaLimit(region="g"), QuotaLimit(region="g"))},
            ['more than one limit for region "g"'],
        ),
        (
            {
                "name": "a",
                "limits": (QuotaLimit(region="g", region_limit=RegionLimit(devices=(RequestedDevice(),))),),
            },
            ['region "g": a device without a name'],
        ),
    ],
)
def test_problems_of_quotas(submitted: dict[str, Any], problems: list[str]) -> None:
    assert quotas.list_quota_problems(Quota(**submitted)) == problems


@pytest.mark.parametrize(
    ("submitted", "problems"),
    [
        ({"name": "read-all"}, []),
        (
            {"name": "read all", "description": TOO_LONG_TEXT},
            ["invalid name 'read all': use 1 to 128 letters, digits and dashes", "description longer than 256"],
        ),
        ({"name": "a", "job_acl": JobACL(namespace="n", job_id="j", group="g", task="t")}, []),
        ({"name": "a", "job_acl": JobACL(job_id="j")}, ["namespace must be set to set job ID"]),
        (
            {"name": "a", "job_acl": JobACL(namespace="n", task="t")},
            ["group must be set to set task"],
        ),
        ({"name": "a", "job_acl": JobACL(namespace="n", group="g")}, ["job ID must be set to set group"]),
    ],
)
def test_problems_of_policies(submitted: dict[str, Any], problems: list[str]) -> None:
    assert policies.list_policy_problems(Policy(**submitted)) == problems


@pytest.mark.parametrize(
    ("submitted", "problems"),
    [
        ({"name": "ops", "policies": (PolicyLink(name="p"),)}, []),
        (
            {"name": "o/p", "policies": (PolicyLink(name="p"),)},
            ["invalid name 'o/p': use 1 to 128 letters, digits and dashes"],
        ),
        ({"name": "ops"}, ["at least one policy should be specified"]),
    ],
)
def test_problems_of_roles(submitted: dict[str, Any], problems: list[str]) -> None:
    assert roles.list_role_problems(Role(id="r1", **submitted)) == problems


def time_after_noon(nanoseconds: int) -> datetime.datetime:
    return NOON + datetime.timedelta(microseconds=nanoseconds // 1000)


@pytest.mark.parametrize(
    ("submitted", "problems"),
    [
        ({"policies": ("p",)}, []),
        ({"roles": (RoleLink(id="r"),)}, []),
        ({"type": "management"}, []),
        ({}, ["client token missing policies or roles"]),
        ({"policies": ()}, ["client token missing policies or roles"]),
        (
            {"type": "management", "policies": ("p",)},
            ["management token cannot be associated with policies or roles"],
        ),
        ({"type": "root", "policies": ("p",)}, ["token type must be client or management"]),
        ({"name": TOO_LONG_TEXT}, ["client token missing policies or roles", "token name too long"]),
        ({"policies": ("p",), "expiration_ttl": MINUTE}, []),
        ({"policies": ("p",), "expiration_ttl": 24 * HOUR}, []),
        (
            {"policies": ("p",), "expiration_ttl": 10 * SECOND},
            ["expiration time cannot be less than 1m0s in the future (was 10s)"],
        ),
        (
            {"policies": ("p",), "expiration_ttl": 25 * HOUR},
            ["expiration time cannot be more than 24h0m0s in the future (was 25h0m0s)"],
        ),
        ({"policies": ("p",), "expiration_time": time_after_noon(HOUR)}, []),
        (
            {"policies": ("p",), "expiration_time": time_after_noon(-HOUR)},
            ["expiration time cannot be less than 1m0s in the future (was -1h0m0s)"],
        ),
    ],
)
def test_problems_of_new_tokens(submitted: dict[str, Any], problems: list[str]) -> None:
    assert (
        tokens.list_new_token_problems(Token(accessor_id="a", **submitted), now=NOON, limits=LifetimeLimits())
        == problems
    )


@pytest.mark.parametrize(
    ("stored", "submitted", "problems"),
    [
        ({}, {}, []),
        ({}, {"global_": True}, ["cannot toggle global mode"]),
        ({"expiration_ttl": HOUR}, {"expiration_ttl": HOUR}, []),
        ({"expiration_ttl": HOUR}, {}, []),
        ({"expiration_ttl": HOUR}, {"expiration_ttl": 2 * HOUR}, ["cannot update expiration TTL"]),
        ({"expiration_time": time_after_noon(HOUR)}, {"expiration_time": time_after_noon(HOUR)}, []),
        (
            {"expiration_time": time_after_noon(HOUR)},
            {"expiration_time": time_after_noon(2 * HOUR)},
            ["cannot update expiration time"],
        ),
        ({}, {"expiration_time": time_after_noon(HOUR)}, ["cannot update expiration time"]),
    ],
)
def test_problems_of_changed_tokens(stored: dict[str, Any], submitted: dict[str, Any], problems: list[str]) -> None:
    before, after = (Token(accessor_id="a", policies=("p",), **fields) for fields in (stored, submitted))

    assert tokens.list_token_update_problems(after, stored=before) == problems


def test_a_token_is_expired_from_its_expiration_time_on() -> None:
    ends = Token(accessor_id="a", expiration_time=NOON)

    assert not ends.is_expired(NOON - datetime.timedelta(microseconds=1))
    assert ends.is_expired(NOON)
    assert not Token(accessor_id="a").is_expired(NOON)


def test_a_token_of_the_future_is_expired_if_its_lifetime_is_shorter_than_the_clock_was_set_back() -> None:
    minute = datetime.timedelta(minutes=1)
    token = Token(accessor_id="a", create_time=NOON, expiration_time=NOON + 10 * minute)

    assert [token.is_expired(NOON + age * minute) for age in (-60, -11, -10, 0, 9, 10)] == [
        True, True, False, False, False, True,
    ]  # fmt: skip


OIDC = AuthMethodConfig(
    oidc_discovery_url="https://id", oidc_client_id="w", oidc_client_secret="s", allowed_redirect_uris=("https://w",)
)
JWT = AuthMethodConfig(jwks_url="https://id/keys")


@pytest.mark.parametrize(
    ("submitted", "problems"),
    [
        ({"config": OIDC}, []),
        ({"type": "JWT", "config": JWT}, []),
        ({"name": "", "config": OIDC}, ["invalid name '': use 1 to 128 letters, digits and dashes"]),
        ({"type": "SAML", "config": OIDC}, ["invalid type 'SAML': must be OIDC or JWT"]),
        ({"token_locality": "", "config": OIDC}, ["invalid token locality '': must be local or global"]),
        (
            {"max_token_ttl": SECOND, "config": OIDC},
            ["invalid MaxTokenTTL value '1s': must be between 1m0s and 24h0m0s"],
        ),
        ({}, ["config is missing"]),
        (
            {"config": AuthMethodConfig()},
            [
                "config: OIDCDiscoveryURL is missing",
                "config: OIDCClientID is missing",
                "config: AllowedRedirectURIs is missing",
                "config: OIDCClientSecret or OIDCClientAssertion is missing",
            ],
        ),
        (
            {"type": "JWT", "config": AuthMethodConfig()},
            ["config: exactly one of JWKSURL, JWTValidationPubKeys and OIDCDiscoveryURL must be set"],
        ),
        (
            {
                "type": "JWT",
                "config": AuthMethodConfig(jwks_url="https://keys", signing_algs=("RS256", "none", "HS256")),
            },
            [
                "config: invalid SigningAlgs value 'none': must be one of RS256, RS384, RS512, PS256, PS384, PS512, "
                "ES256, ES384, ES512, Ed25519, EdDSA"
            ],
        ),
    ],
)
def test_problems_of_auth_methods(submitted: dict[str, Any], problems: list[str]) -> None:
    fields: dict[str, Any] = {
        "name": "sso",
        "type": "OIDC",
        "token_locality": "local",
        "max_token_ttl": HOUR,
    } | submitted

    assert auth_methods.list_auth_method_problems(AuthMethod(**fields), limits=LifetimeLimits()) == problems


@pytest.mark.parametrize(
    ("submitted", "problems"),
    [
        ({"bind_type": "role", "bind_name": "ops"}, []),
        ({"bind_type": "management"}, []),
        ({"bind_type": "policy"}, ["bind name is missing"]),
        ({"bind_type": "management", "bind_name": "x"}, ["bind name should be empty"]),
        ({}, ["bind type is missing"]),
        ({"bind_type": "group", "bind_name": "x"}, ["unsupported bind type: group"]),
        ({"auth_method": "", "bind_type": "management"}, ["auth method is missing"]),
    ],
)
def test_problems_of_binding_rules(submitted: dict[str, Any], problems: list[str]) -> None:
    assert (
        binding_rules.list_binding_rule_problems(BindingRule(**{"id": "b1", "auth_method": "sso", **submitted}))
        == problems
    )


@pytest.mark.parametrize(
    ("submitted", "problems"),
    [
        ({}, []),
        ({"scheduler_algorithm": "spread"}, []),
        ({"scheduler_algorithm": "best"}, ["invalid scheduler algorithm: best"]),
        ({"node_limit_for_feasibility_checks": -1}, ["node limit for feasibility checks cannot be negative"]),
    ],
)
def test_problems_of_scheduler_configurations(submitted: dict[str, Any], problems: list[str]) -> None:
    assert (
        scheduler_configuration.list_scheduler_configuration_problems(SchedulerConfiguration(**submitted)) == problems
    )


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a/b~c_d-e",
        "x" * 128,
        "nomad/jobs",
        "nomad/jobs/web/front",
        "nomad/sentinel/x",
        "nomad/job-templates/t",
        "nomadic",
    ],
)
def test_writable_variable_paths(path: str) -> None:
    assert variables.list_path_problems(path) == []


@pytest.mark.parametrize("path", ["", "a b", "a.b", "x" * 129, "a\n", "ä"])
def test_invalid_variable_paths(path: str) -> None:
    assert len(variables.list_path_problems(path)) == 1


@pytest.mark.parametrize(
    "path", ["nomad", "nomad/", "nomad/other", "nomad/jobsx", "nomad/job-templates", "nomad/job-templates/a/b"]
)
def test_reserved_variable_paths(path: str) -> None:
    (problem,) = variables.list_path_problems(path)

    assert problem.startswith("only paths at ")
    assert problem.endswith(f'got "{path}"')


@pytest.mark.parametrize(
    ("items", "problems"),
    [
        ({"k": "v"}, []),
        ({"k": "x" * 65_535}, []),
        ({"k": "x" * 65_536}, ["variables are limited to 64KiB in total size"]),
        ({"k": "ä" * 32_768}, ["variables are limited to 64KiB in total size"]),
        ({}, ["variable missing required Items object"]),
        (None, ["variable missing required Items object"]),
    ],
    ids=["small", "just fits", "too large", "counted in bytes", "empty", "missing"],
)
def test_problems_of_variable_items(items: dict[str, str] | None, problems: list[str]) -> None:
    assert variables.list_item_problems(items) == problems


@pytest.mark.parametrize(
    ("submitted", "problems"),
    [
        ({}, []),
        ({"ttl": 10 * SECOND}, []),
        ({"ttl": 24 * HOUR}, []),
        ({"ttl": 9 * SECOND}, ["lock TTL must be between 10s and 24h0m0s; got 9s"]),
        ({"ttl": 24 * HOUR + 1}, ["lock TTL must be between 10s and 24h0m0s; got 24h0m0.000000001s"]),
        ({"lock_delay": -SECOND}, ["lock delay must be between 0s and 24h0m0s; got -1s"]),
    ],
)
def test_problems_of_variable_locks(submitted: dict[str, Any], problems: list[str]) -> None:
    assert variables.list_lock_problems(VariableLock(id="l1", **submitted)) == problems
