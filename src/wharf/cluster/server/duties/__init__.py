"""Background tasks of the leader. Each is registered in `Brain.duties` and runs while this server leads."""
