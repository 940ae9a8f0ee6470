"""Both recorded syncs' repositories, generated once and copied for each test; a forge that answers as GitHub does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.records import world
from tests.e2e.records.world import World
from tests.once import filled_once
from tests.synctool.report.hub import Hub

TOKEN = "ghp_thisIsTheSecretOfTheTest0123456789"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world.at(filled_once(tmp_path_factory, "records", world.make))


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub("lamps/vime")
    yield server
    server.close()


@pytest.fixture
def fork(made: World, hub: Hub, tmp_path: Path) -> World:
    shutil.copytree(made.folder, tmp_path / "vime", symlinks=True)
    return replace(made, folder=tmp_path / "vime", environment={"GITHUB_API_URL": hub.url, "GITHUB_TOKEN": TOKEN})
