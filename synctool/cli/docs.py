"""``vime-sync docs``: the group of verbs about documentation."""

from __future__ import annotations

import click

from synctool.cli.app import LazyGroup

VERBS: dict[str, tuple[str, str]] = {
    "translate": ("synctool.cli.docs_translate", "Carry upstream's pages into ours, section by section."),
    "check": ("synctool.cli.docs_check", "Check links, anchors, tables of contents, and languages in step."),
}


@click.group(name="docs", cls=LazyGroup, verbs=VERBS)
def command() -> None:
    """Documentation: Markdown and reStructuredText, translated and compared by section.

    What a section was made from is kept as a hash in sync_manifests/docs.json, so that a stale translation shows. A section that holds the line
    <!-- vime-sync: keep --> (in reST: .. vime-sync: keep) is downstream's own and is never replaced.
    """
