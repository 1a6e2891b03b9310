"""Keys, signatures, logins and sealed messages of a server."""
