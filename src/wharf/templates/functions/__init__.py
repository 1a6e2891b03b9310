"""The functions of templates. `PLAIN` need their arguments only; `ASKING` ask the sources of the template, or make text
from another of its parts, and get the rendering as their first argument."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from wharf.templates.functions import asking, data, logic, numbers, text
from wharf.templates.parser import Arity

Function = tuple[Callable[..., Any], Arity]  # Arguments and results are values of any kind.

PLAIN: Final[Mapping[str, Function]] = {**logic.FUNCTIONS, **numbers.FUNCTIONS, **text.FUNCTIONS, **data.FUNCTIONS}
ASKING: Final[Mapping[str, Function]] = asking.FUNCTIONS
# These look at no more of their arguments than they need, so rendering does them itself.
LAZY: Final = {"and": Arity(1, None), "or": Arity(1, None)}

ARITIES: Final[Mapping[str, Arity]] = {
    **{name: arity for name, (_, arity) in {**PLAIN, **ASKING}.items()},
    **LAZY,
}
