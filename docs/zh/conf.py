"""Sphinx configuration of this language; all else is in ``docs/_shared/site_settings.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_shared"))
import jieba
import site_settings
from sphinx.search.zh import SearchChinese

jieba.setLogLevel("WARNING")  # it tells on stderr how long its dictionary took
globals().update(site_settings.configure("zh", "vime 文档", "zh_CN"))


class Search(SearchChinese):
    """Sphinx 9 calls the stemmer of a page by this name. Chinese pages carry the English one, so under their own name no search ran."""

    language_name = "English"


def setup(app):  # type: ignore[no-untyped-def]
    app.add_search_language(Search)
    return site_settings.setup(app)
