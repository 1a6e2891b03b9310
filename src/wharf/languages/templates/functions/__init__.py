"""The functions of templates. `PLAIN` need their arguments only; `ASKING` ask the sources of the template, or make text
from another of its parts, and get the rendering as their first argument."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from wharf.languages.templates.functions import data, logic, numbers, sources, text
from wharf.languages.templates.parser import Arity

TemplateFunction = tuple[Callable[..., Any], Arity]  # Arguments and results are values of any kind.

PURE_FUNCTIONS: Final[Mapping[str, TemplateFunction]] = {
    **logic.FUNCTIONS,
    **numbers.FUNCTIONS,
    **text.FUNCTIONS,
    **data.FUNCTIONS,
}
SOURCE_FUNCTIONS: Final[Mapping[str, TemplateFunction]] = sources.FUNCTIONS
# These look at no more of their arguments than they need, so rendering does them itself.
LAZY_FUNCTIONS: Final = {"and": Arity(1, None), "or": Arity(1, None)}

FUNCTION_ARITIES: Final[Mapping[str, Arity]] = {
    **{name: arity for name, (_, arity) in {**PURE_FUNCTIONS, **SOURCE_FUNCTIONS}.items()},
    **LAZY_FUNCTIONS,
}
