"""The API describes itself: a document for programs, a page for people."""

import json
import re
from html.parser import HTMLParser

from tests.kit.cluster import ACluster
from tests.kit.exchange import ask
from tests.kit.virtual_time import in_virtual_time
from wharf.contract.client import ClientReply
from wharf.contract.wire.endpoint_table import ENDPOINTS

ALONE = frozenset({"meta", "link", "input", "br", "th", "td", "path", "circle", "tr"})


class Reader(HTMLParser):
    """Anchors, links to them, what is loaded, and whether tags match."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if identity := given.get("id"):
            self.anchors.append(identity)
        if tag == "a":
            self.links.append(given.get("href") or "")
        self.loaded += [given[name] or "" for name in ("src", "action") if name in given]
        if tag == "link":
            self.loaded.append(given.get("href") or "")
        if tag not in ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ALONE:
            assert self.open.pop() == tag


async def get(path: str, query: str = "") -> ClientReply:
    async with ACluster() as cluster:
        return await ask((await cluster.a_server()).api, "GET", path, query=query)


@in_virtual_time
async def test_the_document_is_served_as_json_also_pretty() -> None:
    plain, pretty = await get("/v1/openapi.json"), await get("/v1/openapi.json", "pretty")

    assert (plain.status, plain.headers["content-type"]) == (200, "application/json")
    assert json.loads(plain.body) == json.loads(pretty.body)
    assert pretty.body.startswith(b"{\n    ")


@in_virtual_time
async def test_the_page_shows_every_endpoint_once_and_its_links_lead_somewhere() -> None:
    reply = await get("/v1/docs")
    reader = Reader()
    reader.feed(reply.body.decode())

    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert reader.open == []
    assert {row.name.replace(".", "-") for row in ENDPOINTS} <= set(reader.anchors)
    assert len(reader.anchors) == len(set(reader.anchors))
    inner = {link.removeprefix("#") for link in reader.links if link.startswith("#")}
    assert inner <= set(reader.anchors)
    assert {link for link in reader.links if not link.startswith("#")} == {"openapi.json"}


@in_virtual_time
async def test_the_page_loads_nothing_from_anywhere() -> None:
    reply = await get("/v1/docs")
    reader = Reader()
    reader.feed(reply.body.decode())

    assert reader.loaded == ["data:,"]
    assert re.findall(rb"url\(|@import|fetch\(", reply.body) == []
