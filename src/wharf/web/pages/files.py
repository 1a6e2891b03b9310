"""The pages of an allocation's files, and their download. Browsers never show a file of a task as a page."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from posixpath import basename
from typing import Final
from urllib.parse import quote

from wharf.contract.client.errors import InvalidRequest
from wharf.contract.model.refusal import RefusalCode
from wharf.web.page import Page, PageRequest, PageStream, Redirect, Route
from wharf.web.rendering import quote_segment
from wharf.web.views.files import PREVIEW_BYTES, build_file_view, build_folder_view, read_path

MAX_PATH_CHARS: Final = 4_096
"""The longest path that Linux accepts."""
SANDBOX: Final = (b"content-security-policy", b"default-src 'none'; sandbox")


async def show_files(request: PageRequest) -> Page | Redirect | PageStream:
    """Show the entries of a folder, or the beginning of a file."""
    alloc_id, path = request.path_values["allocation"], _require_path(request)
    files = request.client.files
    allocation = (await request.client.allocations.read(alloc_id)).value
    info = await files.stat(alloc_id, path)
    if info.is_dir:
        view = build_folder_view(alloc_id, allocation.name, path, await files.list(alloc_id, path))
    else:
        beginning = bytearray()
        async with aclosing(files.read_at(alloc_id, path, offset=0, limit=PREVIEW_BYTES)) as chunks:
            async for chunk in chunks:
                beginning += chunk
        view = build_file_view(alloc_id, allocation.name, path, info.size, bytes(beginning[:PREVIEW_BYTES]))
    return Page(
        "files.html",
        f"Files of {allocation.name}",
        view,
        section="jobs",
        command=f"wharf alloc fs {alloc_id[:8]} {quote(path)}",
        api_path=f"/v1/client/fs/{'ls' if info.is_dir else 'cat'}/{alloc_id}?path={quote_segment(path)}",
    )


async def download_file(request: PageRequest) -> Page | Redirect | PageStream:
    """Send a file unchanged, as a download of unknown type."""
    alloc_id, path = request.path_values["allocation"], _require_path(request)
    chunks = request.client.files.cat(alloc_id, path)
    # The first part decides about the status: without it, a file that does not exist would be an empty one.
    first = await anext(chunks, b"")
    name = quote(basename(path) or "file", safe="")
    return PageStream(
        _join(first, chunks),
        "application/octet-stream",
        headers=((b"content-disposition", f"attachment; filename*=UTF-8''{name}".encode()), SANDBOX),
    )


async def _join(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the first chunk, which was read already, and the others."""
    async with aclosing(chunks):
        yield first
        async for chunk in chunks:
            yield chunk


def _require_path(request: PageRequest) -> str:
    """Return the path of the address. Raises `InvalidRequest` if no file can have it."""
    text = request.query.get("path", "/")
    if len(text) > MAX_PATH_CHARS or "\0" in text:
        raise InvalidRequest(
            RefusalCode.INVALID, f"path is not valid: it has more than {MAX_PATH_CHARS} characters", 400
        )
    return read_path(text)


ROUTES: Final = (
    Route("allocations/{allocation}/files", show_files),
    Route("allocations/{allocation}/files/download", download_file),
)
