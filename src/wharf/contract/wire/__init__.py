"""What crosses HTTP: endpoints and their parameters, wire shapes, codes of errors. Shared by server and client."""
