"""Authentication of callers: every decision of section 5.1 of the reference, and the parts of 5.3 about callers."""

import datetime
import sys
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import SECOND_NS, AState
from wharf.cluster.access import (
    UNCHECKED_CALLER,
    Caller,
    CallerKind,
    DenialDetail,
    InvalidCredential,
    PresentedCredential,
    TokenSecret,
    WorkloadClaims,
    authenticate_caller,
    build_denial,
    require_rights,
)
from wharf.cluster.state.tables import ACL_POLICIES, ACL_ROLES, ACL_TOKENS, ALLOCATIONS, JOBS
from wharf.contract.model.acl import permissions
from wharf.contract.model.acl.capabilities import Capability, VariableCapability
from wharf.contract.model.acl.policies import JobACL, Policy
from wharf.contract.model.acl.roles import PolicyLink, Role
from wharf.contract.model.acl.tokens import RoleLink, Token, TokenType
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.secrets import hash_secret
from wharf.contract.model.times import to_datetime

SECRET_ID = "0e0f1a2b-0000-4000-8000-123456789abc"
READ_JOBS = 'namespace "default" { policy = "read" }'
WRITE_JOBS = 'namespace "default" { policy = "write" }'


@pytest.fixture
def state() -> AState:
    state = AState()
    state.put(
        ACL_POLICIES.build_put(Policy(name="readers", rules=READ_JOBS)),
        ACL_POLICIES.build_put(Policy(name="writers", rules=WRITE_JOBS)),
        ACL_ROLES.build_put(
            Role(id="role-1", name="developers", policies=(PolicyLink(name="writers"), PolicyLink(name="gone")))
        ),
    )
    return state


def a_token(state: AState, secret: str = SECRET_ID, **fields: Any) -> TokenSecret:
    state.put(ACL_TOKENS.build_put(Token(accessor_id=f"of {secret}", secret_digest=hash_secret(secret), **fields)))
    return TokenSecret(hash_secret(secret))


def caller(state: AState, presented: PresentedCredential) -> Caller:
    return authenticate_caller(state.replica, presented, state.moment)


def may_submit(caller: Caller) -> bool:
    return caller.rights.allows_namespace("default", Capability.SUBMIT_JOB)


def may_read(caller: Caller) -> bool:
    return caller.rights.allows_namespace("default", Capability.READ_JOB)


def check_permission(
    caller: Caller,
    permission: permissions.Permission = permissions.READ_JOB,
    manner: DenialDetail = DenialDetail.GENERIC,
    namespace: str = "default",
) -> str:
    try:
        require_rights(caller, permission, manner=manner, namespace=namespace)
    except Refusal as refusal:
        return refusal.text if refusal.code is RefusalCode.FORBIDDEN else f"{refusal.code}: {refusal.text}"
    return "allowed"


# -- 5.1, row by row -----------------------------------------------------------------------------------------------


def test_without_access_control_every_caller_may_do_everything() -> None:
    assert (False, True) == (UNCHECKED_CALLER.is_refused, UNCHECKED_CALLER.rights.is_management)


def test_a_caller_without_a_token_has_no_rights_without_an_anonymous_policy(state: AState) -> None:
    anonymous = caller(state, None)

    assert (CallerKind.ANONYMOUS, (), "Permission denied") == (
        anonymous.kind,
        anonymous.policies,
        check_permission(anonymous),
    )


def test_a_caller_without_a_token_has_the_policy_named_anonymous_if_it_exists(state: AState) -> None:
    state.put(ACL_POLICIES.build_put(Policy(name="anonymous", rules=READ_JOBS)))
    anonymous = caller(state, None)

    assert (("anonymous",), True, False) == (anonymous.policies, may_read(anonymous), may_submit(anonymous))


def test_a_caller_without_a_token_may_use_endpoints_for_any_caller(state: AState) -> None:
    assert check_permission(caller(state, None), permissions.ANY_TOKEN) == "allowed"


def test_an_unknown_secret_is_refused_even_if_no_right_is_needed(state: AState) -> None:
    unknown = caller(state, TokenSecret(hash_secret("0e0f1a2b-0000-4000-8000-000000000000")))

    assert (CallerKind.UNKNOWN, True) == (unknown.kind, unknown.is_refused)
    assert {"Permission denied"} == {
        check_permission(unknown, permission)
        for permission in (permissions.ANY_TOKEN, permissions.READ_JOB, permissions.MANAGEMENT_TOKEN)
    }


def test_an_endpoint_without_authentication_accepts_an_invalid_token(state: AState) -> None:
    assert check_permission(caller(state, TokenSecret(hash_secret("x"))), permissions.PUBLIC_ACCESS) == "allowed"


def test_an_empty_digest_matches_no_token(state: AState) -> None:
    state.put(ACL_TOKENS.build_put(Token(accessor_id="without a secret", type="management")))

    assert caller(state, TokenSecret("")).kind is CallerKind.UNKNOWN


