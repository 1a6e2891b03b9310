"""Messages and endpoints about jobs."""
