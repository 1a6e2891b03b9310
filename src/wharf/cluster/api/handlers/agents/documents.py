"""Endpoints that describe this API: the OpenAPI document, the documentation page, and the schema of job files.

Each is built at the first request for it, on the thread for long computations, because few servers get such a request. The
first two are built from the endpoint table. The schema is a file of the package.
"""

import functools
from functools import partial
from typing import Final, TypeVar

import msgspec

from wharf import __version__
from wharf.cluster.api.handlers.agents.documentation_page import render_documentation_page
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, EncodedBody
from wharf.cluster.server.server import Server
from wharf.contract.wire.endpoint_table import ENDPOINTS
from wharf.contract.wire.openapi import Document, build_openapi_document
from wharf.job_files import schema

T = TypeVar("T")

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


async def _get_built(server: Server, build: "functools._lru_cache_wrapper[T]") -> T:
    """Return what a cached function returns. The first call takes up to a few tenths of a second, so it runs off the event loop."""
    if not build.cache_info().currsize:
        return await server.off_loop.run(build)
    return build()


async def read_openapi_document(server: Server, request: Request) -> ActionResult:
    if request.query.get("pretty", "0") != "0":
        return ActionResult(await _get_built(server, _build_document))
    return ActionResult(EncodedBody(await _get_built(server, _encode_document), "application/json"))


async def read_documentation_page(server: Server, _request: Request) -> ActionResult:
    return ActionResult(EncodedBody(await _get_built(server, _render_page), HTML_CONTENT_TYPE))


async def read_job_schema(server: Server, request: Request) -> ActionResult:
    if request.query.get("pretty", "0") != "0":
        return ActionResult(await _get_built(server, schema.load_schema))
    headers = ((b"cache-control", f"max-age={JOB_SCHEMA_MAX_AGE_S}".encode()),)
    return ActionResult(EncodedBody(await _get_built(server, _read_job_schema), "application/json"), headers=headers)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {
        "document.openapi": partial(read_openapi_document, server),
        "document.job_schema": partial(read_job_schema, server),
        "document.page": partial(read_documentation_page, server),
    }
