"""GitHub through PyGithub, imported when first asked. The token comes from the environment, goes to one host, and appears in no message.

A person waits at most ``PATIENCE`` seconds for a rate limit in all; a longer one ends the work at once with the time of the reset, because whoever
sits before a plan can't use a process that sleeps for forty minutes.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from synctool.errors import EnvironmentFailure, Refused
from synctool.forge.base import Budget, PullRequest, RateLimited
from synctool.redact import redact

if TYPE_CHECKING:
    import github
    from github.PullRequest import PullRequest as Raw

T = TypeVar("T")

#: Seconds that one forge object may spend waiting for rate limits in its life.
PATIENCE = 30.0
#: Attempts at a request that met a server error or a broken connection, and the first pause between them, doubled each time.
ATTEMPTS, PAUSE = 3, 0.5
PER_PAGE = 100
TIMEOUT = 15
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class GitHubForge:
    """Pull requests of one project (``slug`` is ``owner/name``)."""

    name = "github"

    def __init__(
        self,
        slug: str,
        token: str | None,
        *,
        api: str = "https://api.github.com",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(api)
        if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
            raise Refused(
                f"{parts.scheme}://{parts.hostname} is no address for a token", hint="use https in GITHUB_API_URL"
            )
        self.slug = slug
        self._token = token
        self._api = api.rstrip("/")
        self._sleep = sleep
        self._patience = PATIENCE
        self._client: github.Github | None = None

    @classmethod
    def from_environment(cls, slug: str) -> GitHubForge:
        """With the token of ``GITHUB_TOKEN`` or ``GH_TOKEN`` (without one GitHub allows 60 requests an hour) and the host of ``GITHUB_API_URL``."""
        token = os.environ.get("GITHUB_TOKEN") or os.environ.get("GH_TOKEN")
        return cls(slug, token or None, api=os.environ.get("GITHUB_API_URL") or "https://api.github.com")

    def __repr__(self) -> str:
        return f"GitHubForge({self.slug!r}, api={self._api!r}, token={'set' if self._token else 'none'})"

    @property
    def client(self) -> github.Github:
        """PyGithub's client, made when first used. Its own retries are off: they sleep for as long as the server asks."""
        if self._client is None:
            import github

            auth = github.Auth.Token(self._token) if self._token else None
            self._client = github.Github(
                auth=auth,
                base_url=self._api,
                timeout=TIMEOUT,
                per_page=PER_PAGE,
                retry=None,
                seconds_between_requests=None,
                lazy=True,
            )
        return self._client

    def pull(self, number: int) -> PullRequest | None:
        """See ``Forge``."""
        # PyGithub asks only when a field is read, so the fields must be read in here.
        return self._ask(lambda: _value(self.client.get_repo(self.slug).get_pull(number)), f"#{number}")

    def pulls_of_commit(self, oid: str) -> tuple[PullRequest, ...]:
        """See ``Forge``."""

        def ask() -> tuple[PullRequest, ...]:
            from github.PaginatedList import PaginatedList
            from github.PullRequest import PullRequest as Raw

            pages = PaginatedList(Raw, self.client.requester, f"/repos/{self.slug}/commits/{oid}/pulls", None)
            return tuple(map(_value, pages))

        return self._ask(ask, f"commit {oid[:9]}") or ()

    def pulls_of_head(self, oid: str) -> tuple[PullRequest, ...]:
        """See ``Forge``."""
        return tuple(pull for pull in self.pulls_of_commit(oid) if pull.state == "open" and pull.head == oid)

    def budget(self) -> Budget | None:
        """What the last answer said is left; None before the first."""
        if self._client is None:
            return None
        remaining, limit = self._client.requester.rate_limiting
        if limit <= 0:
            return None
        reset = datetime.datetime.fromtimestamp(self._client.requester.rate_limiting_resettime, datetime.UTC)
        return Budget(remaining, limit, reset)

    def open_pulls(self) -> tuple[PullRequest, ...]:
        """See ``PublishingForge``."""

        def ask() -> tuple[PullRequest, ...]:
            return tuple(map(_value, self.client.get_repo(self.slug).get_pulls(state="open")))

        return self._ask(ask, "the open pull requests") or ()

    def branch_head(self, branch: str) -> str | None:
        """See ``PublishingForge``."""
        owner, colon, name = branch.rpartition(":")
        slug = f"{owner}/{self.slug.partition('/')[2]}" if colon else self.slug
        return self._ask(lambda: str(self.client.get_repo(slug).get_branch(name).commit.sha), f"branch {branch}")

    def create_pull(self, *, title: str, body: str, head: str, base: str, draft: bool) -> int:
        """See ``PublishingForge``."""
        whose = head if ":" in head else f"{self.slug.partition('/')[0]}:{head}"
        tried = False

        def send() -> int:
            nonlocal tried
            # An attempt that broke off may have been heard: a second one must not open a second pull request.
            if tried:
                pulls = map(_value, self.client.get_repo(self.slug).get_pulls(state="open", head=whose, base=base))
                if (there := next((pull for pull in pulls if pull.branch in ("", whose)), None)) is not None:
                    return there.number
            tried = True
            made = self.client.get_repo(self.slug).create_pull(base, head, title=title, body=body, draft=draft)
            return int(made.number)

        return self._send(send, f"a pull request from {head} into {base}")

    def update_pull(
        self, number: int, *, title: str | None = None, body: str | None = None, state: str | None = None
    ) -> None:
        """See ``PublishingForge``."""
        changes = {k: v for k, v in (("title", title), ("body", body), ("state", state)) if v is not None}
        self._send(lambda: self.client.get_repo(self.slug).get_pull(number).edit(**changes), f"#{number}")

    def _ask(self, call: Callable[[], T], what: str) -> T | None:
        """The answer, or None where GitHub knows no such thing (404, or 422 for an unknown commit). Raises as ``_patiently``."""
        import github

        def ask() -> T | None:
            try:
                return call()
            except github.GithubException as error:
                if error.status in (404, 422):
                    return None
                raise

        return self._patiently(ask, what, "reading")

    def _send(self, call: Callable[[], T], what: str) -> T:
        """What a write gives. Raises as ``_patiently``, and says why when GitHub refuses the request itself."""
        import github

        def send() -> T:
            try:
                return call()
            except github.GithubException as error:
                if error.status in (404, 422):
                    raise EnvironmentFailure(
                        f"GitHub refuses to write {what}: {_said(error)}",
                        where=self.slug,
                        hint="the branch, its base or the pull request does not exist there"
                        + (", or the token may not write to this project" if error.status == 404 else ""),
                    ) from None
                raise

        return self._patiently(send, what, "writing")

    def _patiently(self, call: Callable[[], T], what: str, doing: str) -> T:
        """Call, and call again after a short rate limit or a server error.

        Raises:
            RateLimited: it would take longer than our patience.
            EnvironmentFailure: anything else that a person must look at.
        """
        import github
        import requests

        failures = 0
        while True:
            try:
                return call()
            except github.GithubException as error:
                wait = _limit_wait(error)
                if wait is not None:
                    self._wait(wait, what)
                    continue
                if error.status == 401:
                    raise EnvironmentFailure(
                        "GitHub refuses the token",
                        where=self.slug,
                        hint="renew GITHUB_TOKEN, or unset it for 60 requests an hour",
                    ) from None
                if error.status == 403:
                    raise EnvironmentFailure(
                        f"GitHub does not allow {doing} {what}",
                        where=self.slug,
                        hint=f"the token lacks access for {doing} in this project",
                    ) from None
                failures += 1
                if error.status < 500 or failures >= ATTEMPTS:
                    raise EnvironmentFailure(
                        f"GitHub answered {error.status} about {what}",
                        where=self.slug,
                        hint="try again later, or use recorded answers: --forge FOLDER",
                    ) from None
            except requests.RequestException as error:
                failures += 1
                if failures >= ATTEMPTS:
                    raise EnvironmentFailure(
                        f"GitHub can't be reached: {type(error).__name__}",
                        where=self._api,
                        hint="check the network, or use recorded answers: --forge FOLDER",
                    ) from None
            self._sleep(PAUSE * 2 ** (failures - 1))

    def _wait(self, seconds: float, what: str) -> None:
        if seconds > self._patience:
            reset = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
            left = self.budget()
            raise RateLimited(
                f"GitHub's rate limit is reached at {what}; it ends at {reset:%H:%M:%S} UTC, in {seconds:.0f} s",
                where=self.slug,
                hint=("set GITHUB_TOKEN for a larger budget; " if not self._token else "")
                + "run again then; --record FOLDER keeps what was answered already"
                + (f" ({left})" if left else ""),
            )
        self._patience -= seconds
        self._sleep(seconds)


