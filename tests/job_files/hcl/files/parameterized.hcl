job "transcode" {
  type = "batch"

  parameterized {
    payload       = "required"
    meta_required = ["input", "profile"]
    meta_optional = ["notify"]
  }

  meta {
    profile = "720p"
  }

  # A task directly in the job is a group of its own.
  task "ffmpeg" {
    driver = "raw_exec"
    leader = true

    config {
      command = "local/run.sh"
      args    = ["${NOMAD_META_input}", NOMAD_META_profile]
    }

    dispatch_payload {
      file = "options.json"
    }

    template {
      destination = "local/run.sh"
      perms       = 755
      data        = <<SCRIPT
#!/bin/sh
set -e
in="$1"; out="$${2:-720p}"
echo "$in -> $out, 100%"
SCRIPT
    }
  }
}
