job "nightly-backup" {
  type        = "batch"
  datacenters = ["*"]

  periodic {
    crons            = ["0 3 * * *", "@weekly"]
    prohibit_overlap = true
    time_zone        = "Europe/Berlin"
  }

  group "backup" {
    max_run_duration = "2h"

    ephemeral_disk {
      size    = 2000
      sticky  = true
      migrate = true
    }

    reschedule {
      attempts       = 3
      interval       = "24h"
      delay          = "30s"
      delay_function = "exponential"
      max_delay      = "10m"
      unlimited      = false
    }

    task "dump" {
      driver = "exec"
      user   = "postgres"

      config {
        command = "/usr/bin/pg_dump"
        args = [
          "--format=custom",
          "--file", "$${NOMAD_ALLOC_DIR}/dump",
          "main",
        ]
      }

      artifact {
        source      = "https://example.com/tools.tgz?archive=false"
        destination = "local/tools"
        mode        = "file"
        options {
          checksum = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        }
        headers {
          Authorization = "Bearer ${env["TOKEN"]}"
        }
      }

      logs {
        max_files     = 3
        max_file_size = 20
      }
    }
  }
}
