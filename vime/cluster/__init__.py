"""Processes of a run: Ray session, placement, actors, waits with an owner, and the guardian that leaves nothing behind."""
