"""What is wrong with records of access control that somebody wants to write, in the words that clients know.

The fields themselves are `model`'s to judge; here their texts are added: rules, selectors, names to be filled in.
"""

from collections.abc import Sequence

from wharf.access import binding
from wharf.access.document import check_rules
from wharf.access.errors import InvalidRules
from wharf.model import binding_rule, policy
from wharf.model.binding_rule import BindingRule
from wharf.model.policy import Policy
from wharf.model.refusal import Refusal, invalid
from wharf.model.validation.findings import Problem, multi_error


def policy_problems(written: Policy) -> list[str]:
    found = policy.problems(written)
    try:
        check_rules(written.rules)
    except InvalidRules as error:
        found.append(f"failed to parse rules: {error.text}")
    return found


def binding_rule_problems(written: BindingRule) -> list[str]:
    return binding_rule.problems(written) + binding.rule_problems(written)


def invalid_record(noun: str, problems: Sequence[str]) -> Refusal:
    """`policy 0 invalid: 1 error occurred:` and a line for each. The number is from a form of request that takes several."""
    return invalid(f"{noun} 0 invalid: {multi_error([Problem('', problem) for problem in problems])}")
