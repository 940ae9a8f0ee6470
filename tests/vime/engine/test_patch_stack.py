"""The engine's patch stack is read from the record that the sync tool writes, and only from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from synctool.patches.record import RECORD_NAME, InstalledStack
from vime.engine import patch_stack


def test_the_record_of_the_sync_tool_is_understood(tmp_path: Path) -> None:
    assert patch_stack.RECORD_NAME == RECORD_NAME
    record = InstalledStack(
        "vllm", "0.32.0", "0" * 64, "ab" * 32, "cd" * 20, (("a.patch", "1" * 64), ("b.patch", "2" * 64)), {}, (), ()
    )
    (tmp_path / RECORD_NAME).write_bytes(record.encode())
    found = patch_stack.installed_stack(tmp_path)
    assert found is not None
    assert (found.version, found.digest, found.patches) == ("0.32.0", "ab" * 32, ("a.patch", "b.patch"))
    assert found.describe() == "vLLM 0.32.0 with 2 patches, stack " + "ab" * 8


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"version": "1"}'])
def test_without_a_whole_record_the_engine_counts_as_stock(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / RECORD_NAME).write_bytes(content)
    assert patch_stack.installed_stack(tmp_path) is None
