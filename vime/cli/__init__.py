"""The `vime` command: one module a verb, imported when it is used."""
