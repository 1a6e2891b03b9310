"""An example of each block of job files, with every argument: its text, and the fields of its JSON.

A block that has the same content at several places has one example. `test_examples` fails for a block or an argument without one.
"""

from typing import Final

from tests.job_files.hcl.job_texts import Example

SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE

_COMPARISON: Final = {"LTarget": "${attr.cpu.arch}", "Operand": "=", "RTarget": "amd64"}

JOB_EXAMPLES: Final = (
    Example(
        "job",
        """job "shop" {
          region      = "eu"
          namespace   = "web"
          id          = "shop-1"
          name        = "Shop"
          type        = "service"
          priority    = 70
          all_at_once = true
          datacenters = ["dc1", "dc2-*"]
          node_pool   = "gpu"
          meta {
            owner = "team"
          }
          constraint {
            attribute = "${attr.cpu.arch}"
            value     = "amd64"
          }
          affinity {
            attribute = "${attr.cpu.arch}"
            value     = "amd64"
          }
          spread {
            attribute = "${node.datacenter}"
          }
        }""",
        {
            "Region": "eu",
            "Namespace": "web",
            "ID": "shop-1",
            "Name": "Shop",
            "Type": "service",
            "Priority": 70,
            "AllAtOnce": True,
            "Datacenters": ["dc1", "dc2-*"],
            "NodePool": "gpu",
            "Meta": {"owner": "team"},
            "Constraints": [_COMPARISON],
            "Affinities": [{**_COMPARISON, "Weight": None}],
            "Spreads": [{"Attribute": "${node.datacenter}", "Weight": None, "SpreadTarget": None}],
        },
    ),
    Example("job.meta", 'meta {\n a = "b"\n n = 1\n yes = true\n}', {"a": "b", "n": "1", "yes": "true"}),
    Example(
        "job.update",
        """update {
          max_parallel      = 2
          stagger           = "1m"
          health_check      = "checks"
          min_healthy_time  = "15s"
          healthy_deadline  = "3m"
          progress_deadline = "0"
          canary            = 1
          auto_revert       = true
          auto_promote      = false
        }""",
        {
            "MaxParallel": 2,
            "Stagger": MINUTE,
            "HealthCheck": "checks",
            "MinHealthyTime": 15 * SECOND,
            "HealthyDeadline": 3 * MINUTE,
            "ProgressDeadline": 0,
            "Canary": 1,
            "AutoRevert": True,
            "AutoPromote": False,
        },
    ),
    Example(
        "job.reschedule",
        """reschedule {
          attempts       = 3
          interval       = "2h"
          delay          = "10s"
          delay_function = "fibonacci"
          max_delay      = "5m"
          unlimited      = false
        }""",
        {
            "Attempts": 3,
            "Interval": 2 * HOUR,
            "Delay": 10 * SECOND,
            "DelayFunction": "fibonacci",
            "MaxDelay": 5 * MINUTE,
            "Unlimited": False,
        },
    ),
    Example(
        "job.migrate",
        """migrate {
          max_parallel     = 1
          health_check     = "task_states"
          min_healthy_time = "10s"
          healthy_deadline = "5m"
        }""",
        {
            "MaxParallel": 1,
            "HealthCheck": "task_states",
            "MinHealthyTime": 10 * SECOND,
            "HealthyDeadline": 5 * MINUTE,
        },
    ),
    Example(
        "job.periodic",
        """periodic {
          cron             = "0 3 * * *"
          crons            = ["@daily", "0 4 * * *"]
          enabled          = true
          prohibit_overlap = true
          time_zone        = "Europe/Berlin"
          max_running      = 2
          missed           = "all"
        }""",
        {
            "Spec": "0 3 * * *",
            "Specs": ["@daily", "0 4 * * *"],
            "SpecType": "cron",
            "Enabled": True,
            "ProhibitOverlap": True,
            "TimeZone": "Europe/Berlin",
            "MaxRunning": 2,
            "Missed": "all",
        },
    ),
    Example(
        "job.parameterized",
        """parameterized {
          payload       = "required"
          meta_required = ["a"]
          meta_optional = ["b", "c"]
          max_running   = 3
        }""",
        {"Payload": "required", "MetaRequired": ["a"], "MetaOptional": ["b", "c"], "MaxRunning": 3},
    ),
    Example(
        "job.multiregion",
        """multiregion {
          strategy {
            max_parallel = 1
            on_failure   = "fail_all"
          }
          region "west" {
            count       = 2
            datacenters = ["w1"]
            node_pool   = "p"
            meta {
              k = "v"
            }
          }
          region "east" {}
        }""",
        {
            "Strategy": {"MaxParallel": 1, "OnFailure": "fail_all"},
            "Regions": [
                {"Name": "west", "Count": 2, "Datacenters": ["w1"], "NodePool": "p", "Meta": {"k": "v"}},
                {"Name": "east", "Count": None, "Datacenters": None, "NodePool": "", "Meta": None},
            ],
        },
    ),
    Example("job.multiregion.strategy", "strategy {}", {}),
    Example("job.multiregion.region", 'region "x" {}', {"Name": "x"}),
    Example("job.multiregion.region.meta", "meta {\n a = 1\n}", {"a": "1"}),
    Example(
        "job.ui",
        """ui {
          description = "A shop."
          link {
            label = "Docs"
            url   = "https://example.com"
          }
          link {}
        }""",
        {
            "Description": "A shop.",
            "Links": [{"Label": "Docs", "URL": "https://example.com"}, {"Label": "", "URL": ""}],
        },
    ),
    Example("job.ui.link", "link {}", {}),
)

