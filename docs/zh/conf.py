"""Sphinx configuration of this language; all else is in ``docs/_shared/site_settings.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_shared"))
import jieba
import site_settings

jieba.setLogLevel("WARNING")  # it tells on stderr how long its dictionary took

globals().update(site_settings.configure("zh", "vime 文档", "zh_CN"))
setup = site_settings.setup
