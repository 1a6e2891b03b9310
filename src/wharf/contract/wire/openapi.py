"""The OpenAPI 3.1 document, derived from the endpoint table and the message types."""

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
from wharf.contract.model.drivers import DRIVER_CONFIGS
from wharf.contract.model.refusal import RefusalCode, RefusalReason
from wharf.contract.wire.endpoint_table import (
    Endpoint,
    EndpointKind,
    Parameter,
    ParameterKind,
    takes_idempotency_key,
)
from wharf.contract.wire.errors import CODE_HEADER, DETAIL_HEADER, REASON_HEADER, STATUS_BY_CODE
from wharf.languages.filters import list_selectors


def describe_permission(need: Permission) -> str:
    """Return a phrase for a required permission, such as `a management token`, without a full stop."""
    match need:
        case PublicAccess():
            return "no token"
        case AnyToken():
            return "any token or none: the reply contains only what the caller may see"
        case ManagementToken():
            return "a management token"
        case NamespacePermission(any_of):
            return f"{_join_capabilities(any_of)} in the namespace"
        case AnyNamespacePermission():
            return "any capability in the namespace"
        case VariablePermission(capability):
            return f"`{capability.value}` on the variable's path"
        case NodePoolPermission(capability):
            return f"`{capability.value}` on the node pool"
        case HostVolumePermission(any_of):
            return f"{_join_capabilities(any_of)} on the volume"
        case LevelPermission(scope, level):
            return f"`{scope.value}:{level.value}`"
        case OperatorPermission(capability):
            return f"the operator capability `{capability.value}`"
        case AllPermissions(needs):
            return ", and ".join(map(describe_permission, needs))
        case AnyPermission(needs):
            return ", or ".join(map(describe_permission, needs))


def is_namespaced(need: Permission) -> bool:
    """Return whether the permission depends on the namespace that the request names."""
    match need:
        case NamespacePermission() | AnyNamespacePermission() | VariablePermission() | HostVolumePermission():
            return True
        case AllPermissions(needs) | AnyPermission(needs):
            return any(map(is_namespaced, needs))
        case _:
            return False


def _join_capabilities(capabilities: "tuple[object, ...]") -> str:
    """Return the capability names as text: `a`, `b` or `c`, each in backquotes."""
    names = [f"`{getattr(capability, 'value', capability)}`" for capability in capabilities]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


Document = dict[str, Any]

SCHEMA_REFERENCE: Final = "#/components/schemas/{name}"
PATH_PARAMETER: Final = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")

DESCRIPTION: Final = """Schedules jobs onto nodes and reports their state.

Field names are not case-sensitive, and unknown fields are ignored. Every `PUT` endpoint also accepts `POST`, unless it says \
otherwise. Lists accept a `filter`; `x-filter-selectors` names its selectors. Reads with an `index` wait until the result has \
changed since that index. Errors are one line of text; the header `X-Cluster-Error` holds their \
code, and `X-Cluster-Error-Reason` the exact reason if the code is not enough to act on."""

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


def _build_query_parameter(name: str, schema: Document, description: str) -> Document:
    """Return the OpenAPI object of an optional query parameter."""
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


SHARED_PARAMETERS: Final[Document] = {
    "region": _build_query_parameter("region", TEXT_SCHEMA, "The target region. The request is forwarded to one of its servers."),
    "pretty": _build_query_parameter("pretty", TEXT_SCHEMA, "Indent the JSON of the reply."),
    "namespace": _build_query_parameter("namespace", {"type": "string", "default": "default"}, "The namespace. Lists also accept `*` for all namespaces."),
    "index": _build_query_parameter("index", {"type": "integer", "minimum": 0}, "Wait until the result has changed since this index."),
    "wait": _build_query_parameter("wait", {**DURATION_SCHEMA, "default": "5m"}, "How long to wait with `index`; at most 10m."),
    "stale": _build_query_parameter("stale", FLAG_SCHEMA, "Read this server's replica without waiting for the newest writes."),
    "prefix": _build_query_parameter("prefix", TEXT_SCHEMA, "Only records whose ID or name begins with this text."),
    "filter": _build_query_parameter(
        "filter", TEXT_SCHEMA,
        'An expression over the records, such as `Status == "running"`. Refused together with `prefix` and other parameters '
        "that narrow the list, and by endpoints that do not name it.",
    ),
    "per_page": _build_query_parameter("per_page", {"type": "integer", "minimum": 1}, "Records per page; without it, all."),
    "next_token": _build_query_parameter("next_token", TEXT_SCHEMA, "The token that the previous page returned."),
    "reverse": _build_query_parameter("reverse", {"type": "string", "enum": ["true", "false", ""]}, "Reverse the order."),
    "idempotency_key": {
        "name": "Idempotency-Key", "in": "header", "required": False, "schema": TEXT_SCHEMA,
        "description": "A repeated request with the same key returns the first reply, for 24 hours.",
    },
}  # fmt: skip

