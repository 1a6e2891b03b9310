"""Endpoints that describe this API: the OpenAPI document, the documentation page, and the schema of job files.

The first two are built once from the endpoint table: by `prepare_documents`, or at the first request. The schema is a file of the
package.
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
from wharf.job_files import schema

HTML_CONTENT_TYPE: Final = "text/html; charset=utf-8"
JOB_SCHEMA_MAX_AGE_S: Final = 3600
"""How long editors may use a copy of the schema of job files, which changes only with a new version of Wharf."""


@functools.cache
def _build_document() -> Document:
    return build_openapi_document(ENDPOINTS, version=__version__, descriptions=schema.list_descriptions())


@functools.cache
def _encode_document() -> bytes:
    return msgspec.json.encode(_build_document())


@functools.cache
def _read_job_schema() -> bytes:
    return schema.read_schema_text()


@functools.cache
def _render_page() -> bytes:
    return render_documentation_page(ENDPOINTS, _build_document()).encode()


def prepare_documents() -> None:
    """Build the OpenAPI document and the documentation page, which takes a few tenths of a second, read the schema, and cache all.

    Safe to call in another thread, so that the event loop is not blocked.
    """
    _encode_document()
    _render_page()
    _read_job_schema()


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


async def read_job_schema(server: Server, request: Request) -> ActionResult:
    await _ensure_documents(server)
    if request.query.get("pretty", "0") != "0":
        return ActionResult(schema.load_schema())
    headers = ((b"cache-control", f"max-age={JOB_SCHEMA_MAX_AGE_S}".encode()),)
    return ActionResult(EncodedBody(_read_job_schema(), "application/json"), headers=headers)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {
        "document.openapi": partial(read_openapi_document, server),
        "document.job_schema": partial(read_job_schema, server),
        "document.page": partial(read_documentation_page, server),
    }
