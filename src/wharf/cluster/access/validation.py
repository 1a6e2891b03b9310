"""Problems of access control records that a caller wants to write, in Nomad's words.

`contract.model` checks the fields; this module adds the texts: rules, selectors and names with placeholders.
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


def find_policy_problems(policy: Policy) -> list[str]:
    """Return the problems of a policy."""
    problems = policies.list_policy_problems(policy)
    try:
        parse_policy_strict(policy.rules)
    except InvalidPolicy as error:
        problems.append(f"failed to parse rules: {error.text}")
    return problems


def find_binding_rule_problems(rule: BindingRule) -> list[str]:
    """Return the problems of a binding rule."""
    return binding_rule.list_binding_rule_problems(rule) + find_rule_problems(rule)


def build_invalid_record(noun: str, problems: Sequence[str]) -> Refusal:
    """Build a refusal: `policy 0 invalid: 1 error occurred:` and a line for each problem. Nomad's request format allows
    several records, hence the number."""
    return invalid_request(
        f"{noun} 0 invalid: {format_problems([ValidationProblem('', problem) for problem in problems])}"
    )
