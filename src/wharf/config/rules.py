"""Rules for the values of settings beyond their types, such as settings that require each other."""

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
from wharf.config.settings import AgentSettings, RecordSinkSettings
from wharf.config.tree import KeyPath, ValueOrigin
from wharf.contract.model.wrapping_keys import decode_wrapping_keys
from wharf.languages.suggestions import find_nearest_name
from wharf.sinks.checks import check_sink
from wharf.sinks.settings import MAX_SINKS, SinkSettings
from wharf.world.addresses import is_loopback, is_unspecified, split_host_and_port

FindOrigin = Callable[[KeyPath], ValueOrigin]
RuleViolations = Iterator[tuple[KeyPath, str]]
"""Settings that violate a rule: the path of the one to change first, and what is wrong."""

MIN_READ_CPU_S: Final = 0.1
"""The shortest CPU limit of reads: a list of 10,000 jobs needs a tenth of a second."""
MAX_READ_CPU_S: Final = 600.0
"""The longest CPU limit of reads: ten minutes, after which no client waits any more."""
MIN_REQUEST_CPU_S: Final = 0.1
"""The shortest `api.max_request_cpu`: a job of a hundred groups needs a tenth of it."""
MAX_REQUEST_CPU_S: Final = 5.0
"""The longest `api.max_request_cpu`. On a busy machine, a request takes twice its CPU time, and 10 s are its timeout."""
MIN_FAILOVER_TTL_S: Final = 30.0
"""The shortest `server.failover_heartbeat_ttl`: nodes may have heartbeat TTLs of 20 s, and the grace is 10 s by default."""
MIN_HEARTBEAT_TTL_S: Final = 1.0
"""The shortest `server.min_heartbeat_ttl`: nodes with shorter TTLs would send heartbeats all the time."""
MAX_HEARTBEAT_TTL_S: Final = 86_400.0
"""The longest `server.min_heartbeat_ttl`: a day. With a longer one, dead nodes would stay undetected for days."""
MIN_HEARTBEAT_RATE: Final = 0.01
"""The lowest `server.max_heartbeats_per_second`: with it, each node of ten sends one heartbeat in 17 to 33 minutes."""
MAX_SINK_TIMEOUT_S: Final = 300.0
"""The longest `sinks.<name>.timeout`. Records wait for a receiver that hangs."""
CLUSTER_RECORD_TYPES: Final = frozenset({"cluster.audit", "cluster.event", "sink.loss"})
"""The types of records that a server sends, which sinks can select."""
_SINK_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]]+):(\d{1,5})")
_SERVER_ADDRESS: Final = re.compile(r"(https?://)?(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]@]+)(:\d{1,5})?(/\S*)?")
_ORIGIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]@]+)(:\d{1,5})?")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_OTHER_LOGGERS: Final = ("uvicorn",)


def check_settings(settings: AgentSettings, find_origin: FindOrigin) -> list[ConfigurationProblem]:
    """Return the violations of all rules, each with the location of the setting to change first."""
    rules = (
        _check_names,
        _check_roles,
        _check_folders,
        _check_addresses,
        _check_server_addresses,
        _check_access,
        _check_keyring,
        _check_heartbeats,
        _check_tls,
        _check_etcd,
        _check_log_levels,
        _check_task_ports,
        _check_telemetry,
        _check_sinks,
        _check_read_limits,
        _check_api,
        _check_limits,
        _check_limits_gateway,
    )
    return [
        ConfigurationProblem(find_origin(path).location, format_path(path), message)
        for rule in rules
        for path, message in rule(settings)
    ]


def get_listen_address(settings: AgentSettings) -> str:
    """Return the address on which the agent serves HTTP."""
    return settings.addresses.http or settings.bind_addr


def _check_names(settings: AgentSettings) -> RuleViolations:
    """Check that region and datacenter are names without spaces and slashes."""
    for key in ("region", "datacenter"):
        value = getattr(settings, key)
        if not value or re.search(r"[\s/]", value):
            yield (key,), f'expected a name without spaces and slashes, given "{value}"'


def _check_telemetry(settings: AgentSettings) -> RuleViolations:
    """Check the prefixes of the metric filter, and that the collection interval is above 0."""
    for prefix in settings.telemetry.prefix_filter:
        if message := find_prefix_problem(prefix):
            yield ("telemetry", "prefix_filter"), message
    if settings.telemetry.in_memory_collection_interval.ns <= 0:
        yield ("telemetry", "in_memory_collection_interval"), "expected more than 0, such as 10s"


