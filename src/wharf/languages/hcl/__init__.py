"""HCL: the language of policies and of configuration, and JSON as another form of the same documents.

Responsible for turning text into a typed tree with places. It knows no block by name and evaluates nothing: a value is
a node of the tree, and what it means is told above.
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
    SourceLocation,
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
    "SourceLocation",
    "TextValue",
    "parse_document",
    "parse_hcl",
    "parse_json",
]
