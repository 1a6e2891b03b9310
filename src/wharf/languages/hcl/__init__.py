"""HCL: the language of job files and of access-control policies, and JSON as another form of the same documents.

It knows no jobs, and reads no files, clocks or environment. Two languages share the syntax:

**Policies** (`parse_document` of this module) are trees of literals. Lines and commas mean nothing, as in older documents.
Nothing is evaluated.

**Job files** (`wharf.languages.hcl.documents`) have expressions, templates, variables, local values and dynamic blocks. A
caller passes a schema, because neither dynamic blocks nor the JSON form can be read without one:

    from wharf.languages.hcl.documents import evaluate_document, parse_document, parse_values
    from wharf.languages.hcl.schemas import FREE_FORM_BODY, MAP_BODY, BlockSchema, BodySchema

    task = BodySchema(("driver",), {"config": BlockSchema(FREE_FORM_BODY), "env": BlockSchema(MAP_BODY)})
    job = BodySchema(("type",), {"task": BlockSchema(task, ("name",), is_repeatable=True)})
    root = BodySchema((), {"job": BlockSchema(job, ("name",), is_required=True)})

    document = parse_document(text, "job.hcl")                       # raises DocumentErrors: syntax
    inputs = VariableInputs(files=(parse_values(values, "variables"),), flags=(("image", "web:2"),))
    evaluated = evaluate_document(document, root, ports=ports, inputs=inputs)
                                                   # raises DocumentErrors: declarations, values, local values

The result is an `EvaluatedDocument`. A mapper reads its `body`:

- `EvaluatedBody.attributes` maps names to `EvaluatedAttribute`s, and `blocks` lists `EvaluatedBlock`s in the order of the
  text. Dynamic blocks are expanded.

- `EvaluatedAttribute.value` is a value of `wharf.languages.hcl.values`. `convert_value` of `conversions` converts it to a
  type, and `to_plain` of `values` returns it as JSON has it. `is_failed` marks a value whose error is already reported.

- `EvaluatedAttribute.is_object_literal` distinguishes `x = { ... }` from an object that a call returns.

- `name_place`, `place`, `get_item_place` and `EvaluatedBlock.place` are the places of parts in the source.

- A free-form body has the same form as any other.

- `EvaluatedDocument.runtime_references` lists the references that stay as text for the node, for warnings.

A mapper adds its own errors with `evaluated.diagnostics.add(place.source, place.start, place.end, message, fix)`, and then
calls `evaluated.diagnostics.raise_if_any()`. So the author sees all errors of the body in one run. `DocumentErrors.text` is
the text for users.

`FunctionPorts` has two ports: `RandomPort` draws bytes for `uuidv4` and `bcrypt`, and `FilePort` reads files. Its default
`NoFiles` refuses every file function. A `Budget` limits the steps and the size of an evaluation.
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
