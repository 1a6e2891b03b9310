job "api" {
  group "api" {
    shutdown_delay = "5s"

    task "migrate" {
      driver = "docker"
      lifecycle { hook = "prestart" }
      config {
        image   = "api:7"
        command = "migrate"
      }
      restart { attempts = 0 }
    }

    task "tunnel" {
      driver = "docker"
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }
      config { image = "tunnel:2" }
      resources {
        cpu    = "50"
        memory = 32
      }
    }

    task "api" {
      driver         = "docker"
      leader         = true
      kill_signal    = "SIGINT"
      shutdown_delay = "500ms"
      config { image = "api:7" }
    }

    task "report" {
      driver = "docker"
      lifecycle { hook = "poststop" }
      config { image = "report:1" }
    }
  }
}
