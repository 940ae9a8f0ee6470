"""Pages translated by prose span and carried over by section."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synctool.docs.page import headings, parse
from synctool.docs.translate import State, carry, translate_page
from synctool.policy.loading import load_policy
from synctool.translate import Translator

POLICY = """schema = 1
[upstream]
name = "otter"
[downstream]
name = "badger"
[[family]]
from = "otter"
to = "badger"
[[flag]]
from = "--otter-size"
to = "--badger-width"
"""


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    file = tmp_path_factory.mktemp("policy") / "vime-sync.toml"
    file.write_text(POLICY)
    return Translator.from_policy(load_policy(file))


MARKDOWN = """# Otter

Run `otter` with --otter-size. See [Otter](https://x.org/otter) and [use](otter/use.md).

- an item

  ```bash
  otter --otter-size 3
  ```

## Otter's end
otter
"""


def test_markdown_keeps_code_and_addresses_but_for_flags(translator: Translator) -> None:
    expected = """# Badger

Run `badger` with --badger-width. See [Badger](https://x.org/otter) and [use](badger/use.md).

- an item

  ```bash
  otter --badger-width 3
  ```

## Badger's end
badger
"""
    assert translate_page(translator, parse("a.md", MARKDOWN), "a.md") == expected


def test_rest_keeps_literal_blocks_but_for_flags(translator: Translator) -> None:
    text = "Otter\n=====\n\nSay otter::\n\n   otter --otter-size\n\n.. code-block:: sh\n   :name: otter\n\n   otter\n\notter https://x.org/otter\n"
    got = translate_page(translator, parse("a.rst", text), "a.rst")
    assert got == (
        "Badger\n=====\n\nSay badger::\n\n   otter --badger-width\n\n.. code-block:: sh\n   :name: otter\n\n   otter\n\nbadger https://x.org/otter\n"
    )


@given(st.text(st.sampled_from("# \n`=-~ao\x0c\r:.>\u2028"), max_size=80), st.sampled_from(["a.md", "a.rst"]))
def test_sections_joined_are_the_page_and_headings_alone_are_the_same(text: str, path: str) -> None:
    assert "".join(section.text for section in parse(path, text).sections) == text
    assert headings(path, text) == parse(path, text).headings


def test_a_section_follows_upstream_until_someone_edits_it(translator: Translator) -> None:
    first = carry(translator, parse("a.md", MARKDOWN), "a.md", None, {})
    assert {one.state for one in first.outcomes} == {State.NEW}
    changed = parse("a.md", MARKDOWN.replace("\notter\n", "\notter swims\n").replace("an item", "two items"))
    clean = carry(translator, changed, "a.md", parse("a.md", first.text), first.record)
    assert [one.state for one in clean.outcomes] == [State.UPDATED, State.UPDATED]
    assert "badger swims" in clean.text
    edited = first.text.replace("\nbadger\n", "\nour words\n")
    both = carry(translator, changed, "a.md", parse("a.md", edited), first.record)
    assert [one.state for one in both.outcomes] == [State.UPDATED, State.EDITED]
    assert "our words" in both.text
    assert "badger swims" not in both.text
    assert "two items" in both.text
    again = carry(translator, changed, "a.md", parse("a.md", both.text), both.record)
    assert [one.state for one in again.outcomes] == [State.SAME, State.EDITED], "it is reported until someone looks"
    accepted = carry(translator, changed, "a.md", parse("a.md", both.text), both.record, accept=True)
    after = carry(translator, changed, "a.md", parse("a.md", accepted.text), accepted.record)
    assert accepted.text == both.text
    assert {one.state for one in after.outcomes} == {State.SAME}


def test_own_protected_deleted_and_removed_sections(translator: Translator) -> None:
    source = "# A\n\na\n\n## B\n\nb\n\n## C\n\nc\n"
    first = carry(translator, parse("a.md", source), "a.md", None, {})
    ours = "# A\n<!-- vime-sync: keep -->\nmine\n\n## Own\n\no\n\n## C\n\nc\n"
    later = source.replace("\na\n", "\nnew a\n").replace("\n## C\n\nc\n", "\n## D\n\nd\n")
    done = carry(translator, parse("a.md", later), "a.md", parse("a.md", ours), first.record)
    states = {one.key: one.state for one in done.outcomes}
    assert states == {
        "a": State.KEPT, "b": State.DELETED_HERE, "d": State.NEW, "own": State.OURS, "c": State.REMOVED,
    }  # fmt: skip
    assert done.text == "# A\n<!-- vime-sync: keep -->\nmine\n\n## D\n\nd\n## Own\n\no\n\n"


def test_what_was_never_recorded_is_not_overwritten(translator: Translator) -> None:
    done = carry(translator, parse("a.md", "# Otter\n\nx\n"), "a.md", parse("a.md", "# Badger\n\nmine\n"), {})
    assert [one.state for one in done.outcomes] == [State.UNRECORDED]
    assert done.text == "# Badger\n\nmine\n"
    assert done.record == {}


def test_a_front_matter_is_no_heading_and_a_fenced_one_neither() -> None:
    page = parse("a.md", "---\ntitle: x\n---\n# One\n\n~~~\n# not\n~~~\n\nTwo\n---\n")
    assert [(h.line, h.level, h.title) for h in page.headings] == [(4, 1, "One"), (10, 2, "Two")]


def test_levels_of_rest_titles_follow_their_styles() -> None:
    page = parse("x.rst", "====\nTop\n====\n\nSub\n---\n\ntext\n\nNext\n----\n")
    assert [(h.line, h.level) for h in page.headings] == [(1, 1), (5, 2), (10, 2)]
