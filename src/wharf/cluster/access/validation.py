"""What is wrong with records of access control that somebody wants to write, in the words that clients know.

The fields themselves are `model`'s to judge; here their texts are added: rules, selectors, names to be filled in.
"""

from collections.abc import Sequence

from wharf.cluster.access.binding_rules import find_rule_problems
from wharf.cluster.access.policies.parser import InvalidPolicy, parse_policy_strict
from wharf.contract.model.acl import binding_rules as binding_rule
from wharf.contract.model.acl import policies
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.jobs.validation.findings import ValidationProblem, format_problems
from wharf.contract.model.refusal import Refusal, invalid_request


def find_policy_problems(written: Policy) -> list[str]:
    found = policies.list_policy_problems(written)
    try:
        parse_policy_strict(written.rules)
    except InvalidPolicy as error:
        found.append(f"failed to parse rules: {error.text}")
    return found


def find_binding_rule_problems(written: BindingRule) -> list[str]:
    return binding_rule.list_binding_rule_problems(written) + find_rule_problems(written)


def build_invalid_record(noun: str, problems: Sequence[str]) -> Refusal:
    """`policy 0 invalid: 1 error occurred:` and a line for each. The number is from a form of request that takes several."""
    return invalid_request(
        f"{noun} 0 invalid: {format_problems([ValidationProblem('', problem) for problem in problems])}"
    )
