"""What pages show, as typed records: computed from replies of the API, without I/O."""
