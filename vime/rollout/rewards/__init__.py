"""Rewards: pure functions from an answer and its reference to a number or a dict, and the one place that calls them (``score``)."""
