"""The OpenAPI document (3.1), made from the endpoint table and the types of bodies: nothing in it is written twice."""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Final

import msgspec

from wharf.filters import selectors
from wharf.model.refusal import Code
from wharf.wire.endpoints import Endpoint, Kind, Parameter, ParameterKind
from wharf.wire.errors import CODE_HEADER, STATUS_OF
from wharf.wire.need_words import is_of_namespace, say_need

Document = dict[str, Any]

SCHEMAS: Final = "#/components/schemas/{name}"
NUMBERED: Final = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")

ABOUT: Final = """Schedules jobs onto nodes, and tells what became of them.

Names of fields are matched without regard to case, unknown ones are ignored. Wherever a `PUT` is told, a `POST` does the \
same. Lists take `filter`, whose selectors each list names under `x-filter-selectors`. Reads with an `index` wait until \
something is newer. Errors are one line of text; what kind they are is told by the header `X-Cluster-Error`."""

SECURITY: Final[Document] = {
    "token": {
        "type": "apiKey", "in": "header", "name": "X-Cluster-Token", "description": "The SecretID of a token.",
    },
    "bearer": {
        "type": "http", "scheme": "bearer", "description": "The SecretID of a token, or a signed identity.",
    },
}  # fmt: skip

TEXT_SCHEMA: Final[Document] = {"type": "string"}
WHOLE_SCHEMA: Final[Document] = {"type": "integer"}
SWITCH_SCHEMA: Final[Document] = {"type": "string", "enum": ["", "true", "false", "1", "0", "t", "f"]}
DURATION_SCHEMA: Final[Document] = {"type": "string", "examples": ["30s", "1m30s", "100ms"]}

OF_PARAMETER: Final[Mapping[ParameterKind, Document]] = {
    ParameterKind.TEXT: TEXT_SCHEMA,
    ParameterKind.TEXTS: {"type": "array", "items": TEXT_SCHEMA},
    ParameterKind.FLAG: SWITCH_SCHEMA,
    ParameterKind.INTEGER: WHOLE_SCHEMA,
    ParameterKind.UNSIGNED: {"type": "integer", "minimum": 0},
    ParameterKind.DURATION: DURATION_SCHEMA,
}


def _query(name: str, schema: Document, description: str) -> Document:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


SHARED_PARAMETERS: Final[Document] = {
    "region": _query("region", TEXT_SCHEMA, "The region to ask. The request is passed on to one of its servers."),
    "pretty": _query("pretty", TEXT_SCHEMA, "Indent the JSON of the reply."),
    "namespace": _query("namespace", {"type": "string", "default": "default"}, "The namespace; of lists also `*`, all."),
    "index": _query("index", {"type": "integer", "minimum": 0}, "Wait until something is newer than this index."),
    "wait": _query("wait", {**DURATION_SCHEMA, "default": "5m"}, "How long to wait with `index`; at most 10m."),
    "stale": _query("stale", SWITCH_SCHEMA, "Take what this server knows, without asking for the newest."),
    "prefix": _query("prefix", TEXT_SCHEMA, "Only what begins so."),
    "filter": _query("filter", TEXT_SCHEMA, 'An expression over the records, such as `Status == "running"`.'),
    "per_page": _query("per_page", {"type": "integer"}, "How many to a page; 0 is all."),
    "next_token": _query("next_token", TEXT_SCHEMA, "The token of the page before: where this one begins."),
    "reverse": _query("reverse", {"type": "string", "enum": ["true", "false", ""]}, "Turn the order round."),
    "idempotency_key": {
        "name": "Idempotency-Key", "in": "header", "required": False, "schema": TEXT_SCHEMA,
        "description": "The same key again gets the first answer, for 24 hours.",
    },
}  # fmt: skip

