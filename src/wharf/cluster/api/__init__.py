"""HTTP: routes, parameters, headers, errors, blocking, handlers. It holds no rules of the domain."""
