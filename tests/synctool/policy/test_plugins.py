"""What else is installed has no say in a policy."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("before", [None, "logfire-plugin"])
def test_plugins_of_pydantic_are_not_loaded(tmp_path, before):
    (tmp_path / "meddler.py").write_text("print('loaded')\nplugin = None\n")
    folder = tmp_path / "meddler-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: meddler\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[pydantic]\nmeddler = meddler:plugin\n")
    code = "import os, synctool.policy.model; print(os.environ.get('PYDANTIC_DISABLE_PLUGINS'))"
    environment = {name: value for name, value in os.environ.items() if name != "PYDANTIC_DISABLE_PLUGINS"}
    environment |= {"PYTHONPATH": str(tmp_path)} | ({"PYDANTIC_DISABLE_PLUGINS": before} if before else {})
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{before}\n"
