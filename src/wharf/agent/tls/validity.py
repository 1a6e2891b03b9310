"""When the certificates of this agent and of its connections to etcd end, so that operators renew them in time. It checks no
signatures."""

import asyncio
import datetime
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from wharf.agent.errors import StartupError
from wharf.cluster.api.settings import TlsSettings
from wharf.cluster.engines.settings import EngineKind, EtcdTlsSettings
from wharf.config.settings import AgentSettings
from wharf.contract.model.times import to_datetime
from wharf.world import World

if TYPE_CHECKING:
    from wharf.agent.process_context import ProcessContext

MAX_WARNING_TIME: Final = datetime.timedelta(days=14)
"""The longest time before the end of a certificate in which warnings are given: time to renew it by hand."""
WARNING_SHARE: Final = 3
"""Warnings begin in the last third of a certificate's lifetime at the earliest, because a certificate that a program renews
may be valid for a few days only."""
MAX_CERTIFICATE_FILE_BYTES: Final = 4 * 1024**2
"""Protects against reading a wrong, large file. The certificates of all public authorities have 250 kB."""
LOG_INTERVAL_S: Final = 86_400.0
"""How often a certificate that ends soon is logged: once a day."""
REREAD_INTERVAL_S: Final = 60.0
"""How often the files for etcd are read again while one of them has a problem. Servers use renewed ones without a reload, so
the problem must disappear without one."""
REREAD_TIMEOUT_S: Final = 1.0
"""How long a health check waits for these files. A slow disk must not make the server unhealthy."""
AGENT_REMEDY: Final = "renew the certificate, then reload"
ETCD_REMEDY: Final = "renew the certificate; no reload is needed"

_NEVER: Final = datetime.datetime.max.replace(tzinfo=datetime.UTC)

log = logging.getLogger(__name__)


class CertificateFile(msgspec.Struct, frozen=True):
    """A configured file with certificates, and the time in which it can be used."""

    setting: str
    path: str
    begins_at: datetime.datetime
    ends_at: datetime.datetime
    remedy: str = AGENT_REMEDY
    chain_ends_at: datetime.datetime = _NEVER
    """When the first of the certificates that the file has besides the own one ends. Others may trust it all the same, because
    they may know a newer certificate of the same authority."""

    def find_refusal(self, now: datetime.datetime) -> str:
        """Return why others refuse the certificate now; empty if its time has begun and has not ended."""
        if now >= self.ends_at:
            return f"{self.setting} {self.path} ended on {self.ends_at.date()}: {self.remedy}"
        if now < self.begins_at:
            return (
                f"{self.setting} {self.path} is valid from {self.begins_at:%Y-%m-%d %H:%M} UTC, and the clock of this "
                f"machine shows {now:%Y-%m-%d %H:%M} UTC: check the clock"
            )
        return ""

    def find_warning(self, now: datetime.datetime) -> str:
        """Return that the certificate ends soon, or one of its chain has ended; empty if neither, or others refuse it already."""
        if self.chain_ends_at <= now < self.ends_at:
            return (
                f"{self.setting} {self.path} has a chain with a certificate that ended on {self.chain_ends_at.date()}: "
                "remove or renew it, because others may refuse the chain"
            )
        warned_from = self.ends_at - min(MAX_WARNING_TIME, (self.ends_at - self.begins_at) / WARNING_SHARE)
        if not warned_from <= now < self.ends_at:
            return ""
        days = (self.ends_at - now).days
        left = f"{days} day{'s' * (days != 1)}" if days else "less than a day"
        return f"{self.setting} {self.path} ends on {self.ends_at.date()}, in {left}: {self.remedy}"


class CertificateWatch:
    """Knows when the loaded certificates of this process end, and those for etcd."""

    def __init__(self, world: World, tls: TlsSettings, etcd_tls: EtcdTlsSettings | None = None) -> None:
        """`etcd_tls`: the files for connections to etcd; `None` if this agent has none."""
        self._world = world
        self._etcd_tls = etcd_tls
        self._files = tuple(read_certificate_files(tls))
        self._etcd_files = self._read_etcd_files()
        self._read_at_s = world.monotonic_s()
        self._reading: asyncio.Task[None] | None = None

    def reload(self, tls: TlsSettings) -> None:
        """Read the files of the agent again."""
        self._files = tuple(read_certificate_files(tls))

    def _read_etcd_files(self) -> tuple[CertificateFile, ...]:
        return () if self._etcd_tls is None else tuple(read_etcd_certificate_files(self._etcd_tls))

    async def refresh(self) -> None:
        """Read the files for etcd again if one has a problem, at most once in `REREAD_INTERVAL_S` and in one thread."""
        now_s = self._world.monotonic_s()
        is_reading = self._reading is not None and not self._reading.done()
        if is_reading or now_s - self._read_at_s < REREAD_INTERVAL_S or not any(self._list_problems(self._etcd_files)):
            return
        self._read_at_s = now_s
        self._reading = self._world.start_task(self._reread(), name="reading of certificates for etcd")
        await asyncio.wait((self._reading,), timeout=REREAD_TIMEOUT_S)

    async def _reread(self) -> None:
        self._etcd_files = await asyncio.to_thread(self._read_etcd_files)

    def find_problem(self) -> str:
        """Return which certificate has ended or ends soon; empty if there is none."""
        return next(iter(self._list_problems((*self._files, *self._etcd_files))), "")

    def _list_problems(self, files: Iterable[CertificateFile]) -> list[str]:
        """Return the problems of these files, first those for which others refuse a certificate."""
        return list_certificate_problems(files, to_datetime(self._world.now_ns()))

    async def run(self) -> None:
        """Log once a day which certificates have ended or end soon, until cancelled."""
        while True:
            await self.refresh()
            now = to_datetime(self._world.now_ns())
            for file in (*self._files, *self._etcd_files):
                if refusal := file.find_refusal(now):
                    log.error("certificate is not valid: others refuse it", extra={"why": refusal})
                elif warning := file.find_warning(now):
                    log.warning("certificate ends soon", extra={"why": warning})
            await asyncio.sleep(LOG_INTERVAL_S)


