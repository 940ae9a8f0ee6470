"""Candidate images: rendering, building, OCI layouts, registry, promotion policy."""
