"""Checks of a mirrored tree: one file a check, one finding type."""