REQUIREMENT_EXAMPLES: Final = (
    Example(
        "job.group.constraint",
        'constraint {\n attribute = "${attr.cpu.arch}"\n operator = "!="\n value = "arm"\n}',
        {"LTarget": "${attr.cpu.arch}", "Operand": "!=", "RTarget": "arm"},
    ),
    *(
        Example(
            "job.group.constraint",
            f'constraint {{\n attribute = "${{attr.x}}"\n {operand} = "v"\n}}',
            {"LTarget": "${attr.x}", "Operand": operand, "RTarget": "v"},
        )
        for operand in ("version", "semver", "regexp", "set_contains", "set_contains_any", "set_contains_all")
    ),
    Example(
        "job.group.constraint", "constraint { distinct_hosts = true }", {"Operand": "distinct_hosts", "RTarget": "true"}
    ),
    Example(
        "job.group.constraint",
        'constraint {\n distinct_property = "${meta.rack}"\n value = 2\n}',
        {"LTarget": "${meta.rack}", "Operand": "distinct_property", "RTarget": "2"},
    ),
    Example(
        "job.group.constraint", 'constraint { is_set = "${attr.x}" }', {"LTarget": "${attr.x}", "Operand": "is_set"}
    ),
    Example(
        "job.group.constraint",
        'constraint { is_not_set = "${attr.x}" }',
        {"LTarget": "${attr.x}", "Operand": "is_not_set"},
    ),
    Example(
        "job.group.affinity",
        'affinity {\n attribute = "${node.class}"\n operator = "!="\n value = "m5"\n weight = -50\n}',
        {"LTarget": "${node.class}", "Operand": "!=", "RTarget": "m5", "Weight": -50},
    ),
    *(
        Example(
            "job.group.affinity",
            f'affinity {{\n attribute = "${{attr.x}}"\n {operand} = "v"\n}}',
            {"LTarget": "${attr.x}", "Operand": operand, "RTarget": "v"},
        )
        for operand in ("version", "semver", "regexp", "set_contains", "set_contains_any", "set_contains_all")
    ),
    Example(
        "job.group.spread",
        """spread {
          attribute = "${node.datacenter}"
          weight    = 80
          target "dc1" {
            percent = 70
          }
          target "dc2" {}
        }""",
        {
            "Attribute": "${node.datacenter}",
            "Weight": 80,
            "SpreadTarget": [{"Value": "dc1", "Percent": 70}, {"Value": "dc2", "Percent": 0}],
        },
    ),
    Example("job.group.spread.target", 'target "x" {}', {"Value": "x"}),
)

