"""``vllm-pull_weights.patch``: publications as a trainer writes them, pulled by a real server."""

from __future__ import annotations

import hashlib
import itertools
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

PROMPT = [5, 17, 99, 200, 42, 7, 33]
#: Versions of one test must not be mistaken for those of another: the server's local copy outlives the test.
START = itertools.count(100, 100)


def raw(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().flatten().view(torch.uint8)


class Publisher:
    """Writes versions of a checkpoint; ``weights`` is what the last one amounts to."""

    def __init__(self, folder: Path, model: Path) -> None:
        from safetensors.torch import load_file

        self.folder = folder
        self.version = next(START)
        self.weights: dict[str, Any] = load_file(model / "model.safetensors")

    def _write(self, tensors: dict[str, Any], base: int | None, changed: list[str], **parts: Any) -> int:
        from safetensors.torch import save_file

        target = self.folder / f"weight_v{self.version:06d}"
        target.mkdir(parents=True)
        # Two files, as a sharded checkpoint has.
        for i in range(2):
            save_file(dict(list(tensors.items())[i::2]), target / f"part-{i}.safetensors")
        manifest = {
            "version": self.version,
            "base_version": base,
            "tensors": {name: hashlib.sha256(raw(self.weights[name]).numpy()).hexdigest() for name in changed},
            **parts,
        }
        (target / "manifest.json").write_text(json.dumps(manifest))
        return self.version

    def full(self) -> int:
        self.version += 1
        return self._write(self.weights, None, list(self.weights))

    def delta(self, encoding: str, seed: int) -> int:
        """Changes three tensors."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        names = [name for name in self.weights if name.endswith(("embed_tokens.weight", "o_proj.weight"))]
        old = {name: self.weights[name] for name in names}
        for name in names:
            self.weights[name] = old[name] + 0.1 * torch.randn(old[name].shape, generator=generator)
        payload = {name: raw(self.weights[name]) for name in names}
        if encoding == "xor":
            payload = {name: payload[name] ^ raw(old[name]) for name in names}
        self.version += 1
        return self._write(payload, self.version - 1, names, delta_encoding=encoding)

    def manifest(self, version: int) -> Path:
        return self.folder / f"weight_v{version:06d}" / "manifest.json"


@pytest.fixture
def publisher(tmp_path: Path, models: dict[str, Path]) -> Publisher:
    return Publisher(tmp_path / "published", models["b"])


@pytest.fixture
def agrees(dense: Any, models: dict[str, Path]) -> Iterator[Any]:
    """Whether the engine generates with these weights: its greedy tokens and log-probabilities against Hugging Face."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(models["a"], dtype=torch.float32)

    def check(weights: dict[str, Any]) -> bool:
        model.load_state_dict(weights)
        choice = dense.generate(PROMPT, max_tokens=12, temperature=0, logprobs=0)["choices"][0]
        tokens = choice["token_ids"]
        with torch.no_grad():
            logprobs = model(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
        given = torch.tensor([entry["logprob"] for entry in choice["logprobs"]["content"]])
        expected = logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        return logprobs.argmax(-1).tolist() == tokens and torch.allclose(given, expected, atol=1e-4)

    return check


def test_full_then_deltas(dense: Any, publisher: Publisher, agrees: Any) -> None:
    """A full version, then an XOR and an overwrite delta in one pull; the answers carry the version."""
    first = publisher.full()
    pulled = dense.post("/pull_weights", {"source": str(publisher.folder)})
    assert (pulled["state"], pulled["weight_version"]) == ("updated", str(first))
    assert pulled["workers"][0]["seeded_from"] == first
    assert agrees(publisher.weights)

    deltas = [publisher.delta("xor", 1), publisher.delta("overwrite", 2)]
    pulled = dense.post("/pull_weights", {"source": str(publisher.folder), "weight_version": "step-2"})
    assert pulled["workers"][0]["seeded_from"] is None
    assert pulled["workers"][0]["deltas"] == deltas
    assert dense.get("/weight_info") == {"weight_version": "step-2"}
    assert dense.generate(PROMPT, max_tokens=1)["choices"][0]["weight_versions"][0]["version"] == "step-2"
    assert agrees(publisher.weights)
    # Again, and back: the same version changes nothing, an older one is seeded.
    assert dense.post("/pull_weights", {"source": str(publisher.folder)})["workers"][0]["deltas"] == []
    back = dense.post("/pull_weights", {"source": str(publisher.folder), "version": deltas[0]})
    assert back["workers"][0]["seeded_from"] == first
    assert not agrees(publisher.weights)


def test_a_corrupt_delta_leaves_the_old_weights(dense: Any, publisher: Publisher, agrees: Any) -> None:
    """A wrong checksum and a missing base are refused by name; the old weights serve, and the next good pull works."""
    publisher.full()
    source = {"source": str(publisher.folder)}
    dense.post("/pull_weights", source)
    before = dict(publisher.weights)
    version = publisher.delta("xor", 3)
    good = publisher.manifest(version).read_text()
    broken = json.loads(good)
    name = next(iter(broken["tensors"]))
    broken["tensors"][name] = "0" * 64
    publisher.manifest(version).write_text(json.dumps(broken))
    refused = dense.post("/pull_weights", source, expect=409)
    assert refused["state"] == "unchanged"
    assert name in refused["error"]
    assert agrees(before)
    assert dense.get("/weight_info")["weight_version"] == str(version - 1)

    orphan = {**broken, "base_version": version - 50}
    publisher.manifest(version).write_text(json.dumps(orphan))
    assert f"version {version - 50} is not in" in dense.post("/pull_weights", source, expect=409)["error"]

    publisher.manifest(version).write_text(good)
    # The local copy had the delta half applied: it is not trusted.
    assert dense.post("/pull_weights", source)["workers"][0]["seeded_from"] == version - 1
    assert agrees(publisher.weights)


def test_a_killed_apply_is_seeded_again(
    dense: Any, publisher: Publisher, agrees: Any, inside: Any, local_copy: Path
) -> None:
    """XOR applied twice would be wrong: a process killed after writing a delta leaves a copy that is not trusted."""
    first = publisher.full()
    dense.post("/pull_weights", {"source": str(publisher.folder)})
    version = publisher.delta("xor", 4)
    killed = inside.run("killed_apply.py", str(local_copy), str(publisher.folder), str(version))
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert json.loads((local_copy / "state.json").read_text())["applying"] == version
    pulled = dense.post("/pull_weights", {"source": str(publisher.folder)})
    assert pulled["workers"][0]["seeded_from"] == first
    assert pulled["workers"][0]["deltas"] == [version]
    assert agrees(publisher.weights)


def test_a_failed_load_makes_the_engine_unusable(dense: Any, publisher: Publisher) -> None:
    """Weights of another shape fail while loading: no request is answered with a mixture. Ends the server, so it stands last."""
    publisher.full()
    source = {"source": str(publisher.folder)}
    dense.post("/pull_weights", source)
    name = "model.layers.1.mlp.down_proj.weight"
    good = publisher.weights[name]
    publisher.weights[name] = good[:, :-8].contiguous()
    publisher.full()
    assert dense.post("/pull_weights", source, expect=500)["state"] == "unusable"
    assert dense.http.get("/health").status_code == 503
    assert "error" in dense.get("/weight_info")
    dense.post("/resume", expect=500)
    dense.post("/inference/v1/generate", dense.request(PROMPT, max_tokens=1), expect=500)
    # vLLM cannot undo a reload that stopped half-way, so a good version does not help either.
    publisher.weights[name] = good
    publisher.full()
    assert dense.post("/pull_weights", source, expect=500)["state"] == "unusable"
    dense.stop()