SHARED_HEADERS: Final[Document] = {
    "Index": {"schema": WHOLE_SCHEMA, "description": "The state that the reply stands for; use it as `index`."},
    "KnownLeader": {"schema": {"type": "boolean"}, "description": "Whether a leader is known."},
    "LastContact": {"schema": WHOLE_SCHEMA, "description": "How many ms ago the server heard of the log."},
    "NextToken": {"schema": TEXT_SCHEMA, "description": "Where the next page begins; absent on the last."},
    "Error": {
        "schema": {"type": "string", "enum": [code.value for code in Code]},
        "description": "What kind of refusal this is.",
    },
}

MEANINGS: Final[Mapping[int, str]] = {
    400: "The request is wrong; the text says what and where.",
    401: "What was shown as proof does not hold.",
    403: "The caller may not do that.",
    404: "There is no such thing.",
    409: "What the request rested on had changed.",
    413: "The body is too large.",
    415: "The answer is not to be had in that form.",
    429: "Too much at once, or not healthy.",
    500: "No leader, or an error of our own.",
    501: "Left out; the text says why.",
    503: "The log, or a server that is needed, does not answer just now. Nothing happened.",
    504: "Nobody can tell whether the write happened: read before you try again.",
}

NO_CONTENT: Final = 204
OF_EVERY_CALL: Final = (400, 403, 500)
OF_KIND: Final[Mapping[Kind, Sequence[int]]] = {
    Kind.READ: (404, 503),
    Kind.LOCAL: (404, 503),
    Kind.WRITE: (404, 409, 413, 503, 504),
    Kind.ASK: (404, 409, 413, 503, 504),
}


def openapi_document(endpoints: Iterable[Endpoint], *, version: str) -> Document:
    """The whole document, as builtins that encode to JSON."""
    rows = list(endpoints)
    schema_of, components = _schemas(rows)
    paths: dict[str, Document] = {}
    for endpoint in rows:
        path = NUMBERED.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, schema_of)
    nouns = dict.fromkeys(noun_of(endpoint) for endpoint in rows)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Wharf", "version": version, "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "Any server of any region."}],
        "tags": [{"name": noun} for noun in nouns],
        "paths": paths,
        "components": {
            "schemas": components,
            "parameters": SHARED_PARAMETERS,
            "headers": SHARED_HEADERS,
            "responses": {str(status): _refused(status) for status in sorted(set(STATUS_OF.values()))},
            "securitySchemes": SECURITY,
        },
        "security": [{"token": []}, {"bearer": []}, {}],
    }  # fmt: skip


def noun_of(endpoint: Endpoint) -> str:
    return endpoint.name.partition(".")[0]


def filter_selectors(endpoint: Endpoint) -> list[str]:
    """What `filter` may name in this list, as people write it."""
    if endpoint.lists is None or not endpoint.lists.filters:
        return []
    reads = {join.name: _nothing for join in endpoint.lists.joins}
    return [selector.selector for selector in selectors(endpoint.lists.subject(reads))]


def _nothing(_record: object) -> None:
    return None


# -- one operation -------------------------------------------------------------------------------------------------


def _operation(endpoint: Endpoint, schema_of: Mapping[Any, Document]) -> Document:
    operation: Document = {
        "operationId": endpoint.name,
        "tags": [noun_of(endpoint)],
        "summary": endpoint.summary,
        "description": f"Needs {say_need(endpoint.need)}.",
        "x-needs": say_need(endpoint.need),
        "parameters": [
            *_path_parameters(endpoint),
            *_common_parameters(endpoint),
            *map(_own_parameter, endpoint.parameters),
        ],
        "responses": _responses(endpoint, schema_of),
    }
    if endpoint.method == "PUT":
        operation["x-also"] = ["post"]
    if say_need(endpoint.need) == "no token":
        operation["security"] = [{}]
    if endpoint.left_out:
        operation["x-left-out"] = endpoint.left_out
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": not endpoint.body_optional,
            "content": _content(endpoint.body, schema_of, media=""),
        }
    if found := filter_selectors(endpoint):
        operation["x-filter-selectors"] = found
    return operation


def _path_parameters(endpoint: Endpoint) -> list[Document]:
    return [
        {
            "name": name, "in": "path", "required": True, "schema": TEXT_SCHEMA,
            "description": "May hold slashes." if is_long else "One part of the path.",
        }
        for name, is_long in NUMBERED.findall(endpoint.path)
    ]  # fmt: skip