GROUP_EXAMPLES: Final = (
    Example(
        "job.group",
        """group "x" {
          count                        = 3
          shutdown_delay               = "2s"
          max_run_duration             = "1h"
          stop_after_client_disconnect = "5m"
          max_client_disconnect        = "6m"
          prevent_reschedule_on_lost   = true
        }""",
        {
            "Name": "x",
            "Count": 3,
            "ShutdownDelay": 2 * SECOND,
            "MaxRunDuration": HOUR,
            "StopAfterClientDisconnect": 5 * MINUTE,
            "MaxClientDisconnect": 6 * MINUTE,
            "PreventRescheduleOnLost": True,
        },
    ),
    Example(
        "job.group.restart",
        """restart {
          attempts         = 0
          interval         = "30m"
          delay            = "15s"
          mode             = "delay"
          render_templates = true
        }""",
        {"Attempts": 0, "Interval": 30 * MINUTE, "Delay": 15 * SECOND, "Mode": "delay", "RenderTemplates": True},
    ),
    Example("job.group.reschedule", "reschedule { unlimited = true }", {"Unlimited": True}),
    Example("job.group.reschedule", "reschedule { attempts = 1 }", {"Attempts": 1}),
    Example(
        "job.group.reschedule",
        'reschedule {\n interval = "1h"\n delay = "5s"\n delay_function = "constant"\n max_delay = "1m"\n}',
        {"Interval": HOUR, "Delay": 5 * SECOND, "DelayFunction": "constant", "MaxDelay": MINUTE},
    ),
    Example(
        "job.group.disconnect",
        """disconnect {
          lost_after           = "6h"
          stop_on_client_after = "1h"
          replace              = false
          reconcile            = "keep_original"
        }""",
        {"LostAfter": 6 * HOUR, "StopOnClientAfter": HOUR, "Replace": False, "Reconcile": "keep_original"},
    ),
    Example(
        "job.group.array",
        "array {\n size = 500\n max_running = 20\n fail_fast = true\n}",
        {"Size": 500, "MaxRunning": 20, "FailFast": True},
    ),
    Example("job.group.array", 'array {\n items = ["north", "south"]\n}', {"Items": ["north", "south"]}),
    Example(
        "job.group",
        'group "x" {\n if = "steps.build.version is not empty"\n may_fail = true\n final = true\n}',
        {"Name": "x", "If": "steps.build.version is not empty", "MayFail": True, "Final": True},
    ),
    Example(
        "job.group.depends",
        'depends {\n on = "build"\n when = "ended"\n each = true\n at_least = 3\n optional = true\n}',
        {"On": "build", "When": "ended", "Each": True, "AtLeast": 3, "Optional": True},
    ),
    Example(
        "job.group.gate",
        'gate {\n ask = "Release?"\n policy = "deployers"\n timeout = "4h"\n}',
        {"Ask": "Release?", "Policy": "deployers", "Timeout": 4 * HOUR},
    ),
    Example(
        "job.group.lock",
        'lock {\n key = "production"\n slots = 2\n policy = "replace-waiting"\n}',
        {"Key": "production", "Slots": 2, "Policy": "replace-waiting"},
    ),
    Example(
        "job.group.outputs",
        'outputs {\n text = ["version"]\n keep = ["data/"]\n}',
        {"Text": ["version"], "Keep": ["data/"]},
    ),
    Example(
        "job.group.retry",
        "retry {\n attempts = 2\n on_exit = [75]\n not_on_exit = [2, 3]\n}",
        {"Attempts": 2, "OnExit": [75], "NotOnExit": [2, 3]},
    ),
    Example(
        "job.flow",
        'flow {\n deadline = "6h"\n final_timeout = "10m"\n overlap = "queue"\n}',
        {"Deadline": 6 * HOUR, "FinalTimeout": 10 * MINUTE, "Overlap": "queue"},
    ),
    Example("job.depends", 'depends {\n on = "nightly"\n}', {"On": "nightly"}),
    Example(
        "job.group.ephemeral_disk",
        "ephemeral_disk {\n size = 500\n sticky = true\n migrate = true\n}",
        {"SizeMB": 500, "Sticky": True, "Migrate": True},
    ),
    Example(
        "job.group.scaling",
        """scaling {
          min     = 1
          max     = 10
          enabled = false
          type    = "horizontal"
          policy {
            cooldown = "1m"
            check "load" {
              source = "prometheus"
              strategy "target-value" {
                target = 20
              }
            }
          }
        }""",
        {
            "Min": 1,
            "Max": 10,
            "Enabled": False,
            "Type": "horizontal",
            "Policy": {
                "cooldown": "1m",
                "check": [
                    {"load": [{"source": "prometheus", "strategy": [{"target-value": [{"target": 20}]}]}]},
                ],
            },
        },
    ),
    Example("job.group.scaling.policy", "policy {\n a = 1\n}", {"a": 1}),
    Example(
        "job.group.volume",
        """volume "x" {
          type            = "csi"
          source          = "db"
          read_only       = true
          sticky          = true
          access_mode     = "single-node-writer"
          attachment_mode = "file-system"
          per_alloc       = true
          mount_options {
            fs_type     = "ext4"
            mount_flags = ["noatime"]
          }
        }""",
        {
            "Name": "x",
            "Type": "csi",
            "Source": "db",
            "ReadOnly": True,
            "Sticky": True,
            "AccessMode": "single-node-writer",
            "AttachmentMode": "file-system",
            "PerAlloc": True,
            "MountOptions": {"FSType": "ext4", "MountFlags": ["noatime"]},
        },
    ),
    Example("job.group.volume.mount_options", "mount_options {}", {}),
)

NETWORK_EXAMPLES: Final = (
    Example(
        "job.group.network",
        """network {
          mode     = "bridge"
          hostname = "web"
          device   = "eth0"
          cidr     = "10.0.0.0/8"
          ip       = "10.0.0.1"
          mbits    = 10
          port "http" {
            to = 80
          }
          port "db" {
            static           = 5432
            to               = 5433
            host_network     = "private"
            ignore_collision = true
          }
          port "admin" {}
          reserved_ports "old" {
            static           = 99
            to               = 1
            host_network     = "h"
            ignore_collision = false
          }
          dns {
            servers  = ["1.1.1.1"]
            searches = ["local"]
            options  = ["ndots:2"]
          }
          cni {
            args = {
              "region.name" = "eu"
              prefix        = 24
            }
          }
        }""",
        {
            "Mode": "bridge",
            "Hostname": "web",
            "Device": "eth0",
            "CIDR": "10.0.0.0/8",
            "IP": "10.0.0.1",
            "MBits": 10,
            "DynamicPorts": [
                {"Label": "http", "Value": 0, "To": 80, "HostNetwork": "", "IgnoreCollision": False},
                {"Label": "admin", "Value": 0, "To": 0, "HostNetwork": "", "IgnoreCollision": False},
            ],
            "ReservedPorts": [
                {"Label": "db", "Value": 5432, "To": 5433, "HostNetwork": "private", "IgnoreCollision": True},
                {"Label": "old", "Value": 99, "To": 1, "HostNetwork": "h", "IgnoreCollision": False},
            ],
            "DNS": {"Servers": ["1.1.1.1"], "Searches": ["local"], "Options": ["ndots:2"]},
            "CNI": {"Args": {"region.name": "eu", "prefix": "24"}},
        },
    ),
    Example("job.group.network.port", 'port "x" {\n to = 1\n host_network = "h"\n ignore_collision = true\n}',
            {"Label": "x", "To": 1, "HostNetwork": "h", "IgnoreCollision": True}),
    Example("job.group.network.port", 'port "x" {\n static = 0\n}', {"Label": "x"}),
    Example("job.group.network.reserved_ports",
            'reserved_ports "x" {\n static = 9\n to = 1\n host_network = "h"\n ignore_collision = true\n}',
            {"Label": "x", "Value": 9, "To": 1, "HostNetwork": "h", "IgnoreCollision": True}),
    Example("job.group.network.dns", "dns {\n servers = []\n searches = []\n options = []\n}",
            {"Servers": [], "Searches": [], "Options": []}),
    Example("job.group.network.cni", "cni {}", {}),
)  # fmt: skip

