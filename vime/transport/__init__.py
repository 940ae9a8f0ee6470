"""How weights travel from the trainer to the engines: buckets with checksums, and one module a medium."""
