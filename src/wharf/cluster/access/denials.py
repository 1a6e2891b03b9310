"""Checks the rights of callers, and says why one is denied, for people: the missing permission and the name of the token that was sent, or what is wrong with it.

The text of the reply stays that of Nomad; this detail is in a header of its own (decision 268). It contains no secret, and
no name that the caller did not send or cannot see.
"""

from typing import Final

from wharf.cluster.access.caller import Caller, CallerKind, build_denial
from wharf.cluster.access.policies.labels import WILDCARD
from wharf.contract.model.acl import permissions as needs
from wharf.contract.model.acl.permissions import DenialDetail, Permission, PublicAccess
from wharf.contract.model.refusal import Refusal

MAX_NAME_CHARS: Final = 64
"""Limit of a name in a detail. Protects the size of the header."""


def describe_denial(
    caller: Caller, need: Permission, *, namespace: str = "", path: str = "", label: str = "", is_anywhere: bool = False
) -> str:
    """Return why the caller is denied, such as `token "ci" lacks the capability submit-job in namespace "web"`.

    `namespace`, `path` and `label` name the object; an empty namespace is not named. `is_anywhere`: the caller has the
    permission on no object, so an object without a name is any.
    """
    is_named = bool(namespace) and namespace != WILDCARD
    place = f'namespace "{_cut(namespace)}"' if is_named else "any namespace" if is_anywhere else "this namespace"
    if is_named and is_anywhere and caller.kind is not CallerKind.ANONYMOUS:
        place += " or any other"
    determiner = "any" if is_anywhere else "this"
    return _describe_lack(caller, _describe_need(need, place, determiner, path=_cut(path), label=_cut(label)))


def deny(caller: Caller, needed: str, manner: DenialDetail = DenialDetail.GENERIC) -> Refusal:
    """Return the refusal of a caller that lacks `needed`, such as `the policy "ci", or the rights of a management token`.

    For requirements that depend on more than one permission; `require_rights` handles the others.
    """
    return build_denial(caller, manner, detail=_describe_lack(caller, needed))


def _describe_lack(caller: Caller, needed: str) -> str:
    """Return what is wrong with the caller's token, or that it lacks what it needs."""
    match caller.kind:
        case CallerKind.UNKNOWN:
            return "the token does not exist: it was deleted, or belongs to another cluster"
        case CallerKind.EXPIRED:
            return f"{_name_token(caller)} has expired"
        case CallerKind.UNVERIFIED:
            return "the token is neither the secret of a token nor a valid identity of a task"
        case CallerKind.ANONYMOUS:
            subject = ""
        case CallerKind.WORKLOAD:
            subject = "the identity of the task"
        case _:
            subject = _name_token(caller)
    return f"{subject} lacks {needed}" if subject else f"the request had no token; it needs {needed}"


def require_rights(
    caller: Caller,
    need: Permission,
    *,
    manner: DenialDetail = DenialDetail.GENERIC,
    query_namespace: str | None = None,
    namespace: str = "",
    path: str = "",
    label: str = "",
) -> None:
    """Raise a refusal unless the caller has the required permission.

    `namespace`, `path` (of a variable) and `label` (of a node pool or volume) name the object of the request.
    `manner` selects how much the refusal says about an invalid token. `query_namespace` is the namespace that the request
    names, if the one of the object may be another one: then the refusal names it only to callers that can see it.
    """
    if isinstance(need, PublicAccess):
        return
    if caller.is_refused or not caller.rights.satisfies(need, namespace=namespace, path=path, label=label):
        if query_namespace not in (None, namespace) and not caller.rights.allows_any_in(namespace):
            namespace = ""
        detail = describe_denial(caller, need, namespace=namespace, path=path, label=label)
        raise build_denial(caller, manner, detail=detail)


def _name_token(caller: Caller) -> str:
    name = caller.token.name if caller.token is not None else ""
    return f'token "{_cut(name)}"' if name else f"token {caller.accessor_id}"


def _cut(name: str) -> str:
    return name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}…"


def _describe_need(need: Permission, place: str, determiner: str, *, path: str, label: str) -> str:
    """Return a permission as text. `place` names the namespace, and `determiner` stands before an object without a name."""
    match need:
        case needs.NamespacePermission():
            return f"{_list_names(need.capabilities)} in {place}"
        case needs.AnyNamespacePermission():
            return f"any capability in {place}"
        case needs.VariablePermission():
            variables = f'variables at "{path}"' if path else f"{determiner} variable"
            return f"the capability {need.capability} on {variables} in {place}"
        case needs.NodePoolPermission():
            pool = f'node pool "{label}"' if label else f"{determiner} node pool"
            return f"the capability {need.capability} on {pool}"
        case needs.HostVolumePermission():
            volume = f'host volume "{label}"' if label else f"{determiner} host volume"
            return f"{_list_names(need.capabilities)} on {volume}"
        case needs.LevelPermission():
            return f'{need.scope} {{ policy = "{need.level}" }}'
        case needs.OperatorPermission():
            return f"the operator capability {need.capability}"
        case needs.AllPermissions():
            texts = [_describe_need(each, place, determiner, path=path, label=label) for each in need.permissions]
            return ", or ".join(texts)
        case needs.AnyPermission():
            return _describe_need(need.permissions[0], place, determiner, path=path, label=label)
        case needs.ManagementToken():
            return "the rights of a management token"
    return "a valid token"


def _list_names(names: tuple[str, ...]) -> str:
    first, *others = names
    return f"the capability {first}" + (f" (or {', '.join(others)})" if others else "")
