"""Sphinx configuration of this language; all else is in ``docs/_shared/site_settings.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_shared"))
import site_settings

globals().update(site_settings.configure("en", "vime", "en"))
setup = site_settings.setup
