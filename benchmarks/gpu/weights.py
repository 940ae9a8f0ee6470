"""Weights to an engine on the trainer's GPU: how long generation stands still, exactness, and memory over many sleep, wake and sync cycles."""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from typing import Any

from common import ask, attempt, gpu_used, median, model_folder, open_trainer, parameters, report, server

PROMPT = list(range(100, 132))


class Updates:
    """Trainer and engine as a run joins them, in one process: the sender's calls in the order of `WeightUpdater`."""

    def __init__(self, trainer: Any, control: Any) -> None:
        from vime.transport.sender import open_sender

        self.trainer, self.control, self.version = trainer, control, 0
        self.sender = open_sender(trainer.args, "bench")
        self.calls: dict[str, list[float]] = {}
        call = control._call

        def timed(method: str, route: str, *rest: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(method, route, *rest, **named)
            finally:
                self.calls.setdefault(route.split("?")[0], []).append(time.perf_counter() - began)

        control._call = timed
        control.init_weight_transfer(0, 60.0)

    def push(self, pause: str = "abort", flush: bool = True) -> dict[str, float]:
        """Seconds of the whole update and of the pause in it."""
        self.version += 1
        began = time.perf_counter()
        offer = self.sender.offer(self.trainer, 0, str(self.version), 1, flush)
        offered = time.perf_counter()
        failure: list[BaseException] = []

        def take() -> None:
            from functools import partial

            from vime.transport.stream import await_sent

            try:
                self.control.update_weights(offer, pause, partial(await_sent, offer, 60.0))
            except BaseException as error:
                failure.append(error)
                from vime.transport.stream import report_failure

                report_failure(offer.address, str(error))

        thread = threading.Thread(target=take)
        thread.start()
        try:
            self.sender.send()
        finally:
            thread.join()
        self.sender.done()
        if failure:
            raise failure[0]
        return {
            "total_s": time.perf_counter() - began,
            "paused_s": time.perf_counter() - offered,
            "bytes": offer.nbytes,
            "staging": self.sender.staging,
        }


class Watch:
    """Generation in the background, token by token; the longest silence between two tokens tells a pause as its user sees it."""

    def __init__(self, url: str, model: str, streams: int = 8) -> None:
        self.url, self.model, self.times, self._stop = url, model, [], threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(streams)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        import json
        import urllib.request

        while not self._stop.is_set():
            body = {
                "model": self.model,
                "prompt": PROMPT,
                "max_tokens": 1500,
                "stream": True,
                "ignore_eos": True,
                "temperature": 1.0,
            }
            request = urllib.request.Request(
                self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:
                    for line in reply:
                        if line.startswith(b"data:"):
                            self.times.append(time.perf_counter())
                        if self._stop.is_set():
                            return
            except OSError:
                time.sleep(0.01)

    def longest(self, since: float, until: float) -> float:
        seen = sorted(t for t in self.times if since - 0.5 <= t <= until + 0.5)
        return max((b - a for a, b in itertools.pairwise(seen) if b > since), default=float("nan"))

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(5)


def pauses(updates: Updates, folder: Any) -> dict[str, Any]:
    """Updates while eight answers are being generated, kept where they are."""
    watch = Watch(updates.control.url, str(folder))
    time.sleep(1.5)
    usual = sorted(watch.times)
    step = median([b - a for a, b in itertools.pairwise(usual)][-400:])
    rows, silences = [], []
    updates.calls.clear()
    for _ in range(6):
        began = time.perf_counter()
        rows.append(updates.push(pause="keep", flush=False))
        time.sleep(0.4)
        silences.append(watch.longest(began, began + rows[-1]["total_s"]))
    watch.stop()
    return {
        "silence_ms": [round(1e3 * s, 1) for s in silences], "median_silence_ms": round(1e3 * median(silences[1:]), 1),
        "calls_ms": {route: round(1e3 * median(seconds[1:]), 2) for route, seconds in updates.calls.items()},
        "usual_gap_ms": round(1e3 * step, 2), "paused_ms": round(1e3 * median([r["paused_s"] for r in rows[1:]]), 1),
        "total_ms": round(1e3 * median([r["total_s"] for r in rows[1:]]), 1), "bytes": rows[0]["bytes"], "staging_bytes": rows[0]["staging"],
        "gb_per_s": round(rows[0]["bytes"] / median([r["paused_s"] for r in rows[1:]]) / 1e9, 1),
    }  # fmt: skip


def answers(url: str) -> list[Any]:
    found = ask(url, [PROMPT, PROMPT[::-1], PROMPT[:7]], 24)
    return [(one.token_ids, one.logprobs) for one in found]


def gap(trainer: Any, given: list[Any]) -> float:
    """Mean |log p trainer - log p engine| over these answers."""
    from vime.sample import Sample

    made = []
    for index, (prompt, (tokens, log_probs)) in enumerate(zip([PROMPT, PROMPT[::-1], PROMPT[:7]], given, strict=True)):
        made.append(
            Sample(
                index=index, group_index=index, rollout_id=index, tokens=prompt + tokens, response_length=len(tokens),
                loss_mask=[1] * len(tokens), reward=0.0, rollout_log_probs=log_probs,
            )
        )  # fmt: skip
    return trainer.parity(made).mean


def cycles(updates: Updates, count: int) -> dict[str, Any]:
    """Sleep, trainer in, trainer out, wake, sync: the same answers and the same memory each time."""
    trainer, control = updates.trainer, updates.control
    updates.push()
    before = answers(control.url)
    used, times, wrong = [], [], 0
    for number in range(count):
        began = time.perf_counter()
        control.sleep(2)
        trainer.onload()
        trainer.offload(keep_weights=True)
        control.wake_up("weights")
        updates.push()
        trainer.offload()
        control.wake_up("kv_cache")
        times.append(time.perf_counter() - began)
        if number % 10 == 9 or number < 2:
            wrong += answers(control.url) != before
        used.append(gpu_used())
    trainer.onload()
    return {
        "cycles": count, "median_s": round(median(times), 3), "answers_that_differ": wrong,
        "used_gib": [round(u / 2**30, 3) for u in used[:: max(1, count // 10)]], "growth_mib_after_5": round((used[-1] - used[min(4, count - 1)]) / 2**20, 1),
    }  # fmt: skip


def perturb(trainer: Any) -> None:
    import torch

    with torch.no_grad():
        for p in trainer.model.parameters():
            if p.dim() > 1:
                p.add_(torch.randn_like(p) * 0.01)


def part() -> dict[str, Any]:
    options = argparse.ArgumentParser()
    options.add_argument("shape")
    options.add_argument("--cycles", type=int, default=100)
    given = options.parse_args()
    folder = model_folder(given.shape)
    result: dict[str, Any] = {"shape": given.shape, "parameters": parameters(given.shape)}
    graphs = '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}'
    sleeping = given.cycles > 0
    with server(
        folder,
        vllm_gpu_memory_utilization=0.35,
        vllm_max_num_seqs=64,
        rollout_max_context_len=2048,
        rollout_max_response_len=1024,
        vllm_compilation_config=graphs,
    ) as control:
        result["engine_start_s"] = round(control.started, 1)
        if sleeping:
            attempt(result, "first_sleep", lambda: control.sleep(1))
            attempt(result, "first_wake", lambda: control.wake_up())
        trainer = open_trainer(folder)
        updates = Updates(trainer, control)
        attempt(result, "first_update", lambda: updates.push())
        attempt(result, "parity_after_first", lambda: gap(trainer, answers(control.url)))
        perturb(trainer)
        attempt(result, "update_of_other_weights", lambda: updates.push())
        attempt(result, "parity_after_change", lambda: gap(trainer, answers(control.url)))
        attempt(result, "pauses", lambda: pauses(updates, folder))
        if sleeping:
            attempt(result, "cycles", lambda: cycles(updates, given.cycles))
            attempt(result, "parity_after_wake", lambda: gap(trainer, answers(control.url)))
    return result


if __name__ == "__main__":
    report(part)
