"""What must hold between settings, beyond the type of each."""

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import Final

from wharf.cluster.engines.settings import EngineKind
from wharf.cluster.server.metrics import find_prefix_problem
from wharf.config.builder import format_path
from wharf.config.errors import ConfigurationProblem
from wharf.config.log_parts import list_log_parts
from wharf.config.settings import AgentSettings
from wharf.config.tree import KeyPath, ValueOrigin

FindOrigin = Callable[[KeyPath], ValueOrigin]
RuleViolations = Iterator[tuple[KeyPath, str]]

_HOST_AND_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]]+):(\d{1,5})")
_OTHER_LOGGERS: Final = ("uvicorn",)


def check_settings(settings: AgentSettings, find_origin: FindOrigin) -> list[ConfigurationProblem]:
    """All that is wrong, each with the place of the setting to change first."""
    rules = (
        _names,
        _roles,
        _folders,
        _addresses,
        _access,
        _tls,
        _etcd,
        _log_levels,
        _ports_of_tasks,
        _telemetry,
        _limits,
    )
    return [
        ConfigurationProblem(find_origin(path).location, format_path(path), what)
        for rule in rules
        for path, what in rule(settings)
    ]


def get_listen_address(settings: AgentSettings) -> str:
    return settings.addresses.http or settings.bind_addr


def is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _names(settings: AgentSettings) -> RuleViolations:
    for key in ("region", "datacenter"):
        value = getattr(settings, key)
        if not value or re.search(r"[\s/]", value):
            yield (key,), f'expected a name without spaces and slashes, given "{value}"'


def _telemetry(settings: AgentSettings) -> RuleViolations:
    for prefix in settings.telemetry.prefix_filter:
        if what := find_prefix_problem(prefix):
            yield ("telemetry", "prefix_filter"), what
    if settings.telemetry.in_memory_collection_interval.ns <= 0:
        yield ("telemetry", "in_memory_collection_interval"), "an interval must last: say 10s"


def _roles(settings: AgentSettings) -> RuleViolations:
    if not settings.server.enabled and not settings.client.enabled:
        yield (
            ("server", "enabled"),
            "this agent would do nothing: set server.enabled or client.enabled to true, or both",
        )
    if settings.client.enabled and not settings.server.enabled and not settings.client.servers:
        yield ("client", "servers"), "a node without a server in the same agent needs the addresses of servers"


def _folders(settings: AgentSettings) -> RuleViolations:
    if not settings.data_dir:
        yield ("data_dir",), 'the folder of all that is kept is needed: data_dir = "/var/lib/wharf"'
    folders: tuple[tuple[KeyPath, str], ...] = (
        (("data_dir",), settings.data_dir),
        (("client", "alloc_dir"), settings.client.alloc_dir),
        (("client", "state_dir"), settings.client.state_dir),
        (("snapshots", "folder"), settings.snapshots.folder),
        (("audit", "file"), settings.audit.file),
        (("log_file",), settings.log_file),
        (("keyring", "file"), settings.keyring.file),
        (("limits", "file"), settings.limits.file),
    )
    for path, text in folders:
        if text and not FilePath(text).is_absolute():
            yield path, f'expected an absolute path, given "{text}"'


