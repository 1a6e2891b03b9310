"""HCL: the language of policies and of configuration, and JSON as another form of the same documents.

Parses text into a typed tree with source locations. It knows no block names and evaluates no values: callers decide what
a document means.
"""

from wharf.languages.hcl.errors import HclError, HclStructureError, HclSyntaxError
from wharf.languages.hcl.json_parser import parse_json
from wharf.languages.hcl.parser import parse_document, parse_hcl
from wharf.languages.hcl.tree import (
    Attribute,
    Block,
    Body,
    BooleanValue,
    Expression,
    ListValue,
    NullValue,
    NumberValue,
    ObjectValue,
    TextValue,
)

__all__ = [
    "Attribute",
    "Block",
    "Body",
    "BooleanValue",
    "Expression",
    "HclError",
    "HclStructureError",
    "HclSyntaxError",
    "ListValue",
    "NullValue",
    "NumberValue",
    "ObjectValue",
    "TextValue",
    "parse_document",
    "parse_hcl",
    "parse_json",
]
