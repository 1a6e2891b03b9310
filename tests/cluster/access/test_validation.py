"""Invalid records are refused with the error texts that clients know."""

import pytest

from wharf.cluster.access import build_invalid_record, find_policy_problems
from wharf.contract.model.acl.policies import JobACL, Policy
from wharf.contract.model.refusal import RefusalCode


@pytest.mark.parametrize(
    ("policy", "problems"),
    [
        (Policy(name="a", rules='agent { policy = "read" }'), []),
        (Policy(name="a"), []),
        (Policy(name="a", rules="x"), ['failed to parse rules: Failed to parse ACL Policy: At 1:2: expected "=", "{" or a label, found the end']),
        (Policy(name="a b", rules='agent { policy = "all" }'), ["invalid name 'a b': use 1 to 128 letters, digits and dashes", "failed to parse rules: Invalid agent policy: 'all': it is one of deny, read, scale, write (at 1:18)"]),
        (Policy(name="a", job_acl=JobACL(job_id="x")), ["namespace must be set to set job ID"]),
        (Policy(name="a", job_acl=JobACL(namespace="x", job_id="y", task="z")), ["group must be set to set task"]),
        (Policy(name="a", description="x" * 257), ["description longer than 256"]),
    ],
)  # fmt: skip
def test_all_errors_of_a_policy_are_reported(policy: Policy, problems: list[str]) -> None:
    assert problems == find_policy_problems(policy)


def test_problems_are_joined_in_the_format_that_clients_know() -> None:
    policy_error, token_error = build_invalid_record("policy", ["x"]), build_invalid_record("token", ["x", "y"])

    assert (RefusalCode.INVALID, "policy 0 invalid: 1 error occurred:\n\t* x\n\n") == (
        policy_error.code,
        policy_error.text,
    )
    assert token_error.text == "token 0 invalid: 2 errors occurred:\n\t* x\n\t* y\n\n"
