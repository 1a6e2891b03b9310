job "worker" {
  region    = "global"
  namespace = "batch"
  node_pool = "spot"

  ui {
    description = "Resizes pictures."
    link {
      label = "Dashboard"
      url   = "https://grafana.example.com/d/worker"
    }
  }

  migrate {
    max_parallel     = 1
    health_check     = "checks"
    min_healthy_time = "10s"
    healthy_deadline = "5m"
  }

  group "worker" {
    count = 2

    scaling {
      enabled = true
      min     = 1
      max     = 20

      policy {
        cooldown            = "2m"
        evaluation_interval = "30s"

        check "queue" {
          source = "prometheus"
          query  = "max(queue_length{job='worker'})"

          strategy "target-value" {
            target = 5.5
          }
        }

        check "cpu" {
          source = "nomad-apm"
          strategy "threshold" {
            upper_bound = 80
          }
        }
      }
    }

    task "worker" {
      driver = "java"
      config {
        jar_path    = "local/worker.jar"
        jvm_options = ["-Xmx512m"]
      }
      env = merge({ MODE = "fast" }, { QUEUE = "pictures-${upper("a")}" })
    }
  }
}
