"""What operators see of a limiter and do with it, over a Unix socket of each process."""