def common_names(endpoint: Endpoint) -> list[str]:
    """The parameters that an endpoint takes because of what it is, in the order in which they are told."""
    names: list[str] = []
    if is_of_namespace(endpoint.need):
        names.append("namespace")
    if endpoint.kind is Kind.READ:
        if endpoint.blocks:
            names += ["index", "wait"]
        names.append("stale")
    if (lists := endpoint.lists) is not None:
        names += ["prefix"] if lists.prefix else []
        names += ["filter"] if lists.filters else []
        names += ["per_page", "next_token"] if lists.pages else []
        names += ["reverse"] if lists.reverses else []
    names += ["region", "pretty"]
    if endpoint.kind in (Kind.WRITE, Kind.ASK):
        names.append("idempotency_key")
    own = {parameter.name for parameter in endpoint.parameters}
    return [name for name in names if name not in own]


def _common_parameters(endpoint: Endpoint) -> list[Document]:
    return [{"$ref": f"#/components/parameters/{name}"} for name in common_names(endpoint)]


def _own_parameter(parameter: Parameter) -> Document:
    return _query(parameter.name, OF_PARAMETER[parameter.kind], parameter.description)


def _responses(endpoint: Endpoint, schema_of: Mapping[Any, Document]) -> Document:
    if endpoint.left_out:
        return {str(status): {"$ref": f"#/components/responses/{status}"} for status in (400, 403, 501)}
    answered: Document = {"description": "Done." if endpoint.returns is None else endpoint.summary}
    if headers := _headers(endpoint):
        answered["headers"] = headers
    if endpoint.returns is not None:
        answered["content"] = _content(endpoint.returns, schema_of, media=endpoint.media)
    refused = sorted({*OF_EVERY_CALL, *OF_KIND[endpoint.kind], *endpoint.refuses})
    empty = {name: value for name, value in answered.items() if name != "content"}
    told: Document = {str(status): {"$ref": f"#/components/responses/{status}"} for status in refused}
    return {str(status): empty if status == NO_CONTENT else answered for status in endpoint.answers} | told


def _headers(endpoint: Endpoint) -> Document:
    names = {
        Kind.READ: ["Index", "KnownLeader", "LastContact"],
        Kind.WRITE: ["Index"],
        Kind.ASK: ["Index"],
    }.get(endpoint.kind, [])
    if endpoint.lists is not None and endpoint.lists.pages:
        names = [*names, "NextToken"]
    return {f"X-Cluster-{name}": {"$ref": f"#/components/headers/{name}"} for name in names}


def _refused(status: int) -> Document:
    return {
        "description": MEANINGS[status],
        "headers": {
            "-".join(word.capitalize() for word in CODE_HEADER.split("-")): {"$ref": "#/components/headers/Error"}
        },
        "content": {"text/plain": {"schema": TEXT_SCHEMA}},
    }


def _content(kind: Any, schema_of: Mapping[Any, Document], *, media: str) -> Document:
    if kind is bytes:
        return {media or "application/octet-stream": {"schema": {}}}
    return {media or "application/json": {"schema": TEXT_SCHEMA if media.startswith("text/") else schema_of[kind]}}


# -- types ---------------------------------------------------------------------------------------------------------


def _schemas(rows: Sequence[Endpoint]) -> tuple[dict[Any, Document], Document]:
    """The schema of each type that is a body or a reply, and the named ones that they refer to."""
    kinds = dict.fromkeys(
        kind for endpoint in rows for kind in (endpoint.body, endpoint.returns) if kind not in (None, bytes)
    )
    schemas, components = msgspec.json.schema_components(
        list(kinds), schema_hook=_schema_of_anything, ref_template=SCHEMAS
    )
    return dict(zip(kinds, schemas, strict=True)), components


def _schema_of_anything(kind: type | UnionType) -> Document:
    """For `object` and the like: whatever JSON holds."""
    return {"description": f"Any value ({getattr(kind, '__name__', 'object')})."}
