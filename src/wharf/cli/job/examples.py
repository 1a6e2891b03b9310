"""The texts of `wharf job init`: for each kind of job one in YAML and one in HCL, which are the same job."""

from typing import Final

_YAML_HEAD: Final = """\
# yaml-language-server: $schema={schema}
# `wharf job plan {file}` shows what submitting this job would change; `wharf job run {file}` submits it.
ID: {name}

"""
_HCL_HEAD: Final = """\
# `wharf job plan {file}` shows what submitting this job would change; `wharf job run {file}` submits it.
job "{name}" {
"""
_YAML_RAW_EXEC: Final = """\
        # raw_exec runs a program of the node without isolation: `wharf dev` permits it. exec adds a sandbox, docker runs an
        # image.
        Driver: raw_exec
"""
_HCL_RAW_EXEC: Final = """\
      # raw_exec runs a program of the node without isolation: `wharf dev` permits it. exec adds a sandbox, docker runs an
      # image.
      driver = "raw_exec"
"""
_YAML_RESOURCES: Final = """\
        Resources:
          CPU: 50 # MHz
          MemoryMB: 32
"""
_HCL_RESOURCES: Final = """\

      resources {
        cpu    = 50 # MHz
        memory = 32 # MB
      }
    }
  }
}
"""
_YAML_SERVICE: Final = """\
# service: runs until it is stopped. batch: runs to its end. system: one per node. sysbatch: to its end, once per node.
Type: service

TaskGroups:
  # Tasks of one group run together on one node. Count: the number of instances.
  - Name: web
    Count: 3

    # Rolling update: how many allocations are replaced at a time, and how long each must be healthy.
    Update:
      MaxParallel: 1
      MinHealthyTime: 2s
      HealthyDeadline: 1m
      ProgressDeadline: 2m

    Tasks:
      - Name: main
"""
_HCL_SERVICE: Final = """\
  # service: runs until it is stopped. batch: runs to its end. system: one per node. sysbatch: to its end, once per node.
  type = "service"

  # Tasks of one group run together on one node. count: the number of instances.
  group "web" {
    count = 3

    # Rolling update: how many allocations are replaced at a time, and how long each must be healthy.
    update {
      max_parallel      = 1
      min_healthy_time  = "2s"
      healthy_deadline  = "1m"
      progress_deadline = "2m"
    }

    task "main" {
"""
_LOOP: Final = "while true; do echo still running; sleep 10; done"

