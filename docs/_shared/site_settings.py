"""What both languages' Sphinx configurations share. A language's ``conf.py`` sets its name, its title and its language, and calls ``configure``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

SHARED = Path(__file__).resolve().parent
REPOSITORY = SHARED.parents[1]
sys.path.insert(0, str(REPOSITORY))

#: Folder of a language -> how it calls itself.
LANGUAGES = {"en": "English", "zh": "中文"}


def configure(folder: str, title: str, language: str) -> dict[str, Any]:
    """The settings of one language's site. Nothing in the pages comes from the network."""
    from synctool import __version__

    return {
        "project": "vime",
        "author": "the vime contributors",
        "copyright": "the vime contributors, Apache-2.0",
        "version": __version__,
        "release": __version__,
        "language": language,
        "extensions": ["myst_parser"],
        "myst_heading_anchors": 4,
        "myst_enable_extensions": ["colon_fence"],
        "smartquotes": False,  # it would make one dash of the two of a flag
        "html_theme": "furo",
        "html_title": title,
        "html_show_sphinx": False,
        "html_copy_source": False,
        "templates_path": [str(SHARED / "templates")],
        "html_static_path": [str(SHARED / "static")],
        "html_css_files": ["site.css"],
        "html_context": {"site_language": folder, "site_languages": LANGUAGES},
        "html_sidebars": {
            "**": [
                "sidebar/brand.html",
                "sidebar/search.html",
                "sidebar/languages.html",
                "sidebar/scroll-start.html",
                "sidebar/navigation.html",
                "sidebar/scroll-end.html",
            ]
        },
        "exclude_patterns": ["_build"],
        # Pages show shells and logs, which no highlighter reads without complaint.
        "suppress_warnings": ["misc.highlighting_failure"],
    }


def setup(app: Any) -> dict[str, Any]:
    """Fill the generated parts of a page when Sphinx reads it."""
    import references

    def fill(_app: Any, _name: str, source: list[str]) -> None:
        source[0] = references.fill(source[0])

    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
