"""Endpoints that describe this API: the OpenAPI document and the documentation page.

Both are built once from the endpoint table: by `prepare_documents`, or at the first request.
"""

import functools
from functools import partial
from typing import Final

import msgspec

from wharf import __version__
from wharf.cluster.api.handlers.agents.documentation_page import render_documentation_page
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, EncodedBody
from wharf.cluster.server.server import Server
from wharf.contract.wire.endpoint_table import ENDPOINTS
from wharf.contract.wire.openapi import Document, build_openapi_document

HTML_CONTENT_TYPE: Final = "text/html; charset=utf-8"


@functools.cache
def _build_document() -> Document:
    return build_openapi_document(ENDPOINTS, version=__version__)


@functools.cache
def _encode_document() -> bytes:
    return msgspec.json.encode(_build_document())


@functools.cache
def _render_page() -> bytes:
    return render_documentation_page(ENDPOINTS, _build_document()).encode()


def prepare_documents() -> None:
    """Build the OpenAPI document and the documentation page, which takes a few tenths of a second, and cache them.

    Safe to call in another thread, so that the event loop is not blocked.
    """
    _encode_document()
    _render_page()


async def _ensure_documents(server: Server) -> None:
    """Build the documents off the event loop, unless that was done before."""
    if not _encode_document.cache_info().currsize or not _render_page.cache_info().currsize:
        await server.off_loop.run(prepare_documents)


async def read_openapi_document(server: Server, request: Request) -> ActionResult:
    await _ensure_documents(server)
    if request.query.get("pretty", "0") != "0":
        return ActionResult(_build_document())
    return ActionResult(EncodedBody(_encode_document(), "application/json"))


async def read_documentation_page(server: Server, _request: Request) -> ActionResult:
    await _ensure_documents(server)
    return ActionResult(EncodedBody(_render_page(), HTML_CONTENT_TYPE))


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {
        "document.openapi": partial(read_openapi_document, server),
        "document.page": partial(read_documentation_page, server),
    }
