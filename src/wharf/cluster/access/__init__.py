"""Access control: what policies grant, who the caller is, and what the caller may do.

Pure: it decides from a snapshot, the request's credential and the current time. It opens nothing, verifies no signature
and knows no endpoint. `contract.model.acl.permissions` declares what an operation requires.
"""

from wharf.cluster.access.authentication import (
    InvalidCredential,
    PresentedCredential,
    TokenSecret,
    authenticate_caller,
    reauthenticate_caller,
)
from wharf.cluster.access.binding_rules import TokenBindings, bind_claims, build_token_name, find_auth_method
from wharf.cluster.access.caller import UNCHECKED_CALLER, Caller, CallerKind, build_denial
from wharf.cluster.access.claims import MappedClaims, map_claims
from wharf.cluster.access.denials import deny, describe_denial, require_rights
from wharf.cluster.access.identities import WorkloadClaims
from wharf.cluster.access.policies.parser import InvalidPolicy, parse_policy, parse_policy_strict
from wharf.cluster.access.policies.rules import PolicyRules, encode_rules
from wharf.cluster.access.rights import (
    ALL_RIGHTS,
    NO_RIGHTS,
    Rights,
    RightsNotCompiled,
    compile_rights,
    get_rights,
    store_rights,
)
from wharf.cluster.access.validation import build_invalid_record, find_binding_rule_problems, find_policy_problems
from wharf.contract.model.acl.permissions import DenialDetail

__all__ = [
    "ALL_RIGHTS",
    "NO_RIGHTS",
    "UNCHECKED_CALLER",
    "Caller",
    "CallerKind",
    "DenialDetail",
    "InvalidCredential",
    "InvalidPolicy",
    "MappedClaims",
    "PolicyRules",
    "PresentedCredential",
    "Rights",
    "RightsNotCompiled",
    "TokenBindings",
    "TokenSecret",
    "WorkloadClaims",
    "authenticate_caller",
    "bind_claims",
    "build_denial",
    "build_invalid_record",
    "build_token_name",
    "compile_rights",
    "deny",
    "describe_denial",
    "encode_rules",
    "find_auth_method",
    "find_binding_rule_problems",
    "find_policy_problems",
    "get_rights",
    "map_claims",
    "parse_policy",
    "parse_policy_strict",
    "reauthenticate_caller",
    "require_rights",
    "store_rights",
]
