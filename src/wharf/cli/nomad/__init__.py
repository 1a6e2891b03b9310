"""Coming from Nomad: the import of a Nomad cluster, and the command `nomad`, which runs commands of `wharf`."""
