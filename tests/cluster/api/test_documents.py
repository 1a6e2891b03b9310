"""The OpenAPI document, the documentation page and the schema of job files."""

import json
import re
from html.parser import HTMLParser

from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time
from wharf.contract.client import ClientReply
from wharf.contract.wire.endpoint_table import ENDPOINTS
from wharf.job_files.schema import list_descriptions, load_schema

VOID_TAGS = frozenset({"meta", "link", "input", "br", "th", "td", "path", "circle", "tr"})


class PageParser(HTMLParser):
    """Collects anchors, links and loaded resources, and checks that tags match."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        submitted = dict(attrs)
        if identity := submitted.get("id"):
            self.anchors.append(identity)
        if tag == "a":
            self.links.append(submitted.get("href") or "")
        self.loaded += [submitted[name] or "" for name in ("src", "action") if name in submitted]
        if tag == "link":
            self.loaded.append(submitted.get("href") or "")
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID_TAGS:
            assert self.open.pop() == tag


async def get(path: str, query: str = "") -> ClientReply:
    async with ACluster() as cluster:
        return await send_raw((await cluster.a_server()).api, "GET", path, query=query)


@in_virtual_time
async def test_the_openapi_document_is_served_as_json_also_indented() -> None:
    plain, pretty = await get("/v1/openapi.json"), await get("/v1/openapi.json", "pretty")

    assert (plain.status, plain.headers["content-type"]) == (200, "application/json")
    assert json.loads(plain.body) == json.loads(pretty.body)
    assert pretty.body.startswith(b"{\n    ")


@in_virtual_time
async def test_the_page_has_every_endpoint_once_and_its_links_have_targets() -> None:
    reply = await get("/v1/docs")
    reader = PageParser()
    reader.feed(reply.body.decode())

    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert reader.open == []
    assert {row.name.replace(".", "-") for row in ENDPOINTS} <= set(reader.anchors)
    assert len(reader.anchors) == len(set(reader.anchors))
    inner = {link.removeprefix("#") for link in reader.links if link.startswith("#")}
    assert inner <= set(reader.anchors)
    assert {link for link in reader.links if not link.startswith("#")} == {"openapi.json"}


@in_virtual_time
async def test_the_page_loads_nothing_from_elsewhere() -> None:
    reply = await get("/v1/docs")
    reader = PageParser()
    reader.feed(reply.body.decode())

    assert reader.loaded == ["data:,"]
    assert re.findall(rb"url\(|@import|fetch\(", reply.body) == []


@in_virtual_time
async def test_the_schema_of_job_files_is_served_without_a_token_and_may_be_cached() -> None:
    plain, pretty = await get("/v1/schema/job.json"), await get("/v1/schema/job.json", "pretty")

    assert (plain.status, plain.headers["content-type"]) == (200, "application/json")
    assert plain.headers["cache-control"] == "max-age=3600"
    assert json.loads(plain.body) == json.loads(pretty.body) == load_schema()


@in_virtual_time
async def test_the_openapi_document_has_the_descriptions_of_the_reference_of_jobs() -> None:
    reply = await get("/v1/openapi.json")

    components = json.loads(reply.body)["components"]["schemas"]
    assert list_descriptions()["TaskGroup"]["Count"] == components["TaskGroup"]["properties"]["Count"]["description"]
    without = [
        f"{block}.{name}"
        for block, texts in list_descriptions().items()
        for name in texts
        if name in components[block]["properties"] and "description" not in components[block]["properties"][name]
    ]
    assert without == []
    assert set(components["Task"]["properties"]["Config"]["x-options-by-driver"]) == {
        "docker", "exec", "raw_exec", "mock",
    }  # fmt: skip