TASK_EXAMPLES: Final = (
    Example(
        "job.group.task",
        """task "x" {
          driver         = "mock"
          user           = "nobody"
          leader         = true
          kind           = "connect-proxy:web"
          kill_timeout   = "20s"
          kill_signal    = "SIGINT"
          shutdown_delay = "3s"
        }""",
        {
            "Name": "x",
            "Driver": "mock",
            "User": "nobody",
            "Leader": True,
            "Kind": "connect-proxy:web",
            "KillTimeout": 20 * SECOND,
            "KillSignal": "SIGINT",
            "ShutdownDelay": 3 * SECOND,
        },
    ),
    Example("job.group.task.env", 'env {\n PORT = "${NOMAD_PORT_http}"\n N = 1\n}', {"PORT": "${NOMAD_PORT_http}", "N": "1"}),
    Example(
        "job.group.task.config",
        'config {\n image = "web:1"\n args = ["-v"]\n labels = {\n a = 1\n }\n mount {\n type = "bind"\n target = "/data"\n }\n}',
        {"image": "web:1", "args": ["-v"], "labels": [{"a": 1}], "mount": [{"type": "bind", "target": "/data"}]},
    ),
    Example("job.group.task.lifecycle", 'lifecycle {\n hook = "prestart"\n sidecar = true\n}', {"Hook": "prestart", "Sidecar": True}),
    Example(
        "job.group.task.logs",
        "logs {\n max_files = 3\n max_file_size = 15\n disabled = true\n enabled = false\n}",
        {"MaxFiles": 3, "MaxFileSizeMB": 15, "Disabled": True, "Enabled": False},
    ),
    Example(
        "job.group.task.template",
        """template {
          source               = "local/a.tpl"
          destination          = "local/a.conf"
          data                 = "x"
          change_mode          = "signal"
          change_signal        = "SIGUSR1"
          once                 = true
          splay                = "1s"
          perms                = "600"
          uid                  = 1000
          gid                  = 1001
          left_delimiter       = "[["
          right_delimiter      = "]]"
          env                  = true
          error_on_missing_key = true
          vault_grace          = "5s"
          wait {
            min = "2s"
            max = "4s"
          }
          change_script {
            command             = "/bin/reload"
            args                = ["-a"]
            timeout             = "30s"
            fail_on_error       = true
            run_on_first_render = true
          }
        }""",
        {
            "SourcePath": "local/a.tpl",
            "DestPath": "local/a.conf",
            "EmbeddedTmpl": "x",
            "ChangeMode": "signal",
            "ChangeSignal": "SIGUSR1",
            "Once": True,
            "Splay": SECOND,
            "Perms": "600",
            "Uid": 1000,
            "Gid": 1001,
            "LeftDelim": "[[",
            "RightDelim": "]]",
            "Envvars": True,
            "ErrMissingKey": True,
            "VaultGrace": 5 * SECOND,
            "Wait": {"Min": 2 * SECOND, "Max": 4 * SECOND},
            "ChangeScript": {
                "Command": "/bin/reload",
                "Args": ["-a"],
                "Timeout": 30 * SECOND,
                "FailOnError": True,
                "RunOnFirstRender": True,
            },
        },
    ),
    Example("job.group.task.template.wait", "wait {}", {}),
    Example("job.group.task.template.change_script", "change_script {}", {}),
    Example(
        "job.group.task.artifact",
        """artifact {
          source      = "https://example.com/a.tgz"
          destination = "local/a"
          mode        = "file"
          insecure    = true
          chown       = true
          options {
            checksum = "md5:abc"
          }
          headers {
            Accept = "x"
          }
        }""",
        {
            "GetterSource": "https://example.com/a.tgz",
            "RelativeDest": "local/a",
            "GetterMode": "file",
            "GetterInsecure": True,
            "Chown": True,
            "GetterOptions": {"checksum": "md5:abc"},
            "GetterHeaders": {"Accept": "x"},
        },
    ),
    Example("job.group.task.artifact.options", "options {}", {}),
    Example("job.group.task.artifact.headers", "headers {}", {}),
    Example("job.group.task.dispatch_payload", 'dispatch_payload { file = "in.json" }', {"File": "in.json"}),
    Example(
        "job.group.task.volume_mount",
        """volume_mount {
          volume           = "data"
          destination      = "/data"
          read_only        = true
          propagation_mode = "private"
          selinux_label    = "z"
        }""",
        {"Volume": "data", "Destination": "/data", "ReadOnly": True, "PropagationMode": "private", "SELinuxLabel": "z"},
    ),
    Example("job.group.task.action", 'action "x" {\n command = "/bin/ls"\n args = ["-l"]\n}',
            {"Name": "x", "Command": "/bin/ls", "Args": ["-l"]}),
    Example(
        "job.group.task.schedule",
        'schedule {\n cron {\n start = "0 8 * * *"\n end = "0 18"\n timezone = "UTC"\n}\n}',
        {"Cron": {"Start": "0 8 * * *", "End": "0 18", "Timezone": "UTC"}},
    ),
    Example("job.group.task.schedule.cron", "cron {}", {}),
    Example(
        "job.group.task.csi_plugin",
        """csi_plugin {
          id                     = "ebs"
          type                   = "monolith"
          mount_dir              = "/csi"
          stage_publish_base_dir = "/local/csi"
          health_timeout         = "1m"
        }""",
        {
            "ID": "ebs",
            "Type": "monolith",
            "MountDir": "/csi",
            "StagePublishBaseDir": "/local/csi",
            "HealthTimeout": MINUTE,
        },
    ),
    Example("job.group.task.scaling", 'scaling "cpu" {\n min = 100\n max = 500\n enabled = true\n type = "vertical_cpu"\n policy {}\n}',
            {"Type": "vertical_cpu", "Min": 100, "Max": 500, "Enabled": True, "Policy": {}}),
)  # fmt: skip