SHARED_HEADERS: Final[Document] = {
    "Index": {
        "schema": INTEGER_SCHEMA,
        "description": "The log index of the returned state; use it as `index` in the next request.",
    },
    "KnownLeader": {"schema": {"type": "boolean"}, "description": "Whether a leader is known."},
    "LastContact": {
        "schema": INTEGER_SCHEMA,
        "description": "Milliseconds since the server's last contact with the log.",
    },
    "NextToken": {"schema": TEXT_SCHEMA, "description": "The token of the next page; absent on the last page."},
    "Error": {
        "schema": {"type": "string", "enum": [code.value for code in RefusalCode]},
        "description": "The code of the error.",
    },
    "ErrorReason": {
        "schema": {"type": "string", "enum": [reason.value for reason in RefusalReason if reason]},
        "description": "The exact reason of the error; absent if the code says it all.",
    },
    "ErrorDetail": {
        "schema": {"type": "string"},
        "description": "More about the error, for people, percent-encoded; absent if the text says it all.",
    },
}

DESCRIPTION_BY_STATUS: Final[Mapping[int, str]] = {
    400: "The request is invalid; the text names the field and the reason.",
    401: "The credentials of the login are not valid.",
    403: "The token is invalid or lacks the permission.",
    404: "The object does not exist.",
    409: "A record that the request depends on has changed. Read it again and retry.",
    413: "The body is too large.",
    415: "The reply is not available in the requested format.",
    429: "Too many requests, or a server is not healthy.",
    500: "There is no leader, or an internal error occurred.",
    501: "Not supported; the text gives the reason.",
    503: "The log or a required server is unavailable. Nothing was written.",
    504: "The outcome of the write is unknown. Read the record before you retry.",
}

NO_CONTENT_STATUS: Final = 204
COMMON_REFUSAL_STATUSES: Final = (400, 403, 429, 500)
REFUSAL_STATUSES_BY_KIND: Final[Mapping[EndpointKind, Sequence[int]]] = {
    EndpointKind.READ: (404, 503),
    EndpointKind.LOCAL: (404, 503),
    EndpointKind.WRITE: (404, 409, 413, 503, 504),
    EndpointKind.LEADER_WRITE: (404, 409, 413, 503, 504),
}


def build_openapi_document(
    endpoints: Iterable[Endpoint], *, version: str, descriptions: Mapping[str, Mapping[str, str]] | None = None
) -> Document:
    """Return the OpenAPI document of these endpoints, as a dict that can be encoded as JSON.

    `descriptions` has texts for fields of messages, by the name of the type and the wire name of the field.
    """
    endpoint_list = list(endpoints)
    schema_of, components = _build_schemas(endpoint_list)
    _add_descriptions(components, descriptions or {})
    paths: dict[str, Document] = {}
    for endpoint in endpoint_list:
        path = PATH_PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _build_operation(endpoint, schema_of)
    nouns = dict.fromkeys(get_noun(endpoint) for endpoint in endpoint_list)
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
            "responses": {str(status): _build_error_response(status) for status in sorted(set(STATUS_BY_CODE.values()))},
            "securitySchemes": SECURITY_SCHEMES,
        },
        "security": [{"token": []}, {"bearer": []}, {}],
    }  # fmt: skip


