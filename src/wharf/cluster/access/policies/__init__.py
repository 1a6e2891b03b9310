"""Policy documents: parsing, and what several policies grant together."""