def _addresses(settings: AgentSettings) -> RuleViolations:
    for path, text in ((("bind_addr",), settings.bind_addr), (("addresses", "http"), settings.addresses.http)):
        if text and text != "localhost" and not _is_address(text):
            yield path, f'expected an IP address or "localhost", given "{text}"'
    if settings.advertise.http and not _HOST_AND_PORT.fullmatch(settings.advertise.http):
        yield ("advertise", "http"), f'expected "host:port", given "{settings.advertise.http}"'


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _access(settings: AgentSettings) -> RuleViolations:
    least, most = settings.acl.token_min_expiration_ttl, settings.acl.token_max_expiration_ttl
    if least.ns > most.ns:
        yield (("acl", "token_min_expiration_ttl"), "it is longer than acl.token_max_expiration_ttl")
    region = settings.server.authoritative_region
    if settings.server.enabled and settings.acl.enabled and region not in ("", settings.region):
        if region not in settings.regions or not settings.regions[region].servers:
            yield (
                ("server", "authoritative_region"),
                f"no server of {region} is listed: say regions.{region}.servers",
            )
        if not settings.acl.replication_token:
            yield (
                ("acl", "replication_token"),
                f"what is global is copied from {region} by a management token of that region: give one",
            )
    address = get_listen_address(settings)
    if (
        settings.server.enabled
        and not is_loopback(address)
        and not settings.acl.enabled
        and not settings.allow_insecure
    ):
        yield (
            ("addresses", "http") if settings.addresses.http else ("bind_addr",),
            f"listening on {address} without access control lets everyone who can connect do everything: listen on "
            "127.0.0.1, or say allow_insecure = true",
        )


def _tls(settings: AgentSettings) -> RuleViolations:
    tls = settings.tls
    if not tls.http:
        if tls.verify_https_client:
            yield ("tls", "verify_https_client"), "clients show certificates over TLS only: set tls.http = true too"
        return
    for key, value in (("cert_file", tls.cert_file), ("key_file", tls.key_file)):
        if not value:
            yield ("tls", key), "tls.http = true needs it: `wharf tls create` makes certificates"
    if tls.verify_https_client and not tls.ca_file:
        yield ("tls", "ca_file"), "tls.verify_https_client = true needs the authority's certificate"


def _limits(settings: AgentSettings) -> RuleViolations:
    """Counters in memory are one machine's own. With a file, whoever reads it looks."""
    limits = settings.limits
    if not limits.enabled or limits.file or not settings.server.enabled:
        return
    instead = 'name a file here with [store] kind = "redis" and addresses = "host:6379", so that they share'
    if settings.state.engine is EngineKind.ETCD:
        yield ("limits", "file"), f"servers on several machines would each count alone: {instead}"


def _etcd(settings: AgentSettings) -> RuleViolations:
    if settings.state.engine is not EngineKind.ETCD:
        return
    etcd = settings.state.etcd
    if not etcd.endpoints:
        yield ("state", "etcd", "endpoints"), 'at least one is needed, such as ["127.0.0.1:2379"]'
    for endpoint in etcd.endpoints:
        if not _HOST_AND_PORT.fullmatch(endpoint):
            yield ("state", "etcd", "endpoints"), f'expected "host:port" without a scheme, given "{endpoint}"'
    if etcd.user and not etcd.password:
        yield ("state", "etcd", "password"), "state.etcd.user needs it: give it as WHARF_CONFIG__STATE__ETCD__PASSWORD"
    if bool(etcd.tls.cert_file) != bool(etcd.tls.key_file):
        missing = "key_file" if etcd.tls.cert_file else "cert_file"
        yield ("state", "etcd", "tls", missing), "a certificate and its key are only of use together"
    if etcd.tls.cert_file and not etcd.tls.ca_file:
        yield ("state", "etcd", "tls", "ca_file"), "TLS to etcd needs the certificate of etcd's authority"
    if not etcd.prefix.strip("/"):
        yield (
            ("state", "etcd", "prefix"),
            'other keys on the same etcd need to be told apart: expected one like "/wharf"',
        )


def _log_levels(settings: AgentSettings) -> RuleViolations:
    known = [*sorted(list_log_parts()), *_OTHER_LOGGERS]
    for name in settings.log_levels:
        part = name.removeprefix("wharf.").partition(".")[0]
        if part not in known:
            near = difflib.get_close_matches(part, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            yield ("log_levels", name), f"there is no such part; {hint}"


def _ports_of_tasks(settings: AgentSettings) -> RuleViolations:
    if settings.client.min_dynamic_port > settings.client.max_dynamic_port:
        yield (
            ("client", "min_dynamic_port"),
            f"{settings.client.min_dynamic_port} is above client.max_dynamic_port, {settings.client.max_dynamic_port}",
        )
