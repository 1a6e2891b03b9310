job "mixed" {
  spread {
    attribute = "${node.datacenter}"
    weight    = 100
    target "dc1" { percent = 70 }
    target "dc2" { percent = 30 }
  }

  affinity {
    attribute = "${node.class}"
    value     = "large"
    weight    = -25
  }

  group "bridge" {
    network {
      mode     = "bridge"
      hostname = "web-${NOMAD_ALLOC_INDEX}"
      dns {
        servers  = ["10.0.0.2", "1.1.1.1"]
        searches = ["example.internal"]
        options  = ["ndots:2", "timeout:1"]
      }
      port "http" {}
    }
    task "t" {
      driver = "docker"
      config { image = "a" }
    }
  }

  group "cni" {
    network {
      mode = "cni/macvlan"
      cni {
        args = {
          IPAM   = "static"
          prefix = 24
        }
      }
    }
    task "t" {
      driver = "docker"
      config { image = "b" }
    }
  }

  group "host" {
    network {
      port "db" {
        static           = 5432
        to               = -1
        ignore_collision = true
      }
    }
    task "t" {
      driver = "docker"
      config { image = "c" }
      resources {
        device "nvidia/gpu" {
          count = 1
          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "8 GiB"
          }
        }
        numa { affinity = "prefer" }
      }
    }
  }

  group "none" {
    network { mode = "none" }
    task "t" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
