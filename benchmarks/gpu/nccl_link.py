"""Sender and receiver of the NCCL medium without an engine: eight gigabytes of bf16 tensors from one GPU to another, checked and timed.

python nccl_link.py send ADDRESS_FILE | python nccl_link.py receive ADDRESS_FILE
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from common import report

TENSORS, ROWS, COLUMNS, LIMIT, ROUNDS = 128, 4096, 8192, 512 << 20, 5


def main() -> dict[str, object]:
    import torch

    from vime.transport import nccl
    from vime.transport.bucket import Offer, views
    from vime.transport.stream import layout

    role, place = sys.argv[1], Path(sys.argv[2])
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    if role == "send":
        base = torch.randn(ROWS, COLUMNS, device=device, dtype=torch.bfloat16)
        weights = [(f"w{i}", base + i) for i in range(TENSORS)]
        sender = nccl.Sender("127.0.0.1", 1, device, 30.0)
        metas = layout(weights, LIMIT)
        place.with_suffix(".tmp").write_text(json.dumps(Offer("0", "nccl", metas, sender.address, 1).to_dict()))
        place.with_suffix(".tmp").rename(place)
        times = []
        for round_ in range(ROUNDS):
            began = time.perf_counter()
            sender.send(Offer(str(round_), "nccl", metas, sender.address, 1), weights)
            times.append(time.perf_counter() - began)
        sender.close()
        size = sum(meta.nbytes for meta in metas)
        return {
            "bytes": size,
            "seconds": [round(t, 4) for t in times],
            "gb_per_s": round(size / min(times[1:]) / 1e9, 1),
        }
    while not place.exists():
        time.sleep(0.05)
    offer = Offer.from_dict(json.loads(place.read_text()))
    receiver = nccl.Receiver(device, 30.0)
    sums = []
    for round_ in range(ROUNDS):
        total = torch.zeros((), device=device, dtype=torch.float64)
        for meta, data in receiver.receive(Offer(str(round_), "nccl", offer.buckets, offer.address, 1), 0):
            if round_ == 0:
                total += sum(tensor.double().mean() for _, tensor in views(data, meta))
        sums.append(float(total))
    receiver.close()
    return {"mean_of_all": sums[0] / TENSORS, "expected": (TENSORS - 1) / 2}


report(main)
