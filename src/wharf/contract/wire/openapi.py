"""What a call needs of its caller, in words for people who read documents.

The OpenAPI document (3.1), made from the endpoint table and the types of bodies: nothing in it is written twice.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Final

import msgspec

from wharf.contract.model.acl.permissions import (
    AllPermissions,
    AnyNamespacePermission,
    AnyPermission,
    AnyToken,
    HostVolumePermission,
    LevelPermission,
    ManagementToken,
    NamespacePermission,
    NodePoolPermission,
    OperatorPermission,
    Permission,
    PublicAccess,
    VariablePermission,
)
from wharf.contract.model.refusal import RefusalCode
from wharf.contract.wire.endpoint_table import Endpoint, EndpointKind, Parameter, ParameterKind
from wharf.contract.wire.errors import CODE_HEADER, STATUS_BY_CODE
from wharf.languages.filters import list_selectors


def describe_need(need: Permission) -> str:
    """A phrase without a full stop."""
    match need:
        case PublicAccess():
            return "no token"
        case AnyToken():
            return "no right of its own: the answer holds what the caller may see"
        case ManagementToken():
            return "a management token"
        case NamespacePermission(any_of):
            return f"{_one_of(any_of)} in the namespace"
        case AnyNamespacePermission():
            return "any right in the namespace"
        case VariablePermission(capability):
            return f"`{capability.value}` on the variable's path"
        case NodePoolPermission(capability):
            return f"`{capability.value}` on the node pool"
        case HostVolumePermission(any_of):
            return f"{_one_of(any_of)} on the volume"
        case LevelPermission(scope, level):
            return f"`{scope.value}:{level.value}`"
        case OperatorPermission(capability):
            return f"`{capability.value}` of operators"
        case AllPermissions(needs):
            return ", and ".join(map(describe_need, needs))
        case AnyPermission(needs):
            return ", or ".join(map(describe_need, needs))


def is_namespaced(need: Permission) -> bool:
    """Whether the namespace of the request matters to it."""
    match need:
        case NamespacePermission() | AnyNamespacePermission() | VariablePermission() | HostVolumePermission():
            return True
        case AllPermissions(needs) | AnyPermission(needs):
            return any(map(is_namespaced, needs))
        case _:
            return False


def _one_of(capabilities: "tuple[object, ...]") -> str:
    names = [f"`{getattr(capability, 'value', capability)}`" for capability in capabilities]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


Document = dict[str, Any]

SCHEMA_REFERENCE: Final = "#/components/schemas/{name}"
PATH_PARAMETER: Final = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")

DESCRIPTION: Final = """Schedules jobs onto nodes, and tells what became of them.

