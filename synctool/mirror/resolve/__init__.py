"""Resolvers: pure functions from one hunk to its resolution, or None. ``proven`` ones are applied, proposals only suggested."""

from synctool.mirror.resolve.toolbox import Toolbox

__all__ = ["Toolbox"]