@pytest.mark.parametrize(
    ("manner", "text"),
    [
        (DenialDetail.GENERIC, "Permission denied"),
        (DenialDetail.TOKEN, "ACL token expired"),
        (DenialDetail.AGENT, "ACL token not found or invalid workload identity: ACL token expired"),
        (DenialDetail.AGENT_SHORT, "ACL token expired"),
    ],
)
def test_an_expired_token_is_refused_with_the_error_of_the_endpoint(
    state: AState, manner: DenialDetail, text: str
) -> None:
    expired = caller(state, a_token(state, type="management", expiration_time=to_datetime(state.now_ns)))

    assert CallerKind.EXPIRED is expired.kind
    assert (text, text) == (
        check_permission(expired, permissions.ANY_TOKEN, manner),
        build_denial(expired, manner, detail="").text,
    )


@pytest.mark.parametrize(
    ("manner", "text"),
    [
        (DenialDetail.GENERIC, "Permission denied"),
        (DenialDetail.AGENT, "ACL token not found or invalid workload identity: failed to parse signed token: no dots"),
        (DenialDetail.AGENT_SHORT, "failed to parse signed token: no dots"),
    ],
)
def test_an_unreadable_token_is_refused_with_the_error_of_the_endpoint(
    state: AState, manner: DenialDetail, text: str
) -> None:
    assert text == check_permission(
        caller(state, InvalidCredential("failed to parse signed token: no dots")), permissions.ANY_TOKEN, manner
    )


def test_a_valid_token_without_the_right_is_refused(state: AState) -> None:
    reader = caller(state, a_token(state, policies=("readers",)))

    assert ("allowed", "Permission denied") == (
        check_permission(reader),
        check_permission(reader, permissions.REGISTER_JOB),
    )


def test_a_list_of_all_namespaces_contains_only_readable_namespaces(state: AState) -> None:
    reader = caller(state, a_token(state, policies=("readers",)))
    shown = reader.rights.build_namespace_filter(Capability.READ_JOB)

    assert check_permission(reader, namespace="*") == "allowed"
    assert [namespace for namespace in ("default", "other") if shown(namespace)] == ["default"]


def test_an_object_in_a_namespace_that_the_token_may_not_see_is_refused(state: AState) -> None:
    reader = caller(state, a_token(state, policies=("readers",)))

    assert ("allowed", "Permission denied") == (check_permission(reader), check_permission(reader, namespace="other"))


# -- 5.3 -----------------------------------------------------------------------------------------------------------


def test_a_client_token_has_its_policies_and_the_policies_of_its_roles(state: AState) -> None:
    developer = caller(state, a_token(state, policies=("readers",), roles=(RoleLink(id="role-1"),)))

    assert (CallerKind.CLIENT, ("readers", "writers"), ["developers"]) == (
        developer.kind, developer.policies, [role.name for role in developer.roles],
    )  # fmt: skip
    assert may_submit(developer)


def test_deleted_policies_and_roles_are_ignored(state: AState) -> None:
    reader = caller(state, a_token(state, policies=("gone", "readers"), roles=(RoleLink(id="gone"),)))

    assert (("readers",), True, False) == (reader.policies, may_read(reader), may_submit(reader))


def test_a_management_token_may_do_everything(state: AState) -> None:
    manager = caller(state, a_token(state, type="management"))

    assert (CallerKind.MANAGEMENT, "allowed") == (manager.kind, check_permission(manager, permissions.MANAGEMENT_TOKEN))


def test_a_token_expires_at_its_expiration_time_and_not_before(state: AState) -> None:
    end = to_datetime(state.now_ns + 60 * SECOND_NS)
    token = a_token(state, policies=("readers",), expiration_time=end)
    before = caller(state, token)
    state.now_ns += 60 * SECOND_NS

    assert (CallerKind.CLIENT, CallerKind.EXPIRED) == (before.kind, caller(state, token).kind)
    assert datetime.UTC is end.tzinfo


def test_a_changed_policy_applies_to_the_next_request(state: AState) -> None:
    token = a_token(state, policies=("readers",))
    before = caller(state, token)
    state.put(ACL_POLICIES.build_put(Policy(name="readers", rules=WRITE_JOBS)))

    assert (False, True) == (may_submit(before), may_submit(caller(state, token)))


def test_a_token_with_an_unreadable_policy_has_no_rights(state: AState) -> None:
    state.put(ACL_POLICIES.build_put(Policy(name="broken", rules='namespace "x" { policy = "future" }')))

    assert not may_read(caller(state, a_token(state, policies=("readers", "broken"))))


def test_a_secret_that_belongs_to_two_tokens_identifies_none(state: AState) -> None:
    token = a_token(state, policies=("readers",))
    stored = next(state.replica.iter_all(ACL_TOKENS))
    state.put(ACL_TOKENS.build_put(replace(stored, accessor_id="another", type=TokenType.MANAGEMENT)))

    assert caller(state, token).kind is CallerKind.UNKNOWN


