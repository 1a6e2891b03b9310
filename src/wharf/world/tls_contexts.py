"""Builds the TLS contexts of all processes, so that certificates are read once, and not on an event loop.

Reading the certificates of the system takes 20 ms of CPU time. The context of each set of certificates is therefore built
once and shared. `load_client_context` builds it on a thread. The other functions are for code that may wait: commands, and
processes while they start.
"""

import asyncio
import os
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final, NamedTuple

MAX_CONTEXTS: Final = 32
"""Contexts that are kept; one with the certificates of the system takes about 1 MB. A process uses a few: most have one for
each certificate file, and one for each auth method with certificates of its own."""
MAX_BUILDS: Final = 64
"""Contexts that may wait to be built at a time; limits memory and threads."""
CONTEXT_TTL_S: Final = 3_600.0
"""How long a context is used: then changed certificates of the system are noticed. Changed files are noticed at once."""
CERTIFICATE_END: Final = "-----END CERTIFICATE-----"

FileState = tuple[str, int, int, int]
"""The path, inode, size and time of change of a file."""


class TooManyBuilds(OSError):
    """The error if too many contexts wait to be built."""


class ClientTls(NamedTuple):
    """Which servers a client trusts, and how it identifies itself."""

    ca_file: str = ""
    """Trusted CA certificates. Without any of the three, those of the system are trusted."""
    ca_path: str = ""
    """A folder with trusted CA certificates."""
    ca_pem: tuple[str, ...] = ()
    """Texts with trusted CA certificates."""
    cert_file: str = ""
    """The certificate of the client, and its key in this file or in `key_file`."""
    key_file: str = ""
    is_verified: bool = True
    """Whether the certificate of the server is checked."""
    protocols: tuple[str, ...] = ()
    """The protocols that the client offers (ALPN)."""


SYSTEM_TRUST: Final = ClientTls()
NO_VERIFICATION: Final = ClientTls(is_verified=False)


class _Key(NamedTuple):
    """The inputs of a context and the states of the files that they name."""

    tls: ClientTls
    files: tuple[FileState, ...]


class _ContextCache:
    """The contexts of this process, and those that are being built. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._build_lock = threading.Lock()
        self._contexts: OrderedDict[_Key, tuple[ssl.SSLContext, float]] = OrderedDict()
        """Contexts with the time at which they expire; those that were used last come last."""
        self._builds: dict[_Key, Future[ssl.SSLContext]] = {}

    def get(self, key: _Key) -> ssl.SSLContext | None:
        """Return a context that is not expired."""
        with self._lock:
            context, expires_s = self._contexts.get(key, (None, 0.0))
            if context is None or time.monotonic() >= expires_s:
                return None
            self._contexts.move_to_end(key)
            return context

    def put(self, key: _Key, context: ssl.SSLContext) -> None:
        with self._lock:
            self._contexts[key] = (context, time.monotonic() + CONTEXT_TTL_S)
            self._contexts.move_to_end(key)
            while len(self._contexts) > MAX_CONTEXTS:
                self._contexts.popitem(last=False)

    def start_build(self, key: _Key) -> Future[ssl.SSLContext]:
        """Start to build a context on a thread, unless it is being built. Raises `TooManyBuilds`."""
        with self._lock:
            build = self._builds.get(key)
            if build is not None:
                return build
            if len(self._builds) >= MAX_BUILDS:
                raise TooManyBuilds(f"{MAX_BUILDS} sets of certificates are being read")
            build = self._builds[key] = Future()
        threading.Thread(target=self._build, args=(key, build), name="tls-context", daemon=True).start()
        return build

    def _build(self, key: _Key, build: "Future[ssl.SSLContext]") -> None:
        """Build a context, one at a time: several threads would compete with the event loop for the interpreter."""
        try:
            with self._build_lock:
                context = build_client_context(key.tls)
            self.put(key, context)
        except BaseException as error:
            self._end_build(key)
            build.set_exception(error)
        else:
            self._end_build(key)
            build.set_result(context)

    def _end_build(self, key: _Key) -> None:
        with self._lock:
            del self._builds[key]


_cache: Final = _ContextCache()


async def load_client_context(tls: ClientTls = SYSTEM_TRUST) -> ssl.SSLContext:
    """Return the shared context for connections to servers. Do not change it.

    It is built on a thread; callers that need the same context at the same time wait for one build. Raises `ssl.SSLError`,
    `OSError` or `ValueError` if certificates cannot be used.
    """
    key = _make_key(tls)
    context = _cache.get(key)
    if context is not None:
        return context
    return await asyncio.shield(asyncio.wrap_future(_cache.start_build(key)))


def get_client_context(tls: ClientTls = SYSTEM_TRUST) -> ssl.SSLContext:
    """Return the shared context for connections to servers; the first call builds it. Do not change it.

    Raises `ssl.SSLError`, `OSError` or `ValueError` if certificates cannot be used.
    """
    key = _make_key(tls)
    context = _cache.get(key)
    if context is None:
        context = build_client_context(tls)
        _cache.put(key, context)
    return context


def build_client_context(tls: ClientTls = SYSTEM_TRUST) -> ssl.SSLContext:
    """Return a new context for connections to servers, which the caller may change.

    Raises `ssl.SSLError`, `OSError` or `ValueError` if certificates cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not tls.is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca_file or tls.ca_path:
        context.load_verify_locations(tls.ca_file or None, tls.ca_path or None)
    elif not tls.ca_pem:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if tls.is_verified:
        for certificate in _iter_certificates(tls.ca_pem):
            context.load_verify_locations(cadata=certificate)
    if tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file or None)
    if tls.protocols:
        context.set_alpn_protocols(list(tls.protocols))
    return context


def build_server_context(*, protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
    """Return a new context for a port, without a certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def build_empty_client_context() -> ssl.SSLContext:
    """Return a new context that trusts nobody yet."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _iter_certificates(texts: tuple[str, ...]) -> Iterator[str]:
    """Yield each certificate of the texts: the library holds the interpreter while it reads one text."""
    for text in texts:
        if not text.isascii():
            raise ValueError("a certificate in PEM form has only ASCII characters")
        rest = text
        while CERTIFICATE_END in rest:
            certificate, end, rest = rest.partition(CERTIFICATE_END)
            yield certificate + end
        if rest.strip() or not text:
            yield rest  # Not a certificate: the library raises the error.


def _make_key(tls: ClientTls) -> _Key:
    """Return the key of the context in the cache: it differs when a file has changed."""
    paths = [path for path in (tls.ca_file, tls.ca_path, tls.cert_file, tls.key_file) if path]
    return _Key(tls, tuple(_read_state(path) for path in paths))


def _read_state(path: str) -> FileState:
    """Return the state of a file, or zeros if it cannot be read; building the context then raises the error."""
    try:
        status = os.stat(path)
    except OSError:
        return (path, 0, 0, 0)
    return (path, status.st_ino, status.st_size, status.st_mtime_ns)
