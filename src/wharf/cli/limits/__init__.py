"""Commands of the rate limiter: `wharf gateway` and `wharf limits …`."""