def _check_sinks(settings: AgentSettings) -> RuleViolations:
    """Check the names of sinks, and that each has the settings that its kind needs."""
    if len(settings.sinks) > MAX_SINKS:
        yield ("sinks",), f"{len(settings.sinks)} sinks are more than {MAX_SINKS}: remove some"
    for name, sink in settings.sinks.items():
        path = ("sinks", name)
        if _SINK_NAME.fullmatch(name) is None:
            yield path, f'expected a name of lowercase letters, digits, "_" and "-", given "{name}"'
        for key, text in (("path", sink.path), ("secret_file", sink.secret_file), ("ca_file", sink.ca_file)):
            if text and not FilePath(text).is_absolute():
                yield (*path, key), f'expected an absolute path, given "{text}"'
        if not 0 < sink.timeout.seconds <= MAX_SINK_TIMEOUT_S:
            yield (*path, "timeout"), f"expected more than 0 and at most {MAX_SINK_TIMEOUT_S:g}s"
        for problem in check_sink(convert_sink_settings(name, sink), known_types=CLUSTER_RECORD_TYPES):
            if problem.field != "access_key":
                yield (*path, problem.field), problem.message
            elif not sink.secret_file:
                yield (*path, "secret_file"), problem.message


def convert_sink_settings(name: str, sink: RecordSinkSettings) -> SinkSettings:
    """Return the settings of a sink without its secret, which its file contains."""
    return SinkSettings(
        name=name,
        kind=sink.kind,
        types=sink.types,
        path=FilePath(sink.path) if sink.path else None,
        rotate_bytes=sink.rotate_bytes.bytes,
        rotate_ms=sink.rotate_duration.ns // 1_000_000,
        rotate_files=sink.rotate_max_files,
        url=sink.url,
        facility=sink.facility,
        format=sink.format,
        is_compressed=sink.compress,
        secret_header=sink.secret_header,
        ca_file=sink.ca_file,
        timeout_ms=int(sink.timeout.seconds * 1_000),
        spool_bytes=sink.spool_max_size.bytes,
        bucket=sink.bucket,
        prefix=sink.prefix,
        region=sink.region,
    )


def _check_roles(settings: AgentSettings) -> RuleViolations:
    """Check that the agent is a server, a node or both, and that a node without a server has addresses of servers."""
    if not settings.server.enabled and not settings.client.enabled:
        yield (
            ("server", "enabled"),
            "this agent would do nothing: set server.enabled or client.enabled to true, or both",
        )
    if settings.client.enabled and not settings.server.enabled and not settings.client.servers:
        yield ("client", "servers"), "a node without a server in the same agent needs the addresses of servers"


def _check_folders(settings: AgentSettings) -> RuleViolations:
    """Check that there is a data folder, and that all paths are absolute."""
    if not settings.data_dir:
        yield ("data_dir",), 'required: set the folder of all data, such as data_dir = "/var/lib/wharf"'
    folders: tuple[tuple[KeyPath, str], ...] = (
        (("data_dir",), settings.data_dir),
        (("client", "alloc_dir"), settings.client.alloc_dir),
        (("client", "state_dir"), settings.client.state_dir),
        (("snapshots", "folder"), settings.snapshots.folder),
        (("audit", "file"), settings.audit.file),
        (("log_file",), settings.log_file),
        (("keyring", "file"), settings.keyring.file),
        (("limits", "file"), settings.limits.file),
        (("limits", "gateway_token_file"), settings.limits.gateway_token_file),
    )
    for path, text in folders:
        if text and not FilePath(text).is_absolute():
            yield path, f'expected an absolute path, given "{text}"'


def _check_addresses(settings: AgentSettings) -> RuleViolations:
    """Check that listen addresses are IP addresses or `localhost`, and that the advertised one is a host and a port."""
    for path, text in ((("bind_addr",), settings.bind_addr), (("addresses", "http"), settings.addresses.http)):
        if text and text != "localhost" and not _is_ip_address(text):
            yield path, f'expected an IP address or "localhost", given "{text}"'
    advertised = settings.advertise.http
    if not advertised:
        return
    parts = split_host_and_port(advertised) if _HOST_AND_PORT.fullmatch(advertised) else None
    if parts is None or parts.port == 0:
        yield ("advertise", "http"), f'expected "host:port", given "{advertised}"'
    elif is_unspecified(parts.host):
        yield ("advertise", "http"), f"nobody can connect to {parts.host}: set an address of this machine"


