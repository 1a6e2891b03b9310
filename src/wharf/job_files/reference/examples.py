"""One example of each block, with the field names of the API. The pages show it in YAML and in HCL; tests submit it."""

from collections.abc import Mapping
from typing import Any, Final

_SLEEP: Final = {"command": "/bin/sleep", "args": ["infinity"]}
_TASK: Final = {"Name": "server", "Driver": "raw_exec", "Config": _SLEEP}

EXAMPLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "Job": {"ID": "web", "Type": "service", "TaskGroups": [{"Name": "api", "Count": 2, "Tasks": [_TASK]}]},
    "TaskGroup": {
        "Name": "api", "Count": 3, "Meta": {"tier": "front"},
        "Networks": [{"DynamicPorts": [{"Label": "http"}]}], "Tasks": [_TASK],
    },
    "Task": {
        **_TASK, "Env": {"LOG_LEVEL": "info"}, "KillTimeout": "20s", "Resources": {"CPU": 200, "MemoryMB": 128},
    },
    "Constraint": {"LTarget": "${attr.kernel.name}", "Operand": "=", "RTarget": "linux"},
    "Affinity": {"LTarget": "${node.datacenter}", "Operand": "=", "RTarget": "dc1", "Weight": 80},
    "Spread": {
        "Attribute": "${node.datacenter}", "Weight": 100,
        "SpreadTarget": [{"Value": "dc1", "Percent": 70}, {"Value": "dc2", "Percent": 30}],
    },
    "UpdatePolicy": {"MaxParallel": 2, "Canary": 1, "AutoPromote": True, "AutoRevert": True, "MinHealthyTime": "30s"},
    "MigratePolicy": {"MaxParallel": 2, "MinHealthyTime": "30s"},
    "ReschedulePolicy": {
        "Attempts": 3, "Interval": "1h", "Delay": "30s", "DelayFunction": "constant", "Unlimited": False,
    },
    "RestartPolicy": {"Attempts": 3, "Interval": "10m", "Delay": "15s", "Mode": "delay"},
    "DisconnectPolicy": {"LostAfter": "6h", "Replace": False, "Reconcile": "keep_original"},
    "GroupArray": {"Size": 500, "MaxRunning": 20, "FailFast": True},
    "Need": {"On": "build", "When": "ended"},
    "Gate": {"Ask": "Release to production?", "Policy": "deployers", "Timeout": "4h"},
    "Lock": {"Key": "production", "Slots": 2, "Policy": "replace-waiting"},
    "Outputs": {"Text": ["version"], "Keep": ["data/"]},
    "StepRetry": {"Attempts": 2, "OnExit": [75]},
    "Flow": {"Deadline": "6h", "FinalTimeout": "10m", "Overlap": "queue"},
    "EphemeralDisk": {"SizeMB": 1000, "Sticky": True, "Migrate": True},
    "Periodic": {"Specs": ["0 3 * * *"], "TimeZone": "Europe/Berlin", "ProhibitOverlap": True},
    "Parameterized": {"Payload": "required", "MetaRequired": ["input"], "MaxRunning": 10},
    "Multiregion": {"Strategy": {"MaxParallel": 1}, "Regions": [{"Name": "west", "Count": 2}]},
    "UI": {"Description": "The public web site", "Links": [{"Label": "Runbook", "Url": "https://wiki.example.com/web"}]},
    "VersionTag": {"Name": "v1.4", "Description": "Before the change of the database"},
    "NetworkResource": {
        "Mode": "bridge",
        "DynamicPorts": [{"Label": "http", "To": 8080}],
        "ReservedPorts": [{"Label": "metrics", "Value": 9100}],
        "DNS": {"Servers": ["10.0.0.2"]},
    },
    "Service": {
        "Name": "web", "PortLabel": "http", "Provider": "wharf", "Tags": ["v2"],
        "Checks": [{"Type": "http", "Path": "/healthz", "Interval": "10s", "Timeout": "2s"}],
    },
    "ServiceCheck": {
        "Type": "http", "Path": "/healthz", "Interval": "10s", "Timeout": "2s",
        "CheckRestart": {"Limit": 3, "Grace": "30s"},
    },
    "CheckRestart": {"Limit": 3, "Grace": "30s"},
    "VolumeRequest": {"Name": "data", "Type": "host", "Source": "data", "AccessMode": "single-node-writer"},
    "VolumeMount": {"Volume": "data", "Destination": "/data"},
    "Resources": {"CPU": 500, "MemoryMB": 256, "MemoryMaxMB": 512},
    "RequestedDevice": {
        "Name": "nvidia/gpu", "Count": 2,
        "Constraints": [{"LTarget": "${device.attr.memory}", "Operand": ">=", "RTarget": "8 GiB"}],
    },
    "Template": {
        "DestPath": "local/app.conf", "EmbeddedTmpl": 'level = {{ env "LOG_LEVEL" }}\n', "ChangeMode": "signal",
        "ChangeSignal": "SIGHUP",
    },
    "Artifact": {
        "GetterSource": "https://example.com/app.tar.gz", "RelativeDest": "local/app",
        "GetterHeaders": {"Accept": "application/gzip"},
    },
    "WorkloadIdentity": {"Name": "db", "Audience": ["https://db.example.com"], "TTL": "1h", "File": True},
    "Vault": {"Role": "web"},
    "Consul": {"Cluster": "default"},
    "TaskSecret": {"Name": "db", "Provider": "wharf", "Path": "shop/db"},
    "Lifecycle": {"Hook": "prestart", "Sidecar": True},
    "LogConfig": {"MaxFiles": 5, "MaxFileSizeMB": 20},
    "DispatchPayload": {"File": "input.json"},
    "TaskAction": {"Name": "reload", "Command": "/bin/kill", "Args": ["-HUP", "1"]},
    "CSIPluginConfig": {"ID": "disks", "Type": "node"},
    "ScalingPolicy": {"Min": 1, "Max": 10, "Enabled": True, "Policy": {"cooldown": "1m"}},
    "DockerConfig": {"image": "nginx:1.27", "ports": ["http"], "volumes": ["local/app:/etc/app:ro"]},
    "ExecConfig": {"command": "/bin/sh", "args": ["-c", "exec sleep infinity"], "cap_add": ["net_bind_service"]},
    "RawExecConfig": {"command": "/bin/sh", "args": ["-c", "exec sleep infinity"], "work_dir": "/srv"},
    "MockConfig": {"run_for": "10s", "exit_code": 1},
}  # fmt: skip
"""Examples by the name of the record class."""
