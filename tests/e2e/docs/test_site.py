"""Our own documentation: in step, complete, and whole without a network."""

import html
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.docs.conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs/_shared"))
import references


def test_languages_are_in_step_and_links_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "synctool", "docs", "check"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_blocks_of_code_are_the_same_in_both_languages() -> None:
    fence = re.compile(r"^```(?:console|text|html)\n.*?^```$", re.MULTILINE | re.DOTALL)
    pages = sorted((REPOSITORY / "docs/en").rglob("*.md"))
    assert len(pages) > 10
    for page in pages:
        other = REPOSITORY / "docs/zh" / page.relative_to(REPOSITORY / "docs/en")
        assert fence.findall(page.read_text()) == fence.findall(other.read_text()), page


def test_every_verb_and_every_option_is_in_the_references(site: Path) -> None:
    from synctool.cli.app import cli
    from vime.arguments import catalogue

    names = [" ".join(path) for path, _ in references.walk(cli, ("vime-sync",))]
    assert {"vime-sync plan", "vime-sync docs check", "vime-sync patch verify"} <= set(names)
    for language in ("en", "zh"):
        verbs = html.unescape((site / language / "reference/verbs.html").read_text())
        assert [name for name in names if f"<h2>{name}<" not in verbs and f"<h3>{name}<" not in verbs] == []
        options = html.unescape((site / language / "runtime/arguments.html").read_text())
        assert [flag.flag for flag in catalogue.by_name().values() if f">{flag.flag}<" not in options] == []
        assert "–" not in verbs + options, "two dashes became one"


def test_no_page_asks_the_network_for_anything(site: Path) -> None:
    loads = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^"']*""")
    pages = [*site.glob("en/**/*.html"), *site.glob("zh/**/*.html")]
    assert len(pages) > 30
    assert [(page.name, found) for page in pages for found in loads.findall(page.read_text())] == []
