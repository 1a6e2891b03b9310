job "database" {
  group "db" {
    count = 1

    volume "data" {
      type            = "csi"
      source          = "pg-data"
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
      per_alloc       = true

      mount_options {
        fs_type     = "ext4"
        mount_flags = ["noatime", "nodiratime"]
      }
    }

    volume "certs" {
      type      = "host"
      source    = "certs"
      read_only = true
    }

    disconnect {
      lost_after = "6h"
      replace    = false
      reconcile  = "keep_original"
    }

    task "postgres" {
      driver = "docker"

      volume_mount {
        volume      = "data"
        destination = "/var/lib/postgresql"
      }

      volume_mount {
        volume           = "certs"
        destination      = "/certs"
        read_only        = true
        propagation_mode = "host-to-task"
      }

      config {
        image          = "postgres:16"
        auth_soft_fail = true
        auth {
          username = "puller"
          password = "${env["REGISTRY_PASSWORD"]}"
        }
      }

      secret "db" {
        provider = "nomad"
        path     = "nomad/jobs/database"
        config {
          namespace = "default"
        }
      }

      identity {
        env  = true
        file = true
      }

      identity {
        name        = "aws"
        aud         = ["sts.amazonaws.com"]
        ttl         = "1h"
        change_mode = "restart"
        file        = true
      }

      action "vacuum" {
        command = "/usr/bin/vacuumdb"
        args    = ["--all"]
      }
    }
  }
}