def get_noun(endpoint: Endpoint) -> str:
    """Return the noun of an endpoint, which is the first part of its name: `job` for `job.read`."""
    return endpoint.name.partition(".")[0]


def list_filter_selectors(endpoint: Endpoint) -> list[str]:
    """Return the selectors that `filter` supports at this endpoint, such as `Status`; empty without filters."""
    if endpoint.list_features is None or not endpoint.list_features.can_filter:
        return []
    readers = {join.name: _read_nothing for join in endpoint.list_features.joins}
    return [selector.selector for selector in list_selectors(endpoint.list_features.build_filter_subject(readers))]


def _read_nothing(_record: object) -> None:
    return None  # Stands in for the reader of a joined field: the document needs only the type of the field.


# -- operations -------------------------------------------------------------------------------------------------


def _build_operation(endpoint: Endpoint, schema_of: Mapping[Any, Document]) -> Document:
    """Return the OpenAPI operation of an endpoint.

    `schema_of` maps each message type to its JSON schema.
    """
    operation: Document = {
        "operationId": endpoint.name,
        "tags": [get_noun(endpoint)],
        "summary": endpoint.summary,
        "description": f"Needs {describe_permission(endpoint.need)}.",
        "x-needs": describe_permission(endpoint.need),
        "parameters": [
            *_build_path_parameters(endpoint),
            *_build_common_parameters(endpoint),
            *map(_build_declared_parameter, endpoint.parameters),
        ],
        "responses": _build_responses(endpoint, schema_of),
    }
    if endpoint.method == "PUT":
        operation["x-also"] = ["post"]
    if describe_permission(endpoint.need) == "no token":
        operation["security"] = [{}]
    if endpoint.unsupported_reason:
        operation["x-left-out"] = endpoint.unsupported_reason
    if endpoint.body_type is not None:
        operation["requestBody"] = {
            "required": not endpoint.is_body_optional,
            "content": _build_content(endpoint.body_type, schema_of, media=""),
        }
    if selectors := list_filter_selectors(endpoint):
        operation["x-filter-selectors"] = selectors
    return operation


def _build_path_parameters(endpoint: Endpoint) -> list[Document]:
    """Return the OpenAPI objects of the parameters in an endpoint's path."""
    return [
        {
            "name": name, "in": "path", "required": True, "schema": TEXT_SCHEMA,
            "description": "May contain slashes." if is_long else "One path segment.",
        }
        for name, is_long in PATH_PARAMETER.findall(endpoint.path)
    ]  # fmt: skip


def list_common_parameters(endpoint: Endpoint) -> list[str]:
    """Return the names of the parameters that an endpoint accepts besides those that it declares itself.

    They follow from its kind (such as `index` for reads), its list features and its permission, and are in document
    order.
    """
    names: list[str] = []
    if is_namespaced(endpoint.need):
        names.append("namespace")
    if endpoint.kind is EndpointKind.READ:
        if endpoint.can_block:
            names += ["index", "wait"]
        names.append("stale")
    if (features := endpoint.list_features) is not None:
        names += ["prefix"] if features.has_prefix else []
        names += ["filter"] if features.can_filter else []
        names += ["per_page", "next_token"] if features.has_pages else []
        names += ["reverse"] if features.can_reverse or features.reversing_parameter else []
    names += ["region", "pretty"]
    if takes_idempotency_key(endpoint):
        names.append("idempotency_key")
    declared = {parameter.name for parameter in endpoint.parameters}
    return [name for name in names if name not in declared]


def _build_common_parameters(endpoint: Endpoint) -> list[Document]:
    """Return references to the shared OpenAPI objects of parameters such as `index` and `region`."""
    return [{"$ref": f"#/components/parameters/{name}"} for name in list_common_parameters(endpoint)]


def _build_declared_parameter(parameter: Parameter) -> Document:
    """Return the OpenAPI object of a query parameter that the endpoint declares itself."""
    return _build_query_parameter(parameter.name, SCHEMA_BY_PARAMETER_KIND[parameter.kind], parameter.description)


