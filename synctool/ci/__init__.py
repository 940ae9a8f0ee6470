"""Buildkite pipelines: generated from a description, checked, tests registered."""
