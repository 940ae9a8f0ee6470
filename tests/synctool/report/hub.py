"""A local server that answers as GitHub's REST API does about one project's pull requests: pages, limits, refusals, and state that writes change."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Answer = tuple[int, dict[str, str], Any]


class Hub:
    """``pulls`` by number, ``branches`` -> commit id, ``failures`` that are answered first (after ``skip`` good answers)."""

    def __init__(self, slug: str = "lamps/beacon") -> None:
        self.slug, self.owner = slug, slug.partition("/")[0]
        self.pulls: dict[int, dict[str, Any]] = {}
        self.branches: dict[str, str] = {}
        self.failures: list[Answer] = []
        #: What happens to a write before its answer is lost: the answer is a 502, the write is done.
        self.lose_answers = 0
        #: Changes a description on its way in, as the web form does.
        self.on_write = lambda body: body
        self.requests: list[tuple[str, str]] = []
        self.authorizations: set[str | None] = set()
        self.remaining = 5000
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                sent = json.loads(self.rfile.read(size)) if size else {}
                hub.requests.append((self.command, self.path))
                hub.authorizations.add(self.headers.get("Authorization"))
                status, headers, body = hub.answer(self.command, self.path, self.headers.get("Host", ""), sent)
                data = json.dumps(body).encode()
                self.send_response(status)
                fixed = {"Content-Type": "application/json; charset=utf-8", "Content-Length": str(len(data))}
                for name, value in {**fixed, **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = answer

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

    def put(
        self, number: int, *, head: str, branch: str, state: str = "open", merged: bool = False, body: str = ""
    ) -> None:
        """A pull request that was there before."""
        self.pulls[number] = {
            "url": f"{self.url}/repos/{self.slug}/pulls/{number}",
            "number": number,
            "title": f"Change {number}",
            "state": state,
            "html_url": f"https://github.com/{self.slug}/pull/{number}",
            "user": {"login": "bea"},
            "base": {"ref": "main"},
            "head": {"sha": head, "ref": branch, "label": f"{self.owner}:{branch}"},
            "merged_at": "2026-01-02T03:04:05Z" if merged else None,
            "merge_commit_sha": "d" * 40,
            "body": body or None,
        }

    def answer(self, method: str, path: str, host: str, sent: dict[str, Any]) -> Answer:
        if self.failures:
            return self.failures.pop(0)
        self.remaining -= 1
        headers = {
            "X-RateLimit-Limit": "5000",
            "X-RateLimit-Remaining": str(self.remaining),
            "X-RateLimit-Reset": str(int(time.time()) + 600),
        }
        parts = urlsplit(path)
        words = [unquote(word) for word in parts.path.strip("/").split("/")]
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if words[:1] != ["repos"] or "/".join(words[1:3]) != self.slug:
            return 404, headers, {"message": "Not Found"}
        status, body = self._project(method, words[3:], query, sent)
        if isinstance(body, list):
            size, page = int(query.get("per_page", "30")), int(query.get("page", "1"))
            if page * size < len(body):
                more = "&".join(f"{k}={v}" for k, v in {**query, "page": str(page + 1)}.items())
                headers["Link"] = f'<http://{host}{parts.path}?{more}>; rel="next"'
            body = body[(page - 1) * size : page * size]
        if method != "GET" and status < 300 and self.lose_answers:
            self.lose_answers -= 1
            return 502, headers, {"message": "Bad Gateway"}
        return status, headers, body

    def _project(self, method: str, words: list[str], query: dict[str, str], sent: dict[str, Any]) -> tuple[int, Any]:
        if words[:1] == ["branches"]:
            name = "/".join(words[1:])
            if name not in self.branches:
                return 404, {"message": "Branch not found"}
            return 200, {"name": name, "commit": {"sha": self.branches[name]}}
        if words[:1] == ["commits"] and words[2:] == ["pulls"]:
            return 200, [pull for pull in self.pulls.values() if pull["head"]["sha"] == words[1]]
        if words == ["pulls"] and method == "GET":
            found = [p for n, p in sorted(self.pulls.items(), reverse=True) if p["state"] == query.get("state", "open")]
            if "head" in query:
                found = [p for p in found if p["head"]["label"] == query["head"]]
            return 200, found
        if words == ["pulls"] and method == "POST":
            return self._create(sent)
        if words[:1] == ["pulls"] and int(words[1]) in self.pulls:
            pull = self.pulls[int(words[1])]
            if method == "PATCH":
                if "body" in sent:
                    sent["body"] = self.on_write(sent["body"])
                pull.update({key: sent[key] for key in ("title", "body", "state") if key in sent})
            return 200, pull
        return 404, {"message": "Not Found"}

    def _create(self, sent: dict[str, Any]) -> tuple[int, Any]:
        branch = sent["head"].rpartition(":")[2]
        problem = None
        if branch not in self.branches:
            problem = {"resource": "PullRequest", "field": "head", "code": "invalid"}
        elif any(p["state"] == "open" and p["head"]["ref"] == branch for p in self.pulls.values()):
            problem = {
                "resource": "PullRequest",
                "code": "custom",
                "message": f"A pull request already exists for {self.owner}:{branch}.",
            }
        if problem:
            return 422, {"message": "Validation Failed", "errors": [problem]}
        number = max(self.pulls, default=500) + 1
        self.put(number, head=self.branches[branch], branch=branch, body=self.on_write(sent["body"]))
        self.pulls[number]["title"] = sent["title"]
        self.pulls[number]["draft"] = sent.get("draft", False)
        return 201, self.pulls[number]


def limit(after: int | None = None, *, reset_in: int | None = None, message: str = "API rate limit exceeded") -> Answer:
    """A 403 of a rate limit."""
    headers = {} if after is None else {"Retry-After": str(after)}
    if reset_in is not None:
        headers |= {
            "X-RateLimit-Limit": "5000",
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": str(int(time.time()) + reset_in),
        }
    return 403, headers, {"message": message}
