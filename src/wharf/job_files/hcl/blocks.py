"""The table of all blocks and arguments of job files in HCL.

Each row has the name, the type, the JSON field, the value of an absent argument, and the unit. A block that may occur at several
places, such as `constraint`, is one row that several blocks list.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from wharf.contract.model.drivers import OPTION_NAMES
from wharf.contract.model.times import SECOND
from wharf.job_files.hcl.block_types import Argument, ArgumentKind, BlockType, BodyKind, Storage, define_argument

_text: Final = partial(define_argument, ArgumentKind.TEXT)
_whole: Final = partial(define_argument, ArgumentKind.WHOLE)
_bool: Final = partial(define_argument, ArgumentKind.BOOL)
_duration: Final = partial(define_argument, ArgumentKind.DURATION)
_texts: Final = partial(define_argument, ArgumentKind.TEXTS)
_wholes: Final = partial(define_argument, ArgumentKind.WHOLES)
_text_map: Final = partial(define_argument, ArgumentKind.TEXT_MAP)

_MAX_INT8: Final = 127
_MIN_INT8: Final = -128
_MAX_UINT8: Final = 255
_MAX_UINT16: Final = 65_535
_MAX_UINT32: Final = (1 << 32) - 1
_MB: Final = "MB"
_MHZ: Final = "MHz"
_PERCENT: Final = "%"


def _plain_text(name: str, field: str = "", *, is_required: bool = False) -> Argument:
    """Return a text that is empty in JSON if the argument is absent."""
    return _text(name, field, is_plain=True, is_required=is_required)


def _plain_bool(name: str, field: str = "") -> Argument:
    """Return a bool that is false in JSON if the argument is absent."""
    return _bool(name, field, is_plain=True)


def _map(name: str, field: str = "", *, has_argument_form: bool = False) -> BlockType:
    """Return a block that is a map of texts."""
    return BlockType(name, field or _to_field(name), body=BodyKind.TEXT_MAP, has_argument_form=has_argument_form)


def _free_form(name: str, field: str = "") -> BlockType:
    """Return a block with any content."""
    return BlockType(name, field or _to_field(name), body=BodyKind.FREE_FORM)


def _to_field(name: str) -> str:
    return _text(name).field


META: Final = _map("meta", has_argument_form=True)
ENV: Final = _map("env", has_argument_form=True)

# -- requirements and preferences of nodes

_COMPARISON: Final = (
    _plain_text("attribute", "LTarget"),
    _text("operator", "Operand", absent="="),
    _plain_text("value", "RTarget"),
    _text("version", "RTarget", operand="version"),
    _text("semver", "RTarget", operand="semver"),
    _text("regexp", "RTarget", operand="regexp"),
    _text("set_contains", "RTarget", operand="set_contains"),
    _text("set_contains_any", "RTarget", operand="set_contains_any"),
    _text("set_contains_all", "RTarget", operand="set_contains_all"),
)
"""The arguments of a comparison. Those with an operand are short forms for `operator` and `value`."""

_COMPARISON_EXAMPLE: Final = (
    ' with attribute = "${attr.kernel.name}", operator = "=" and value = "linux" on lines of their own'
)

CONSTRAINT: Final = BlockType(
    "constraint",
    "Constraints",
    (
        *_COMPARISON,
        _bool("distinct_hosts", "RTarget", operand="distinct_hosts"),
        _text("distinct_property", "LTarget", operand="distinct_property"),
        _text("is_set", "LTarget", operand="is_set"),
        _text("is_not_set", "LTarget", operand="is_not_set"),
    ),
    storage=Storage.LIST,
    example=_COMPARISON_EXAMPLE,
)
AFFINITY: Final = BlockType(
    "affinity",
    "Affinities",
    (*_COMPARISON, _whole("weight", minimum=_MIN_INT8, maximum=_MAX_INT8, is_fraction_cut=True)),
    storage=Storage.LIST,
    example=_COMPARISON_EXAMPLE,
)
SPREAD: Final = BlockType(
    "spread",
    "Spreads",
    (_plain_text("attribute"), _whole("weight", minimum=_MIN_INT8, maximum=_MAX_INT8)),
    (
        BlockType(
            "target",
            "SpreadTarget",
            (_whole("percent", is_plain=True, minimum=0, maximum=_MAX_UINT8, unit=_PERCENT),),
            storage=Storage.LIST,
            label="value",
            label_fields=("Value",),
        ),
    ),
    storage=Storage.LIST,
)
REQUIREMENTS: Final = (CONSTRAINT, AFFINITY, SPREAD)

# -- policies

UPDATE: Final = BlockType(
    "update",
    "Update",
    (
        _whole("max_parallel"),
        _duration("stagger"),
        _text("health_check"),
        _duration("min_healthy_time"),
        _duration("healthy_deadline"),
        _duration("progress_deadline"),
        _whole("canary"),
        _bool("auto_revert"),
        _bool("auto_promote"),
    ),
)
MIGRATE: Final = BlockType(
    "migrate",
    "Migrate",
    (_whole("max_parallel"), _text("health_check"), _duration("min_healthy_time"), _duration("healthy_deadline")),
)
_RESCHEDULE_ARGUMENTS: Final = (
    _whole("attempts"),
    _duration("interval"),
    _duration("delay"),
    _text("delay_function"),
    _duration("max_delay"),
    _bool("unlimited"),
)
JOB_RESCHEDULE: Final = BlockType("reschedule", "Reschedule", _RESCHEDULE_ARGUMENTS)
GROUP_RESCHEDULE: Final = BlockType("reschedule", "ReschedulePolicy", _RESCHEDULE_ARGUMENTS)
RESTART: Final = BlockType(
    "restart",
    "RestartPolicy",
    (_whole("attempts"), _duration("interval"), _duration("delay"), _text("mode"), _bool("render_templates")),
)
DISCONNECT: Final = BlockType(
    "disconnect",
    "Disconnect",
    (_duration("lost_after"), _duration("stop_on_client_after"), _bool("replace"), _text("reconcile")),
)
EPHEMERAL_DISK: Final = BlockType(
    "ephemeral_disk", "EphemeralDisk", (_whole("size", "SizeMB", unit=_MB), _bool("sticky"), _bool("migrate"))
)
ARRAY: Final = BlockType(
    "array",
    "Array",
    (_whole("size"), _texts("items"), _whole("max_running"), _bool("fail_fast")),
    is_absent_omitted=True,
)

# -- steps of a run

DEPENDS: Final = BlockType(
    "depends",
    "Depends",
    (
        _plain_text("on", is_required=True),
        _text("when"),
        _bool("each"),
        _whole("at_least"),
        _bool("optional"),
    ),
    storage=Storage.LIST,
    is_absent_omitted=True,
    short_argument="on",
)
GATE: Final = BlockType("gate", "Gate", (_text("ask"), _text("policy"), _duration("timeout")), is_absent_omitted=True)
LOCK: Final = BlockType(
    "lock", "Lock", (_plain_text("key", is_required=True), _whole("slots"), _text("policy")), is_absent_omitted=True
)
OUTPUTS: Final = BlockType("outputs", "Outputs", (_texts("text"), _texts("keep")), is_absent_omitted=True)
RETRY: Final = BlockType(
    "retry", "Retry", (_whole("attempts"), _wholes("on_exit"), _wholes("not_on_exit")), is_absent_omitted=True
)
FLOW: Final = BlockType(
    "flow", "Flow", (_duration("deadline"), _duration("final_timeout"), _text("overlap")), is_absent_omitted=True
)

# -- scaling

_SCALING_ARGUMENTS: Final = (_whole("min"), _bool("enabled"))
_SCALING_FIXED: Final = {"ID": "", "Target": None, "CreateIndex": 0, "ModifyIndex": 0}
_POLICY: Final = _free_form("policy")
GROUP_SCALING: Final = BlockType(
    "scaling",
    "Scaling",
    (*_SCALING_ARGUMENTS, _whole("max", is_required=True), _text("type", absent="horizontal")),
    (_POLICY,),
    fixed_fields=_SCALING_FIXED,
)
TASK_SCALING: Final = BlockType(
    "scaling",
    "ScalingPolicies",
    (*_SCALING_ARGUMENTS, _whole("max"), _plain_text("type")),
    (_POLICY,),
    storage=Storage.LIST,
    label="resource, cpu or mem",
    fixed_fields=_SCALING_FIXED,
)

# -- identities and secrets

IDENTITY: Final = BlockType(
    "identity",
    "Identity",
    (
        _plain_text("name"),
        _texts("aud", "Audience"),
        _plain_text("change_mode"),
        _plain_text("change_signal"),
        _plain_bool("env"),
        _plain_bool("file"),
        _plain_text("filepath"),
        _plain_text("service_name"),
        _duration("ttl", is_plain=True),
        _texts("extra_claims"),
    ),
)
TASK_IDENTITY: Final = BlockType(
    "identity", "Identities", IDENTITY.arguments, storage=Storage.LIST, other_field="Identity"
)
_VAULT_ARGUMENTS: Final = (
    _texts("policies"),
    _plain_text("role"),
    _text("namespace"),
    _plain_text("cluster"),
    _bool("env", absent=True),
    _bool("disable_file", absent=False),
    _text("change_mode", absent="restart"),
    _text("change_signal"),
    _bool("allow_token_expiration"),
)
VAULT: Final = BlockType("vault", "Vault", _VAULT_ARGUMENTS)
INHERITED_VAULT: Final = BlockType("vault", "", _VAULT_ARGUMENTS, copied_to_tasks=True)
CONSUL: Final = BlockType(
    "consul", "Consul", (_plain_text("namespace"), _plain_text("cluster"), _plain_text("partition"))
)
_SECRET_ARGUMENTS: Final = (_plain_text("provider"), _plain_text("path"))
_SECRET_BLOCKS: Final = (_free_form("config"), _map("env"))
SECRET: Final = BlockType(
    "secret", "Secrets", _SECRET_ARGUMENTS, _SECRET_BLOCKS, storage=Storage.LIST, label="name", label_fields=("Name",)
)
INHERITED_SECRET: Final = BlockType(
    "secret", "", _SECRET_ARGUMENTS, _SECRET_BLOCKS, storage=Storage.LIST, label="name", label_fields=("Name",),
    copied_to_tasks=True,
)  # fmt: skip

# -- networks and resources

_PORT_ARGUMENTS: Final = (
    _whole("static", "Value", is_plain=True),
    _whole("to", is_plain=True),
    _plain_text("host_network"),
    _plain_bool("ignore_collision"),
)
PORT: Final = BlockType(
    "port", "DynamicPorts", _PORT_ARGUMENTS, storage=Storage.LIST, label="label", label_fields=("Label",),
    other_field="ReservedPorts",
)  # fmt: skip
RESERVED_PORT: Final = BlockType(
    "reserved_ports", "ReservedPorts", _PORT_ARGUMENTS, storage=Storage.LIST, label="label", label_fields=("Label",),
    deprecated='port "label" { static = ... }',
)  # fmt: skip
NETWORK: Final = BlockType(
    "network",
    "Networks",
    (
        _plain_text("mode"),
        _plain_text("hostname"),
        _plain_text("device"),
        _plain_text("cidr"),
        _plain_text("ip"),
        _whole("mbits", deprecated="nothing: it has no effect"),
    ),
    (
        PORT,
        RESERVED_PORT,
        BlockType("dns", "DNS", (_texts("servers"), _texts("searches"), _texts("options"))),
        BlockType("cni", "CNI", (_text_map("args"),)),
    ),
    storage=Storage.LIST,
)
DEVICE: Final = BlockType(
    "device",
    "Devices",
    (_whole("count", minimum=0),),
    (CONSTRAINT, AFFINITY),
    storage=Storage.LIST,
    label="name",
    label_fields=("Name",),
)
RESOURCES: Final = BlockType(
    "resources",
    "Resources",
    (
        _whole("cpu", unit=_MHZ),
        _whole("cores"),
        _whole("memory", "MemoryMB", unit=_MB),
        _whole("memory_max", "MemoryMaxMB", unit=_MB),
        _whole("secrets", "SecretsMB", unit=_MB),
        _whole("disk", "DiskMB", unit=_MB, deprecated="ephemeral_disk { size = ... } in the group"),
        _whole("iops", deprecated="nothing: it has no effect"),
    ),
    (DEVICE, BlockType("numa", "NUMA", (_plain_text("affinity"), _texts("devices"))), NETWORK),
)

# -- volumes

VOLUME: Final = BlockType(
    "volume",
    "Volumes",
    (
        _plain_text("type"),
        _plain_text("source"),
        _plain_bool("read_only"),
        _plain_bool("sticky"),
        _plain_text("access_mode"),
        _plain_text("attachment_mode"),
        _plain_bool("per_alloc"),
    ),
    (BlockType("mount_options", "MountOptions", (_plain_text("fs_type", "FSType"), _texts("mount_flags"))),),
    storage=Storage.MAP,
    label="name",
    label_fields=("Name",),
)
VOLUME_MOUNT: Final = BlockType(
    "volume_mount",
    "VolumeMounts",
    (_text("volume"), _text("destination"), _bool("read_only"), _text("propagation_mode"), _text("selinux_label")),
    storage=Storage.LIST,
)
CSI_PLUGIN: Final = BlockType(
    "csi_plugin",
    "CSIPluginConfig",
    (
        _plain_text("id"),
        _plain_text("type"),
        _plain_text("mount_dir"),
        _plain_text("stage_publish_base_dir"),
        _duration("health_timeout", is_plain=True),
    ),
    is_absent_omitted=True,
)

# -- tasks

LOGS: Final = BlockType(
    "logs",
    "LogConfig",
    (
        _whole("max_files"),
        _whole("max_file_size", "MaxFileSizeMB", unit=_MB),
        _bool("disabled"),
        _bool("enabled", deprecated="disabled = ..., which is the opposite"),
    ),
)
LIFECYCLE: Final = BlockType(
    "lifecycle", "Lifecycle", (_text("hook", is_plain=True, is_required=True), _plain_bool("sidecar"))
)
TEMPLATE: Final = BlockType(
    "template",
    "Templates",
    (
        _text("source", "SourcePath"),
        _text("destination", "DestPath"),
        _text("data", "EmbeddedTmpl"),
        _text("change_mode", absent="restart"),
        _text("change_signal"),
        _bool("once"),
        _duration("splay", absent=5 * SECOND),
        _text("perms", absent="0644"),
        _whole("uid"),
        _whole("gid"),
        _text("left_delimiter", "LeftDelim"),
        _text("right_delimiter", "RightDelim"),
        _bool("env", "Envvars"),
        _bool("error_on_missing_key", "ErrMissingKey", absent=False),
        _duration("vault_grace", deprecated="nothing: it has no effect"),
    ),
    (
        BlockType("wait", "Wait", (_duration("min"), _duration("max"))),
        BlockType(
            "change_script",
            "ChangeScript",
            (
                _text("command"),
                _texts("args", absent=[]),
                _duration("timeout", absent=5 * SECOND),
                _bool("fail_on_error", absent=False),
                _bool("run_on_first_render", absent=False),
            ),
        ),
    ),
    storage=Storage.LIST,
)
ARTIFACT: Final = BlockType(
    "artifact",
    "Artifacts",
    (
        _text("source", "GetterSource"),
        _text("destination", "RelativeDest"),
        _text("mode", "GetterMode"),
        _bool("insecure", "GetterInsecure"),
        _plain_bool("chown"),
    ),
    (_map("options", "GetterOptions"), _map("headers", "GetterHeaders")),
    storage=Storage.LIST,
)
DISPATCH_PAYLOAD: Final = BlockType("dispatch_payload", "DispatchPayload", (_plain_text("file"),))
ACTION: Final = BlockType(
    "action",
    "Actions",
    (_text("command", is_plain=True, is_required=True), _texts("args")),
    storage=Storage.LIST,
    label="name",
    label_fields=("Name",),
)
SCHEDULE: Final = BlockType(
    "schedule",
    "Schedule",
    (),
    (BlockType("cron", "Cron", (_plain_text("start"), _plain_text("end"), _plain_text("timezone"))),),
)

# -- the service mesh of Consul

_MESH_CONFIG: Final = _free_form("config")
UPSTREAM: Final = BlockType(
    "upstreams",
    "Upstreams",
    (
        _plain_text("destination_name"),
        _plain_text("destination_namespace"),
        _plain_text("destination_peer"),
        _plain_text("destination_partition"),
        _plain_text("destination_type"),
        _whole("local_bind_port", is_plain=True),
        _plain_text("datacenter"),
        _plain_text("local_bind_address"),
        _plain_text("local_bind_socket_path"),
        _plain_text("local_bind_socket_mode"),
    ),
    (BlockType("mesh_gateway", "MeshGateway", (_plain_text("mode"),)), _MESH_CONFIG),
    storage=Storage.LIST,
)
TRANSPARENT_PROXY: Final = BlockType(
    "transparent_proxy",
    "TransparentProxy",
    (
        _plain_text("uid", "UID"),
        _whole("outbound_port", is_plain=True, minimum=0, maximum=_MAX_UINT16),
        _texts("exclude_inbound_ports"),
        _wholes("exclude_outbound_ports", minimum=0, maximum=_MAX_UINT16),
        _texts("exclude_outbound_cidrs", "ExcludeOutboundCIDRs"),
        _texts("exclude_uids", "ExcludeUIDs"),
        _plain_bool("no_dns", "NoDNS"),
    ),
)
EXPOSE: Final = BlockType(
    "expose",
    "Expose",
    (),
    (
        BlockType(
            "path",
            "Paths",
            (
                _plain_text("path"),
                _plain_text("protocol"),
                _whole("local_path_port", is_plain=True),
                _plain_text("listener_port"),
            ),
            storage=Storage.LIST,
        ),
    ),
)
SIDECAR_SERVICE: Final = BlockType(
    "sidecar_service",
    "SidecarService",
    (_texts("tags"), _plain_text("port"), _plain_bool("disable_default_tcp_check", "DisableDefaultTCPCheck")),
    (
        _map("meta"),
        BlockType(
            "proxy",
            "Proxy",
            (_plain_text("local_service_address"), _whole("local_service_port", is_plain=True)),
            (UPSTREAM, EXPOSE, TRANSPARENT_PROXY, _MESH_CONFIG),
            fixed_fields={"ExposeConfig": None},
        ),
    ),
)
SIDECAR_TASK: Final = BlockType(
    "sidecar_task",
    "SidecarTask",
    (
        _plain_text("name"),
        _plain_text("driver"),
        _plain_text("user"),
        _duration("kill_timeout"),
        _duration("shutdown_delay"),
        _plain_text("kill_signal"),
    ),
    (
        _free_form("config"),
        _map("env"),
        _map("meta"),
        RESOURCES,
        LOGS,
        VOLUME_MOUNT,
        BlockType("identity", "Identities", IDENTITY.arguments, storage=Storage.LIST),
    ),
)
_GATEWAY_TLS: Final = BlockType(
    "tls",
    "TLS",
    (
        _plain_bool("enabled"),
        _plain_text("tls_min_version"),
        _plain_text("tls_max_version"),
        _texts("cipher_suites"),
    ),
    (BlockType("sds", "SDS", (_plain_text("cluster_name"), _plain_text("cert_resource"))),),
)
_HEADER_CHANGES: Final = ((_texts("remove"),), (_map("add"), _map("set")))
GATEWAY: Final = BlockType(
    "gateway",
    "Gateway",
    (),
    (
        BlockType(
            "proxy",
            "Proxy",
            (
                _duration("connect_timeout"),
                _plain_bool("envoy_gateway_bind_tagged_addresses"),
                _plain_bool("envoy_gateway_no_default_bind"),
                _plain_text("envoy_dns_discovery_type"),
            ),
            (
                BlockType(
                    "envoy_gateway_bind_addresses",
                    "EnvoyGatewayBindAddresses",
                    (_plain_text("address"), _whole("port", is_plain=True)),
                    storage=Storage.MAP,
                    label="name",
                    label_fields=("Name",),
                ),
                _MESH_CONFIG,
            ),
        ),
        BlockType(
            "ingress",
            "Ingress",
            (),
            (
                _GATEWAY_TLS,
                BlockType(
                    "listener",
                    "Listeners",
                    (_whole("port", is_plain=True), _plain_text("protocol")),
                    (
                        BlockType(
                            "service",
                            "Services",
                            (
                                _plain_text("name"),
                                _texts("hosts"),
                                _whole("max_connections", minimum=0, maximum=_MAX_UINT32),
                                _whole("max_pending_requests", minimum=0, maximum=_MAX_UINT32),
                                _whole("max_concurrent_requests", minimum=0, maximum=_MAX_UINT32),
                            ),
                            (
                                _GATEWAY_TLS,
                                BlockType("request_headers", "RequestHeaders", *_HEADER_CHANGES),
                                BlockType("response_headers", "ResponseHeaders", *_HEADER_CHANGES),
                            ),
                            storage=Storage.LIST,
                        ),
                    ),
                    storage=Storage.LIST,
                ),
            ),
        ),
        BlockType(
            "terminating",
            "Terminating",
            (),
            (
                BlockType(
                    "service",
                    "Services",
                    (
                        _plain_text("name"),
                        _plain_text("ca_file", "CAFile"),
                        _plain_text("cert_file"),
                        _plain_text("key_file"),
                        _plain_text("sni", "SNI"),
                    ),
                    storage=Storage.LIST,
                ),
            ),
        ),
        BlockType("mesh", "Mesh"),
    ),
)
CONNECT: Final = BlockType("connect", "Connect", (_plain_bool("native"),), (SIDECAR_SERVICE, SIDECAR_TASK, GATEWAY))

# -- services

CHECK_RESTART: Final = BlockType(
    "check_restart",
    "CheckRestart",
    (_whole("limit", is_plain=True), _duration("grace"), _plain_bool("ignore_warnings")),
)
CHECK: Final = BlockType(
    "check",
    "Checks",
    (
        _plain_text("name"),
        _plain_text("type"),
        _plain_text("command"),
        _texts("args"),
        _plain_text("path"),
        _plain_text("protocol"),
        _plain_text("port", "PortLabel"),
        _plain_text("method"),
        _plain_text("body"),
        _duration("interval", is_plain=True),
        _duration("timeout", is_plain=True),
        _plain_text("initial_status"),
        _plain_text("notes"),
        _plain_text("address_mode"),
        _plain_text("advertise"),
        _plain_bool("expose"),
        _plain_text("tls_server_name"),
        _plain_bool("tls_skip_verify"),
        _plain_text("grpc_service"),
        _plain_bool("grpc_use_tls"),
        _plain_text("task", "TaskName"),
        _whole("success_before_passing", is_plain=True),
        _whole("failures_before_critical", is_plain=True),
        _whole("failures_before_warning", is_plain=True),
        _plain_text("on_update"),
    ),
    (BlockType("header", "Header", body=BodyKind.LIST_MAP), CHECK_RESTART),
    storage=Storage.LIST,
)
SERVICE: Final = BlockType(
    "service",
    "Services",
    (
        _plain_text("name"),
        _plain_text("port", "PortLabel"),
        _plain_text("provider"),
        _texts("tags"),
        _texts("canary_tags"),
        _plain_bool("enable_tag_override"),
        _plain_text("address"),
        _plain_text("address_mode"),
        _plain_text("task", "TaskName"),
        _plain_text("on_update"),
        _plain_text("cluster"),
        _plain_text("kind"),
    ),
    (
        CHECK,
        CHECK_RESTART,
        CONNECT,
        _map("meta"),
        _map("canary_meta"),
        _map("tagged_addresses"),
        IDENTITY,
        BlockType("weights", "Weights", (_whole("passing", is_plain=True), _whole("warning", is_plain=True))),
    ),
    storage=Storage.LIST,
)

# -- tasks, groups and jobs

_TASK_ARGUMENTS: Final = (
    _plain_text("driver"),
    _plain_text("user"),
    _plain_bool("leader"),
    _plain_text("kind"),
    _duration("kill_timeout"),
    _plain_text("kill_signal"),
    _duration("shutdown_delay", is_plain=True),
)
_TASK_BLOCKS: Final = (
    ENV,
    META,
    _free_form("config"),
    LIFECYCLE,
    CONSTRAINT,
    AFFINITY,
    SERVICE,
    RESOURCES,
    RESTART,
    LOGS,
    ARTIFACT,
    TEMPLATE,
    DISPATCH_PAYLOAD,
    VOLUME_MOUNT,
    VAULT,
    CONSUL,
    TASK_IDENTITY,
    SECRET,
    ACTION,
    SCHEDULE,
    CSI_PLUGIN,
    TASK_SCALING,
)
TASK: Final = BlockType(
    "task", "Tasks", _TASK_ARGUMENTS, _TASK_BLOCKS, storage=Storage.LIST, label="name", label_fields=("Name",),
    options=OPTION_NAMES,
)  # fmt: skip
JOB_TASK: Final = BlockType(
    "task", "", _TASK_ARGUMENTS, _TASK_BLOCKS, storage=Storage.LIST, label="name", label_fields=("Name",),
    becomes_group=True, options=OPTION_NAMES,
)  # fmt: skip
_DISCONNECT_HINT: Final = "disconnect { ... }"
GROUP: Final = BlockType(
    "group",
    "TaskGroups",
    (
        _whole("count"),
        _duration("shutdown_delay"),
        _duration("max_run_duration"),
        _duration("stop_after_client_disconnect", deprecated=_DISCONNECT_HINT),
        _duration("max_client_disconnect", deprecated=_DISCONNECT_HINT),
        _bool("prevent_reschedule_on_lost", deprecated=_DISCONNECT_HINT),
        _text("if", is_absent_omitted=True),
        _bool("may_fail", is_absent_omitted=True),
        _bool("final", is_absent_omitted=True),
    ),
    (
        META,
        *REQUIREMENTS,
        TASK,
        ARRAY,
        DEPENDS,
        GATE,
        LOCK,
        OUTPUTS,
        RETRY,
        VOLUME,
        RESTART,
        DISCONNECT,
        GROUP_RESCHEDULE,
        EPHEMERAL_DISK,
        UPDATE,
        MIGRATE,
        NETWORK,
        SERVICE,
        GROUP_SCALING,
        CONSUL,
        INHERITED_VAULT,
        INHERITED_SECRET,
    ),
    storage=Storage.LIST,
    label="name",
    label_fields=("Name",),
)
PERIODIC: Final = BlockType(
    "periodic",
    "Periodic",
    (
        _text("cron", "Spec"),
        _texts("crons", "Specs"),
        _bool("enabled"),
        _bool("prohibit_overlap"),
        _text("time_zone"),
        _whole("max_running"),
        _text("missed"),
    ),
    fixed_fields={"SpecType": None},
)
PARAMETERIZED: Final = BlockType(
    "parameterized",
    "ParameterizedJob",
    (_plain_text("payload"), _texts("meta_required"), _texts("meta_optional"), _whole("max_running")),
)
MULTIREGION: Final = BlockType(
    "multiregion",
    "Multiregion",
    (),
    (
        BlockType("strategy", "Strategy", (_whole("max_parallel"), _text("on_failure"))),
        BlockType(
            "region",
            "Regions",
            (_whole("count"), _texts("datacenters"), _plain_text("node_pool")),
            (_map("meta"),),
            storage=Storage.LIST,
            label="name",
            label_fields=("Name",),
        ),
    ),
)
UI: Final = BlockType(
    "ui",
    "UI",
    (_plain_text("description"),),
    (BlockType("link", "Links", (_plain_text("label"), _plain_text("url")), storage=Storage.LIST),),
)
JOB: Final = BlockType(
    "job",
    "",
    (
        _text("region"),
        _text("namespace"),
        _text("id"),
        _text("name"),
        _text("type"),
        _whole("priority"),
        _bool("all_at_once"),
        _texts("datacenters"),
        _text("node_pool"),
    ),
    (
        META,
        *REQUIREMENTS,
        GROUP,
        DEPENDS,
        FLOW,
        UPDATE,
        MULTIREGION,
        PERIODIC,
        PARAMETERIZED,
        JOB_RESCHEDULE,
        MIGRATE,
        UI,
        INHERITED_VAULT,
        INHERITED_SECRET,
        JOB_TASK,
    ),
    label="name",
    label_fields=("ID", "Name"),
    fixed_fields={
        "ParentID": None, "Dispatched": False, "DispatchIdempotencyToken": None, "Payload": None, "ConsulNamespace": None,
        "VaultNamespace": None, "NomadTokenID": None, "Stop": None, "Status": None, "StatusDescription": None, "Stable": None,
        "Version": None, "VersionTag": None, "SubmitTime": None, "CreateIndex": None, "ModifyIndex": None,
        "JobModifyIndex": None,
    },
)  # fmt: skip
"""The root of the table."""


def iterate_blocks(root: BlockType = JOB, path: str = "") -> Iterator[tuple[str, BlockType]]:
    """Yield each block at each of its places, with its path, such as `job.group.network.port`."""
    own_path = f"{path}.{root.name}" if path else root.name
    yield own_path, root
    for block in root.blocks:
        yield from iterate_blocks(block, own_path)
