"""Commands about jobs: `wharf job …`."""
