"""Access control: what policies say, who is calling, and what a caller may do.

Pure: it decides from a snapshot, from what came with a request and from the moment. It opens nothing, checks no signature
and knows no endpoint; what an operation needs is declared in `model.need`.
"""

from wharf.access.again import who_is_it_now
from wharf.access.binding import Bindings, bind, method_named, token_name
from wharf.access.caller import UNCHECKED, Caller, CallerKind
from wharf.access.claims import MappedClaims, map_claims
from wharf.access.compiled import rights_of
from wharf.access.denial import denial, refuse_without
from wharf.access.document import check_rules, read_rules
from wharf.access.errors import InvalidRules
from wharf.access.identification import Presented, Secret, Unverified, who_is, whose_token
from wharf.access.rights import EVERY_RIGHT, NO_RIGHTS, Rights
from wharf.access.rules import Rules, rules_json
from wharf.access.validation import binding_rule_problems, invalid_record, policy_problems
from wharf.access.workload import WorkloadClaims
from wharf.model.need import Manner

__all__ = [
    "EVERY_RIGHT",
    "NO_RIGHTS",
    "UNCHECKED",
    "Bindings",
    "Caller",
    "CallerKind",
    "InvalidRules",
    "Manner",
    "MappedClaims",
    "Presented",
    "Rights",
    "Rules",
    "Secret",
    "Unverified",
    "WorkloadClaims",
    "bind",
    "binding_rule_problems",
    "check_rules",
    "denial",
    "invalid_record",
    "map_claims",
    "method_named",
    "policy_problems",
    "read_rules",
    "refuse_without",
    "rights_of",
    "rules_json",
    "token_name",
    "who_is",
    "who_is_it_now",
    "whose_token",
]
