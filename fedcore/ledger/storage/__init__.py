"""The SQLite file of a durable ledger: connection, table of entries, verification, known runs."""
