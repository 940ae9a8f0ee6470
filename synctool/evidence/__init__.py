"""What was seen, by whom, on which tree: records, where they are kept, and whether they still hold for another head.

``record`` (values), ``store`` (the ref that keeps them), ``standing`` (carry-over, narrowing, staleness, supersession: pure), ``run`` (runs a command),
``junit``, ``buildkite`` and ``envelope`` (read figures), ``surroundings`` (the environment, without secrets), ``slots`` (the manifest's ``[[evidence]]``).
"""
