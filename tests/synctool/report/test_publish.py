"""Publication against a server that answers as GitHub's REST API does."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from synctool.errors import EnvironmentFailure, Exit, Refused, RepositoryError, UsageError
from synctool.forge.base import RateLimited
from synctool.forge.github import GitHubForge
from synctool.report.body import merge
from synctool.report.publish import Do, containing, decide, do, key_of, look
from tests.synctool.report.hub import Hub, limit

TOKEN = "ghp_thisIsTheSecretOfTheTest0123456789"
HEAD, BRANCH = "a" * 40, "sync/lantern-1"


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    server.branches[BRANCH] = HEAD
    yield server
    server.close()


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def forge(hub: Hub, slept: list[float]) -> GitHubForge:
    return GitHubForge("lamps/beacon", TOKEN, api=hub.url, sleep=slept.append)


def publish(forge: GitHubForge, text: str = "body", **more):
    number = more.pop("number", None)
    situation = look(forge, BRANCH, HEAD, number)
    action = decide(situation, text=text, branch=BRANCH, head=HEAD, title="Sync", **more)
    return action, do(forge, action, head=BRANCH, base="main", draft=False)


def writes(hub: Hub) -> list[str]:
    return [method for method, _ in hub.requests if method != "GET"]


def test_create_then_nothing_then_update(hub, forge):
    action, found = publish(forge)
    assert (action.do, found.number, found.title) == (Do.CREATE, 501, "Sync")
    assert publish(forge)[0].do is Do.UNCHANGED
    assert writes(hub) == ["POST"]
    action, found = publish(forge, "new body")
    assert action.do is Do.UPDATE
    assert "new body" in hub.pulls[501]["body"]
    assert writes(hub) == ["POST", "PATCH"]


def test_found_by_marker_though_people_changed_everything_else(hub, forge):
    publish(forge)
    hub.pulls[501]["title"] = "Other words"
    hub.pulls[501]["body"] = "Read this.\r\n" + hub.pulls[501]["body"].replace("\n", "\r\n") + "And this."
    hub.pulls[501]["head"] |= {"label": "lamps:renamed", "ref": "renamed"}
    action, _ = publish(forge, "new")
    assert (action.do, action.number) == (Do.UPDATE, 501)
    assert hub.pulls[501]["body"].startswith("Read this.\r\n<!--")
    assert hub.pulls[501]["body"].endswith("And this.")
    assert hub.pulls[501]["title"] == "Other words"


def test_found_by_branch_when_the_marker_is_gone(hub, forge):
    hub.put(7, head="9" * 40, branch=BRANCH, body="All by hand.")
    action, found = publish(forge)
    assert (action.do, found.number) == (Do.UPDATE, 7)
    assert hub.pulls[7]["body"].startswith("All by hand.\n\n<!-- vime-sync:begin")


def test_the_right_one_of_many_pages(hub, forge):
    hub.put(7, head="9" * 40, branch="x", body=merge("", "old", key_of(BRANCH)))
    for number in range(100, 350):
        hub.put(number, head="8" * 40, branch=f"b{number}", body=merge("", "old", key_of(f"other-{number}")))
    assert publish(forge)[1].number == 7
    assert sum("/pulls?" in path for _, path in hub.requests) == 3


def test_an_edit_inside_ours_stops(hub, forge):
    publish(forge)
    hub.pulls[501]["body"] = hub.pulls[501]["body"].replace("body", "my words")
    with pytest.raises(Refused, match="edited the generated part of #501"):
        publish(forge, "new")
    assert "my words" in hub.pulls[501]["body"]
    publish(forge, "new", replace_edits=True)
    assert "my words" not in hub.pulls[501]["body"]


def test_a_branch_that_is_not_there_or_elsewhere(hub, forge):
    hub.branches[BRANCH] = "b" * 40
    with pytest.raises(RepositoryError, match="is at bbbbbbbbbbbb at the forge") as caught:
        publish(forge)
    assert f"git push REMOTE {HEAD[:12]}:refs/heads/{BRANCH}" in caught.value.hint
    hub.branches.clear()
    with pytest.raises(RepositoryError, match="is missing at the forge"):
        publish(forge)
    assert writes(hub) == []


def test_same_head(hub, forge):
    hub.put(7, head=HEAD, branch="other")
    with pytest.raises(Refused, match="#7 already has the head"):
        publish(forge)
    assert writes(hub) == []
    hub.put(8, head=HEAD, branch=BRANCH)
    action, _ = publish(forge)
    assert "#7 has the same head" in action.remarks[0]


def test_one_that_someone_closed(hub, forge):
    hub.put(7, head=HEAD, branch="gone", state="closed", body=merge("", "old", key_of(BRANCH)))
    with pytest.raises(Refused, match="someone closed #7"):
        publish(forge)
    assert publish(forge, another=True)[1].number == 8


def test_replaced(hub, forge):
    hub.put(441, head="c" * 40, branch="all")
    hub.put(442, head="c" * 40, branch="gone", state="closed")
    with pytest.raises(UsageError, match="no open pull request"):
        publish(forge, replaced_by=441)
    publish(forge)
    with pytest.raises(UsageError, match="closed"):
        containing(forge, 442, HEAD, lambda a, d: True)
    with pytest.raises(UsageError, match="not there"):
        containing(forge, 9, HEAD, lambda a, d: True)
    with pytest.raises(Refused, match="does not contain"):
        containing(forge, 441, HEAD, lambda a, d: False)
    assert containing(forge, 441, HEAD, lambda a, d: (a, d) == (HEAD, "c" * 40)).number == 441
    number = next(n for n, pull in hub.pulls.items() if pull["head"]["ref"] == BRANCH)
    action, found = publish(forge, "replaced", replaced_by=441)
    assert (action.do, found.number, found.state) == (Do.CLOSE, number, "closed")
    assert "replaced" in hub.pulls[number]["body"]


def test_what_is_read_back_must_be_what_was_written(hub, forge):
    hub.on_write = lambda body: body[: len(body) // 2]
    with pytest.raises(EnvironmentFailure, match="read back it has another text"):
        publish(forge)


def test_line_ends_that_the_forge_changes_are_fine(hub, forge):
    hub.on_write = lambda body: body.replace("\n", "\r\n")
    publish(forge)
    assert publish(forge)[0].do is Do.UNCHANGED


def test_a_lost_answer_opens_no_second_pull_request(hub, forge, slept):
    hub.lose_answers = 1
    assert publish(forge)[1].number == 501
    assert list(hub.pulls) == [501]
    assert writes(hub) == ["POST"]
    assert slept == [0.5]
    hub.lose_answers = 1
    publish(forge, "new")
    assert "new" in hub.pulls[501]["body"]


def test_what_github_refuses_is_told(hub, forge):
    with pytest.raises(EnvironmentFailure, match=r"refuses to write .*Validation Failed; PullRequest head invalid"):
        forge.create_pull(title="x", body="y", head="nowhere", base="main", draft=False)
    with pytest.raises(EnvironmentFailure, match="refuses to write #9: Not Found"):
        forge.update_pull(9, body="x")
    hub.failures = [(403, {}, {"message": "Resource not accessible by integration"})]
    with pytest.raises(EnvironmentFailure, match="does not allow writing #9"):
        forge.update_pull(9, body="x")


def test_a_short_limit_in_the_middle_is_waited_out(hub, forge, slept):
    hub.put(7, head=HEAD, branch=BRANCH)
    situation = look(forge, BRANCH, HEAD)
    action = decide(situation, text="body", branch=BRANCH, head=HEAD, title="x")
    hub.failures = [limit(2, message="You have exceeded a secondary rate limit"), limit(3)]
    do(forge, action, head=BRANCH, base="main", draft=False)
    assert slept == [2.0, 3.0]


def test_a_long_limit_stops_before_anything_is_written(hub, forge, slept):
    hub.failures = [limit(reset_in=2400)]
    with pytest.raises(RateLimited, match=r"it ends at \d\d:\d\d:\d\d UTC") as caught:
        publish(forge)
    assert slept == []
    assert caught.value.exit_code is Exit.ENVIRONMENT
    assert writes(hub) == []


def test_server_errors(hub, forge, slept):
    hub.failures = [(502, {}, {"message": "x"}), (503, {}, {"message": "x"})]
    publish(forge)
    assert slept == [0.5, 1.0]
    hub.failures = [(500, {}, {"message": "x"})] * 3
    with pytest.raises(EnvironmentFailure, match="GitHub answered 500"):
        publish(forge, "new")


def test_the_token_goes_to_the_server_and_nowhere_else(hub, forge, caplog):
    caplog.set_level(logging.DEBUG)
    publish(forge)
    hub.failures = [(422, {}, {"message": f"bad {TOKEN}"})]
    with pytest.raises(EnvironmentFailure) as caught:
        forge.update_pull(501, body="x")
    assert hub.authorizations == {f"token {TOKEN}"}
    assert TOKEN not in f"{caught.value} {caught.value.hint} {caplog.text} {forge!r} {hub.pulls}"


def test_keys_are_safe_in_a_comment():
    for branch in ("sync/a--b", "sync/a-->b", "größe x", "a:b"):
        key = key_of(branch)
        assert "--" not in key
        assert " " not in key
        assert ">" not in key
