"""Records as values, and the ref that keeps them, with real git."""

from __future__ import annotations

import datetime
import json
import subprocess
import threading
from pathlib import Path

import pytest

from synctool.errors import ConfigError, Refused, RepositoryError, UsageError
from synctool.evidence.record import Record, Statement, decode
from synctool.evidence.store import REF, add, load, place
from synctool.git.commits import Person, write_commit
from synctool.git.repo import Repo
from synctool.git.tree import Entry

WHEN = datetime.datetime(2026, 11, 28, tzinfo=datetime.UTC)
WHO = ("Bea", "bea@example.org")


def record(n: int = 0, **more: object) -> Record:
    values = {
        "head": "a" * 40, "tree": "b" * 40, "name": f"unit {n}", "kind": "test", "outcome": "passed", "source": "run", "by": "Bea <b@e>",
        "when": WHEN + datetime.timedelta(seconds=n), **more,
    }  # fmt: skip
    return Record.model_validate(values)


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    subprocess.run(["git", "init", "-q", str(tmp_path / "r")], check=True)
    return Repo.open(tmp_path / "r")


def test_the_id_is_the_content():
    made = record(figures={"tests": 2}, details={"größe": "ü"})
    assert decode(made.encode(), "x") == made
    assert decode(json.dumps(made.to_json()), "x").id == made.id
    assert record(1).id != made.id
    with pytest.raises(ConfigError, match="was changed"):
        decode(json.dumps({**made.to_json(), "outcome": "failed"}), "x")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"source": "attested"}, "signed_off_by"),
        ({"outcome": "refused"}, "reason"),
        ({"figures": {"failures": 1}}, "can't have passed"),
        ({"tree": "xyz"}, "tree"),
        ({"outcome": "fine"}, "outcome"),
        ({"name": "a\nb"}, "name"),
        ({"surprise": 1}, "surprise"),
        ({"artifacts": [{"name": "i", "digest": "latest"}]}, "digest"),
    ],
)
def test_wrong_records_are_refused_in_one_line(more, says):
    value = {**record().content(), **more}
    with pytest.raises(ConfigError, match=says) as caught:
        decode(value, "file.json")
    assert caught.value.where == "file.json"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"{", b"[]", b"3", b"null", '{"type": "statement"}'])
def test_no_record_at_all(data):
    with pytest.raises(ConfigError):
        decode(data, "x")


def test_statements_need_what_they_are_about():
    common = {"type": "statement", "text": "x", "by": "B <b@e>", "signed_off_by": "B <b@e>", "when": WHEN.isoformat()}
    assert isinstance(decode({**common, "topic": "depends-on", "target": "#4"}, "x"), Statement)
    for wrong in ({"topic": "depends-on"}, {"topic": "note", "target": "#4"}):
        with pytest.raises(ConfigError, match="target"):
            decode({**common, **wrong}, "x")


def test_add_and_load_move_one_ref_only(repo):
    facts = [record(n) for n in range(3)]
    assert add(repo, facts, WHO, "three") == facts
    assert load(repo).records == tuple(facts)
    assert add(repo, facts, WHO, "again") == []
    assert repo.text("for-each-ref", "--format=%(refname)") == REF
    assert repo.text("rev-list", "--count", REF) == "3"
    assert "Signed-off-by: Bea <bea@example.org>" in repo.text("log", "-1", "--format=%B", REF)
    assert repo.text("ls-tree", "-r", "--name-only", REF).split() == sorted(place(fact) for fact in facts)


def test_a_dry_repository_keeps_nothing(repo):
    dry = Repo.open(repo.git_dir, dry=True)
    assert len(add(dry, [record()], WHO, "x")) == 1
    assert load(Repo.open(repo.git_dir)).facts == ()


def test_two_writers_lose_nothing(repo):
    def write(start: int) -> None:
        mine = Repo.open(repo.git_dir)
        for n in range(start, start + 5):
            for _ in range(20):
                try:
                    add(mine, [record(n)], WHO, "x")
                    break
                except RepositoryError:
                    continue
        mine.close()

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(load(Repo.open(repo.git_dir)).facts) == 10
    assert repo.text("rev-list", "--count", REF) == "10"


def test_two_clones_unite(repo, tmp_path):
    add(repo, [record(1), record(2)], WHO, "x")
    subprocess.run(["git", "clone", "-q", str(repo.work_tree), str(tmp_path / "c")], check=True, capture_output=True)
    other = Repo.open(tmp_path / "c")
    add(other, [record(2), record(3)], WHO, "y")
    subprocess.run(["git", "fetch", "-q", str(tmp_path / "c"), f"{REF}:refs/theirs"], cwd=repo.work_tree, check=True)
    fresh = add(repo, load(repo, "refs/theirs").facts, WHO, "import")
    assert [fact.name for fact in fresh] == ["unit 3"]
    assert [fact.name for fact in load(repo).records] == ["unit 1", "unit 2", "unit 3"]


@pytest.mark.parametrize("outcomes", [("passed", "failed"), ("failed", "passed")])
def test_of_equal_times_the_one_added_later_counts(repo, tmp_path, outcomes):
    pair = tuple(record(name="ci", outcome=outcome) for outcome in outcomes)
    for fact in pair:
        add(repo, [fact], WHO, "x")
    assert load(repo).records == pair
    assert load(repo).find("ci") == pair[1]
    subprocess.run(["git", "init", "-q", str(tmp_path / "c")], check=True)
    other = Repo.open(tmp_path / "c")
    add(other, load(repo).facts, WHO, "both at once")
    assert load(other).records == pair


def test_an_edited_ref_is_refused(repo):
    add(repo, [record()], WHO, "x")
    path = place(record())
    blob = repo.objects.write_blob(record(outcome="failed").encode())
    tree = repo.tree(REF)
    tree.set(path, Entry("100644", blob))
    who = Person("x", "x@y", 0)
    forged = write_commit(repo.objects, tree=tree.write(), parents=[], author=who, committer=who, message="forged")
    repo.run("update-ref", REF, forged)
    with pytest.raises(RepositoryError, match="not where it belongs") as caught:
        load(repo)
    assert path in caught.value.where


def test_a_record_that_could_not_be_read_back_is_not_written(repo):
    with pytest.raises(Refused, match="over"):
        add(repo, [record(note="x" * 300_000)], WHO, "x")
    assert load(repo).facts == ()


def test_find(repo):
    add(repo, [record(1, run="#7"), record(2)], WHO, "x")
    known = load(repo)
    assert known.find("unit 1").run == "#7"
    assert known.find("#7").name == "unit 1"
    assert known.find(record(2).id[:6]).name == "unit 2"
    with pytest.raises(UsageError, match="no record"):
        known.find("nothing")
