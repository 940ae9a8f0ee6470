"""Site-packages: proven before, switched in one step, taken back to the byte; killed at every step it is the old tree or the new one."""

from __future__ import annotations

import base64
import hashlib
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from synctool.errors import Refused, RepositoryError
from synctool.patches import install, swap
from synctool.patches.record import RECORD_NAME, read_record
from synctool.patches.stack import load_stack, try_stack
from synctool.patches.store import open_pin
from synctool.patches.target import find_target

from .conftest import FILES, House

EDITS: dict[str, bytes | None] = {
    "engine/core.py": FILES["engine/core.py"].replace(b"x + 3", b"x + 30"),
    "engine/new/deep.py": b"NEW = 1\n",
    "engine/sub/util.py": None,
    "README.md": b"# patched\n",
}


def snapshot(site: Path) -> dict[str, bytes]:
    return {
        p.relative_to(site).as_posix(): p.read_bytes()
        for p in sorted(site.rglob("*"))
        if p.is_file() and p.suffix != ".pyc"
    }


@pytest.fixture
def patched(house: House) -> tuple[House, Path]:
    house.add("one.patch", EDITS)
    return house, house.install()


def plan_of(house: House, site: Path) -> install.InstallPlan:
    """What ``patch apply`` would do."""
    stack = load_stack(house.stack)
    source = open_pin(stack.pin, dry=True)
    application = try_stack(source.tree, stack.patches, stack.pin.allowed)
    plan = install.plan_install(stack, application, source.tree, find_target("engine", site))
    source.repo.close()
    return plan


def apply_now(house: House, site: Path) -> None:
    """What ``patch apply`` does, in this process."""
    install.install(plan_of(house, site))


def test_verify_apply_status_noop_revert(patched: tuple[House, Path]) -> None:
    house, site = patched
    assert house.run("verify")["data"]["patches"] == 1
    before = snapshot(site)
    where = ("--site-packages", str(site))
    assert house.run("status", *where)["data"]["state"] == "stock"
    planned = house.run("apply", *where, "--dry-run")
    assert snapshot(site) == before
    told = house.run("apply", *where)["data"]
    assert told["tree"] == planned["data"]["tree"]
    assert told["installation"]["differing"] == ["_version.py"]
    assert told["installation"]["not_installed"] == ["README.md"]
    assert (site / "engine/core.py").read_bytes() == EDITS["engine/core.py"]
    assert (site / "engine/new/deep.py").read_bytes() == b"NEW = 1\n"
    assert not (site / "engine/sub").exists()
    status = house.run("status", *where)["data"]
    assert (status["state"], status["digest"], status["is_this_stack"]) == (
        "patched",
        load_stack(house.stack).digest,
        True,
    )
    after = snapshot(site)
    house.run("apply", *where, code=4)
    assert snapshot(site) == after
    assert house.run("revert", *where, "--dry-run")["data"]["digest"] == status["digest"]
    house.run("revert", *where)
    assert snapshot(site) == before
    house.run("revert", *where, code=4)


