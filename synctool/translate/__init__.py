"""From upstream's words and paths to downstream's: vocabulary, paths, protected spans, residue. Pure functions over text."""

from synctool.translate.paths import Collision, PathMap
from synctool.translate.residue import Residue
from synctool.translate.translator import Translator

__all__ = ["Collision", "PathMap", "Residue", "Translator"]
