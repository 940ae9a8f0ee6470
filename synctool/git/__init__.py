"""Git objects and refs as values: a scrubbed runner, one object reader and writer, lazy trees, diffs, atomic ref updates.

Nothing here checks out files, touches the user's index, runs hooks or filters, or reads the user's configuration.
"""

from synctool.git.objects import ObjectStore
from synctool.git.repo import Repo
from synctool.git.tree import Entry, Tree

__all__ = ["Entry", "ObjectStore", "Repo", "Tree"]
