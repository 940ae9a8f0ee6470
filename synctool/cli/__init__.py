"""The command line: one file a verb. A verb gathers values, calls the pure packages and returns a Report; nothing else here decides anything."""