EXAMPLES: Final[dict[tuple[str, str], str]] = {
    ("service", "yaml"): (
        _YAML_HEAD
        + _YAML_SERVICE
        + _YAML_RAW_EXEC
        + f"""\
        Config:
          command: /bin/sh
          args: [-c, "{_LOOP}"]
"""
        + _YAML_RESOURCES
    ),
    ("service", "hcl"): (
        _HCL_HEAD
        + _HCL_SERVICE
        + _HCL_RAW_EXEC
        + f"""\

      config {{
        command = "/bin/sh"
        args    = ["-c", "{_LOOP}"]
      }}
"""
        + _HCL_RESOURCES
    ),
    ("docker", "yaml"): (
        _YAML_HEAD
        + _YAML_SERVICE
        + f"""\
        # The node needs a running container engine: Docker or Podman. `wharf node status --verbose NODE` lists its drivers.
        Driver: docker
        Config:
          image: busybox:1
          command: sh
          args: [-c, "{_LOOP}"]
"""
        + _YAML_RESOURCES
    ),
    ("docker", "hcl"): (
        _HCL_HEAD
        + _HCL_SERVICE
        + f"""\
      # The node needs a running container engine: Docker or Podman. `wharf node status --verbose NODE` lists its drivers.
      driver = "docker"

      config {{
        image   = "busybox:1"
        command = "sh"
        args    = ["-c", "{_LOOP}"]
      }}
"""
        + _HCL_RESOURCES
    ),
    ("batch", "yaml"): (
        _YAML_HEAD
        + """\
# batch: runs to its end. Tasks that fail are started again, as RestartPolicy and ReschedulePolicy say.
Type: batch

TaskGroups:
  - Name: work

    # Try again once on the same node, then give up.
    RestartPolicy:
      Attempts: 1
      Delay: 5s
      Mode: fail
    ReschedulePolicy:
      Attempts: 0
      Unlimited: false

    Tasks:
      - Name: main
"""
        + _YAML_RAW_EXEC
        + """\
        Config:
          command: /bin/sh
          args: [-c, "echo counting; seq 1 10"]
"""
        + _YAML_RESOURCES
    ),
    ("batch", "hcl"): (
        _HCL_HEAD
        + """\
  # batch: runs to its end. Tasks that fail are started again, as restart and reschedule say.
  type = "batch"

  group "work" {
    # Try again once on the same node, then give up.
    restart {
      attempts = 1
      delay    = "5s"
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "main" {
"""
        + _HCL_RAW_EXEC
        + """\

      config {
        command = "/bin/sh"
        args    = ["-c", "echo counting; seq 1 10"]
      }
"""
        + _HCL_RESOURCES
    ),
    ("periodic", "yaml"): (
        _YAML_HEAD
        + """\
Type: batch

# Each launch is a job of its own. `wharf job periodic force {name}` launches one now.
Periodic:
  Specs: ["*/15 * * * *"] # Minute, hour, day of month, month, day of week.
  TimeZone: UTC
  ProhibitOverlap: true # No launch while an earlier one runs.

TaskGroups:
  - Name: work
    Tasks:
      - Name: main
"""
        + _YAML_RAW_EXEC
        + """\
        Config:
          command: /bin/sh
          args: [-c, "echo launched at $(date)"]
"""
        + _YAML_RESOURCES
    ),
    ("periodic", "hcl"): (
        _HCL_HEAD
        + """\
  type = "batch"

  # Each launch is a job of its own. `wharf job periodic force {name}` launches one now.
  periodic {
    crons            = ["*/15 * * * *"] # Minute, hour, day of month, month, day of week.
    time_zone        = "UTC"
    prohibit_overlap = true # No launch while an earlier one runs.
  }

  group "work" {
    task "main" {
"""
        + _HCL_RAW_EXEC
        + """\

      config {
        command = "/bin/sh"
        args    = ["-c", "echo launched at $(date)"]
      }
"""
        + _HCL_RESOURCES
    ),
    ("parameterized", "yaml"): (
        _YAML_HEAD
        + """\
Type: batch

# Each dispatch is a job of its own: `echo a text | wharf job dispatch --meta name=world {name} -`.
ParameterizedJob:
  Payload: optional # Or required, or forbidden.
  MetaRequired: [name]

TaskGroups:
  - Name: work
    Tasks:
      - Name: main
        DispatchPayload:
          File: input.txt # In the folder local/ of the task.
"""
        + _YAML_RAW_EXEC
        + """\
        Config:
          command: /bin/sh
          args: [-c, "echo hello $WHARF_META_name; cat local/input.txt"]
"""
        + _YAML_RESOURCES
    ),
    ("parameterized", "hcl"): (
        _HCL_HEAD
        + """\
  type = "batch"

  # Each dispatch is a job of its own: `echo a text | wharf job dispatch --meta name=world {name} -`.
  parameterized {
    payload       = "optional" # Or required, or forbidden.
    meta_required = ["name"]
  }

  group "work" {
    task "main" {
      dispatch_payload {
        file = "input.txt" # In the folder local/ of the task.
      }

"""
        + _HCL_RAW_EXEC
        + """\

      config {
        command = "/bin/sh"
        args    = ["-c", "echo hello $WHARF_META_name; cat local/input.txt"]
      }
"""
        + _HCL_RESOURCES
    ),
    ("system", "yaml"): (
        _YAML_HEAD
        + """\
# system: runs on every node that satisfies the constraints, also on nodes that are added later.
Type: system
Constraints:
  - ${attr.kernel.name} = linux

TaskGroups:
  - Name: agent
    Tasks:
      - Name: main
"""
        + _YAML_RAW_EXEC
        + """\
        Config:
          command: /bin/sh
          args: [-c, "while true; do uptime; sleep 60; done"]
"""
        + _YAML_RESOURCES
    ),
    ("system", "hcl"): (
        _HCL_HEAD
        + """\
  # system: runs on every node that satisfies the constraints, also on nodes that are added later.
  type = "system"

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  group "agent" {
    task "main" {
"""
        + _HCL_RAW_EXEC
        + """\

      config {
        command = "/bin/sh"
        args    = ["-c", "while true; do uptime; sleep 60; done"]
      }
"""
        + _HCL_RESOURCES
    ),
}
"""Texts by kind and language. `{name}`, `{file}` and `{schema}` stand for names."""
KINDS: Final = ("service", "batch", "docker", "periodic", "parameterized", "system")
