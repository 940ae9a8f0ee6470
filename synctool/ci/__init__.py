"""Buildkite pipelines: from one description, checked against what is on disk.

``model`` (the description, ``.buildkite/steps.toml``), ``generate`` (description to pipeline), ``check`` (nothing missing, nothing twice), ``register`` (adds a
test to a pipeline that people write by hand, in place).
"""