RESOURCE_EXAMPLES: Final = (
    Example(
        "job.group.task.resources",
        """resources {
          cpu        = 500
          cores      = 2
          memory     = 256
          memory_max = 512
          secrets    = 2
          disk       = 10
          iops       = 3
          device "nvidia/gpu" {
            count = 2
            constraint {
              attribute = "${device.attr.memory}"
              operator  = ">="
              value     = "4 GiB"
            }
            affinity {
              attribute = "${device.model}"
              value     = "x"
              weight    = 10
            }
          }
          numa {
            affinity = "require"
            devices  = ["nvidia/gpu"]
          }
          network {
            mbits = 5
            port "a" {}
          }
        }""",
        {
            "CPU": 500,
            "Cores": 2,
            "MemoryMB": 256,
            "MemoryMaxMB": 512,
            "SecretsMB": 2,
            "DiskMB": 10,
            "IOPS": 3,
            "Devices": [
                {
                    "Name": "nvidia/gpu",
                    "Count": 2,
                    "Constraints": [{"LTarget": "${device.attr.memory}", "Operand": ">=", "RTarget": "4 GiB"}],
                    "Affinities": [{"LTarget": "${device.model}", "Operand": "=", "RTarget": "x", "Weight": 10}],
                }
            ],
            "NUMA": {"Affinity": "require", "Devices": ["nvidia/gpu"]},
            "Networks": [
                {
                    "Mode": "",
                    "Hostname": "",
                    "Device": "",
                    "CIDR": "",
                    "IP": "",
                    "MBits": 5,
                    "DynamicPorts": [{"Label": "a", "Value": 0, "To": 0, "HostNetwork": "", "IgnoreCollision": False}],
                    "ReservedPorts": None,
                    "DNS": None,
                    "CNI": None,
                }
            ],
        },
    ),
    Example("job.group.task.resources.device", 'device "x" {\n count = 1\n}', {"Name": "x", "Count": 1}),
    Example(
        "job.group.task.resources.numa",
        'numa {\n affinity = "none"\n devices = []\n}',
        {"Affinity": "none", "Devices": []},
    ),
)

IDENTITY_EXAMPLES: Final = (
    Example(
        "job.group.task.identity",
        """identity {
          name          = "vault"
          aud           = ["a", "b"]
          change_mode   = "signal"
          change_signal = "SIGHUP"
          env           = true
          file          = true
          filepath      = "local/token"
          service_name  = "web"
          ttl           = "1h"
          extra_claims  = ["c"]
        }""",
        {
            "Name": "vault",
            "Audience": ["a", "b"],
            "ChangeMode": "signal",
            "ChangeSignal": "SIGHUP",
            "Env": True,
            "File": True,
            "Filepath": "local/token",
            "ServiceName": "web",
            "TTL": HOUR,
            "ExtraClaims": ["c"],
        },
    ),
    Example(
        "job.group.service.identity",
        """identity {
          name          = "s"
          aud           = ["a"]
          change_mode   = "noop"
          change_signal = "SIGHUP"
          env           = true
          file          = true
          filepath      = "f"
          service_name  = "w"
          ttl           = "1m"
          extra_claims  = []
        }""",
        {
            "Name": "s",
            "Audience": ["a"],
            "ChangeMode": "noop",
            "ChangeSignal": "SIGHUP",
            "Env": True,
            "File": True,
            "Filepath": "f",
            "ServiceName": "w",
            "TTL": MINUTE,
            "ExtraClaims": [],
        },
    ),
    Example(
        "job.group.task.vault",
        """vault {
          policies               = ["p"]
          role                   = "r"
          namespace              = "n"
          cluster                = "c"
          env                    = false
          disable_file           = true
          change_mode            = "signal"
          change_signal          = "SIGHUP"
          allow_token_expiration = true
        }""",
        {
            "Policies": ["p"],
            "Role": "r",
            "Namespace": "n",
            "Cluster": "c",
            "Env": False,
            "DisableFile": True,
            "ChangeMode": "signal",
            "ChangeSignal": "SIGHUP",
            "AllowTokenExpiration": True,
        },
    ),
    Example(
        "job.group.consul",
        'consul {\n namespace = "n"\n cluster = "c"\n partition = "p"\n}',
        {"Namespace": "n", "Cluster": "c", "Partition": "p"},
    ),
    Example(
        "job.group.task.secret",
        """secret "x" {
          provider = "nomad"
          path     = "a/b"
          config {
            namespace = "n"
            retries   = 2
          }
          env {
            K = "v"
          }
        }""",
        {
            "Name": "x",
            "Provider": "nomad",
            "Path": "a/b",
            "Config": {"namespace": "n", "retries": 2},
            "Env": {"K": "v"},
        },
    ),
    Example("job.group.task.secret.config", "config {}", {}),
    Example("job.group.task.secret.env", "env {}", {}),
)