def _check_server_addresses(settings: AgentSettings) -> RuleViolations:
    """Check that the addresses of other servers are HTTP URLs, or `host:port`."""
    lists: list[tuple[KeyPath, tuple[str, ...]]] = [(("client", "servers"), settings.client.servers)]
    lists += [(("regions", name, "servers"), region.servers) for name, region in settings.regions.items()]
    for path, addresses in lists:
        for address in addresses:
            if not _SERVER_ADDRESS.fullmatch(address):
                yield path, f'expected "host:port" or a URL such as "http://10.0.0.1:4646", given "{address}"'


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check_heartbeats(settings: AgentSettings) -> RuleViolations:
    """Check that nodes get heartbeat TTLs that they can keep, also after a change of the leader."""
    server = settings.server
    if not server.max_heartbeats_per_second >= MIN_HEARTBEAT_RATE:  # Also refuses NaN.
        yield (
            ("server", "max_heartbeats_per_second"),
            f"expected {MIN_HEARTBEAT_RATE:g} or more, given {server.max_heartbeats_per_second:g}",
        )
    if not MIN_HEARTBEAT_TTL_S <= server.min_heartbeat_ttl.seconds <= MAX_HEARTBEAT_TTL_S:
        yield ("server", "min_heartbeat_ttl"), f"expected 1s to 24h, given {server.min_heartbeat_ttl}"
    if server.failover_heartbeat_ttl.seconds < MIN_FAILOVER_TTL_S:
        yield (
            ("server", "failover_heartbeat_ttl"),
            f"expected 30s or more, because nodes send a heartbeat every 10 to 20 s, given {server.failover_heartbeat_ttl}",
        )


def _check_access(settings: AgentSettings) -> RuleViolations:
    """Check lifetimes of tokens and the settings of replication, and that an address other machines can reach has
    access control.
    """
    min_ttl, max_ttl = settings.acl.token_min_expiration_ttl, settings.acl.token_max_expiration_ttl
    if min_ttl.ns > max_ttl.ns:
        yield (("acl", "token_min_expiration_ttl"), "it is longer than acl.token_max_expiration_ttl")
    region = settings.server.authoritative_region
    if settings.server.enabled and settings.acl.enabled and region not in ("", settings.region):
        if region not in settings.regions or not settings.regions[region].servers:
            yield (
                ("server", "authoritative_region"),
                f"no server of region {region} is configured: set regions.{region}.servers",
            )
        if not settings.acl.replication_token:
            yield (
                ("acl", "replication_token"),
                f"required to replicate global tokens and policies: set a management token of region {region}",
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
            f"listening on {address} without access control gives everyone who can connect full access: listen on "
            "127.0.0.1, or set allow_insecure = true",
        )


def _check_keyring(settings: AgentSettings) -> RuleViolations:
    """Check that the wrapping key has one source, and that its text is a key. The messages do not quote it."""
    keyring = settings.keyring
    if not keyring.secret:
        return
    if keyring.file:
        yield ("keyring", "secret"), "keyring.file is set too, and the key can have one source only: remove one of them"
    try:
        decode_wrapping_keys(keyring.secret.reveal())
    except ValueError as error:
        yield (
            ("keyring", "secret"),
            f"{error}: use the secret of the first server, or `wharf operator keyring generate`",
        )


def _check_tls(settings: AgentSettings) -> RuleViolations:
    """Check that TLS has a certificate and a key, and that verifying clients has TLS and the authority's certificate."""
    tls = settings.tls
    if not tls.http:
        if tls.verify_https_client:
            yield ("tls", "verify_https_client"), "client certificates require TLS: set tls.http = true"
        if bool(tls.cert_file) != bool(tls.key_file):
            missing = "key_file" if tls.cert_file else "cert_file"
            yield ("tls", missing), "required: a certificate and its key must be set together"
        return
    for key, value in (("cert_file", tls.cert_file), ("key_file", tls.key_file)):
        if not value:
            yield ("tls", key), "required by tls.http = true: create certificates with `wharf tls create`"
    if tls.verify_https_client and not tls.ca_file:
        yield ("tls", "ca_file"), "required by tls.verify_https_client = true: set the certificate of the authority"


def _check_read_limits(settings: AgentSettings) -> RuleViolations:
    """Check that the CPU limits of reads leave time for reads of the usual size, and stop endless ones."""
    api = settings.api
    limits = (
        ("max_filter_cpu", api.max_filter_cpu),
        ("max_list_cpu", api.max_list_cpu),
        ("max_view_cpu", api.max_view_cpu),
    )
    for key, limit in limits:
        if not MIN_READ_CPU_S <= limit.seconds <= MAX_READ_CPU_S:
            yield ("api", key), f'expected {MIN_READ_CPU_S:g} to {MAX_READ_CPU_S:g} s, given "{limit}"'


