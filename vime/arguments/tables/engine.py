"""vLLM servers, the router before them, and what happens when one dies. Engine fields themselves are ``--vllm-*`` options (``vllm.py``)."""

from __future__ import annotations

from vime.arguments.option import choice, integer, number, switch, text
from vime.arguments.tables.section import Section

ENGINE = Section(
    "Engine",
    (
        text("--vllm-router-ip", None, "router that runs already"),
        integer("--vllm-router-port", None, "its port"),
        number("--vllm-router-request-timeout-secs", 14400.0, "the router's own deadline for one request"),
        integer("--vllm-server-concurrency", 512, "requests in flight at one engine"),
        switch("--vllm-enable-deterministic-inference", "batch-invariant kernels and a seed for each sample"),
        number("--vllm-start-timeout", 600.0, "seconds in which an engine must become healthy"),
        integer("--prefill-num-servers", None, "engines that only prefill"),
        text("--vllm-config", None, "YAML list of models and server groups"),
        choice(
            "--router-policy",
            None,
            ("random", "round_robin", "cache_aware", "power_of_two", "consistent_hash", "least_loaded"),
            "how requests are spread",
            default_text="least_loaded",
        ),
        integer(
            "--router-balance-abs-threshold", 10, "difference in load above which a cache-aware router prefers balance"
        ),
    ),
)

FAULT_TOLERANCE = Section(
    "Fault tolerance",
    (
        switch("--use-fault-tolerance", "replace an engine that stopped answering"),
        number("--rollout-health-check-interval", 30.0, "seconds between checks"),
        number("--rollout-health-check-timeout", 30.0, "seconds for one check"),
        number("--rollout-health-check-first-wait", 0.0, "seconds before the first check"),
        number("--rollout-cleanup-timeout", 60.0, "seconds for an engine to stop before it is killed"),
        text("--rollout-session-id", None, "serving session to join", default_text="derived from --save"),
    ),
)

SECTIONS = (ENGINE, FAULT_TOLERANCE)
