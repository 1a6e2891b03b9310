"""TLS contexts: which inputs share one, when one is built again, and that building one does not hold the event loop."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.certificates import ServerCertificates, make_certificates
from tests.kit.loop_holds import measure_holds
from wharf.world import tls_contexts
from wharf.world.tls_contexts import (
    NO_VERIFICATION,
    SYSTEM_TRUST,
    ClientTls,
    TooManyBuilds,
    build_client_context,
    build_server_context,
    get_client_context,
    load_client_context,
)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> tls_contexts._ContextCache:
    """An empty cache, so that tests do not share contexts."""
    cache = tls_contexts._ContextCache()
    monkeypatch.setattr(tls_contexts, "_cache", cache)
    return cache


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> list[ServerCertificates]:
    return [make_certificates(tmp_path_factory.mktemp("authority")) for _ in range(2)]


def test_equal_inputs_share_a_context(authorities: list[ServerCertificates]) -> None:
    first, second = (ClientTls(ca_pem=(authority.authority_pem,)) for authority in authorities)

    assert get_client_context(first) is get_client_context(ClientTls(ca_pem=(authorities[0].authority_pem,)))
    assert get_client_context(first) is not get_client_context(second)


def test_a_changed_file_gets_a_new_context(tmp_path: Path, authorities: list[ServerCertificates]) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(authorities[0].authority_pem)
    first = get_client_context(ClientTls(ca_file=str(file)))
    file.write_text(authorities[0].authority_pem + authorities[1].authority_pem)

    second = get_client_context(ClientTls(ca_file=str(file)))

    assert [len(context.get_ca_certs()) for context in (first, second)] == [1, 2]


def test_an_expired_context_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_contexts, "CONTEXT_TTL_S", 0.0)

    assert get_client_context(NO_VERIFICATION) is not get_client_context(NO_VERIFICATION)


def test_the_contexts_that_were_not_used_for_the_longest_time_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_contexts, "MAX_CONTEXTS", 2)
    inputs = [NO_VERIFICATION._replace(protocols=(f"p{number}",)) for number in range(3)]
    first, second = (get_client_context(each) for each in inputs[:2])
    get_client_context(inputs[0])
    get_client_context(inputs[2])

    assert get_client_context(inputs[0]) is first
    assert get_client_context(inputs[1]) is not second


def test_only_the_given_authorities_are_trusted(authorities: list[ServerCertificates]) -> None:
    context = build_client_context(ClientTls(ca_pem=(authorities[0].authority_pem + authorities[1].authority_pem,)))

    assert len(context.get_ca_certs()) == 2
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_the_system_is_trusted_without_other_authorities() -> None:
    assert build_client_context().get_ca_certs() == ssl.create_default_context().get_ca_certs()


def test_a_context_without_verification_accepts_every_certificate() -> None:
    context = build_client_context(NO_VERIFICATION)

    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize(
    "text", ["", "no certificate", "ü", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_a_text_without_a_certificate_is_an_error(text: str) -> None:
    with pytest.raises((ssl.SSLError, ValueError)):
        build_client_context(ClientTls(ca_pem=(text,)))


def test_a_certificate_is_presented(authorities: list[ServerCertificates]) -> None:
    own = authorities[0]
    with pytest.raises(ssl.SSLError):
        build_client_context(ClientTls(cert_file=own.certificate_file))

    build_client_context(ClientTls(cert_file=own.certificate_file, key_file=own.key_file))


def test_a_server_context_has_protocols() -> None:
    context = build_server_context(protocols=("http/1.1",))

    assert (context.verify_mode, context.minimum_version) == (ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2)


# -- on a thread -----------------------------------------------------------------------------------------------------


@pytest.fixture
def held_builds(cache: tls_contexts._ContextCache) -> Iterator[threading.Event]:
    """An event that lets threads build contexts."""
    may_build = threading.Event()

    class HeldLock:
        def __enter__(self) -> None:
            assert may_build.wait(20.0)

        def __exit__(self, *error: object) -> None: ...

    cache._build_lock = HeldLock()  # type: ignore[assignment]
    yield may_build
    may_build.set()


def test_callers_that_need_the_same_context_wait_for_one_build(held_builds: threading.Event) -> None:
    async def load_all() -> list[ssl.SSLContext]:
        loads = [asyncio.ensure_future(load_client_context()) for _ in range(5)]
        await asyncio.sleep(0)
        assert len(tls_contexts._cache._builds) == 1
        loads[0].cancel()
        held_builds.set()
        return await asyncio.gather(*loads[1:])

    assert len({id(context) for context in asyncio.run(load_all())}) == 1


def test_too_many_builds_at_a_time_are_refused(held_builds: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_contexts, "MAX_BUILDS", 1)

    async def load_two() -> None:
        first = asyncio.ensure_future(load_client_context(NO_VERIFICATION))
        await asyncio.sleep(0)
        with pytest.raises(TooManyBuilds, match="1 sets of certificates"):
            await load_client_context()
        held_builds.set()
        await first

    asyncio.run(load_two())


def test_a_failed_build_is_an_error_for_its_callers_and_can_be_repeated(
    tmp_path: Path, authorities: list[ServerCertificates]
) -> None:
    file = tmp_path / "ca.pem"

    async def load() -> ssl.SSLContext:
        return await load_client_context(ClientTls(ca_file=str(file)))

    with pytest.raises(FileNotFoundError):
        asyncio.run(load())
    file.write_text(authorities[0].authority_pem)

    assert len(asyncio.run(load()).get_ca_certs()) == 1


def test_building_a_context_does_not_hold_the_event_loop() -> None:
    with measure_holds() as holds:
        asyncio.run(load_client_context(SYSTEM_TRUST))

    holds.require_short("building a context", 0.010)
