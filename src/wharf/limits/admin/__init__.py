"""The admin endpoint of a limiter: operators' queries and actions, and its metrics."""
