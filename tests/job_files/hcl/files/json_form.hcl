{
  "//": "The JSON form of HCL.",
  "variable": {"image": {"type": "string", "default": "web:2"}},
  "locals": {"args": ["-v", "${var.image}"]},
  "job": {
    "shop": {
      "datacenters": ["dc1"],
      "type": "service",
      "meta": {"a.b": "x", "n": 1},
      "group": {
        "web": {
          "count": 2,
          "network": [{"mode": "bridge", "port": {"http": {"to": 80}, "db": {"static": 5432}}}],
          "service": [
            {"name": "a", "port": "http", "provider": "nomad"},
            {"name": "b", "port": "db", "provider": "nomad", "check": [{"type": "tcp", "interval": "10s", "timeout": "1s"}]}
          ],
          "dynamic": {"constraint": {"for_each": ["linux"], "content": {"attribute": "${attr.kernel.name}", "value": "${constraint.value}"}}},
          "task": {
            "app": {
              "driver": "docker",
              "kill_timeout": "10s",
              "env": {"A": "${NOMAD_TASK_NAME}", "B": true},
              "config": [{"image": "${var.image}", "args": "${local.args}", "labels": {"a": "b"}, "mount": [{"type": "bind", "target": "/data"}]}],
              "resources": {"cpu": 100, "memory": "64"}
            }
          }
        }
      }
    }
  }
}