def list_certificate_problems(files: Iterable[CertificateFile], now: datetime.datetime) -> list[str]:
    """Return why others refuse certificates of these files, then which of them end soon."""
    known = list(files)
    problems = [file.find_refusal(now) for file in known] + [file.find_warning(now) for file in known]
    return [problem for problem in problems if problem]


def list_configured_problems(settings: AgentSettings, *, now_ns: int) -> list[str]:
    """Return which certificates of these settings have ended or end soon, also those for etcd."""
    etcd_tls = get_etcd_tls(settings)
    files = [*read_certificate_files(settings.tls)]
    if etcd_tls is not None:
        files += read_etcd_certificate_files(etcd_tls)
    return list_certificate_problems(files, to_datetime(now_ns))


def get_etcd_tls(settings: AgentSettings) -> EtcdTlsSettings | None:
    """Return the TLS files for etcd if this agent has a server that uses etcd."""
    uses_etcd = settings.server.enabled and settings.state.engine is EngineKind.ETCD
    return settings.state.etcd.tls if uses_etcd else None


def start_certificate_watch(context: "ProcessContext") -> asyncio.Task[None]:
    """Start to log the ends of certificates. One process of each agent does so."""
    settings = context.order.settings
    watch = CertificateWatch(context.world, settings.tls, get_etcd_tls(settings))
    context.add_reload_handler(lambda new: watch.reload(new.tls))
    return context.world.start_task(watch.run(), name="certificate watch")


def require_valid_certificates(tls: TlsSettings, *, now_ns: int) -> None:
    """Raise `StartupError` if a certificate of the files has ended or is not valid yet."""
    now = to_datetime(now_ns)
    for file in read_certificate_files(tls):
        if refusal := file.find_refusal(now):
            raise StartupError(refusal)


def read_certificate_files(tls: TlsSettings) -> Iterator[CertificateFile]:
    """Yield the configured files that can be read: the agent's own certificate, then its authorities."""
    yield from _read_files("tls", tls.cert_file, tls.ca_file, AGENT_REMEDY)


def read_etcd_certificate_files(tls: EtcdTlsSettings) -> Iterator[CertificateFile]:
    """Yield the files for etcd that can be read: the client certificate, then the authorities."""
    yield from _read_files("state.etcd.tls", tls.cert_file, tls.ca_file, ETCD_REMEDY)


def _read_files(section: str, cert_file: str, ca_file: str, remedy: str) -> Iterator[CertificateFile]:
    """Yield a certificate and its authorities, if they can be read.

    Authorities end when the last of them ends, because one is enough.
    """
    if own := _read_validities(cert_file):
        yield CertificateFile(
            f"{section}.cert_file",
            cert_file,
            begins_at=own[0].begins_at,
            ends_at=own[0].ends_at,
            remedy=remedy,
            chain_ends_at=min([each.ends_at for each in own[1:]], default=_NEVER),
        )
    if authorities := _read_validities(ca_file):
        yield CertificateFile(
            f"{section}.ca_file",
            ca_file,
            begins_at=min(each.begins_at for each in authorities),
            ends_at=max(each.ends_at for each in authorities),
            remedy=remedy,
        )


class _Validity(NamedTuple):
    """The time in which one certificate is valid."""

    begins_at: datetime.datetime
    ends_at: datetime.datetime


def _read_validities(path: str) -> list[_Validity]:
    """Return the validity of each certificate of a file.

    The list is empty if the file cannot be read. Building the TLS contexts reports this, unless OpenSSL can use the file.
    """
    if not path:
        return []
    from cryptography import x509  # Loads slowly, and is needed only with TLS.

    try:
        with Path(path).open("rb") as file:
            certificates = x509.load_pem_x509_certificates(file.read(MAX_CERTIFICATE_FILE_BYTES))
        return [_Validity(each.not_valid_before_utc, each.not_valid_after_utc) for each in certificates]
    except (OSError, ValueError, x509.InvalidVersion):
        return []
