"""Job files in HCL: the CPU time of a file of 300 lines, of one of 1 MB, and of evaluations that are stopped.

The file is parsed, evaluated and mapped to the JSON of a job.
"""

import statistics
import time
from typing import Final

from benchmarks.figures import Figure, Figures
from wharf.job_files.hcl.parsing import parse_hcl_job
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import evaluate_document, parse_document
from wharf.languages.hcl.schemas import BodySchema
from wharf.languages.hcl.variables import VariableInputs

SMALL_GROUPS: Final = 6
LARGE_GROUPS: Final = 1_030
RUN_COUNT: Final = 15
LARGE_RUN_COUNT: Final = 5
HEAD: Final = """variable "version" {
  type    = string
  default = "1.25"
}

locals {
  image = "registry/web:${var.version}"
  ports = { http = 8080, admin = 9000 }
}

job "shop" {
"""
GROUP: Final = """
  group "web%d" {
    count = 2
    # The network has a port for users and one for operators.
    network {
      mode = "bridge"
      port "http" { to = 80 }
      port "admin" {
        static = 9000
      }
    }
    service {
      name = "web-${NOMAD_GROUP_NAME}"
      tags = ["a", "b", "urlprefix-/"]
      port = "http"
      check {
        type     = "http"
        path     = "/health"
        interval = "10s"
        timeout  = "2s"
      }
    }
    task "app" {
      driver = "docker"
      config {
        image = local.image
        ports = ["http", "admin"]
        args  = ["-listen", ":${NOMAD_PORT_http}", upper("x")]
      }
      env {
        LOG_LEVEL = "info"
        REPLICAS  = 3 + 4
      }
      template {
        data = <<EOF
server {
  listen 80;
  {{ range service "db" }}{{ .Address }}{{ end }}
}
EOF
        destination = "local/nginx.conf"
      }
      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
"""
# Expressions that the limit of steps or bytes stops, among them those whose steps take longest.
SLOW_EXPRESSIONS: Final = (
    "[for a in range(1000) : [for b in range(1000) : b]]",
    "[for a in range(1000) : [for b in range(100) : { x = a, y = b, z = [a] }]]",
    "[for a in range(1000) : distinct(range(1000))]",
    "[for a in range(1000) : setproduct(range(100), range(100))]",
    "[for a in range(1000) : pow(1.000001, 1000)]",
    '[for a in range(1000) : bcrypt("x", 4)]',
    '[for a in range(100) : [for b in range(1000) : jsondecode("[1,2,{}]")]]',
    '[for a in range(1000) : yamldecode(join("", [for b in range(500) : "- a\\n"]))]',
    '[for a in range(1000) : regex_replace(format("%1000d", a), " ", "b")]',
    '[for a in range(1000) : try(regex_replace("x", "(ab|cd|ef){0,500}${a}", ""), 1)]',
    "[for a in range(1000) : [for b in range(200) : try(nope(), 1)]]",
)


class _ZeroBytes:
    """A random port that always draws zeros."""

    def draw_bytes(self, count: int) -> bytes:
        return bytes(count)


def measure() -> Figures:
    small = make_file(SMALL_GROUPS)
    large = make_file(LARGE_GROUPS)
    return {
        f"{small.count(chr(10))} lines": Figure(value=_measure_cpu_ms(small, RUN_COUNT), unit="ms", at_most=20),
        f"{len(large):,} bytes": Figure(value=_measure_cpu_ms(large, LARGE_RUN_COUNT), unit="ms", at_most=1_500),
        "slowest evaluation that is stopped": Figure(
            value=max(map(_measure_stopped_ms, SLOW_EXPRESSIONS)), unit="ms", at_most=1_000
        ),
    }


def _measure_stopped_ms(expression: str) -> float:
    """Return the CPU time of an evaluation that exceeds its budget."""
    document = parse_document(f"a = {expression}\n")
    started_s = time.process_time()
    try:
        evaluate_document(document, BodySchema(is_free_form=True), ports=FunctionPorts(_ZeroBytes()))
    except DocumentErrors:
        return (time.process_time() - started_s) * 1_000
    raise AssertionError(f"the evaluation was not stopped: {expression}")


def make_file(groups: int) -> str:
    """Return a job file with this number of groups."""
    return HEAD + "".join(GROUP % number for number in range(groups)) + "}\n"


def _measure_cpu_ms(text: str, runs: int) -> float:
    """Return the median CPU time of parsing, evaluating and mapping a file."""
    ports = FunctionPorts(_ZeroBytes())
    durations_ms = []
    for _ in range(runs):
        started_s = time.process_time()
        parse_hcl_job(text, "job.hcl", VariableInputs(), ports)
        durations_ms.append((time.process_time() - started_s) * 1_000)
    return statistics.median(durations_ms)
