"""The HTTP interface: endpoints with their parameters, message types and error codes. Shared by server and client."""
