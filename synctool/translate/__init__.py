"""From upstream's words and paths to downstream's: vocabulary, paths, protected spans, residue."""