def count_executed_lines(state: AState, secret: str) -> int:
    """Return how many lines are executed to authenticate a caller: a measure of work without a clock."""
    lines = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG001 (a trace function)
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        authenticate_caller(state.replica, TokenSecret(hash_secret(secret)), state.moment)
    finally:
        sys.settrace(before)
    return lines


def test_refusing_an_almost_correct_secret_takes_the_same_time(state: AState) -> None:
    a_token(state, policies=("readers",))
    count_executed_lines(state, SECRET_ID)
    guesses = [SECRET_ID[:-1] + "0", SECRET_ID[:18] + "0" * 18, "f" * 36, SECRET_ID.upper()]

    assert len({count_executed_lines(state, guess) for guess in guesses}) == 1


# -- workload identities -------------------------------------------------------------------------------------------

CLAIMS = WorkloadClaims(namespace="default", job_id="shop", alloc_id="a1", task="server")


def store_allocation(state: AState, **fields: Any) -> None:
    all_fields = {
        "id": "a1", "namespace": "default", "job_id": "shop", "task_group": "web",
        "desired_status": DesiredStatus.RUN, "client_status": ClientStatus.RUNNING, **fields,
    }  # fmt: skip
    state.put(ALLOCATIONS.build_put(Allocation(**all_fields)))


def test_a_workload_may_list_and_read_the_variables_of_its_job_group_and_task(state: AState) -> None:
    store_allocation(state)
    workload = caller(state, CLAIMS)

    assert CallerKind.WORKLOAD is workload.kind
    for path in ("nomad/jobs", "nomad/jobs/shop", "nomad/jobs/shop/web", "nomad/jobs/shop/web/server"):
        granted = {c.value for c in VariableCapability if workload.rights.allows_variable("default", path, c)}
        assert {"list", "read"} == granted
    for path in ("nomad/jobs/other", "nomad/jobs/shop/web/other", "nomad/jobs/shop/web/server/x", "nomad"):
        assert not workload.rights.allows_variable("default", path, VariableCapability.LIST)
    assert not workload.rights.allows_variable("other", "nomad/jobs/shop", VariableCapability.READ)


def test_a_service_of_a_group_may_read_the_variables_of_the_group_only(state: AState) -> None:
    store_allocation(state)
    service = caller(state, WorkloadClaims(namespace="default", job_id="shop", alloc_id="a1"))

    assert service.rights.allows_variable("default", "nomad/jobs/shop/web", VariableCapability.READ)
    assert not service.rights.allows_variable("default", "nomad/jobs/shop/web/", VariableCapability.READ)


@pytest.mark.parametrize(
    "fields",
    [
        {"client_status": ClientStatus.COMPLETE},
        {"client_status": ClientStatus.FAILED},
        {"desired_status": DesiredStatus.STOP},
        {"id": "a2"},
        {"namespace": "other"},
        {"job_id": "other"},
    ],
)
def test_an_identity_is_invalid_without_its_running_allocation(state: AState, fields: dict[str, Any]) -> None:
    state.put(JOBS.build_put(a_job("other", parent_id="another")), JOBS.build_put(a_job("shop")))
    store_allocation(state, **fields)
    late = caller(state, CLAIMS)

    assert (CallerKind.UNVERIFIED, "Permission denied") == (late.kind, check_permission(late, permissions.ANY_TOKEN))


def test_an_identity_without_a_job_id_is_unverified(state: AState) -> None:
    state.put(JOBS.build_put(a_job("shop")))
    store_allocation(state)
    claims_without_job = WorkloadClaims(namespace="default", job_id="", alloc_id="a1")

    assert CallerKind.UNVERIFIED is caller(state, claims_without_job).kind


def test_the_identity_of_a_child_names_its_parent(state: AState) -> None:
    child = a_job("shop/dispatch-1", parent_id="shop")
    state.put(JOBS.build_put(child))
    store_allocation(state, job_id=child.id)

    assert caller(state, CLAIMS).rights.allows_variable("default", "nomad/jobs/shop", VariableCapability.READ)


@pytest.mark.parametrize(
    ("job_acl", "is_attached"),
    [
        (JobACL(namespace="default"), True),
        (JobACL(namespace="default", job_id="shop"), True),
        (JobACL(namespace="default", job_id="shop", group="web"), True),
        (JobACL(namespace="default", job_id="shop", group="web", task="server"), True),
        (JobACL(namespace="other"), False),
        (JobACL(namespace="default", job_id="other"), False),
        (JobACL(namespace="default", job_id="shop", group="other"), False),
        (JobACL(namespace="default", job_id="shop", group="web", task="other"), False),
        (JobACL(), False),
        (None, False),
    ],
)
def test_a_policy_is_attached_to_the_workloads_that_its_job_acl_names(
    state: AState, job_acl: JobACL | None, is_attached: bool
) -> None:
    store_allocation(state)
    state.put(ACL_POLICIES.build_put(Policy(name="attached", rules=READ_JOBS, job_acl=job_acl)))
    workload = caller(state, CLAIMS)

    assert (("attached",) if is_attached else (), is_attached) == (workload.policies, may_read(workload))
