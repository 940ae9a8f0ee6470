"""``vime-sync plan`` as a person or a script runs it."""

from __future__ import annotations

import json

import pytest

from tests.preloaded import call

POLICY = """schema = 1
[upstream]
name = "lantern"
url = "https://github.com/lamps/lantern"
[downstream]
name = "beacon"
[[family]]
from = "lantern"
to = "beacon"
"""


@pytest.fixture
def fork(story):
    """A checked-out fork with a policy, upstream's branch fetched, and three changes to plan."""
    root = story.commit("root", {"f": "1\n"})
    one = story.commit("One (#1)", {"f": "2\n"}, root)
    two = story.commit("Two", {"g": "text\n"}, one)
    three = story.commit('Revert "Two"', {"g": None}, two)
    down = story.commit("own", {"own": "1\n", "vime-sync.toml": POLICY}, root)
    story.ref("main", down)
    story.git("reset", "-q", "--hard", "main")
    story.repo.run("update-ref", "refs/vime-sync/upstream/main", three)
    return story, [root, one, two, three, down]


def run(story, *arguments):
    return call("plan", "-C", str(story.folder), *arguments)


def test_table(fork):
    story, oids = fork
    done = run(story)
    assert done.returncode == 0, done.stderr
    assert f"{oids[0][:9]}..{oids[3][:9]} (base from the fork point" in done.stdout
    assert "reverted by" in done.stdout
    assert "3 change(s): 1 take, 2 collapsed" in done.stdout
    assert "pull request from: 2 none, 1 squash" in done.stdout
    assert story.git("status", "--porcelain") == ""


def test_json(fork):
    story, oids = fork
    envelope = json.loads(run(story, "--json").stdout)
    assert (envelope["schema"], envelope["verb"], envelope["exit_code"]) == ("vime-sync/1", "plan", 0)
    data = envelope["data"]
    assert [change["commit"] for change in data["changes"]] == oids[1:4]
    assert data["counts"] == {"take": 1, "exclude": 0, "present": 0, "defer": 0, "collapsed": 2}
    assert data["changes"][0]["pr"] == {"number": 1, "confidence": "high", "source": "squash", "note": ""}


def test_write_edit_and_plan_again(fork):
    story, oids = fork
    place = story.folder / "sync_manifests" / f"{oids[0][:9]}..{oids[3][:9]}.toml"
    dry = run(story, "--write", "--dry-run")
    assert "dry run: would write" in dry.stderr
    assert not place.exists()
    assert "written:" in run(story, "--write").stderr
    assert "unchanged:" in run(story, "--write").stderr
    text = place.read_text().replace(
        'decision = "take"', 'decision = "exclude"  # for now\nreason = "too bright"\nowner = "ada"'
    )
    place.write_text(text)
    data = json.loads(run(story, "--json").stdout)["data"]
    assert (data["changes"][0]["decision"], data["changes"][0]["by"], data["changes"][0]["reason"]) == (
        "exclude",
        "manifest",
        "too bright",
    )
    run(story, "--write")
    assert place.read_text() == text
    place.write_text(text.replace("owner", "ownr"))
    wrong = run(story)
    assert wrong.returncode == 3
    line = text.replace("owner", "ownr").split("\n").index('ownr = "ada"') + 1
    assert f"{place.name}:{line}: [[change]] #1 has an unknown key 'ownr'" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_single_changes(fork):
    story, oids = fork
    assert [c["commit"] for c in json.loads(run(story, "--pr", "1", "--json").stdout)["data"]["changes"]] == [oids[1]]
    assert [
        c["commit"] for c in json.loads(run(story, "--pick", oids[2][:10], "--json").stdout)["data"]["changes"]
    ] == [oids[2]]
    assert run(story, "--pr", "1", "--write").returncode == 0
    assert (story.folder / "sync_manifests" / f"picks..{oids[1][:9]}.toml").is_file()
    assert json.loads(run(story, "--json").stdout)["data"]["base"] == oids[0], "single changes are no resume point"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--from", "refs/vime-sync/upstream/main"), 4, "no upstream change"),
        (("--through", "nowhere"), 5, "no commit is named 'nowhere'"),
        (("--pr", "77"), 2, "#77"),
        (("--forge", "nowhere"), 3, "no folder of recorded forge answers"),
        (("--record", "x"), 2, "--record needs --forge github"),
    ],
)
def test_mistakes(fork, arguments, code, says):
    done = run(fork[0], *arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_recorded_forge_names_a_change(fork, tmp_path):
    story, oids = fork
    for folder, name, content in (
        ("commits", oids[2], [5]),
        ("pulls", "5", {"number": 5, "title": "Two", "state": "merged", "merge_commit": oids[2]}),
    ):
        path = tmp_path / "answers" / folder / f"{name}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
    data = json.loads(run(story, "--json", "--forge", str(tmp_path / "answers")).stdout)["data"]
    assert data["changes"][1]["pr"] == {"number": 5, "confidence": "certain", "source": "forge", "note": ""}
