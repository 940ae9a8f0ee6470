"""Multi-turn agents: HTTP endpoints that clients know, over generation by tokens; what was said becomes samples whose tool tokens are masked."""

#: The generate function that runs --agent-path.
GENERATE = "vime.agents.run.generate"
