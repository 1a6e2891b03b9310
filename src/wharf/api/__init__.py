"""HTTP: router, parameters, headers, errors, blocking, streams, handlers. It holds no rules of the domain."""