def _build_responses(endpoint: Endpoint, schema_of: Mapping[Any, Document]) -> Document:
    """Return the OpenAPI responses of an endpoint, by HTTP status: errors, then successes."""
    if endpoint.unsupported_reason:
        return {str(status): {"$ref": f"#/components/responses/{status}"} for status in (400, 403, 429, 501)}
    success: Document = {"description": "Done." if endpoint.reply_type is None else endpoint.summary}
    if headers := _build_headers(endpoint):
        success["headers"] = headers
    if endpoint.reply_type is not None:
        success["content"] = _build_content(endpoint.reply_type, schema_of, media=endpoint.content_type)
    error_statuses = sorted(
        {*COMMON_REFUSAL_STATUSES, *REFUSAL_STATUSES_BY_KIND[endpoint.kind], *endpoint.refusal_statuses}
    )
    empty = {name: value for name, value in success.items() if name != "content"}
    errors: Document = {str(status): {"$ref": f"#/components/responses/{status}"} for status in error_statuses}
    return errors | {
        str(status): empty if status == NO_CONTENT_STATUS else success for status in endpoint.success_statuses
    }


def _build_headers(endpoint: Endpoint) -> Document:
    """Return references to the shared OpenAPI objects of the endpoint's reply headers, by header name."""
    names = {
        EndpointKind.READ: ["Index", "KnownLeader", "LastContact"],
        EndpointKind.WRITE: ["Index"],
        EndpointKind.LEADER_WRITE: ["Index"],
    }.get(endpoint.kind, [])
    if endpoint.list_features is not None and endpoint.list_features.has_pages:
        names = [*names, "NextToken"]
    return {f"X-Cluster-{name}": {"$ref": f"#/components/headers/{name}"} for name in names}


def _build_error_response(status: int) -> Document:
    """Return the OpenAPI response for an error with this HTTP status."""
    return {
        "description": DESCRIPTION_BY_STATUS[status],
        "headers": {
            CODE_HEADER.title(): {"$ref": "#/components/headers/Error"},
            REASON_HEADER.title(): {"$ref": "#/components/headers/ErrorReason"},
            DETAIL_HEADER.title(): {"$ref": "#/components/headers/ErrorDetail"},
        },
        "content": {"text/plain": {"schema": TEXT_SCHEMA}},
    }


def _build_content(message_type: Any, schema_of: Mapping[Any, Document], *, media: str) -> Document:
    """Return the OpenAPI content of a request or reply body: its schema by media type.

    An empty `media` selects the default: JSON, or `application/octet-stream` for bytes.
    """
    if message_type is bytes:
        return {media or "application/octet-stream": {"schema": {}}}
    return {
        media or "application/json": {"schema": TEXT_SCHEMA if media.startswith("text/") else schema_of[message_type]}
    }


# -- types ---------------------------------------------------------------------------------------------------------


def _build_schemas(endpoints: Sequence[Endpoint]) -> tuple[dict[Any, Document], Document]:
    """Return two dicts: the JSON schema of each message type, and the named schemas to which these refer."""
    message_types = dict.fromkeys(
        message_type
        for endpoint in endpoints
        for message_type in (endpoint.body_type, endpoint.reply_type)
        if message_type not in (None, bytes)
    )
    schemas, components = msgspec.json.schema_components(
        [*message_types, *DRIVER_CONFIGS.values()], schema_hook=_build_any_schema, ref_template=SCHEMA_REFERENCE
    )
    components["Task"]["properties"]["Config"]["x-options-by-driver"] = dict(
        zip(DRIVER_CONFIGS, schemas[len(message_types) :], strict=True)
    )
    return dict(zip(message_types, schemas, strict=False)), components


def _add_descriptions(components: Document, descriptions: Mapping[str, Mapping[str, str]]) -> None:
    """Add descriptions to the fields of named schemas. Modifies the schemas."""
    for name, texts in descriptions.items():
        properties = components.get(name, {}).get("properties", {})
        for field, text in texts.items():
            if field in properties:
                properties[field] = {**properties[field], "description": text}


def _build_any_schema(message_type: type | UnionType) -> Document:
    """Return a JSON schema that accepts any value, for a type that msgspec cannot describe."""
    return {"description": f"Any value ({getattr(message_type, '__name__', 'object')})."}
