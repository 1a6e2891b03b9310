"""The documentation page of the API: the endpoint table as one HTML page, grouped by noun.

Descriptions come from the OpenAPI document. The page has its own style and script and loads nothing else.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec

from wharf.contract.wire.endpoint_table import Endpoint, EndpointKind
from wharf.contract.wire.openapi import Document, get_noun, list_filter_selectors

STYLE: Final = """
:root{--ink:#14212b;--soft:#5a6b78;--line:#dde4ea;--bg:#fbfcfd;--card:#fff;--side:#f1f5f8;--code:#f3f6f9;--sea:#0b6e8a;
--get:#0b7a55;--put:#9a5b00;--delete:#b3261e;--post:#5b4bb3;--pill:#e6f1f4;--mark:#fff3c4}
@media(prefers-color-scheme:dark){:root{--ink:#e4ecf1;--soft:#93a5b1;--line:#26343e;--bg:#0f171d;--card:#141f27;--side:#111b22;
--code:#0c1419;--sea:#58bfd9;--get:#4cc38a;--put:#e0a33e;--delete:#f2857d;--post:#a99cf0;--pill:#16303a;--mark:#5a4a10}}
*{box-sizing:border-box}html{scroll-behavior:smooth;scroll-padding-top:1.2rem}
body{margin:0;font:15px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;color:var(--ink);
background:var(--bg);display:grid;grid-template-columns:310px minmax(0,1fr)}
a{color:var(--sea);text-decoration:none}a:hover{text-decoration:underline}
code,pre,.path{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.87em}
aside{position:sticky;top:0;height:100vh;overflow:auto;background:var(--side);border-right:1px solid var(--line);
padding:1.3rem 1rem 3rem}
.brand{display:flex;align-items:center;gap:.6rem;font-size:1.25rem;font-weight:650;letter-spacing:-.01em;margin:0 .4rem 1rem}
.brand svg{width:28px;height:28px;color:var(--sea)}.brand small{font-weight:400;color:var(--soft);font-size:.8rem}
input{width:100%;padding:.55rem .75rem;border:1px solid var(--line);border-radius:9px;background:var(--card);color:var(--ink);
font:inherit}input:focus{outline:2px solid var(--sea);outline-offset:1px}
aside h2{font-size:.74rem;text-transform:uppercase;letter-spacing:.09em;color:var(--soft);margin:1.3rem .4rem .3rem}
aside h2 a{color:inherit}aside ul{list-style:none;margin:0;padding:0}
aside li a{display:flex;gap:.5rem;align-items:baseline;padding:.16rem .4rem;border-radius:6px;color:var(--ink);font-size:.83rem}
aside li a:hover{background:var(--pill);text-decoration:none}
aside li span.t{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
main{padding:2.4rem clamp(1.2rem,4vw,3.6rem) 6rem;max-width:1120px}
h1{font-size:2.1rem;line-height:1.2;letter-spacing:-.02em;margin:0 0 .6rem}.lead{color:var(--soft);font-size:1.06rem;max-width:70ch}
.facts{display:flex;flex-wrap:wrap;gap:.5rem;margin:1.1rem 0 2rem}
section.noun{margin-top:3rem}section.noun>h2{font-size:1.45rem;letter-spacing:-.01em;margin:0 0 .2rem;padding-bottom:.5rem;
border-bottom:1px solid var(--line)}
article{background:var(--card);border:1px solid var(--line);border-radius:13px;padding:1.05rem 1.25rem;margin:1rem 0;
box-shadow:0 1px 2px rgb(10 30 40/.04)}
article:target{border-color:var(--sea);box-shadow:0 0 0 3px var(--pill)}
article header{display:flex;flex-wrap:wrap;gap:.7rem;align-items:baseline}
article p{margin:.5rem 0 .35rem}.path{font-size:.98rem;font-weight:600;overflow-wrap:anywhere}.path i{color:var(--sea);font-style:normal}
.anchor{margin-left:auto;color:var(--soft);opacity:.55}
.m{font:700 .68rem/1 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;letter-spacing:.04em;color:var(--get);min-width:2.9rem}
.m.big{border:1.5px solid currentColor;border-radius:6px;padding:.32rem .5rem;text-align:center;font-size:.74rem}
.m.put{color:var(--put)}.m.delete{color:var(--delete)}.m.post{color:var(--post)}
.pills{display:flex;flex-wrap:wrap;gap:.4rem;margin:.5rem 0}
.pill{background:var(--pill);border-radius:99px;padding:.1rem .65rem;font-size:.8rem}
.pill.out{background:none;border:1px dashed var(--soft);color:var(--soft)}
details{margin:.45rem 0;border-top:1px solid var(--line);padding-top:.45rem}
summary{cursor:pointer;font-weight:600;font-size:.87rem;color:var(--soft)}summary:hover{color:var(--ink)}
table{border-collapse:collapse;width:100%;margin:.5rem 0;font-size:.88rem}
th{font-weight:600;text-align:left;color:var(--soft);font-size:.76rem;text-transform:uppercase;letter-spacing:.05em}
td,th{padding:.32rem .7rem .32rem 0;vertical-align:top;border-bottom:1px solid var(--line)}tr:last-child td{border-bottom:0}
td:first-child{white-space:nowrap}
td code{color:var(--ink);overflow-wrap:anywhere}td.k{color:var(--soft)}main{min-width:0;overflow-wrap:break-word}
pre{background:var(--code);border:1px solid var(--line);border-radius:9px;padding:.75rem .9rem;overflow:auto;margin:.55rem 0}
.selectors{columns:3 230px;font-size:.8rem;list-style:none;margin:.5rem 0;padding:0;max-height:22rem;overflow:auto}
.selectors code{overflow-wrap:anywhere}
.hidden{display:none!important}#none{display:none;color:var(--soft)}body.empty #none{display:block}
@media(max-width:860px){body{display:block}aside{position:static;height:auto;max-height:46vh;border-right:0;
border-bottom:1px solid var(--line)}main{padding-top:1.4rem}}
@media print{aside{display:none}body{display:block}details{break-inside:avoid}}
"""

SCRIPT: Final = """
const box=document.getElementById('q'),items=[...document.querySelectorAll('[data-t]')],
groups=[...document.querySelectorAll('[data-g]')];
function search(){const words=box.value.toLowerCase().split(/\\s+/).filter(Boolean);
for(const i of items)i.classList.toggle('hidden',!words.every(w=>i.dataset.t.includes(w)));
for(const g of groups)g.classList.toggle('hidden',!g.querySelector('[data-t]:not(.hidden)'));
document.body.classList.toggle('empty',!items.some(i=>!i.classList.contains('hidden')))}
box.addEventListener('input',search);
addEventListener('keydown',e=>{if(e.key==='/'&&document.activeElement!==box){e.preventDefault();box.focus()}
if(e.key==='Escape'){box.value='';search()}});
"""

LOGO: Final = (
    '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" '
    'stroke-linejoin="round" aria-hidden="true"><circle cx="12" cy="4.5" r="2.3"/><path d="M12 6.8V21M7.5 10.5h9"/>'
    '<path d="M3.5 13.5c0 4.6 3.8 7.5 8.5 7.5s8.5-2.9 8.5-7.5M3.5 13.5l-1.3 2.6M3.5 13.5l2.6 1.3M20.5 13.5l1.3 2.6'
    'M20.5 13.5l-2.6 1.3"/></svg>'
)


TITLE_BY_NOUN: Final[Mapping[str, str]] = {
    "acl": "Access control", "agent": "Agents", "allocation": "Allocations", "client": "Endpoints executed by nodes",
    "deployment": "Deployments", "document": "API documents", "evaluation": "Evaluations", "event": "Events",
    "host_volume": "Host volumes", "identity": "Identities", "job": "Jobs", "keyring": "Keyring",
    "metrics": "Metrics", "namespace": "Namespaces", "node": "Nodes", "node_pool": "Node pools", "operator": "Operator",
    "quota": "Quotas", "region": "Regions", "scaling": "Scaling", "search": "Search", "server": "Between servers",
    "service": "Services", "status": "Leader and servers", "system": "System", "variable": "Variables",
}  # fmt: skip
PATH_PARAMETER_PATTERN: Final = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")
MAX_SAMPLE_DEPTH: Final = 3
"""Limits the nesting of example bodies."""


def render_documentation_page(endpoints: Iterable[Endpoint], document: Document) -> str:
    """Return the page as HTML. `document` is the OpenAPI document of the endpoints."""
    nouns: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        nouns.setdefault(get_noun(endpoint), []).append(endpoint)
    writer = _PageWriter(document)
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1"><title>Wharf: the HTTP API</title>',
            '<link rel="icon" href="data:,">',
            f"<style>{STYLE}</style></head><body>",
            *writer.render_sidebar(nouns),
            "<main>",
            *writer.render_introduction(sum(map(len, nouns.values()))),
            *(part for noun, rows in nouns.items() for part in writer.render_section(noun, rows)),
            *writer.render_types(),
            f'<p id="none">No endpoint or type matches.</p></main><script>{SCRIPT}</script></body></html>',
        ]
    )


class _PageWriter:
    """Renders the parts of the page as HTML."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._types: Mapping[str, Document] = document["components"]["schemas"]
        self._shared: Mapping[str, Document] = document["components"]["parameters"]

    # -- page ----------------------------------------------------------------------------------------------------------

    def render_sidebar(self, nouns: Mapping[str, Sequence[Endpoint]]) -> Iterator[str]:
        """Yield the sidebar: version, search field, and links to all endpoints by noun."""
        version = escape(self._document["info"]["version"])
        yield f'<aside><div class="brand">{LOGO}<span>Wharf <small>{version}</small></span></div>'
        yield '<input id="q" type="search" placeholder="Search  ( / )" aria-label="Search" autocomplete="off"><nav>'
        for noun, rows in nouns.items():
            yield f'<div data-g><h2><a href="#{noun}">{escape(_get_title(noun))}</a></h2><ul>'
            for row in rows:
                yield (
                    f'<li data-t="{_build_search_text(row)}"><a href="#{_build_anchor(row)}">{_render_method(row)}'
                    f'<span class="t">{escape(row.path.removeprefix("/v1"))}</span></a></li>'
                )
            yield "</ul></div>"
        yield '<div><h2><a href="#types">Types</a></h2></div></nav></aside>'

    def render_introduction(self, count: int) -> Iterator[str]:
        """Yield the heading, the description, an example and the shared parameters."""
        first, _, rest = self._document["info"]["description"].partition("\n\n")
        yield f"<h1>The HTTP API</h1><p class=lead>{escape(first)}</p><p class=lead>{_render_text(rest)}</p>"
        yield f'<div class="facts"><span class="pill">{count} endpoints</span>'
        yield '<span class="pill"><a href="openapi.json">OpenAPI 3.1 as JSON</a></span>'
        yield '<span class="pill">port 4646</span><span class="pill">prefix <code>/v1</code></span></div>'
        yield '<pre>export WHARF_ADDR=http://127.0.0.1:4646\ncurl -s "$WHARF_ADDR/v1/jobs?pretty"</pre>'
        yield "<details><summary>Parameters that many endpoints share</summary>"
        yield from _render_parameter_table(self._shared.values())
        yield "</details>"

    def render_section(self, noun: str, rows: Sequence[Endpoint]) -> Iterator[str]:
        """Yield the section of one noun, such as jobs, with all its endpoints."""
        yield f'<section class="noun" id="{noun}" data-g><h2>{escape(_get_title(noun))}</h2>'
        for row in rows:
            yield from self._render_endpoint(row)
        yield "</section>"

    def render_types(self) -> Iterator[str]:
        """Yield the section of all types of bodies."""
        yield '<section class="noun" id="types" data-g><h2>Types</h2>'
        for name, schema in sorted(self._types.items()):
            yield f'<article id="type-{escape(name)}" data-t="type {escape(name.lower())}">'
            yield f'<header><span class="path">{escape(name)}</span></header>'
            if about := schema.get("description"):
                yield f"<p>{_render_text(about)}</p>"
            yield from self._render_fields(schema)
            yield "</article>"
        yield "</section>"

    # -- an endpoint ---------------------------------------------------------------------------------------------------

    def _render_endpoint(self, row: Endpoint) -> Iterator[str]:
        """Yield the article of one endpoint."""
        operation = self._document["paths"][PATH_PARAMETER_PATTERN.sub(r"{\1}", row.path)][row.method.lower()]
        anchor = _build_anchor(row)
        yield f'<article id="{anchor}" data-t="{_build_search_text(row)}"><header>{_render_method(row, is_big=True)}'
        yield f'<span class="path">{_render_path(row.path)}</span><a class="anchor" href="#{anchor}">#</a></header>'
        yield f"<p>{_render_text(row.summary)}</p>{_render_pills(row, operation)}"
        if row.unsupported_reason:
            yield f"<p>Returns 501: {_render_text(row.unsupported_reason)}.</p></article>"
            return
        own_parameters = [each for each in operation["parameters"] if each.get("in") == "query"]
        if own_parameters:
            yield "<table><tr><th>Parameter<th>Type<th>Description</tr>"
            yield from _render_parameter_rows(own_parameters)
            yield "</table>"
        yield f"<pre>{escape(_build_curl_command(row, [each['name'] for each in own_parameters]))}</pre>"
        yield from self._render_shared_parameters(operation)
        if "requestBody" in operation:
            yield from self._render_body("Body", operation["requestBody"]["content"])
        success = operation["responses"].get("200", {})
        if "content" in success:
            yield from self._render_body("Reply", success["content"])
        if selectors := list_filter_selectors(row):
            items = "".join(f"<li><code>{escape(selector)}</code></li>" for selector in selectors)
            yield f'<details><summary>{len(selectors)} filter selectors</summary><ul class="selectors">{items}</ul></details>'
        yield from self._render_refusals(operation["responses"])
        yield "</article>"

    def _render_shared_parameters(self, operation: Document) -> Iterator[str]:
        """Yield a folded table of the parameters that the endpoint shares with others, if there are any."""
        names = [each["$ref"].rpartition("/")[2] for each in operation["parameters"] if "$ref" in each]
        if names:
            listed = ", ".join(f"<code>{escape(self._shared[name]['name'])}</code>" for name in names)
            yield f"<details><summary>Also accepts {listed}</summary>"
            yield from _render_parameter_table([self._shared[name] for name in names])
            yield "</details>"

    def _render_refusals(self, responses: Document) -> Iterator[str]:
        """Yield a folded table of the error statuses that the endpoint can return."""
        statuses = [status for status, response in responses.items() if "$ref" in response]
        shared = self._document["components"]["responses"]
        rows = "".join(f"<tr><td><code>{s}</code><td>{escape(shared[s]['description'])}</tr>" for s in statuses)
        yield f"<details><summary>Errors: {', '.join(statuses)}</summary><table>{rows}</table></details>"

    def _render_body(self, label: str, content: Document) -> Iterator[str]:
        """Yield the type, the fields and a JSON example of a request or reply body."""
        ((media_type, media),) = content.items()
        schema = media["schema"]
        yield f"<details><summary>{label}: {self._render_type(schema)} <small>{escape(media_type)}</small></summary>"
        inner = schema.get("items", schema)
        name = inner.get("$ref", "").rpartition("/")[2]
        if name:
            yield from self._render_fields(self._types[name], is_reply=label == "Reply")
        if media_type == "application/json":
            sample = msgspec.json.format(
                msgspec.json.encode(self._build_sample(schema, MAX_SAMPLE_DEPTH)), indent=2
            ).decode()
            yield f"<pre>{escape(sample)}</pre>"
        yield "</details>"

    # -- types ---------------------------------------------------------------------------------------------------------

    def _render_fields(self, schema: Document, *, is_reply: bool = False) -> Iterator[str]:
        """Yield the values of an enum, and the table of an object's fields. Replies have no column of defaults."""
        if "enum" in schema:
            yield f"<p>One of {', '.join(f'<code>{escape(str(value))}</code>' for value in schema['enum'])}.</p>"
        properties = schema.get("properties")
        if not properties:
            return
        yield f"<table><tr><th>Field<th>Type{'' if is_reply else '<th>Default'}</tr>"
        for name, field in properties.items():
            default = "required" if name in schema.get("required", ()) else _render_default(field)
            cell = "" if is_reply else f"<td class=k>{default}"
            yield f"<tr><td><code>{escape(name)}</code><td class=k>{self._render_type(field)}{cell}</tr>"
        yield "</table>"

    def _render_type(self, schema: Document) -> str:
        """Return the name of a JSON schema's type as HTML, such as `list of string` or a link to the section of a type."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return f'<a href="#type-{escape(name)}">{escape(name)}</a>'
        if "anyOf" in schema:
            return " or ".join(dict.fromkeys(map(self._render_type, schema["anyOf"])))
        match schema.get("type"):
            case "array":
                return f"list of {self._render_type(schema.get('items', {}))}"
            case "object" if "additionalProperties" in schema and isinstance(schema["additionalProperties"], dict):
                return f"map of {self._render_type(schema['additionalProperties'])}"
            case "object":
                return "object"
            case str() as name:
                return "bytes (base64)" if schema.get("contentEncoding") == "base64" else escape(name)
            case _:
                return "any value"

    def _build_sample(self, schema: Document, depth: int) -> Any:
        """Return an example value for a JSON schema: its default, or zero values, nested up to `depth` levels."""
        if "default" in schema and schema["default"] not in (None, "", [], {}):
            return schema["default"]
        if "$ref" in schema:
            return self._build_sample(self._types[schema["$ref"].rpartition("/")[2]], depth)
        if "anyOf" in schema:
            return self._build_sample(
                next((option for option in schema["anyOf"] if option.get("type") != "null"), {}), depth
            )
        if "enum" in schema:
            return next((value for value in schema["enum"] if value), schema["enum"][0])
        match schema.get("type"):
            case "object" if "properties" in schema:
                if depth == 0:
                    return {}
                return {name: self._build_sample(field, depth - 1) for name, field in schema["properties"].items()}
            case "object":
                return {}
            case "array":
                items = self._build_sample(schema.get("items", {}), depth - 1) if depth else None
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


# -- helpers -----------------------------------------------------------------------------------------------------------


def _get_title(noun: str) -> str:
    return TITLE_BY_NOUN.get(noun, noun.replace("_", " ").capitalize())


def _build_anchor(row: Endpoint) -> str:
    return row.name.replace(".", "-")


def _build_search_text(row: Endpoint) -> str:
    """Return the lower-case text of an endpoint that the search field of the page is compared with."""
    return escape(f"{row.method} {row.path} {row.name} {row.summary} {_get_title(get_noun(row))}".lower())


def _render_method(row: Endpoint, *, is_big: bool = False) -> str:
    method = row.method.lower()
    return f'<span class="m {method}{" big" if is_big else ""}">{row.method}</span>'


def _render_path(path: str) -> str:
    return PATH_PARAMETER_PATTERN.sub(r"<i>{\1}</i>", escape(path, quote=False))


def _render_text(text: str) -> str:
    """Return the text as HTML. Parts between backquotes become `<code>` elements."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(
        f"<code>{escape(part)}</code>" if position % 2 else escape(part) for position, part in enumerate(parts)
    )


def _render_pills(row: Endpoint, operation: Document) -> str:
    """Return the labels of an endpoint: permission, blocking, leader, methods."""
    pills = [f'<span class="pill">requires {_render_text(operation["x-needs"])}</span>']
    if row.kind is EndpointKind.READ and row.can_block:
        pills.append('<span class="pill">blocking query with <code>index</code></span>')
    if row.kind is EndpointKind.LEADER_WRITE:
        pills.append('<span class="pill">decided by the leader</span>')
    if row.method == "PUT":
        pills.append('<span class="pill">also POST</span>')
    if row.unsupported_reason:
        pills.append('<span class="pill out">not supported</span>')
    return f'<div class="pills">{"".join(pills)}</div>'


def _build_curl_command(row: Endpoint, parameters: Sequence[str]) -> str:
    """Return an example command that calls the endpoint with curl. A GET shows its first parameter."""
    path = PATH_PARAMETER_PATTERN.sub(lambda match: f"${match[1].upper()}", row.path)
    query = f"?{parameters[0]}=…" if parameters and row.method == "GET" else ""
    method = "" if row.method == "GET" else f" -X {row.method}"
    body = " --data-binary @body" if row.body_type is bytes else " -d @body.json" if row.body_type is not None else ""
    return f'curl -s{method}{body} -H "X-Cluster-Token: $WHARF_TOKEN" "$WHARF_ADDR{path}{query}"'


def _render_parameter_table(parameters: Iterable[Document]) -> Iterator[str]:
    yield "<table>"
    yield from _render_parameter_rows(parameters)
    yield "</table>"


def _render_parameter_rows(parameters: Iterable[Document]) -> Iterator[str]:
    """Yield one table row for each parameter: name, type and description."""
    for parameter in parameters:
        schema = parameter["schema"]
        type_name = _get_parameter_type(schema)
        where = " (header)" if parameter["in"] == "header" else ""
        yield f"<tr><td><code>{escape(parameter['name'])}</code>{where}<td class=k>{type_name}<td>{_render_text(parameter['description'])}</tr>"


def _get_parameter_type(schema: Document) -> str:
    if schema["type"] == "array":
        return f"list of {schema['items']['type']}"
    if "true" in schema.get("enum", ()):
        return "flag"
    return "duration" if "examples" in schema else str(schema["type"])


def _render_default(field: Document) -> str:
    if "default" not in field:
        return ""
    return f"<code>{escape(msgspec.json.encode(field['default']).decode())}</code>"
