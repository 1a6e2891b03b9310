"""The table of primary limits, row by row, with the built-in profile."""

import pytest

from tests.limits.builders import (
    CODE_HOST,
    HOUR_MS,
    MINUTE_MS,
    InMemoryLimiter,
    a_client,
    a_user,
    a_workflow,
    an_installation,
    anonymous,
)
from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.decision import Verdict
from wharf.limits.core.limiter import find_objects_problem
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rulebook import Rulebook

BATCH = "/acme/site.git/info/lfs/objects/batch"
AUDIT_LOG = "/enterprises/acme/audit-log"


def admitted_in_an_hour(caller: Caller, ceiling: int, path: str = "/meta") -> tuple[int, Verdict]:
    """Send `ceiling + 1` requests in one window. Return how many are admitted, and the verdict of the last one."""
    limiter = InMemoryLimiter()
    every_ms = HOUR_MS // (ceiling + 2)
    admitted = limiter.send_many(ceiling, caller, path, every_ms=every_ms)
    return admitted, limiter.send(caller, path).verdict


def test_unauthenticated_60_requests_per_hour_per_originating_ip_address() -> None:
    assert admitted_in_an_hour(anonymous(), 60) == (60, Verdict.PRIMARY)


def test_unauthenticated_addresses_are_counted_apart() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(60, anonymous("192.0.2.7"))

    assert limiter.send(anonymous("192.0.2.8")).remaining == 59


@pytest.mark.parametrize(
    "path",
    [AUDIT_LOG, "/orgs/acme/audit-log", f"{AUDIT_LOG}/streams", "/repos/a/b/dependency-graph/sbom", "/scim/v2/Users"],
)
def test_unauthenticated_requests_get_no_further_bucket_at_endpoints_for_users(path: str) -> None:
    decision = InMemoryLimiter().send(anonymous(), path)

    assert (decision.plan.resource, decision.limit) == ("core", 60)


@pytest.mark.parametrize(
    "kind", [CredentialKind.PERSONAL_TOKEN, CredentialKind.OAUTH_TOKEN, CredentialKind.APP_USER_TOKEN]
)
def test_authenticated_user_5000_requests_per_hour_per_user(kind: CredentialKind) -> None:
    assert admitted_in_an_hour(a_user(kind=kind), 5_000) == (5_000, Verdict.PRIMARY)


def test_user_through_an_app_owned_by_an_enterprise_tier_organization_15000_requests_per_hour() -> None:
    caller = a_user(kind=CredentialKind.APP_USER_TOKEN, case=CallerClass.USER_ENTERPRISE)

    assert admitted_in_an_hour(caller, 15_000) == (15_000, Verdict.PRIMARY)


def test_member_through_an_oauth_app_owned_or_approved_by_an_enterprise_tier_organization_15000_requests_per_hour() -> (
    None
):
    caller = a_user(kind=CredentialKind.OAUTH_TOKEN, case=CallerClass.USER_ENTERPRISE)

    assert admitted_in_an_hour(caller, 15_000) == (15_000, Verdict.PRIMARY)


def test_enterprise_audit_log_1750_queries_per_hour_per_user_and_ip_address() -> None:
    assert admitted_in_an_hour(a_user(), 1_750, AUDIT_LOG) == (1_750, Verdict.PRIMARY)


def test_enterprise_audit_log_is_counted_apart_for_each_address_of_a_user() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(1_750, a_user(), AUDIT_LOG, every_ms=2_000)

    assert [limiter.send(a_user(address=address), AUDIT_LOG).is_admitted for address in ("192.0.2.7", "192.0.2.8")] == [
        False,
        True,
    ]


