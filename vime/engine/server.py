"""Main module of a server process: vLLM's API server on an inherited socket, which ends with the process that started it.

Run as a module, since the `vllm` command of the CPU wheel looks its version up under a distribution that does not exist.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import threading

from vime import environment
from vime.cluster.processes import kill_group

#: Names the folder of temporary files that goes with the server.
FOLDER_VARIABLE = "VIME_SERVER_FOLDER"


def main(argv: list[str]) -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--vime-socket-fd", type=int, required=True)
    own.add_argument("--vime-parent-fd", type=int, required=True)
    options, flags = own.parse_known_args(argv)
    end_with_parent(options.vime_parent_fd)
    # Threads are `command.server_environment`'s decision. On a GPU it leaves them to vLLM, which serves with one where none are set.
    print(f"engine: {environment.raise_file_limit()}", flush=True)
    serve(socket.socket(fileno=options.vime_socket_fd), flags)


def end_with_parent(fd: int) -> None:
    """Kill this process group when the other end of the pipe `fd` closes.

    That happens however the parent ends, SIGKILL included. (The kernel's own parent-death signal is bound to the parent's
    *thread*, and an actor's threads come and go.)
    """

    def watch() -> None:
        while os.read(fd, 1):
            pass
        kill_group(os.getpgrp())
        if FOLDER_VARIABLE in os.environ:
            shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def serve(sock: socket.socket, flags: list[str]) -> None:
    import uvloop
    from vllm.entrypoints.launchers.api_server.entry import run_server_worker
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from vime.engine import flat, number_lists, pausing

    cli_env_setup()
    flat.install()
    pausing.install()
    number_lists.install()
    host, port = sock.getsockname()[:2]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args([*flags, "--host", host, "--port", str(port)])
    validate_parsed_serve_args(args)
    uvloop.run(run_server_worker(f"{host}:{port}", sock, args))


if __name__ == "__main__":
    main(sys.argv[1:])
