"""What several commands share: the session with the servers, options, lookup of records, tables and error texts."""
