"""One end of a weight transfer over gloo: ``send HOST`` prints its port and sends, ``receive HOST PORT`` prints what came."""

from __future__ import annotations

import sys

import torch

from vime.transport import gloo
from vime.transport.bucket import Offer, pack


def main(role: str, host: str, port: str = "0") -> None:
    buckets = list(pack([("w", torch.arange(6, dtype=torch.float32))], 1 << 20))
    metas = tuple(bucket.meta() for bucket in buckets)
    if role == "send":
        sender = gloo.Sender(host, 1, 20.0)
        print(sender.address[1], flush=True)
        sender.send(buckets)
        return
    for _, data in gloo.receive(Offer("1", "gloo", metas, (host, int(port)), 1), 0, 20.0):
        print(data.view(torch.float32)[:6].tolist())


if __name__ == "__main__":
    main(*sys.argv[1:])
