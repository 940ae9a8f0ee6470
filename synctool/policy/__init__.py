"""What a fork wants: the schema of vime-sync.toml, loading it with line-numbered errors, and the starter that ``init`` writes."""
