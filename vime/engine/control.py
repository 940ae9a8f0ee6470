"""The control plane of one server: health, pause and resume, weights. Synchronous HTTP, a deadline on every call."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from vime.errors import EngineError
from vime.transport.bucket import Offer

PAUSE_MODES = ("abort", "wait", "keep")


class EngineControl:
    """Calls to the server at `url`. Each raises EngineError naming the route when the server refuses or does not answer in `timeout` s."""

    def __init__(self, url: str, timeout: float = 60.0) -> None:
        self.url = url
        self.timeout = timeout
        #: How the server was paused by us and not resumed since: mode, and whether its caches were cleared.
        self._paused: tuple[str, bool] | None = None

    def healthy(self, timeout: float) -> bool:
        try:
            self._call("GET", "/health", timeout=timeout)
        except EngineError:
            return False
        return True

    def pause(self, mode: str, clear_cache: bool) -> None:
        """Stop scheduling. Running requests are aborted, waited for, or kept where they are. `clear_cache` is always explicit:

        in keep mode vLLM obeys it too, although its documentation says otherwise, and with False the tokens after an update
        are computed on what the old weights left in the cache.
        """
        if mode not in PAUSE_MODES:
            raise EngineError(f"pause mode {mode!r} is none of {', '.join(PAUSE_MODES)}", where=self.url)
        self._call("POST", f"/pause?mode={mode}&clear_cache={str(clear_cache).lower()}")
        self._paused = (mode, clear_cache)

    def resume(self) -> None:
        self._call("POST", "/resume")
        self._paused = None

    def sleep(self, level: int) -> None:
        """Free device memory; running requests are aborted and caches dropped. Level 1 keeps the weights on the host, 2 keeps none."""
        self._call("POST", f"/sleep?level={level}&mode=abort")

    def wake_up(self, *tags: str) -> None:
        """Take back the memory of `tags` ("weights", "kv_cache"), all without any. Scheduling goes on when everything is back."""
        self._call("POST", "/wake_up" + ("?" + "&".join(f"tags={tag}" for tag in tags) if tags else ""))

    def is_paused(self) -> bool:
        return bool(self._call("GET", "/is_paused")["is_paused"])

    def weight_version(self) -> str:
        return str(self._call("GET", "/weight_info")["weight_version"])

    def configuration(self) -> dict[str, Any]:
        """The configuration that the server runs with, as nested plain values."""
        return dict(self._call("GET", "/server_info?config_format=json")["vllm_config"])

    def world_size(self) -> int:
        """Workers of this engine, data parallel replicas included: as many receivers of weights."""
        return int(self._call("GET", "/get_world_size")["world_size"])

    def checksums(self) -> dict[str, str]:
        """vLLM's own hash of each parameter in the workers. On a CPU packed linear weights hash as empty."""
        return dict(self._call("POST", "/weight_checker", {"action": "checksum"})["checksums"])

    def init_weight_transfer(self, first_worker: int, timeout: float) -> None:
        self._call(
            "POST",
            "/init_weight_transfer_engine",
            {"init_info": {"first_worker": first_worker, "timeout": timeout}},
        )

    def update_weights(
        self, offer: Offer, pause_mode: str = "abort", received: Callable[[], None] = lambda: None
    ) -> None:
        """Take `offer`: pause (unless that was done), stage, verify, load, set the version, resume. Of a prefetched one only the loading is
        within the pause. Caches that the offer flushes were cleared by the pause, and nothing is computed before the end.

        `received` is called after a prefetched offer's receiving has begun, and returns when it is over. Any failure raises and leaves the
        engine paused: it holds the old weights, the new ones or neither, and must be replaced.
        """
        if not offer.prefetch:
            self._be_paused(pause_mode, offer.flush_cache)
        self._call("POST", "/start_weight_update")
        self._call("POST", "/update_weights", {"update_info": {"offer": offer.to_dict()}})
        if offer.prefetch:
            received()
            self._be_paused(pause_mode, offer.flush_cache)
        self._call("POST", "/finish_weight_update", {"weight_version": offer.version})
        if (found := self.weight_version()) != offer.version:
            raise EngineError(
                f"the engine says it holds version {found} after the update to {offer.version}", where=self.url
            )
        self.resume()

    def _be_paused(self, mode: str, clear_cache: bool) -> None:
        if self._paused != (mode, clear_cache):
            self.pause(mode, clear_cache)

    def _call(self, method: str, route: str, body: dict[str, Any] | None = None, timeout: float | None = None) -> Any:
        data = json.dumps(body).encode() if body is not None else (b"" if method == "POST" else None)
        request = urllib.request.Request(self.url + route, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout or self.timeout) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            raise EngineError(f"{route} answered {error.code}: {_reason(error)}", where=self.url) from error
        except OSError as error:
            raise EngineError(f"{route} did not answer: {error}", where=self.url) from error
        try:
            return json.loads(text) if text else None
        except ValueError:
            return None  # /health and its like answer with an empty or plain body


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")[:400]
    try:
        inner = json.loads(text).get("error", text)
    except (ValueError, AttributeError):
        return text
    return str(inner.get("message", inner) if isinstance(inner, dict) else inner)