SERVICE_EXAMPLES: Final = (
    Example(
        "job.group.service",
        """service {
          name                = "web"
          port                = "http"
          provider            = "nomad"
          tags                = ["a", "b"]
          canary_tags         = ["c"]
          enable_tag_override = true
          address             = "1.2.3.4"
          address_mode        = "host"
          task                = "app"
          on_update           = "ignore"
          cluster             = "default"
          kind                = "k"
          meta {
            a = "1"
          }
          canary_meta {
            b = 2
          }
          tagged_addresses {
            wan = "5.6.7.8"
          }
          weights {
            passing = 2
            warning = 1
          }
        }""",
        {
            "Name": "web",
            "PortLabel": "http",
            "Provider": "nomad",
            "Tags": ["a", "b"],
            "CanaryTags": ["c"],
            "EnableTagOverride": True,
            "Address": "1.2.3.4",
            "AddressMode": "host",
            "TaskName": "app",
            "OnUpdate": "ignore",
            "Cluster": "default",
            "Kind": "k",
            "Meta": {"a": "1"},
            "CanaryMeta": {"b": "2"},
            "TaggedAddresses": {"wan": "5.6.7.8"},
            "Weights": {"Passing": 2, "Warning": 1},
        },
    ),
    Example("job.group.service.meta", "meta {}", {}),
    Example("job.group.service.canary_meta", "canary_meta {}", {}),
    Example("job.group.service.tagged_addresses", "tagged_addresses {}", {}),
    Example("job.group.service.weights", "weights { passing = 3 }", {"Passing": 3}),
    Example(
        "job.group.service.check",
        """check {
          name                     = "c"
          type                     = "http"
          command                  = "/bin/true"
          args                     = ["x"]
          path                     = "/health"
          protocol                 = "https"
          port                     = 8080
          method                   = "POST"
          body                     = "{}"
          interval                 = "10s"
          timeout                  = "2s"
          initial_status           = "passing"
          notes                    = "n"
          address_mode             = "alloc"
          advertise                = "1.1.1.1"
          expose                   = true
          tls_server_name          = "s"
          tls_skip_verify          = true
          grpc_service             = "g"
          grpc_use_tls             = true
          task                     = "t"
          success_before_passing   = 1
          failures_before_critical = 2
          failures_before_warning  = 3
          on_update                = "require_healthy"
          header {
            X-A = ["1", 2]
          }
          check_restart {
            limit           = 3
            grace           = "90s"
            ignore_warnings = true
          }
        }""",
        {
            "Name": "c",
            "Type": "http",
            "Command": "/bin/true",
            "Args": ["x"],
            "Path": "/health",
            "Protocol": "https",
            "PortLabel": "8080",
            "Method": "POST",
            "Body": "{}",
            "Interval": 10 * SECOND,
            "Timeout": 2 * SECOND,
            "InitialStatus": "passing",
            "Notes": "n",
            "AddressMode": "alloc",
            "Advertise": "1.1.1.1",
            "Expose": True,
            "TLSServerName": "s",
            "TLSSkipVerify": True,
            "GRPCService": "g",
            "GRPCUseTLS": True,
            "TaskName": "t",
            "SuccessBeforePassing": 1,
            "FailuresBeforeCritical": 2,
            "FailuresBeforeWarning": 3,
            "OnUpdate": "require_healthy",
            "Header": {"X-A": ["1", "2"]},
            "CheckRestart": {"Limit": 3, "Grace": 90 * SECOND, "IgnoreWarnings": True},
        },
    ),
    Example("job.group.service.check.header", "header {}", {}),
    Example("job.group.service.check_restart", "check_restart {\n limit = 1\n grace = \"0\"\n ignore_warnings = false\n}",
            {"Limit": 1, "Grace": 0}),
)  # fmt: skip

