"""Endpoints that describe this API.

Both are made once, from the endpoint table: by `prepare`, or when they are first asked for.
"""

import functools
from typing import Final

import msgspec

from wharf import __version__
from wharf.api.answers import Act, Done, Packed, Reading
from wharf.api.endpoints.docs_page import docs_page
from wharf.api.request import Request
from wharf.server.server import Server
from wharf.wire.endpoints import ENDPOINTS
from wharf.wire.openapi import Document, openapi_document

READS: Final[dict[str, Reading]] = {}

HTML: Final = "text/html; charset=utf-8"


@functools.cache
def _document() -> Document:
    return openapi_document(ENDPOINTS, version=__version__)


@functools.cache
def _encoded() -> bytes:
    return msgspec.json.encode(_document())


@functools.cache
def _page() -> bytes:
    return docs_page(ENDPOINTS, _document()).encode()


def prepare() -> None:
    """Make both now, which takes some tenths of a second. Safe on another thread, so that no loop stands still for it."""
    _encoded()
    _page()


async def openapi(request: Request) -> Done:
    if request.query.get("pretty", "0") != "0":
        return Done(_document())
    return Done(Packed(_encoded(), "application/json"))


async def page(_request: Request) -> Done:
    return Done(Packed(_page(), HTML))


def acts_of(_server: Server) -> dict[str, Act]:
    return {"document.openapi": openapi, "document.page": page}
