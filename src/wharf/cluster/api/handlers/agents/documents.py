"""Endpoints that describe this API.

Both are made once, from the endpoint table: by `prepare`, or when they are first asked for.
"""

import functools
from typing import Final

import msgspec

from wharf import __version__
from wharf.cluster.api.handlers.agents.documentation_page import render_documentation_page
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, EncodedBody, ReadHandler
from wharf.cluster.server.server import Server
from wharf.contract.wire.endpoint_table import ENDPOINTS
from wharf.contract.wire.openapi import Document, build_openapi_document

READ_HANDLERS: Final[dict[str, ReadHandler]] = {}

HTML_CONTENT_TYPE: Final = "text/html; charset=utf-8"


@functools.cache
def _document() -> Document:
    return build_openapi_document(ENDPOINTS, version=__version__)


@functools.cache
def _encoded() -> bytes:
    return msgspec.json.encode(_document())


@functools.cache
def _page() -> bytes:
    return render_documentation_page(ENDPOINTS, _document()).encode()


def prepare_documents() -> None:
    """Make both now, which takes some tenths of a second. Safe on another thread, so that no loop stands still for it."""
    _encoded()
    _page()


async def read_openapi_document(request: Request) -> ActionResult:
    if request.query.get("pretty", "0") != "0":
        return ActionResult(_document())
    return ActionResult(EncodedBody(_encoded(), "application/json"))


async def read_documentation_page(_request: Request) -> ActionResult:
    return ActionResult(EncodedBody(_page(), HTML_CONTENT_TYPE))


def build_action_handlers(_server: Server) -> dict[str, ActionHandler]:
    return {"document.openapi": read_openapi_document, "document.page": read_documentation_page}
