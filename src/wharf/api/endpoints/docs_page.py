"""The page of documents: the endpoint table as HTML, grouped by noun. What it says comes from the OpenAPI document."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec

from wharf.api.endpoints.docs_style import MARK, SCRIPT, STYLE
from wharf.wire.endpoints import Endpoint, Kind
from wharf.wire.openapi import Document, filter_selectors, noun_of

TITLES: Final[Mapping[str, str]] = {
    "acl": "Access control", "agent": "The agent", "allocation": "Allocations", "client": "Nodes' own endpoints",
    "deployment": "Deployments", "document": "These documents", "evaluation": "Evaluations", "event": "Events",
    "host_volume": "Volumes of hosts", "identity": "Identities", "job": "Jobs", "keyring": "The keyring",
    "metrics": "Figures", "namespace": "Namespaces", "node": "Nodes", "node_pool": "Node pools", "operator": "Operators",
    "quota": "Quotas", "region": "Regions", "scaling": "Scaling", "search": "Search", "server": "Between servers",
    "service": "Services", "status": "Who leads", "system": "The system", "variable": "Variables",
}  # fmt: skip
PLACE: Final = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")
DEEPEST: Final = 3
"""How deep an example of a body goes."""


def docs_page(endpoints: Iterable[Endpoint], document: Document) -> str:
    nouns: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        nouns.setdefault(noun_of(endpoint), []).append(endpoint)
    writer = _Writer(document)
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1"><title>Wharf: the HTTP API</title>',
            '<link rel="icon" href="data:,">',
            f"<style>{STYLE}</style></head><body>",
            *writer.side(nouns),
            "<main>",
            *writer.head(sum(map(len, nouns.values()))),
            *(part for noun, rows in nouns.items() for part in writer.section(noun, rows)),
            *writer.types(),
            f'<p id="none">Nothing here is called so.</p></main><script>{SCRIPT}</script></body></html>',
        ]
    )


class _Writer:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._types: Mapping[str, Document] = document["components"]["schemas"]
        self._shared: Mapping[str, Document] = document["components"]["parameters"]

    # -- around --------------------------------------------------------------------------------------------------------

    def side(self, nouns: Mapping[str, Sequence[Endpoint]]) -> Iterator[str]:
        version = escape(self._document["info"]["version"])
        yield f'<aside><div class="brand">{MARK}<span>Wharf <small>{version}</small></span></div>'
        yield '<input id="q" type="search" placeholder="Search  ( / )" aria-label="Search" autocomplete="off"><nav>'
        for noun, rows in nouns.items():
            yield f'<div data-g><h2><a href="#{noun}">{escape(_title(noun))}</a></h2><ul>'
            for row in rows:
                yield (
                    f'<li data-t="{_words(row)}"><a href="#{_anchor(row)}">{_method(row)}'
                    f'<span class="t">{escape(row.path.removeprefix("/v1"))}</span></a></li>'
                )
            yield "</ul></div>"
        yield '<div><h2><a href="#types">Types</a></h2></div></nav></aside>'

    def head(self, count: int) -> Iterator[str]:
        first, _, rest = self._document["info"]["description"].partition("\n\n")
        yield f"<h1>The HTTP API</h1><p class=lead>{escape(first)}</p><p class=lead>{_prose(rest)}</p>"
        yield f'<div class="facts"><span class="pill">{count} endpoints</span>'
        yield '<span class="pill"><a href="openapi.json">OpenAPI 3.1 as JSON</a></span>'
        yield '<span class="pill">port 4646</span><span class="pill">prefix <code>/v1</code></span></div>'
        yield '<pre>export WHARF_ADDR=http://127.0.0.1:4646\ncurl -s "$WHARF_ADDR/v1/jobs?pretty"</pre>'
        yield "<details><summary>Parameters that many endpoints share</summary>"
        yield from _parameter_table(self._shared.values())
        yield "</details>"

    def section(self, noun: str, rows: Sequence[Endpoint]) -> Iterator[str]:
        yield f'<section class="noun" id="{noun}" data-g><h2>{escape(_title(noun))}</h2>'
        for row in rows:
            yield from self._article(row)
        yield "</section>"

    def types(self) -> Iterator[str]:
        yield '<section class="noun" id="types" data-g><h2>Types</h2>'
        for name, schema in sorted(self._types.items()):
            yield f'<article id="type-{escape(name)}" data-t="type {escape(name.lower())}">'
            yield f'<header><span class="path">{escape(name)}</span></header>'
            if about := schema.get("description"):
                yield f"<p>{_prose(about)}</p>"
            yield from self._fields(schema)
            yield "</article>"
        yield "</section>"

    # -- an endpoint ---------------------------------------------------------------------------------------------------

    def _article(self, row: Endpoint) -> Iterator[str]:
        operation = self._document["paths"][PLACE.sub(r"{\1}", row.path)][row.method.lower()]
        anchor = _anchor(row)
        yield f'<article id="{anchor}" data-t="{_words(row)}"><header>{_method(row, is_big=True)}'
        yield f'<span class="path">{_path(row.path)}</span><a class="anchor" href="#{anchor}">#</a></header>'
        yield f"<p>{_prose(row.summary)}</p>{_pills(row, operation)}"
        if row.left_out:
            yield f"<p>Answers 501: {_prose(row.left_out)}.</p></article>"
            return
        own = [given for given in operation["parameters"] if given.get("in") == "query"]
        if own:
            yield "<table><tr><th>Parameter<th>Kind<th>What it says</tr>"
            yield from _parameter_rows(own)
            yield "</table>"
        yield f"<pre>{escape(_curl(row, [given['name'] for given in own]))}</pre>"
        yield from self._shared_ones(operation)
        if "requestBody" in operation:
            yield from self._body("Body", operation["requestBody"]["content"])
        answered = operation["responses"].get("200", {})
        if "content" in answered:
            yield from self._body("Reply", answered["content"])
        if found := filter_selectors(row):
            listed = "".join(f"<li><code>{escape(selector)}</code></li>" for selector in found)
            yield f'<details><summary>{len(found)} filter selectors</summary><ul class="selectors">{listed}</ul></details>'
        yield from self._refusals(operation["responses"])
        yield "</article>"

    def _shared_ones(self, operation: Document) -> Iterator[str]:
        names = [given["$ref"].rpartition("/")[2] for given in operation["parameters"] if "$ref" in given]
        if names:
            said = ", ".join(f"<code>{escape(self._shared[name]['name'])}</code>" for name in names)
            yield f"<details><summary>Also takes {said}</summary>"
            yield from _parameter_table([self._shared[name] for name in names])
            yield "</details>"

    def _refusals(self, responses: Document) -> Iterator[str]:
        statuses = [status for status, told in responses.items() if "$ref" in told]
        known = self._document["components"]["responses"]
        rows = "".join(f"<tr><td><code>{s}</code><td>{escape(known[s]['description'])}</tr>" for s in statuses)
        yield f"<details><summary>Refused with {', '.join(statuses)}</summary><table>{rows}</table></details>"

    def _body(self, label: str, content: Document) -> Iterator[str]:
        ((media, told),) = content.items()
        schema = told["schema"]
        yield f"<details><summary>{label}: {self._kind(schema)} <small>{escape(media)}</small></summary>"
        inner = schema.get("items", schema)
        name = inner.get("$ref", "").rpartition("/")[2]
        if name:
            yield from self._fields(self._types[name], is_reply=label == "Reply")
        if media == "application/json":
            sample = msgspec.json.format(msgspec.json.encode(self._sample(schema, DEEPEST)), indent=2).decode()
            yield f"<pre>{escape(sample)}</pre>"
        yield "</details>"

    # -- types ---------------------------------------------------------------------------------------------------------

    def _fields(self, schema: Document, *, is_reply: bool = False) -> Iterator[str]:
        if "enum" in schema:
            yield f"<p>One of {', '.join(f'<code>{escape(str(value))}</code>' for value in schema['enum'])}.</p>"
        properties = schema.get("properties")
        if not properties:
            return
        yield f"<table><tr><th>Field<th>Kind{'' if is_reply else '<th>Where it is left out'}</tr>"
        for name, field in properties.items():
            left_out = "needed" if name in schema.get("required", ()) else _default(field)
            cell = "" if is_reply else f"<td class=k>{left_out}"
            yield f"<tr><td><code>{escape(name)}</code><td class=k>{self._kind(field)}{cell}</tr>"
        yield "</table>"

    def _kind(self, schema: Document) -> str:
        """The type of a value, as HTML."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return f'<a href="#type-{escape(name)}">{escape(name)}</a>'
        if "anyOf" in schema:
            return " or ".join(dict.fromkeys(map(self._kind, schema["anyOf"])))
        match schema.get("type"):
            case "array":
                return f"list of {self._kind(schema.get('items', {}))}"
            case "object" if "additionalProperties" in schema and isinstance(schema["additionalProperties"], dict):
                return f"map of {self._kind(schema['additionalProperties'])}"
            case "object":
                return "object"
            case str() as name:
                return "bytes (base64)" if schema.get("contentEncoding") == "base64" else escape(name)
            case _:
                return "any value"

    def _sample(self, schema: Document, depth: int) -> Any:
        """A value of the type, for the eye."""
        if "default" in schema and schema["default"] not in (None, "", [], {}):
            return schema["default"]
        if "$ref" in schema:
            return self._sample(self._types[schema["$ref"].rpartition("/")[2]], depth)
        if "anyOf" in schema:
            return self._sample(next((one for one in schema["anyOf"] if one.get("type") != "null"), {}), depth)
        if "enum" in schema:
            return next((value for value in schema["enum"] if value), schema["enum"][0])
        match schema.get("type"):
            case "object" if "properties" in schema:
                if depth == 0:
                    return {}
                return {name: self._sample(field, depth - 1) for name, field in schema["properties"].items()}
            case "object":
                return {}
            case "array":
                items = self._sample(schema.get("items", {}), depth - 1) if depth else None
                return [] if items in (None, {}, "") else [items]
            case "integer":
                return 0
            case "number":
                return 0.0
            case "boolean":
                return False
            case "string":
                return ""
            case _:
                return None


