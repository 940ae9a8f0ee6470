"""The translator: families, flags, terms, protected spans, paths, residue; properties on random text."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synctool.policy import parse_policy
from synctool.translate import Translator

HEAD = 'schema = 1\n[upstream]\nname = "slime"\n[downstream]\nname = "vime"\n'
WORDS = """
[[family]]
from = "slime"
to = "vime"
[[family]]
from = "SGLang"
to = "vLLM"
[[flag]]
from = "--sglang-mem-fraction-static"
to = "--vllm-gpu-memory-utilization"
[[flag]]
from = "--sglang-cuda-graph-bs"
to = "--vllm-cudagraph-capture-sizes"
[[flag]]
from = "--sglang-ep-size"
report = "a switch there, not a size"
[[term]]
regex = '''\\bTHUDM/slime\\b'''
to = "vllm-project/vime"
[[term]]
regex = '''kill (?P<signal>-\\d) sglang\\b'''
to = 'kill \\g<signal> -f vllm-serve'
[[protect]]
name = "pull requests"
regex = '''https?://[\\w.-]+/[\\w.-]+/[\\w.-]+/(?:pull|issues)/\\d+'''
[[protect]]
name = "origins"
regex = '''# (?:ref|copied from)\\b[^\\n]*'''
[[protect]]
name = "licences"
regex = '''(?s)\\A.+\\Z'''
only = ["LICENSE"]
"""
TRANSLATOR = Translator.from_policy(parse_policy(HEAD + WORDS))


def translator(more: str, *, words: str = "") -> Translator:
    return Translator.from_policy(parse_policy(HEAD + words + more))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("slime Slime SLIME slime_plugins", "vime Vime VIME vime_plugins"),
        ("SGLang serves; SGLang's, 用SGLang的", "vLLM serves; vLLM's, 用vLLM的"),
        ("SGLangEngine FakeSGLangServer run_SGLang", "VLLMEngine FakeVLLMServer run_VLLM"),
        ("SglangConfig SGLANG_X sglang", "VllmConfig VLLM_X vllm"),
        ("--sglang-mem-fraction-static 0.8", "--vllm-gpu-memory-utilization 0.8"),
        ("args.sglang_mem_fraction_static", "args.vllm_gpu_memory_utilization"),
        ("default_sglang_mem_fraction_static", "default_vllm_gpu_memory_utilization"),
        ("sglang-mem-fraction-static: 1", "vllm-gpu-memory-utilization: 1"),
        ("--sglang-cuda-graph-bs-extra sglang_cuda_graph_bs2", "--vllm-cuda-graph-bs-extra vllm_cuda_graph_bs2"),
        ("--sglang-ep-size sglang_ep_size", "--sglang-ep-size sglang_ep_size"),
        ("THUDM/slime THUDM/slimes", "vllm-project/vime THUDM/vimes"),
        ("kill -9 sglang", "kill -9 -f vllm-serve"),
        ("https://github.com/THUDM/slime/pull/12, THUDM/slime", "https://github.com/THUDM/slime/pull/12, vllm-project/vime"),
        ("x # ref: SGLang slime\nslime", "x # ref: SGLang slime\nvime"),
        ("slime\r\nslime\r", "vime\r\nvime\r"),
    ],
)  # fmt: skip
def test_text(before: str, after: str) -> None:
    assert TRANSLATOR.text(before) == after
    assert TRANSLATOR.text(after) == after


def test_whole_files_may_be_protected_by_path() -> None:
    assert TRANSLATOR.text("slime", "LICENSE") == "slime"
    assert TRANSLATOR.text("slime", "docs/LICENSE.md") == "vime"
    assert TRANSLATOR.residue(b"slime", "LICENSE") == []


@pytest.mark.parametrize("data", [b"slime\0", b"slime \xff", b"", b"nothing here"])
def test_content_that_is_not_text_or_has_nothing_comes_back_as_it_is(data: bytes) -> None:
    assert TRANSLATOR.content(data, "a") is data


def test_skipped_files_are_not_translated_and_not_scanned() -> None:
    skipping = translator('[translate]\nskip = ["*.patch"]\n' + WORDS)
    assert skipping.content(b"slime", "docker/a.patch") == b"slime"
    assert skipping.residue(b"slime", "docker/a.patch") == []
    assert skipping.content(b"slime", "docker/a.py") == b"vime"


def test_rules_for_some_paths() -> None:
    scoped = translator('[[term]]\nfrom = "cat"\nto = "dog"\nonly = ["docs/"]\nexcept = ["docs/zh/"]\n')
    assert [scoped.text("cat", path) for path in ("docs/a", "docs/zh/a", "a")] == ["dog", "cat", "cat"]


def test_identifier_forms_overrides_and_omissions() -> None:
    family = (
        '[[family]]\nfrom = "Up"\nto = "down"\nidentifier = "Dn"\nforms = { UP = "DWN", uup = "ddn" }\nomit = ["up"]\n'
    )
    assert translator(family).text("Up UpX UP up uup") == "down DnX DWN up ddn"


def test_a_family_of_two_words() -> None:
    two = translator('[[family]]\nfrom = "blue-bird"\nto = "red-fox"\n')
    assert two.text("blue-bird blue_bird BLUE_BIRD BlueBird") == "red-fox red_fox RED_FOX RedFox"


def test_bare_flags_only_when_asked_for() -> None:
    flag = '[[flag]]\nfrom = "--up-dp-size"\nto = "--down-data-size"\n'
    assert translator(flag).text("dp_size --dp-size") == "dp_size --dp-size"
    assert translator(flag + "attribute = false\n").text("--up-dp-size up_dp_size") == "--down-data-size up_dp_size"
    assert translator(flag + "bare = true\n").text("dp_size --dp-size xdp_size") == "data_size --data-size xdp_size"


def test_unmapped_flags_may_go_through_the_families_and_are_still_told() -> None:
    loose = translator('[translate]\nunmapped_flags = "family"\n' + WORDS)
    assert loose.text("--sglang-ep-size") == "--vllm-ep-size"
    [left] = loose.residue(b"x\n  --vllm-ep-size", "a")
    assert (left.line, left.column, left.word) == (2, 3, "--vllm-ep-size")


def test_residue_is_found_in_any_case_outside_protected_spans() -> None:
    text = "sLime\n# ref: slime\n  SgLang --sglang-ep-size https://x.y/a/b/pull/1 \u0130 slime\n"
    left = TRANSLATOR.residue(text.encode(), "a")
    assert [(r.line, r.column, r.word) for r in left] == [
        (1, 1, "sLime"),
        (3, 3, "SgLang"),
        (3, 10, "--sglang-ep-size"),
        (3, 52, "slime"),
    ]


def test_further_residue_words() -> None:
    more = translator("[translate]\nresidue = ['''sgl[-_]\\w+''']\n" + WORDS)
    assert [r.word for r in more.residue(b"sgl-kernel", "a")] == ["sgl-kernel"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("slime/backends/sglang_utils/sglang_engine.py", "vime/backends/vllm_utils/vllm_engine.py"),
        ("core/a/slime.py", "lib/a/vime.py"),
        ("core", "lib"),
        ("corex/a", "corex/a"),
        ("old.py", "new/name.py"),
        ("docker/p/sglang.patch", "docker/p/sglang.patch"),
        ("docs/slime/x.md", "pages/vime-x.md"),
    ],
)
def test_paths(before: str, after: str) -> None:
    rules = """
