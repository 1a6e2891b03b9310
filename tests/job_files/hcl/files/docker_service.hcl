# A web server with checks, a rendered configuration and a canary update.
variable "version" {
  description = "The tag of the image."
  type        = string
  default     = "1.25"

  validation {
    condition     = length(split(".", var.version)) == 2
    error_message = "The version has two parts, such as 1.25."
  }
}

variable "domains" {
  type    = list(string)
  default = ["example.com", "www.example.com"]
}

locals {
  image = "registry.example.com/web:${var.version}"
  hosts = join(" ", [for domain in var.domains : lower(domain)])
}

job "web" {
  datacenters = ["dc1", "dc2"]
  type        = "service"
  priority    = 60

  meta = {
    "team.name" = "front-end"
    version     = var.version
  }

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  update {
    max_parallel      = 2
    canary            = 1
    min_healthy_time  = "15s"
    healthy_deadline  = "3m"
    progress_deadline = "1h30m"
    auto_revert       = true
    auto_promote      = true
  }

  group "frontend" {
    count = 3

    network {
      mode = "bridge"
      port "http" {
        to = 8080
      }
      port "metrics" { static = 9100 }
    }

    service {
      name     = "web"
      port     = "http"
      provider = "nomad"
      tags     = ["urlprefix-/", "v${replace(var.version, ".", "-")}"]

      check {
        name     = "alive"
        type     = "http"
        path     = "/health"
        interval = "10s"
        timeout  = "2s"

        header {
          Host   = ["example.com"]
          X-Test = ["1", "2"]
        }

        check_restart {
          limit = 3
          grace = "90s"
        }
      }
    }

    restart {
      attempts = 3
      interval = "10m"
      delay    = "15s"
      mode     = "delay"
    }

    task "server" {
      driver = "docker"

      config {
        image = local.image
        ports = ["http", "metrics"]
        labels = {
          app = "web"
        }

        mount {
          type   = "bind"
          source = "local/nginx.conf"
          target = "/etc/nginx/nginx.conf"
        }

        logging {
          type = "journald"
          config {
            tag = "web"
          }
        }
      }

      env {
        PORT    = "${NOMAD_PORT_http}"
        REGION  = "${node.region}"
        WORKERS = 2 * 2
        DEBUG   = false
      }

      template {
        destination   = "local/nginx.conf"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        perms         = "644"
        data          = <<-EOT
          server {
            listen 8080;
            server_name ${local.hosts};
            %{ for domain in var.domains ~}
            # ${domain}
            %{ endfor ~}
            {{ range nomadService "api" }}
            proxy_pass http://{{ .Address }}:{{ .Port }};
            {{ end }}
          }
        EOT
      }

      resources {
        cpu        = 500
        memory     = 256
        memory_max = 512
      }

      kill_timeout = "20s"
    }
  }
}