def _limit_wait(error: github.GithubException) -> float | None:
    """Seconds that a rate limit asks to wait, or None when the error is no rate limit."""
    if error.status not in (403, 429):
        return None
    headers = {key.lower(): value for key, value in (error.headers or {}).items()}
    message = str((error.data or {}).get("message", "") if isinstance(error.data, dict) else "").lower()
    if (after := headers.get("retry-after", "")).isdigit():
        return float(after)
    if headers.get("x-ratelimit-remaining") == "0" and (reset := headers.get("x-ratelimit-reset", "")).isdigit():
        return max(float(reset) - time.time(), 0.0) + 1.0
    if error.status == 429 or "rate limit" in message:
        return 60.0  # what GitHub's documentation asks for where the answer names no time
    return None


def _said(error: github.GithubException) -> str:
    """GitHub's reasons, in a line."""
    data = error.data if isinstance(error.data, dict) else {}
    details = [
        str(one.get("message") or " ".join(str(one[k]) for k in ("resource", "field", "code") if k in one))
        if isinstance(one, dict)
        else str(one)
        for one in data.get("errors") or ()
    ]
    return redact("; ".join(filter(None, [str(data.get("message", f"status {error.status}")), *details])))


def _value(raw: Raw) -> PullRequest:
    """Only fields that GitHub's lists carry too: any other would cost PyGithub a further request."""
    merged = raw.merged_at is not None
    user: Any = raw.user
    return PullRequest(
        number=raw.number,
        title=raw.title,
        state="merged" if merged else raw.state,
        url=raw.html_url,
        author=user.login if user is not None else "",
        base=raw.base.ref,
        head=raw.head.sha,
        # Before the merge this names a trial merge that never lands.
        merge_commit=raw.merge_commit_sha if merged else None,
        body=raw.body or "",
        branch=raw.head.label or "",
    )
