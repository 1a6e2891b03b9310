"""The functions of templates.

`PURE_FUNCTIONS` need only their arguments. `SOURCE_FUNCTIONS` query the sources or render a named template; their first
argument is the `RenderingContext`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from wharf.languages.templates.functions import data, logic, numbers, sources, text
from wharf.languages.templates.parser import Arity

TemplateFunction = tuple[Callable[..., Any], Arity]
"""A function and the number of its arguments. Arguments and result are values of templates."""

PURE_FUNCTIONS: Final[Mapping[str, TemplateFunction]] = {
    **logic.FUNCTIONS,
    **numbers.FUNCTIONS,
    **text.FUNCTIONS,
    **data.FUNCTIONS,
}
SOURCE_FUNCTIONS: Final[Mapping[str, TemplateFunction]] = sources.FUNCTIONS
LAZY_FUNCTIONS: Final = {"and": Arity(1, None), "or": Arity(1, None)}
"""Functions that evaluate only the arguments they need. The renderer implements them itself."""

FUNCTION_ARITIES: Final[Mapping[str, Arity]] = {
    **{name: arity for name, (_, arity) in {**PURE_FUNCTIONS, **SOURCE_FUNCTIONS}.items()},
    **LAZY_FUNCTIONS,
}
