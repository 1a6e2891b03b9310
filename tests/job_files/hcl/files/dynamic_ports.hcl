variables {
  ports   = { http = 8080, admin = 9000 }
  sidecar = true
}

locals {
  services = [for name, port in var.ports : { name = name, port = port } if port > 8000]
}

job "gateway" {
  dynamic "group" {
    for_each = ["eu", "us"]
    iterator = region
    labels   = ["gateway-${region.value}"]

    content {
      count = region.key + 1

      network {
        dynamic "port" {
          for_each = var.ports
          labels   = [port.key]
          content {
            to     = port.value
            static = port.key == "admin" ? port.value : 0
          }
        }
      }

      dynamic "service" {
        for_each = local.services
        iterator = it
        content {
          name     = "gateway-${region.value}-${it.value.name}"
          port     = it.value.name
          provider = "nomad"
          dynamic "check" {
            for_each = it.value.name == "http" ? [it.value.port] : []
            content {
              type     = "tcp"
              interval = "5s"
              timeout  = "1s"
            }
          }
        }
      }

      task "proxy" {
        driver = "docker"
        config {
          image = "envoy:v1.30"
          args  = concat(["-c", "local/envoy.yaml"], [for name in keys(var.ports) : "--${name}=${NOMAD_PORT_http}"])
        }

        dynamic "env" {
          for_each = [var.ports]
          content {
            HTTP_PORT = env.value.http
          }
        }
      }

      dynamic "task" {
        for_each = var.sidecar ? ["logger"] : []
        labels   = [task.value]
        content {
          driver = "docker"
          lifecycle {
            hook    = "prestart"
            sidecar = true
          }
          config {
            image = "logger:1"
          }
        }
      }
    }
  }
}