[[path]]
from = "core/"
to = "lib"
[[path]]
from = "old.py"
to = "new/name.py"
[[path]]
regex = '''(docker/.*sglang[^/]*\\.patch)'''
to = '\\1'
keep = true
[[path]]
regex = '''docs/(?P<who>\\w+)/(.*)'''
to = 'pages/\\g<who>-\\2'
"""
    assert translator(rules + WORDS).path(before) == after


def test_collisions_on_mirrored_and_native_paths() -> None:
    owners = "[[owner]]\npaths = ['/own.md']\nowner = 'native'\nreason = 'ours'\n[[owner]]\npaths = ['/out/']\nowner = 'exclude'\nreason = 'not taken'\n"
    found = translator("[[path]]\nfrom = 'x.md'\nto = 'own.md'\n" + owners + WORDS).collisions(
        ["slime.py", "vime.py", "x.md", "a", "out/slime", "out/vime"]
    )
    assert [(c.downstream, c.upstream, c.native) for c in found] == [
        ("own.md", ("x.md",), True),
        ("vime.py", ("slime.py", "vime.py"), False),
    ]


PIECES = [
    "slime", "Slime", "SLIME", "SGLang", "sglang", "SGLANG", "sgl", "ang", "sl", "ime", "Engine", "_", "-", "--", " ", "\n", "/", ".", "\r\n", "é", "用",
    "--sglang-mem-fraction-static", "sglang_cuda_graph_bs", "--sglang-ep-size", "THUDM/slime", "kill -9 sglang", "# ref: ", "1", "x", "X", "vllm", "vime",
    "https://github.com/THUDM/slime/pull/", "https://github.com/a/sglang/issues/7",
]  # fmt: skip
TEXT = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)
SPANS = re.compile(r"https?://[\w.-]+/[\w.-]+/[\w.-]+/(?:pull|issues)/\d+|# (?:ref|copied from)\b[^\n]*")


@settings(max_examples=600, deadline=None)
@given(TEXT)
def test_translating_twice_changes_nothing(text: str) -> None:
    once = TRANSLATOR.text(text)
    assert TRANSLATOR.text(once) == once


@settings(max_examples=600, deadline=None)
@given(TEXT)
def test_protected_spans_stay_and_nothing_of_upstream_is_left_outside(text: str) -> None:
    once = TRANSLATOR.text(text)
    for span in SPANS.findall(text):
        assert span in once
    rest = SPANS.sub("|", once)
    rest = re.sub(r"(?<![A-Za-z0-9])(--)?sglang[-_]ep[-_]size(?![\w-])", "", rest)
    assert not re.search("slime|SLIME|Slime|SGLang|SGLANG", rest)


@settings(max_examples=400, deadline=None)
@given(TEXT, st.randoms(use_true_random=False))
def test_the_order_of_rules_never_matters(text: str, random) -> None:
    blocks = re.split(r"\n(?=\[\[)", WORDS.strip())
    random.shuffle(blocks)
    assert Translator.from_policy(parse_policy(HEAD + "\n".join(blocks))).text(text) == TRANSLATOR.text(text)


@settings(max_examples=400, deadline=None)
@given(TEXT)
def test_a_trace_rebuilds_the_result(text: str) -> None:
    rebuilt, position = "", 0
    for found in TRANSLATOR.trace(text):
        assert found.start >= position
        rebuilt += text[position : found.start] + found.after
        position = found.end
    assert rebuilt + text[position:] == TRANSLATOR.text(text)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=6, unique=True), st.text("abc", max_size=40)
)
def test_literals_are_replaced_leftmost_longest(words: list[str], text: str) -> None:
    rules = "".join(f'[[term]]\nfrom = "{word}"\nto = "<{word}>"\n' for word in words)
    naive = re.compile("|".join(sorted(map(re.escape, words), key=len, reverse=True)))
    assert translator(rules).text(text) == naive.sub(lambda match: f"<{match.group()}>", text)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=5, unique=True), st.text("ab_ ", max_size=40)
)
def test_whole_words_fall_back_to_shorter_ones(words: list[str], text: str) -> None:
    rules = "".join(f'[[term]]\nfrom = "{word}"\nto = "<{word}>"\nword = true\n' for word in words)
    naive = re.compile(r"(?<![A-Za-z0-9_])(?:" + "|".join(sorted(words, key=len, reverse=True)) + r")(?![A-Za-z0-9_])")
    assert translator(rules).text(text) == naive.sub(lambda match: f"<{match.group()}>", text)


NAMES = st.lists(
    st.sampled_from(["slime", "sglang", "vime", "docs", "a", "x.py", "SGLang.md", "sglang_utils"]),
    min_size=1,
    max_size=4,
).map("/".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(NAMES, max_size=12, unique=True))
def test_paths_are_mapped_one_to_one_or_the_collision_is_told(paths: list[str]) -> None:
    landed = [TRANSLATOR.path(path) for path in paths]
    told = {c.downstream: set(c.upstream) for c in TRANSLATOR.collisions(paths)}
    double = {
        target: {p for p, t in zip(paths, landed, strict=True) if t == target}
        for target in landed
        if landed.count(target) > 1
    }
    assert told == double


def test_odd_characters_shift_nothing() -> None:
    assert TRANSLATOR.text("😀slime é\u0301 𝒳 SGLangX\u2028slime") == "😀vime é\u0301 𝒳 VLLMX\u2028vime"
    undecodable = b"slime/\xff\xfe.py".decode("utf-8", "surrogateescape")
    assert TRANSLATOR.path(undecodable).encode("utf-8", "surrogateescape") == b"vime/\xff\xfe.py"


def test_links_are_translated_by_words_and_left_alone_when_not_text() -> None:
    assert TRANSLATOR.link(b"../slime/sglang") == b"../vime/vllm"
    assert TRANSLATOR.link(b"../slime/\xff") == b"../slime/\xff"
