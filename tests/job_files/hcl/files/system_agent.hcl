job "log-agent" {
  type     = "system"
  priority = 90

  constraint { distinct_hosts = true }

  constraint {
    attribute = attr.kernel.version
    version   = ">= 5.4, < 7.0"
  }

  constraint {
    attribute    = "${attr.os.signals}"
    set_contains = "SIGHUP,SIGTERM"
  }

  constraint {
    attribute = "${meta.role}"
    regexp    = "^(web|db)-[0-9]+$"
  }

  constraint { is_not_set = "${meta.maintenance}" }

  group "agent" {
    network {
      mode = "host"
      port "syslog" {
        static       = 514
        host_network = "private"
      }
    }

    task "vector" {
      driver = "docker"
      config {
        image        = "vector:0.40"
        network_mode = "host"
        volumes      = ["/var/log:/var/log:ro"]
        privileged   = true
        ulimit {
          nofile = "4096:8192"
        }
      }
      resources {
        cores  = 1
        memory = 128
      }
    }
  }
}