@pytest.mark.parametrize(("caller", "ceiling"), [(anonymous(), 300), (a_user(), 3_000), (an_installation(), 3_000)])
def test_large_file_storage_300_requests_per_minute_unauthenticated_and_3000_authenticated(
    caller: Caller, ceiling: int
) -> None:
    limiter = InMemoryLimiter()
    admitted = limiter.send_many(ceiling, caller, BATCH, method="POST", every_ms=MINUTE_MS // (ceiling + 2))

    assert (admitted, limiter.send(caller, BATCH, method="POST").verdict) == (ceiling, Verdict.PRIMARY)


def test_large_file_storage_is_a_separate_bucket() -> None:
    limiter = InMemoryLimiter()
    decision = limiter.send(anonymous(), BATCH, method="POST")

    assert (decision.plan.resource, limiter.send(anonymous()).remaining) == ("lfs", 59)


def test_large_file_storage_batch_api_100_objects_processed_per_request() -> None:
    plan = Rulebook(CODE_HOST).get_plan(RequestFacts("r", "POST", BATCH, a_user()))

    assert (find_objects_problem(plan, 100), find_objects_problem(plan, 101)) == (
        "",
        "The batch has 101 objects; one request can have at most 100. Send several smaller batches.",
    )


def test_app_installation_minimum_5000_requests_per_hour() -> None:
    assert admitted_in_an_hour(an_installation(repositories=3, members=2), 5_000) == (5_000, Verdict.PRIMARY)


def test_app_installation_on_an_enterprise_tier_organization_or_enterprise_15000_requests_per_hour() -> None:
    caller = an_installation(repositories=900, case=CallerClass.INSTALLATION_ENTERPRISE)

    assert InMemoryLimiter().send(caller).limit == 15_000


@pytest.mark.parametrize(
    ("repositories", "members", "ceiling"),
    [
        (20, 20, 5_000),
        (21, 0, 5_000 + 21 * 50),
        (0, 21, 5_000 + 21 * 50),
        (30, 40, 5_000 + 30 * 50 + 40 * 50),
        (149, 0, 12_450),
        (150, 0, 12_500),
        (5_000, 5_000, 12_500),
    ],
)
def test_app_installation_elsewhere_scales_by_50_for_repositories_and_users_over_20_never_above_12500(
    repositories: int, members: int, ceiling: int
) -> None:
    assert InMemoryLimiter().send(an_installation(repositories=repositories, members=members)).limit == ceiling


def test_oauth_app_client_id_and_secret_5000_requests_per_hour_per_oauth_app() -> None:
    assert admitted_in_an_hour(a_client(), 5_000) == (5_000, Verdict.PRIMARY)


def test_oauth_app_client_id_and_secret_15000_when_owned_by_an_enterprise_tier_organization() -> None:
    assert InMemoryLimiter().send(a_client(case=CallerClass.CLIENT_ENTERPRISE)).limit == 15_000


def test_built_in_workflow_token_1000_requests_per_hour_per_repository() -> None:
    assert admitted_in_an_hour(a_workflow(), 1_000) == (1_000, Verdict.PRIMARY)


def test_built_in_workflow_token_15000_for_resources_of_an_enterprise_tier_account() -> None:
    assert InMemoryLimiter().send(a_workflow(case=CallerClass.WORKFLOW_ENTERPRISE)).limit == 15_000


# The buckets of single endpoints, which the table leaves to the reference.


@pytest.mark.parametrize(
    ("method", "path", "resource", "ceiling", "window_ms"),
    [
        ("GET", "/search/issues?q=x", "search", 30, MINUTE_MS),
        ("GET", "/search/code", "code_search", 10, MINUTE_MS),
        ("POST", "/graphql", "graphql", 5_000, HOUR_MS),
        ("POST", "/app-manifests/abc/conversions", "integration_manifest", 5_000, HOUR_MS),
        ("PUT", "/repos/a/b/import", "source_import", 100, MINUTE_MS),
        ("POST", "/repos/a/b/dependency-graph/snapshots", "dependency_snapshots", 100, MINUTE_MS),
        ("GET", "/repos/a/b/dependency-graph/sbom", "dependency_sbom", 100, MINUTE_MS),
        ("POST", "/repos/a/b/code-scanning/sarifs", "code_scanning_upload", 1_000, HOUR_MS),
        ("POST", "/repos/a/b/code-scanning/alerts/4/autofix", "code_scanning_autofix", 10, MINUTE_MS),
        ("POST", "/repos/a/b/actions/runners/registration-token", "actions_runner_registration", 10_000, HOUR_MS),
        ("GET", "/scim/v2/organizations/acme/Users", "scim", 15_000, HOUR_MS),
        ("GET", "/orgs/acme/audit-log", "audit_log", 1_750, HOUR_MS),
        ("POST", "/enterprises/acme/audit-log/streams", "audit_log_streaming", 15, HOUR_MS),
        ("GET", "/repos/a/b/issues", "core", 5_000, HOUR_MS),
    ],
)
def test_a_request_belongs_to_the_bucket_that_clients_expect(
    method: str, path: str, resource: str, ceiling: int, window_ms: int
) -> None:
    decision = InMemoryLimiter().send(a_user(), path, method=method)

    assert (decision.plan.resource, decision.limit, decision.bucket_charge.rule.window_ms) == (
        resource,
        ceiling,
        window_ms,
    )


def test_search_without_a_credential_is_10_a_minute() -> None:
    assert InMemoryLimiter().send(anonymous(), "/search/users").limit == 10


@pytest.mark.parametrize(
    ("caller", "ceiling"),
    [
        (a_user(case=CallerClass.USER_ENTERPRISE), 10_000),
        (an_installation(repositories=30), 6_500),
        (an_installation(case=CallerClass.INSTALLATION_ENTERPRISE), 10_000),
        (a_client(), 5_000),
        (a_client(case=CallerClass.CLIENT_ENTERPRISE), 10_000),
        (a_workflow(), 1_000),
        (a_workflow(case=CallerClass.WORKFLOW_ENTERPRISE), 15_000),
    ],
)
def test_graphql_points_an_hour_depend_on_the_credential(caller: Caller, ceiling: int) -> None:
    assert InMemoryLimiter().send(caller, "/graphql", method="POST").limit == ceiling
