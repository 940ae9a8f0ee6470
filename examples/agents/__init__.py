"""Agents: functions for ``--agent-path``."""
