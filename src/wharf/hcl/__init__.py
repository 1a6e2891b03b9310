"""HCL: the language of policies and of configuration, and JSON as another form of the same documents.

Responsible for turning text into a typed tree with places. It knows no block by name and evaluates nothing: a value is
a node of the tree, and what it means is told above.
"""

from wharf.hcl.document import read
from wharf.hcl.errors import HclError, NotADocument, NotAsExpected
from wharf.hcl.json_form import from_json
from wharf.hcl.parser import parse
from wharf.hcl.tree import Attribute, Block, Body, Boolean, Expression, List, Null, Number, Object, Place, Text

__all__ = [
    "Attribute",
    "Block",
    "Body",
    "Boolean",
    "Expression",
    "HclError",
    "List",
    "NotADocument",
    "NotAsExpected",
    "Null",
    "Number",
    "Object",
    "Place",
    "Text",
    "from_json",
    "parse",
    "read",
]