def test_record_says_what_runs_and_uninstall_finds_everything(patched: tuple[House, Path]) -> None:
    house, site = patched
    apply_now(house, site)
    value = json.loads((site / "engine" / RECORD_NAME).read_text())
    stack = load_stack(house.stack)
    assert value["digest"] == stack.digest
    assert value["patches"] == [{"name": "one.patch", "sha256": stack.patches[0].sha256}]
    listed = {line.partition(",")[0] for line in (site / "engine_cpu-1.0.dist-info/RECORD").read_text().splitlines()}
    present = {p.relative_to(site).as_posix() for p in (site / "engine").rglob("*") if p.is_file()}
    assert present <= listed
    assert "engine/sub/util.py" not in listed
    rows = dict(line.split(",")[:2] for line in (site / "engine_cpu-1.0.dist-info/RECORD").read_text().splitlines())
    digest = hashlib.sha256((site / "engine/core.py").read_bytes()).digest()
    assert rows["engine/core.py"] == "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def test_stale_byte_code_does_not_survive(patched: tuple[House, Path]) -> None:
    house, site = patched
    ask = [sys.executable, "-c", "import engine.core as c; print(c.step_03(0))"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPATH": str(site)}

    def answer() -> str:
        return subprocess.run(ask, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert answer() == "3"
    assert list((site / "engine/__pycache__").glob("core.*.pyc"))
    times = (site / "engine/core.py").stat()
    apply_now(house, site)
    os.utime(site / "engine/core.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert answer() == "30"
    install.revert(find_target("engine", site))
    assert answer() == "3"


@pytest.mark.parametrize("change", ["touched", "half", "version", "record", "original"])
def test_what_is_not_the_pin_or_the_record_is_refused(patched: tuple[House, Path], change: str) -> None:
    house, site = patched
    where = ("--site-packages", str(site))
    if change == "touched":
        (site / "engine/core.py").write_bytes(b"edited = 1\n")
        code, says = 6, "engine"
    elif change == "half":
        edit = EDITS["engine/core.py"]
        assert edit is not None
        (site / "engine/core.py").write_bytes(edit)
        code, says = 6, "core.py"
    elif change == "version":
        info = site / "engine_cpu-1.0.dist-info/METADATA"
        info.write_text(info.read_text().replace("1.0+cpu", "1.1"))
        code, says = 6, "1.1 is installed"
    else:
        apply_now(house, site)
        if change == "record":
            (site / "engine/core.py").write_bytes(b"edited = 1\n")
        else:
            (site / "engine/.vime-patch-originals/core.py").write_bytes(b"lost")
        before = snapshot(site)
        house.run("revert", *where, code=6)
        assert snapshot(site) == before
        return
    before = snapshot(site)
    told = house.run("apply", *where, code=code)
    assert says in told["error"]["title"] + str(told["error"]["where"])
    assert snapshot(site) == before
    assert house.run("status", *where, code=0 if change == "version" else 1)["data"]["state"] == (
        "stock" if change == "version" else "foreign"
    )


def test_another_stack_takes_its_place_in_one_step(patched: tuple[House, Path]) -> None:
    house, site = patched
    before = snapshot(site)
    apply_now(house, site)
    house.add(
        "two.patch",
        {"engine/core.py": FILES["engine/core.py"].replace(b"x + 5", b"x + 50"), "engine/last.py": b"Z = 1\n"},
    )
    where = ("--site-packages", str(site))
    house.run("apply", *where, code=6)
    house.run("apply", *where, "--replace")
    record = read_record(site / "engine")
    assert record is not None
    assert record.digest == load_stack(house.stack).digest
    assert house.run("status", *where)["data"]["is_this_stack"] is True
    house.run("revert", *where)
    assert snapshot(site) == before


def test_a_running_process_is_not_patched_under(patched: tuple[House, Path]) -> None:
    house, site = patched
    with (site / "engine/data.bin").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        ready, hold = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"x")
            os.read(hold[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
    before = snapshot(site)
    try:
        told = house.run("apply", "--site-packages", str(site), code=5)
        assert str(child) in told["error"]["title"]
        assert snapshot(site) == before
    finally:
        os.write(hold[1], b"x")
        os.waitpid(child, 0)
    house.run("apply", "--site-packages", str(site))


def test_two_runs_at_once_are_refused(patched: tuple[House, Path]) -> None:
    house, site = patched
    with swap.locked(site), pytest.raises(RepositoryError, match="another vime-sync"):
        apply_now(house, site)


# ---- SIGKILL ---------------------------------------------------------------------------------------------------------------------------------

#: Python's audit events for everything that touches the file system.
_EVENTS = {
    "open",
    "os.rename",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.chmod",
    "os.chown",
    "os.utime",
    "shutil.rmtree",
    "os.listdir",
    "os.scandir",
}


def run_and_kill(step: int, work: Callable[[], None], below: Path) -> bool:
    """Run ``work`` in a child that is killed before its ``step``-th file operation below a folder. False: it ended before that."""
    child = os.fork()
    if child == 0:
        count = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            # Operations by folder handle (rmtree) name no folder: they count too.
            if (
                event in _EVENTS
                and arguments
                and (str(below) in str(arguments[0]) or not str(arguments[0]).startswith("/"))
            ):
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(watch)
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def code_of(site: Path) -> dict[str, bytes]:
    return snapshot(site / "engine")


@pytest.mark.parametrize("action", ["apply", "revert"])
@pytest.mark.parametrize("by", ["exchange", "files"])
def test_sigkill_at_every_step_leaves_old_or_new(
    patched: tuple[House, Path], action: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, site = patched
    monkeypatch.setattr(install, "users_of", lambda package: [])  # looks at every process, a hundred times here
    if by == "files":
        monkeypatch.setattr(swap, "_can_exchange", lambda package: False)
    stock = snapshot(site)
    apply_now(house, site)
    new = snapshot(site)
    old, goal = (stock, new) if action == "apply" else (new, stock)
    pure = {
        "old": {k: v for k, v in old.items() if k.startswith("engine/")},
        "new": {k: v for k, v in goal.items() if k.startswith("engine/")},
    }
    spare = house.root / "spare"
    if action == "apply":
        install.revert(find_target("engine", site))
    shutil.copytree(site, spare)

    plan = plan_of(house, site) if action == "apply" else None

    def work() -> None:
        if plan is not None:
            install.install(plan)
        else:
            install.revert(find_target("engine", site))

    seen: set[str] = set()
    step = 1
    while True:
        shutil.rmtree(site)
        shutil.copytree(spare, site)
        killed = run_and_kill(step, work, site)
        target = find_target("engine", site)
        status = install.look(target)
        found = {f"engine/{k}": v for k, v in code_of(site).items()}
        if by == "exchange":
            # The tree on disk is whole at every moment, and the state says which it is.
            assert found in pure.values(), step
            assert not status.pending
            assert status.state == ("patched" if (site / "engine" / RECORD_NAME).exists() else "stock")
            seen.add("old" if found == pure["old"] else "new")
        elif found not in pure.values():
            assert status.pending, step  # mixed, and the status says so
            seen.add("mixed")
        if not killed:
            break
        # Whatever was left, the next run carries on: first to a whole tree, then to the goal.
        install.finish_interrupted(target)
        assert {f"engine/{k}": v for k, v in code_of(site).items()} in pure.values(), step
        assert not swap.work_folder(site / "engine").exists()
        if (install.look(target).record is None) == (action == "apply"):
            work()
        assert snapshot(site) == goal, step
        step += 1
    assert snapshot(site) == goal
    assert step > 20
    assert seen >= ({"old", "new"} if by == "exchange" else {"mixed"})


def test_symlinked_package_is_refused(patched: tuple[House, Path]) -> None:
    _, site = patched
    (site / "engine").rename(site / "real")
    (site / "engine").symlink_to("real")
    with pytest.raises(Refused, match="symbolic link"):
        find_target("engine", site)
