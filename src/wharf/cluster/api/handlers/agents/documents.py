"""Endpoints that describe this API: the OpenAPI document and the documentation page.

Both are built once from the endpoint table: by `prepare_documents`, or at the first request.
"""

import functools
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


async def read_openapi_document(request: Request) -> ActionResult:
    if request.query.get("pretty", "0") != "0":
        return ActionResult(_build_document())
    return ActionResult(EncodedBody(_encode_document(), "application/json"))


async def read_documentation_page(_request: Request) -> ActionResult:
    return ActionResult(EncodedBody(_render_page(), HTML_CONTENT_TYPE))


def build_action_handlers(_server: Server) -> dict[str, ActionHandler]:
    return {"document.openapi": read_openapi_document, "document.page": read_documentation_page}