# -- small things ------------------------------------------------------------------------------------------------------


def _title(noun: str) -> str:
    return TITLES.get(noun, noun.replace("_", " ").capitalize())


def _anchor(row: Endpoint) -> str:
    return row.name.replace(".", "-")


def _words(row: Endpoint) -> str:
    """What search looks through."""
    return escape(f"{row.method} {row.path} {row.name} {row.summary} {_title(noun_of(row))}".lower())


def _method(row: Endpoint, *, is_big: bool = False) -> str:
    method = row.method.lower()
    return f'<span class="m {method}{" big" if is_big else ""}">{row.method}</span>'


def _path(path: str) -> str:
    return PLACE.sub(r"<i>{\1}</i>", escape(path, quote=False))


def _prose(text: str) -> str:
    """Text with `code` in it."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(f"<code>{escape(part)}</code>" if at % 2 else escape(part) for at, part in enumerate(parts))


def _pills(row: Endpoint, operation: Document) -> str:
    pills = [f'<span class="pill">needs {_prose(operation["x-needs"])}</span>']
    if row.kind is Kind.READ and row.blocks:
        pills.append('<span class="pill">waits with <code>index</code></span>')
    if row.kind is Kind.ASK:
        pills.append('<span class="pill">decided by the leader</span>')
    if row.method == "PUT":
        pills.append('<span class="pill">POST too</span>')
    if row.left_out:
        pills.append('<span class="pill out">left out</span>')
    return f'<div class="pills">{"".join(pills)}</div>'


def _curl(row: Endpoint, own: Sequence[str]) -> str:
    path = PLACE.sub(lambda found: f"${found[1].upper()}", row.path)
    query = f"?{own[0]}=…" if own and row.method == "GET" else ""
    method = "" if row.method == "GET" else f" -X {row.method}"
    body = " --data-binary @body" if row.body is bytes else " -d @body.json" if row.body is not None else ""
    return f'curl -s{method}{body} -H "X-Cluster-Token: $WHARF_TOKEN" "$WHARF_ADDR{path}{query}"'


def _parameter_table(given: Iterable[Document]) -> Iterator[str]:
    yield "<table>"
    yield from _parameter_rows(given)
    yield "</table>"


def _parameter_rows(given: Iterable[Document]) -> Iterator[str]:
    for one in given:
        schema = one["schema"]
        kind = _kind_of_parameter(schema)
        where = " (header)" if one["in"] == "header" else ""
        yield f"<tr><td><code>{escape(one['name'])}</code>{where}<td class=k>{kind}<td>{_prose(one['description'])}</tr>"


def _kind_of_parameter(schema: Document) -> str:
    if schema["type"] == "array":
        return f"list of {schema['items']['type']}"
    if "true" in schema.get("enum", ()):
        return "flag"
    return "duration" if "examples" in schema else str(schema["type"])


def _default(field: Document) -> str:
    if "default" not in field:
        return ""
    return f"<code>{escape(msgspec.json.encode(field['default']).decode())}</code>"
