"""vLLM servers as the rollout uses them: start, health, router, token-level client, control plane, and what runs inside the server."""
