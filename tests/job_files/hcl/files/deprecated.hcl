job "old" {
  datacenters = ["dc1"]

  group "g" {
    stop_after_client_disconnect = "5m"
    prevent_reschedule_on_lost   = true

    network {
      mbits = 10
      port "a" { static = 8000 }
      reserved_ports "b" { static = 8001 }
    }

    task "t" {
      driver = "docker"
      config {
        image = "old:1"
      }
      template {
        data        = "x"
        destination = "local/x"
        vault_grace = "10s"
      }
      logs { enabled = false }
      resources {
        cpu    = 100
        memory = 64
        disk   = 100
        iops   = 5
        network {
          mbits = 1
          port "c" {}
        }
      }
    }
  }
}