def _check_api(settings: AgentSettings) -> RuleViolations:
    """Check that the CPU limit of a request leaves time for its reply, and for requests of the usual size. Also check the
    origins and names of web pages.
    """
    for origin in settings.api.trusted_origins:
        if _ORIGIN.fullmatch(origin) is None:
            yield (
                ("api", "trusted_origins"),
                f'expected a scheme and a host, such as https://dashboard.example.com or http://localhost:3000, given "{origin}"',
            )
    for name in settings.api.host_names:
        if _HOST_NAME.fullmatch(name) is None:
            yield ("api", "host_names"), f'expected a name without a port, such as wharf.example.com, given "{name}"'
    limit_s = settings.api.max_request_cpu.seconds
    if not MIN_REQUEST_CPU_S <= limit_s <= MAX_REQUEST_CPU_S:
        yield (
            ("api", "max_request_cpu"),
            f'expected {MIN_REQUEST_CPU_S:g} to {MAX_REQUEST_CPU_S:g} s, given "{settings.api.max_request_cpu}"',
        )


def _check_limits(settings: AgentSettings) -> RuleViolations:
    """Check that several servers share their counters, because counters in memory belong to one machine.

    If a limits file is set, the code that reads that file checks this instead.
    """
    limits = settings.limits
    if not limits.enabled or limits.file or not settings.server.enabled:
        return
    advice = 'set a file with [store] kind = "redis" and addresses = "host:6379", so that they share counters'
    if settings.state.engine is EngineKind.ETCD:
        yield ("limits", "file"), f"every server would count requests on its own: {advice}"


def _check_limits_gateway(settings: AgentSettings) -> RuleViolations:
    """Check that the gateway has an address on this machine, and a file with its token.

    The token goes over the connection as it is, so no other machine may be on the way.
    """
    limits = settings.limits
    if bool(limits.gateway_admin) is not bool(limits.gateway_token_file):
        key = "gateway_token_file" if limits.gateway_admin else "gateway_admin"
        yield ("limits", key), "required: set both limits.gateway_admin and limits.gateway_token_file"
    if limits.gateway_admin:
        scheme, _, rest = limits.gateway_admin.partition("://")
        parts = split_host_and_port(rest) if scheme == "http" and _HOST_AND_PORT.fullmatch(rest) else None
        if parts is None or not is_loopback(parts.host) or not 0 < parts.port < 65_536:
            yield (
                ("limits", "gateway_admin"),
                f'expected an address of this machine such as http://127.0.0.1:9090, given "{limits.gateway_admin}"',
            )


def _check_etcd(settings: AgentSettings) -> RuleViolations:
    """Check the settings of the etcd engine, if it is selected."""
    if settings.state.engine is not EngineKind.ETCD:
        return
    etcd = settings.state.etcd
    if not etcd.endpoints:
        yield ("state", "etcd", "endpoints"), 'expected at least one, such as ["127.0.0.1:2379"]'
    for endpoint in etcd.endpoints:
        if not _HOST_AND_PORT.fullmatch(endpoint):
            yield ("state", "etcd", "endpoints"), f'expected "host:port" without a scheme, given "{endpoint}"'
    if etcd.user and not etcd.password:
        yield (
            ("state", "etcd", "password"),
            "required by state.etcd.user: set the variable WHARF_CONFIG__STATE__ETCD__PASSWORD",
        )
    if bool(etcd.tls.cert_file) != bool(etcd.tls.key_file):
        missing = "key_file" if etcd.tls.cert_file else "cert_file"
        yield ("state", "etcd", "tls", missing), "required: a certificate and its key must be set together"
    if etcd.tls.cert_file and not etcd.tls.ca_file:
        yield (
            ("state", "etcd", "tls", "ca_file"),
            "required by state.etcd.tls.cert_file: set the certificate of etcd's authority",
        )
    if not etcd.prefix.strip("/"):
        yield (
            ("state", "etcd", "prefix"),
            'expected a prefix such as "/wharf", which separates the keys from others in the same etcd',
        )


def _check_log_levels(settings: AgentSettings) -> RuleViolations:
    """Check that the keys of `log_levels` are packages of Wharf or known loggers of libraries."""
    known_parts = [*sorted(list_log_parts()), *_OTHER_LOGGERS]
    for name in settings.log_levels:
        part = name.removeprefix("wharf.").partition(".")[0]
        if part not in known_parts:
            nearest = find_nearest_name(part, known_parts)
            hint = f"did you mean {nearest}?" if nearest else f"the packages are {', '.join(known_parts)}"
            yield ("log_levels", name), f"there is no such package; {hint}"


def _check_task_ports(settings: AgentSettings) -> RuleViolations:
    """Check that the range of ports for tasks is not empty."""
    if settings.client.min_dynamic_port > settings.client.max_dynamic_port:
        yield (
            ("client", "min_dynamic_port"),
            f"{settings.client.min_dynamic_port} is above client.max_dynamic_port, {settings.client.max_dynamic_port}",
        )
