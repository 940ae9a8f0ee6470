"""Main module of a router process: vllm-router on a port that was held until this moment, ending with the process that started it."""

from __future__ import annotations

import argparse
import os
import runpy
import socket
import sys

from vime.engine.server import end_with_parent


def main(argv: list[str]) -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--vime-socket-fd", type=int, required=True)
    own.add_argument("--vime-parent-fd", type=int, required=True)
    options, flags = own.parse_known_args(argv)
    end_with_parent(options.vime_parent_fd)
    # It cannot take a socket over, so the port is free for an instant; the caller tries again when it is lost.
    with socket.socket(fileno=os.dup(options.vime_socket_fd)) as held:
        host, port = held.getsockname()[:2]
    os.close(options.vime_socket_fd)
    sys.argv = ["vllm-router", "--host", host, "--port", str(port), *flags]
    runpy.run_module("vllm_router.launch_router", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
