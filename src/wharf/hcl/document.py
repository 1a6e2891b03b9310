"""A document in either of its forms: what begins with a brace is JSON, everything else is HCL."""

from wharf.hcl.json_form import from_json
from wharf.hcl.parser import parse
from wharf.hcl.source import LENGTH_MAX
from wharf.hcl.tree import Body


def read(text: str, *, length_max: int = LENGTH_MAX) -> Body:
    is_json = text.lstrip("\ufeff \t\r\n").startswith("{")
    return from_json(text, length_max=length_max) if is_json else parse(text, length_max=length_max)
