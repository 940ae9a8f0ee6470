"""Multi-turn agents: HTTP endpoints that clients know, over generation by tokens; what was said becomes samples whose tool tokens are masked."""
