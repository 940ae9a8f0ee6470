"""Checks of a mirrored tree. One file a check (``checks/``), one finding type, and what is known about the pinned engine (``engine/``).

Everything here is a function of git trees: downstream's, upstream's before and after the range, and the pinned, patched engine's. The work tree is
touched by ``fix`` alone, when a person asks for it.
"""
