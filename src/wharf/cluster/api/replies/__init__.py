"""Replies: encoding, compression, CORS headers and sending."""
