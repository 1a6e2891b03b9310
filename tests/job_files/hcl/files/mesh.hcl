job "mesh" {
  vault {
    policies = ["base"]
    role     = "app"
  }

  group "api" {
    consul {
      namespace = "team"
    }

    network {
      mode = "bridge"
    }

    service {
      name = "api"
      port = 9001

      connect {
        sidecar_service {
          proxy {
            upstreams {
              destination_name = "db"
              local_bind_port  = 5432
            }
            transparent_proxy {
              exclude_outbound_ports = [22]
            }
          }
        }
        sidecar_task {
          resources {
            cpu    = 20
            memory = 32
          }
        }
      }
    }

    task "api" {
      driver = "docker"
      config { image = "api:1" }
    }

    task "own" {
      driver = "docker"
      vault {
        role        = "own"
        change_mode = "noop"
        env         = false
      }
      config { image = "own:1" }
    }
  }
}
