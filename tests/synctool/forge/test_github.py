"""The GitHub forge against a local server that answers as GitHub's REST API does, and the recorded forge."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from synctool.errors import ConfigError, EnvironmentFailure, Exit, Refused
from synctool.forge.base import PullRequest, RateLimited
from synctool.forge.github import PATIENCE, GitHubForge
from synctool.forge.recorded import RecordedForge, Recorder

TOKEN = "ghp_thisIsTheSecretOfTheTest0123456789"
OID = "a" * 40


def pull_json(number: int, *, merged: bool = True, state: str = "closed", head: str = "c" * 40) -> dict[str, object]:
    """A pull request as the API gives it, cut to what lists carry."""
    return {
        "url": f"http://127.0.0.1/repos/lamps/lantern/pulls/{number}",
        "number": number,
        "title": f"Change {number}",
        "state": state,
        "html_url": f"https://github.com/lamps/lantern/pull/{number}",
        "user": {"login": "ada"},
        "base": {"ref": "main"},
        "head": {"sha": head},
        "merged_at": "2026-01-02T03:04:05Z" if merged else None,
        "merge_commit_sha": OID,
        "body": None,
    }


class Hub:
    """A scripted API: ``pulls`` by number, ``commits`` -> numbers, and ``failures`` that are answered first."""

    def __init__(self) -> None:
        self.pulls: dict[int, dict[str, object]] = {}
        self.commits: dict[str, list[int]] = {}
        self.failures: list[tuple[int, dict[str, str], dict[str, str]]] = []
        self.requests: list[tuple[str, str | None]] = []
        self.remaining = 5000
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.requests.append((self.path, self.headers.get("Authorization")))
                status, headers, body = hub.answer(self.path, self.headers.get("Host", ""))
                data = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {
                    "Content-Type": "application/json; charset=utf-8",
                    "Content-Length": str(len(data)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, path: str, host: str) -> tuple[int, dict[str, str], object]:
        if self.failures:
            return self.failures.pop(0)
        self.remaining -= 1
        headers = {
            "X-RateLimit-Limit": "5000",
            "X-RateLimit-Remaining": str(self.remaining),
            "X-RateLimit-Reset": str(int(time.time()) + 600),
        }
        parts = urlsplit(path)
        words = parts.path.strip("/").split("/")
        if words[:4] == ["repos", "lamps", "lantern", "pulls"] and int(words[4]) in self.pulls:
            return 200, headers, self.pulls[int(words[4])]
        if words[:4] == ["repos", "lamps", "lantern", "commits"] and words[5:] == ["pulls"]:
            if words[4] not in self.commits:
                return 422, headers, {"message": f"No commit found for SHA: {words[4]}"}
            query = parse_qs(parts.query)
            size, page = int(query.get("per_page", ["30"])[0]), int(query.get("page", ["1"])[0])
            numbers = self.commits[words[4]]
            if page * size < len(numbers):
                headers["Link"] = f'<http://{host}{parts.path}?per_page={size}&page={page + 1}>; rel="next"'
            return 200, headers, [self.pulls[n] for n in numbers[(page - 1) * size : page * size]]
        return 404, headers, {"message": "Not Found"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    made.close()


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def forge(hub: Hub, slept: list[float]) -> GitHubForge:
    return GitHubForge("lamps/lantern", TOKEN, api=hub.url, sleep=slept.append)


def limit(
    after: int | None = None,
    *,
    reset_in: int | None = None,
    status: int = 403,
    message: str = "API rate limit exceeded",
) -> tuple[int, dict[str, str], dict[str, str]]:
    headers = {}
    if after is not None:
        headers["Retry-After"] = str(after)
    if reset_in is not None:
        headers |= {
            "X-RateLimit-Limit": "5000",
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": str(int(time.time()) + reset_in),
        }
    return status, headers, {"message": message}


def test_one_pull_request_costs_one_request(hub, forge):
    hub.pulls[7] = pull_json(7)
    assert forge.pull(7) == PullRequest(
        7, "Change 7", "merged", "https://github.com/lamps/lantern/pull/7", "ada", "main", "c" * 40, OID, ""
    )
    assert len(hub.requests) == 1
    assert forge.budget().remaining == 4999
    assert "4999 of 5000 requests left until" in str(forge.budget())


def test_open_ones_have_no_merge_commit(hub, forge):
    hub.pulls[7] = pull_json(7, merged=False, state="open")
    assert forge.pull(7).state == "open"
    assert forge.pull(7).merge_commit is None


def test_a_long_list_comes_in_pages(hub, forge):
    hub.pulls = {n: pull_json(n) for n in range(1, 251)}
    hub.commits[OID] = list(hub.pulls)
    assert [pull.number for pull in forge.pulls_of_commit(OID)] == list(range(1, 251))
    assert len(hub.requests) == 3


def test_heads(hub, forge):
    hub.pulls = {
        1: pull_json(1, merged=False, state="open", head=OID),
        2: pull_json(2, merged=False, state="open"),
        3: pull_json(3, head=OID),
    }
    hub.commits[OID] = [1, 2, 3]
    assert [pull.number for pull in forge.pulls_of_head(OID)] == [1]


def test_unknown_is_empty_not_an_error(forge):
    assert forge.pull(404) is None
    assert forge.pulls_of_commit("b" * 40) == ()


@pytest.mark.parametrize(
    "failure", [limit(3), limit(3, status=429), limit(2, message="You have exceeded a secondary rate limit")]
)
def test_a_short_limit_is_waited_out(hub, forge, slept, failure):
    hub.pulls[7] = pull_json(7)
    hub.failures = [failure]
    assert forge.pull(7).number == 7
    assert slept == [float(failure[1]["Retry-After"])]


def test_a_limit_that_ends_soon_is_waited_out(hub, forge, slept):
    hub.pulls[7] = pull_json(7)
    hub.failures = [limit(reset_in=2)]
    assert forge.pull(7).number == 7
    assert 1 <= slept[0] <= 3


def test_a_long_limit_stops_at_once_and_says_until_when(hub, forge, slept):
    hub.failures = [limit(reset_in=2400)]
    with pytest.raises(RateLimited, match=r"rate limit .* it ends at \d\d:\d\d:\d\d UTC") as caught:
        forge.pull(7)
    assert slept == []
    assert "--record" in caught.value.hint
    assert "0 of 5000 requests left" in caught.value.hint
    assert caught.value.exit_code is Exit.ENVIRONMENT


def test_patience_is_spent_once(hub, forge, slept):
    hub.failures = [limit(20), limit(20)]
    with pytest.raises(RateLimited):
        forge.pull(7)
    assert slept == [20.0]
    assert PATIENCE < 40


def test_a_secondary_limit_without_a_time(hub, forge, slept):
    hub.failures = [
        limit(message="You have exceeded a secondary rate limit. Please wait a few minutes before you try again.")
    ]
    with pytest.raises(RateLimited):
        forge.pull(7)
    assert slept == []


def test_server_errors_are_tried_three_times(hub, forge, slept):
    hub.pulls[7] = pull_json(7)
    hub.failures = [(502, {}, {"message": "Bad Gateway"}), (503, {}, {"message": "no"})]
    assert forge.pull(7).number == 7
    assert slept == [0.5, 1.0]
    hub.failures = [(500, {}, {"message": "no"})] * 3
    with pytest.raises(EnvironmentFailure, match="GitHub answered 500 about #8"):
        forge.pull(8)


@pytest.mark.parametrize(
    ("status", "says"), [(401, "refuses the token"), (403, "does not allow reading #7"), (400, "answered 400")]
)
def test_refusals_are_not_repeated(hub, forge, slept, status, says):
    hub.failures = [(status, {}, {"message": "no"})]
    with pytest.raises(EnvironmentFailure, match=says):
        forge.pull(7)
    assert slept == []


def test_nobody_there(slept):
    hub = Hub()
    hub.close()
    forge = GitHubForge("lamps/lantern", None, api=hub.url, sleep=slept.append)
    with pytest.raises(EnvironmentFailure, match="can't be reached"):
        forge.pull(7)
    assert slept == [0.5, 1.0]


def test_the_token_is_sent_and_never_shown(hub, forge, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    hub.failures = [limit(reset_in=2400)]
    with pytest.raises(RateLimited) as caught:
        forge.pull(7)
    assert hub.requests[0][1] == f"token {TOKEN}"
    for text in (repr(forge), str(caught.value), str(caught.value.hint), caplog.text):
        assert TOKEN not in text
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    monkeypatch.setenv("GITHUB_API_URL", hub.url)
    hub.pulls[7] = pull_json(7)
    assert GitHubForge.from_environment("lamps/lantern").pull(7).number == 7
    assert hub.requests[-1][1] == f"token {TOKEN}"


def test_no_token_over_plain_http():
    with pytest.raises(Refused):
        GitHubForge("lamps/lantern", TOKEN, api="http://github.example.org/api/v3")


def test_recording_and_reading_back_offline(hub, forge, tmp_path):
    hub.pulls = {1: pull_json(1, merged=False, state="open", head=OID), 2: pull_json(2)}
    hub.commits[OID] = [1, 2]
    recorder = Recorder(forge, tmp_path / "answers")
    live = (recorder.pulls_of_commit(OID), recorder.pulls_of_head(OID), recorder.pull(1), recorder.pull(9))
    asked = len(hub.requests)
    assert (recorder.pulls_of_commit(OID), recorder.pull(9)) == (live[0], None)
    assert len(hub.requests) == asked, "an answer is asked for once"
    kept = RecordedForge(tmp_path / "answers")
    assert (kept.pulls_of_commit(OID), kept.pulls_of_head(OID), kept.pull(1), kept.pull(9)) == live
    assert kept.pulls_of_commit("b" * 40) == ()
    assert kept.budget() is None
    assert TOKEN not in "".join(path.read_text() for path in tmp_path.rglob("*.json"))


def test_damaged_recordings(tmp_path):
    with pytest.raises(ConfigError, match="no folder"):
        RecordedForge(tmp_path / "nowhere")
    (tmp_path / "pulls").mkdir()
    (tmp_path / "pulls" / "1.json").write_text("{")
    (tmp_path / "pulls" / "2.json").write_text('{"title": "no number"}')
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / f"{OID}.json").write_text('["1"]')
    forge = RecordedForge(tmp_path)
    for ask in (lambda: forge.pull(1), lambda: forge.pull(2), lambda: forge.pulls_of_commit(OID)):
        with pytest.raises(ConfigError) as caught:
            ask()
        assert caught.value.where.startswith(str(tmp_path))