MESH_EXAMPLES: Final = (
    Example("job.group.service.connect", "connect { native = true }", {"Native": True}),
    Example(
        "job.group.service.connect.sidecar_service",
        """sidecar_service {
          tags                      = ["a"]
          port                      = "p"
          disable_default_tcp_check = true
          meta {
            k = "v"
          }
          proxy {
            local_service_address = "127.0.0.1"
            local_service_port    = 8080
            upstreams {
              destination_name        = "db"
              destination_namespace   = "n"
              destination_peer        = "p"
              destination_partition   = "q"
              destination_type        = "service"
              local_bind_port         = 5432
              datacenter              = "dc2"
              local_bind_address      = "127.0.0.1"
              local_bind_socket_path  = "/s"
              local_bind_socket_mode  = "0600"
              mesh_gateway {
                mode = "local"
              }
              config {
                limit = 1
              }
            }
            expose {
              path {
                path            = "/health"
                protocol        = "http"
                local_path_port = 80
                listener_port   = "expose"
              }
            }
            transparent_proxy {
              uid                    = 101
              outbound_port          = 15001
              exclude_inbound_ports  = ["22", 23]
              exclude_outbound_ports = [25]
              exclude_outbound_cidrs = ["10.0.0.0/8"]
              exclude_uids           = ["0"]
              no_dns                 = true
            }
            config {
              protocol = "http"
            }
          }
        }""",
        {
            "Tags": ["a"],
            "Port": "p",
            "DisableDefaultTCPCheck": True,
            "Meta": {"k": "v"},
            "Proxy": {
                "LocalServiceAddress": "127.0.0.1",
                "LocalServicePort": 8080,
                "Upstreams": [
                    {
                        "DestinationName": "db",
                        "DestinationNamespace": "n",
                        "DestinationPeer": "p",
                        "DestinationPartition": "q",
                        "DestinationType": "service",
                        "LocalBindPort": 5432,
                        "Datacenter": "dc2",
                        "LocalBindAddress": "127.0.0.1",
                        "LocalBindSocketPath": "/s",
                        "LocalBindSocketMode": "0600",
                        "MeshGateway": {"Mode": "local"},
                        "Config": {"limit": 1},
                    }
                ],
                "Expose": {
                    "Paths": [
                        {"Path": "/health", "Protocol": "http", "LocalPathPort": 80, "ListenerPort": "expose"},
                    ]
                },
                "ExposeConfig": None,
                "TransparentProxy": {
                    "UID": "101",
                    "OutboundPort": 15001,
                    "ExcludeInboundPorts": ["22", "23"],
                    "ExcludeOutboundPorts": [25],
                    "ExcludeOutboundCIDRs": ["10.0.0.0/8"],
                    "ExcludeUIDs": ["0"],
                    "NoDNS": True,
                },
                "Config": {"protocol": "http"},
            },
        },
    ),
    Example("job.group.service.connect.sidecar_service.meta", "meta {}", {}),
    Example("job.group.service.connect.sidecar_service.proxy", "proxy {}", {}),
    Example("job.group.service.connect.sidecar_service.proxy.config", "config {}", {}),
    Example("job.group.service.connect.sidecar_service.proxy.upstreams", "upstreams {}", {}),
    Example("job.group.service.connect.sidecar_service.proxy.upstreams.mesh_gateway", "mesh_gateway {}", {}),
    Example("job.group.service.connect.sidecar_service.proxy.expose", "expose {}", {}),
    Example("job.group.service.connect.sidecar_service.proxy.expose.path", "path {}", {}),
    Example("job.group.service.connect.sidecar_service.proxy.transparent_proxy", "transparent_proxy {}", {}),
    Example(
        "job.group.service.connect.sidecar_task",
        """sidecar_task {
          name           = "proxy"
          driver         = "docker"
          user           = "u"
          kill_timeout   = "5s"
          shutdown_delay = "1s"
          kill_signal    = "SIGTERM"
          config {
            image = "envoy"
          }
          env {
            A = 1
          }
          meta {
            B = 2
          }
          resources {
            cpu = 50
          }
          logs {
            max_files = 1
          }
          volume_mount {
            volume = "v"
          }
          identity {
            name          = "i"
            aud           = ["a"]
            change_mode   = "noop"
            change_signal = "SIGHUP"
            env           = true
            file          = true
            filepath      = "f"
            service_name  = "w"
            ttl           = "1m"
            extra_claims  = []
          }
        }""",
        {
            "Name": "proxy",
            "Driver": "docker",
            "User": "u",
            "KillTimeout": 5 * SECOND,
            "ShutdownDelay": SECOND,
            "KillSignal": "SIGTERM",
            "Config": {"image": "envoy"},
            "Env": {"A": "1"},
            "Meta": {"B": "2"},
            "Resources": {
                "CPU": 50, "Cores": None, "MemoryMB": None, "MemoryMaxMB": None, "SecretsMB": None, "DiskMB": None,
                "IOPS": None, "Devices": None, "NUMA": None, "Networks": None,
            },
            "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": None, "Disabled": None, "Enabled": None},
            "VolumeMounts": [
                {"Volume": "v", "Destination": None, "ReadOnly": None, "PropagationMode": None, "SELinuxLabel": None},
            ],
            "Identities": [
                {
                    "Name": "i", "Audience": ["a"], "ChangeMode": "noop", "ChangeSignal": "SIGHUP", "Env": True, "File": True,
                    "Filepath": "f", "ServiceName": "w", "TTL": MINUTE, "ExtraClaims": [],
                },
            ],
        },
    ),
    Example("job.group.service.connect.sidecar_task.identity", "identity {}", {}),
    Example("job.group.service.connect.sidecar_task.config", "config {}", {}),
    Example("job.group.service.connect.sidecar_task.env", "env {}", {}),
    Example("job.group.service.connect.sidecar_task.meta", "meta {}", {}),
    Example(
        "job.group.service.connect.gateway",
        """gateway {
          proxy {
            connect_timeout                     = "5s"
            envoy_gateway_bind_tagged_addresses = true
            envoy_gateway_no_default_bind       = true
            envoy_dns_discovery_type            = "LOGICAL_DNS"
            envoy_gateway_bind_addresses "a" {
              address = "10.0.0.1"
              port    = 8000
            }
            config {
              a = 1
            }
          }
          ingress {
            tls {
              enabled         = true
              tls_min_version = "TLSv1_2"
              tls_max_version = "TLSv1_3"
              cipher_suites   = ["X"]
              sds {
                cluster_name  = "c"
                cert_resource = "r"
              }
            }
            listener {
              port     = 8080
              protocol = "http"
              service {
                name                    = "web"
                hosts                   = ["a.example"]
                max_connections         = 1
                max_pending_requests    = 2
                max_concurrent_requests = 3
                tls {}
                request_headers {
                  remove = ["A"]
                  add {
                    B = 1
                  }
                  set {
                    C = "d"
                  }
                }
                response_headers {
                  remove = []
                }
              }
            }
          }
          terminating {
            service {
              name      = "db"
              ca_file   = "ca"
              cert_file = "cert"
              key_file  = "key"
              sni       = "s"
            }
          }
          mesh {}
        }""",
        {
            "Proxy": {
                "ConnectTimeout": 5 * SECOND,
                "EnvoyGatewayBindTaggedAddresses": True,
                "EnvoyGatewayNoDefaultBind": True,
                "EnvoyDNSDiscoveryType": "LOGICAL_DNS",
                "EnvoyGatewayBindAddresses": {"a": {"Name": "a", "Address": "10.0.0.1", "Port": 8000}},
                "Config": {"a": 1},
            },
            "Ingress": {
                "TLS": {
                    "Enabled": True,
                    "TLSMinVersion": "TLSv1_2",
                    "TLSMaxVersion": "TLSv1_3",
                    "CipherSuites": ["X"],
                    "SDS": {"ClusterName": "c", "CertResource": "r"},
                },
                "Listeners": [
                    {
                        "Port": 8080,
                        "Protocol": "http",
                        "Services": [
                            {
                                "Name": "web",
                                "Hosts": ["a.example"],
                                "MaxConnections": 1,
                                "MaxPendingRequests": 2,
                                "MaxConcurrentRequests": 3,
                                "TLS": {
                                    "Enabled": False, "TLSMinVersion": "", "TLSMaxVersion": "", "CipherSuites": None, "SDS": None,
                                },
                                "RequestHeaders": {"Remove": ["A"], "Add": {"B": "1"}, "Set": {"C": "d"}},
                                "ResponseHeaders": {"Remove": [], "Add": None, "Set": None},
                            }
                        ],
                    }
                ],
            },
            "Terminating": {
                "Services": [{"Name": "db", "CAFile": "ca", "CertFile": "cert", "KeyFile": "key", "SNI": "s"}],
            },
            "Mesh": {},
        },
    ),
    Example("job.group.service.connect.gateway.proxy", "proxy {}", {}),
    Example("job.group.service.connect.gateway.proxy.envoy_gateway_bind_addresses", 'envoy_gateway_bind_addresses "x" {}', {"Name": "x"}),
    Example("job.group.service.connect.gateway.ingress", "ingress {}", {}),
    Example("job.group.service.connect.gateway.ingress.tls", "tls {}", {}),
    Example("job.group.service.connect.gateway.ingress.tls.sds", "sds {}", {}),
    Example("job.group.service.connect.gateway.ingress.listener", "listener {}", {}),
    Example("job.group.service.connect.gateway.ingress.listener.service", "service {}", {}),
    Example("job.group.service.connect.gateway.ingress.listener.service.request_headers", "request_headers {}", {}),
    Example("job.group.service.connect.gateway.ingress.listener.service.request_headers.add", "add {}", {}),
    Example("job.group.service.connect.gateway.ingress.listener.service.request_headers.set", "set {}", {}),
    Example("job.group.service.connect.gateway.ingress.listener.service.response_headers", "response_headers {}", {}),
    Example("job.group.service.connect.gateway.terminating", "terminating {}", {}),
    Example("job.group.service.connect.gateway.terminating.service", "service {}", {}),
    Example("job.group.service.connect.gateway.mesh", "mesh {}", {}),
)  # fmt: skip

EXAMPLES: Final = (
    *JOB_EXAMPLES, *REQUIREMENT_EXAMPLES, *GROUP_EXAMPLES, *NETWORK_EXAMPLES, *TASK_EXAMPLES, *RESOURCE_EXAMPLES,
    *IDENTITY_EXAMPLES, *SERVICE_EXAMPLES, *MESH_EXAMPLES,
)  # fmt: skip