Names of fields are matched without regard to case, unknown ones are ignored. Wherever a `PUT` is told, a `POST` does the \
same. Lists take `filter`, whose selectors each list names under `x-filter-selectors`. Reads with an `index` wait until \
something is newer. Errors are one line of text; what kind they are is told by the header `X-Cluster-Error`."""

SECURITY_SCHEMES: Final[Document] = {
    "token": {
        "type": "apiKey", "in": "header", "name": "X-Cluster-Token", "description": "The SecretID of a token.",
    },
    "bearer": {
        "type": "http", "scheme": "bearer", "description": "The SecretID of a token, or a signed identity.",
    },
}  # fmt: skip

TEXT_SCHEMA: Final[Document] = {"type": "string"}
INTEGER_SCHEMA: Final[Document] = {"type": "integer"}
FLAG_SCHEMA: Final[Document] = {"type": "string", "enum": ["", "true", "false", "1", "0", "t", "f"]}
DURATION_SCHEMA: Final[Document] = {"type": "string", "examples": ["30s", "1m30s", "100ms"]}

SCHEMA_BY_PARAMETER_KIND: Final[Mapping[ParameterKind, Document]] = {
    ParameterKind.TEXT: TEXT_SCHEMA,
    ParameterKind.TEXTS: {"type": "array", "items": TEXT_SCHEMA},
    ParameterKind.FLAG: FLAG_SCHEMA,
    ParameterKind.INTEGER: INTEGER_SCHEMA,
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
    "stale": _query("stale", FLAG_SCHEMA, "Take what this server knows, without asking for the newest."),
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
    "Index": {"schema": INTEGER_SCHEMA, "description": "The state that the reply stands for; use it as `index`."},
    "KnownLeader": {"schema": {"type": "boolean"}, "description": "Whether a leader is known."},
    "LastContact": {"schema": INTEGER_SCHEMA, "description": "How many ms ago the server heard of the log."},
    "NextToken": {"schema": TEXT_SCHEMA, "description": "Where the next page begins; absent on the last."},
    "Error": {
        "schema": {"type": "string", "enum": [code.value for code in RefusalCode]},
        "description": "What kind of refusal this is.",
    },
}

DESCRIPTION_BY_STATUS: Final[Mapping[int, str]] = {
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

NO_CONTENT_STATUS: Final = 204
COMMON_REFUSAL_STATUSES: Final = (400, 403, 500)
REFUSAL_STATUSES_BY_KIND: Final[Mapping[EndpointKind, Sequence[int]]] = {
    EndpointKind.READ: (404, 503),
    EndpointKind.LOCAL: (404, 503),
    EndpointKind.WRITE: (404, 409, 413, 503, 504),
    EndpointKind.LEADER_WRITE: (404, 409, 413, 503, 504),
}


def build_openapi_document(endpoints: Iterable[Endpoint], *, version: str) -> Document:
    """The whole document, as builtins that encode to JSON."""
    rows = list(endpoints)
    schema_of, components = _schemas(rows)
    paths: dict[str, Document] = {}
    for endpoint in rows:
        path = PATH_PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, schema_of)
    nouns = dict.fromkeys(get_noun(endpoint) for endpoint in rows)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Wharf", "version": version, "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "Any server of any region."}],
        "tags": [{"name": noun} for noun in nouns],
        "paths": paths,
        "components": {
            "schemas": components,
            "parameters": SHARED_PARAMETERS,
            "headers": SHARED_HEADERS,
            "responses": {str(status): _refused(status) for status in sorted(set(STATUS_BY_CODE.values()))},
            "securitySchemes": SECURITY_SCHEMES,
        },
        "security": [{"token": []}, {"bearer": []}, {}],
    }  # fmt: skip


def get_noun(endpoint: Endpoint) -> str:
    return endpoint.name.partition(".")[0]


def list_filter_selectors(endpoint: Endpoint) -> list[str]:
    """What `filter` may name in this list, as people write it."""
    if endpoint.list_features is None or not endpoint.list_features.can_filter:
        return []
    reads = {join.name: _nothing for join in endpoint.list_features.joins}
    return [selector.selector for selector in list_selectors(endpoint.list_features.build_filter_subject(reads))]


def _nothing(_record: object) -> None:
    return None


# -- one operation -------------------------------------------------------------------------------------------------


def _operation(endpoint: Endpoint, schema_of: Mapping[Any, Document]) -> Document:
    operation: Document = {
        "operationId": endpoint.name,
        "tags": [get_noun(endpoint)],
        "summary": endpoint.summary,
        "description": f"Needs {describe_need(endpoint.need)}.",
        "x-needs": describe_need(endpoint.need),
        "parameters": [
            *_path_parameters(endpoint),
            *_common_parameters(endpoint),
            *map(_own_parameter, endpoint.parameters),
        ],
        "responses": _responses(endpoint, schema_of),
    }
    if endpoint.method == "PUT":
        operation["x-also"] = ["post"]
    if describe_need(endpoint.need) == "no token":
        operation["security"] = [{}]
    if endpoint.unsupported_reason:
        operation["x-left-out"] = endpoint.unsupported_reason
    if endpoint.body_type is not None:
        operation["requestBody"] = {
            "required": not endpoint.is_body_optional,
            "content": _content(endpoint.body_type, schema_of, media=""),
        }
    if found := list_filter_selectors(endpoint):
        operation["x-filter-selectors"] = found
    return operation


def _path_parameters(endpoint: Endpoint) -> list[Document]:
    return [
        {
            "name": name, "in": "path", "required": True, "schema": TEXT_SCHEMA,
            "description": "May hold slashes." if is_long else "One part of the path.",
        }
        for name, is_long in PATH_PARAMETER.findall(endpoint.path)
    ]  # fmt: skip


def list_common_parameters(endpoint: Endpoint) -> list[str]:
    """The parameters that an endpoint takes because of what it is, in the order in which they are told."""
    names: list[str] = []
    if is_namespaced(endpoint.need):
        names.append("namespace")
    if endpoint.kind is EndpointKind.READ:
        if endpoint.can_block:
            names += ["index", "wait"]
        names.append("stale")
    if (lists := endpoint.list_features) is not None:
        names += ["prefix"] if lists.has_prefix else []
        names += ["filter"] if lists.can_filter else []
        names += ["per_page", "next_token"] if lists.has_pages else []
        names += ["reverse"] if lists.can_reverse else []
    names += ["region", "pretty"]
    if endpoint.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE):
        names.append("idempotency_key")
    own = {parameter.name for parameter in endpoint.parameters}
    return [name for name in names if name not in own]


def _common_parameters(endpoint: Endpoint) -> list[Document]:
    return [{"$ref": f"#/components/parameters/{name}"} for name in list_common_parameters(endpoint)]


def _own_parameter(parameter: Parameter) -> Document:
    return _query(parameter.name, SCHEMA_BY_PARAMETER_KIND[parameter.kind], parameter.description)


def _responses(endpoint: Endpoint, schema_of: Mapping[Any, Document]) -> Document:
    if endpoint.unsupported_reason:
        return {str(status): {"$ref": f"#/components/responses/{status}"} for status in (400, 403, 501)}
    answered: Document = {"description": "Done." if endpoint.reply_type is None else endpoint.summary}
    if headers := _headers(endpoint):
        answered["headers"] = headers
    if endpoint.reply_type is not None:
        answered["content"] = _content(endpoint.reply_type, schema_of, media=endpoint.content_type)
    refused = sorted({*COMMON_REFUSAL_STATUSES, *REFUSAL_STATUSES_BY_KIND[endpoint.kind], *endpoint.refusal_statuses})
    empty = {name: value for name, value in answered.items() if name != "content"}
    told: Document = {str(status): {"$ref": f"#/components/responses/{status}"} for status in refused}
    return {
        str(status): empty if status == NO_CONTENT_STATUS else answered for status in endpoint.success_statuses
    } | told


def _headers(endpoint: Endpoint) -> Document:
    names = {
        EndpointKind.READ: ["Index", "KnownLeader", "LastContact"],
        EndpointKind.WRITE: ["Index"],
        EndpointKind.LEADER_WRITE: ["Index"],
    }.get(endpoint.kind, [])
    if endpoint.list_features is not None and endpoint.list_features.has_pages:
        names = [*names, "NextToken"]
    return {f"X-Cluster-{name}": {"$ref": f"#/components/headers/{name}"} for name in names}


def _refused(status: int) -> Document:
    return {
        "description": DESCRIPTION_BY_STATUS[status],
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
        kind for endpoint in rows for kind in (endpoint.body_type, endpoint.reply_type) if kind not in (None, bytes)
    )
    schemas, components = msgspec.json.schema_components(
        list(kinds), schema_hook=_schema_of_anything, ref_template=SCHEMA_REFERENCE
    )
    return dict(zip(kinds, schemas, strict=True)), components


def _schema_of_anything(kind: type | UnionType) -> Document:
    """For `object` and the like: whatever JSON holds."""
    return {"description": f"Any value ({getattr(kind, '__name__', 'object')})."}
