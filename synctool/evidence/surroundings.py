"""What a command ran in, as far as it may matter later: versions, machine, a few variables. Secrets are removed; other variables are not even read."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from synctool import __version__
from synctool.redact import redact

#: Variables that change what a run computes, or say which run it is.
NAMES = (
    "BUILDKITE_BRANCH", "BUILDKITE_BUILD_NUMBER", "BUILDKITE_COMMIT", "BUILDKITE_LABEL", "BUILDKITE_RETRY_COUNT", "CI", "CUDA_VISIBLE_DEVICES",
    "GITHUB_RUN_ATTEMPT", "GITHUB_RUN_NUMBER", "GITHUB_SHA", "LANG", "LC_ALL", "NCCL_P2P_DISABLE", "OMP_NUM_THREADS", "PYTHONHASHSEED", "TZ",
)  # fmt: skip
#: A variable's value is kept up to so many characters.
MAX_VALUE = 500
_SECRET_OPTION = re.compile(r"--?[\w-]*(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|credential)s?", re.I)


def surroundings(
    extra: Iterable[str] = (), *, environ: Mapping[str, str] | None = None, tools: Sequence[str] = ("git",)
) -> dict[str, str]:
    """Versions and the named variables (``NAMES`` and ``extra``), redacted."""
    known = os.environ if environ is None else environ
    found = {
        "vime-sync": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpus": str(os.cpu_count() or 0),
    }
    for tool in tools:
        try:
            done = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=10)
            found[tool] = done.stdout.strip().partition("\n")[0]
        except (OSError, subprocess.TimeoutExpired):
            found[tool] = "not found"
    for name in sorted({*NAMES, *extra}):
        if name in known:
            # Redacted as an assignment, so that the variable's name helps to tell a secret.
            found[name] = redact(f"{name}={known[name][:MAX_VALUE]}")[len(name) + 1 :]
    return found


def redact_command(command: Sequence[str]) -> tuple[str, ...]:
    """A command without credentials, also those that follow their option as a word of their own, and with ``~`` for the home folder."""
    shown: list[str] = []
    hide = False
    home = os.path.expanduser("~")  # noqa: PTH111
    for word in command:
        shown.append("***" if hide else redact(re.sub(rf"(?<!\w){re.escape(home)}(?=/|$)", "~", word)))
        hide = not hide and _SECRET_OPTION.fullmatch(word) is not None
    return tuple(shown)
