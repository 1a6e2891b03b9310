"""What a call needs of its caller, in words for people who read documents."""

from wharf.model.need import (
    AnyToken,
    Both,
    Either,
    InNamespace,
    InSightOfNamespace,
    Management,
    Need,
    Nothing,
    OfLevel,
    OfOperator,
    OnHostVolume,
    OnPool,
    OnVariable,
)


def say_need(need: Need) -> str:
    """A phrase without a full stop."""
    match need:
        case Nothing():
            return "no token"
        case AnyToken():
            return "no right of its own: the answer holds what the caller may see"
        case Management():
            return "a management token"
        case InNamespace(any_of):
            return f"{_one_of(any_of)} in the namespace"
        case InSightOfNamespace():
            return "any right in the namespace"
        case OnVariable(capability):
            return f"`{capability.value}` on the variable's path"
        case OnPool(capability):
            return f"`{capability.value}` on the node pool"
        case OnHostVolume(any_of):
            return f"{_one_of(any_of)} on the volume"
        case OfLevel(scope, level):
            return f"`{scope.value}:{level.value}`"
        case OfOperator(capability):
            return f"`{capability.value}` of operators"
        case Both(needs):
            return ", and ".join(map(say_need, needs))
        case Either(needs):
            return ", or ".join(map(say_need, needs))


def is_of_namespace(need: Need) -> bool:
    """Whether the namespace of the request matters to it."""
    match need:
        case InNamespace() | InSightOfNamespace() | OnVariable() | OnHostVolume():
            return True
        case Both(needs) | Either(needs):
            return any(map(is_of_namespace, needs))
        case _:
            return False


def _one_of(capabilities: "tuple[object, ...]") -> str:
    names = [f"`{getattr(capability, 'value', capability)}`" for capability in capabilities]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
