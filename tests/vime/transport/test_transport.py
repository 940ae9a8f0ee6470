"""Weights arrive as they were sent or not at all: buckets, shared memory, gloo, disk."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from vime.errors import EngineError, MachineError
from vime.transport import disk, gloo, shm, stream
from vime.transport.bucket import Bucket, BucketMeta, Offer, pack, unpack

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
SHAPES = st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple)
WEIGHTS = st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), min_size=1, max_size=8)


def tensors(spec: list[tuple[tuple[int, ...], torch.dtype]]) -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(0)
    return [(f"w{i}", (torch.randn(shape) * 50).to(dtype)) for i, (shape, dtype) in enumerate(spec)]


def assert_same(got: list[tuple[str, torch.Tensor]], sent: list[tuple[str, torch.Tensor]]) -> None:
    assert [name for name, _ in got] == [name for name, _ in sent]
    for (_, a), (_, b) in zip(got, sent, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert torch.equal(a, b)


@given(spec=WEIGHTS, limit=st.integers(1, 2000))
def test_buckets_hold_every_tensor_once_in_order_within_the_limit(
    spec: list[tuple[tuple[int, ...], torch.dtype]], limit: int
) -> None:
    sent = tensors(spec)
    buckets = list(pack(sent, limit))
    assert_same([item for bucket in buckets for item in unpack(bucket.data, bucket.meta())], sent)
    assert all(len(bucket.tensors) == 1 or bucket.data.numel() <= limit for bucket in buckets)


def test_a_bucket_is_a_copy_so_the_trainer_may_go_on() -> None:
    weight = torch.ones(3)
    (bucket,) = pack([("w", weight)], 100)
    weight.zero_()
    assert next(iter(unpack(bucket.data, bucket.meta())))[1].tolist() == [1, 1, 1]


@given(position=st.integers(0, 191), bit=st.integers(0, 7))
def test_one_flipped_bit_is_noticed(position: int, bit: int) -> None:
    (bucket,) = pack([("w", torch.arange(48, dtype=torch.float32))], 1000)
    meta = bucket.meta()
    bucket.data[position] ^= 1 << bit
    with pytest.raises(EngineError, match="damaged: the bucket that starts with w"):
        list(unpack(bucket.data, meta))


def test_an_offer_survives_json() -> None:
    import json

    (bucket,) = pack([("w", torch.zeros(2, 3))], 1000)
    for offer in (Offer("7", "shm", (bucket.meta("/x"),)), Offer("8", "gloo", (bucket.meta(),), ("::1", 5), 3, False)):
        assert Offer.from_dict(json.loads(json.dumps(offer.to_dict()))) == offer


@pytest.fixture
def run_id() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    shm.remove(name)


def test_shared_memory_round_trip_and_removal(run_id: str) -> None:
    sent = tensors([((4, 5), torch.float32), ((3,), torch.bfloat16), ((1000,), torch.float32)])
    metas = list(shm.write(pack(sent, 256), run_id, "1"))
    assert len(metas) > 1
    assert_same([item for meta in metas for item in unpack(shm.read(meta), meta)], sent)
    list(shm.write(pack(sent, 256), run_id, "2"))
    assert len(shm.remove(run_id, keep_version="2")) == len(metas)
    assert len(shm.remove(run_id)) == len(metas)
    assert not list(shm.SHARED_MEMORY.glob(shm.prefix(run_id) + "*"))


def test_shared_memory_that_takes_nothing_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shm, "SHARED_MEMORY", tmp_path / "none")
    with pytest.raises(MachineError, match="no weights could be written to shared memory: No such file"):
        list(shm.write(pack(tensors([((2,), torch.float32)]), 256), "run", "1"))


@pytest.mark.parametrize("receivers", [1, 3])
def test_gloo_gives_every_receiver_the_same(receivers: int) -> None:
    sent = tensors([((64, 64), torch.float32), ((5,), torch.bfloat16)])
    buckets = list(pack(sent, 1024))
    sender = gloo.Sender("127.0.0.1", receivers, timeout=30)
    offer = Offer("1", "gloo", tuple(b.meta() for b in buckets), sender.address, receivers)
    got: dict[int, list[tuple[str, torch.Tensor]]] = {}

    def receive(worker: int) -> None:
        got[worker] = [item for meta, data in gloo.receive(offer, worker, 30) for item in unpack(data, meta)]

    threads = [threading.Thread(target=receive, args=(i,)) for i in range(receivers)]
    for thread in threads:
        thread.start()
    sender.send(buckets)
    for thread in threads:
        thread.join()
    for worker in range(receivers):
        assert_same(got[worker], sent)


def test_gloo_ends_when_a_receiver_never_comes() -> None:
    sender = gloo.Sender("127.0.0.1", 1, timeout=3)
    with pytest.raises(EngineError, match="not every engine worker came"):
        sender.send([Bucket(torch.zeros(8, dtype=torch.uint8))])


def test_gloo_ends_at_once_on_every_side_when_an_engine_is_known_to_be_dead() -> None:
    """The trainer waited ten minutes for one that was killed before it had come, and so did the other engines."""
    sender = gloo.Sender("127.0.0.1", 2, timeout=600)
    offer = Offer("1", "gloo", (BucketMeta(8, 0, ()),), sender.address, 2)
    sides = {
        "trainer": lambda: sender.send([Bucket(torch.zeros(8, dtype=torch.uint8))]),
        "engine 1": lambda: list(gloo.receive(offer, 1, 600)),
    }
    said: dict[str, str] = {}

    def run(side: str) -> None:
        with pytest.raises(EngineError) as caught:
            sides[side]()
        said[side] = str(caught.value)

    threads = [threading.Thread(target=run, args=(side,)) for side in sides]
    for thread in threads:
        thread.start()
    stream.report_failure(sender.address, "engine 0 was killed")
    for thread in threads:
        thread.join(60)
    assert len(said) == 2
    assert all("given up: engine 0 was killed" in one for one in said.values()), said


def test_disk_files_are_verified_before_they_are_read(tmp_path: Path) -> None:
    folder = disk.version_folder(tmp_path, "3")
    folder.mkdir()
    weights = dict(tensors([((4, 4), torch.float32), ((2,), torch.bfloat16)]))
    save_file(weights, folder / "model.safetensors")
    (meta,) = disk.describe(folder)
    assert_same(sorted(disk.read(meta)), sorted(weights.items()))
    raw = bytearray(Path(meta.path).read_bytes())
    raw[-1] ^= 1
    Path(meta.path).write_bytes(bytes(raw))
    with pytest.raises(EngineError, match="another checksum"):
        list(disk.read(meta))
    with pytest.raises(EngineError, match="no such weight file") as caught:
        list(disk.read(BucketMeta(1, 1, (), str(tmp_path / "nothing"))))
    assert caught.value.hint is not None


def test_older_versions_are_removed(tmp_path: Path) -> None:
    for version in ("1", "2", "10"):
        disk.version_folder(tmp_path, version).mkdir()
    disk.remove_older(tmp_path, "10")
    assert [path.name for path in tmp_path.iterdir()] == ["weight_v000010"]
