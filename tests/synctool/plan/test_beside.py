"""A second process changes nothing about the answers, whatever becomes of it, and never outlives the first."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from synctool.plan import beside as beside_module
from synctool.plan import present
from synctool.plan.beside import beside, may_fork
from synctool.plan.build import build_plan

FIRST = os.getpid()


@pytest.fixture
def forking(monkeypatch):
    """A second process begins whatever the machine and the test runner's threads are like."""
    monkeypatch.setattr(beside_module, "may_fork", lambda: True)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.usefixtures("forking")
def test_the_answers_come_from_another_process():
    with beside(lambda: [os.getpid(), "x" * (1 << 20)]) as later:
        pid, text = later()
    assert pid != FIRST
    assert len(text) == 1 << 20, "more than a pipe holds"
    assert not is_running(pid)


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("end", ["killed", "failed", "left", "silent"])
def test_what_the_second_process_does_not_answer_is_done_here(end):
    def work():
        yield os.getpid()
        if os.getpid() != FIRST:
            if end == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if end == "left":
                raise SystemExit(0)
            if end == "silent":
                os._exit(0)
            raise MemoryError
        yield "done"

    with beside(work) as later:
        assert list(later()) == [FIRST, "done"]


@pytest.mark.usefixtures("forking")
def test_a_mistake_in_the_work_is_told_here():
    with pytest.raises(ZeroDivisionError), beside(lambda: [1 // 0]) as later:
        list(later())


@pytest.mark.usefixtures("forking")
def test_what_is_not_wanted_any_more_is_ended(capfd):
    told, tell = os.pipe()

    def work():
        os.write(tell, str(os.getpid()).encode())
        yield from iter(int, 1)

    pids = []

    def interrupted():
        with beside(work):
            pids.append(int(os.read(told, 20)))
            assert is_running(pids[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_running(pids[0])
    assert capfd.readouterr() == ("", "")


def test_the_second_process_ends_with_the_first():
    code = "import os; from synctool.plan import beside as b; b.may_fork = lambda: True\n"
    code += "def work():\n    print('begun', flush=True)\n    yield from iter(int, 1)\n"
    code += "with b.beside(work) as later: later()\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "begun\n"
        first.kill()
        assert first.stdout.read() == "", "at the end of the pipe nobody holds it any more"


def test_no_fork_beside_a_thread_nor_on_one_core(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert may_fork()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    assert not may_fork()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert not may_fork()
    with beside(lambda: [os.getpid()]) as later:
        assert later() == [FIRST]


@pytest.fixture
def histories(story):
    """An upstream of seven changes to four files, and a fork with a history of its own that made four of them."""
    texts = {f"lantern/{name}": [f"lantern {name} {n} is lit" for n in range(14)] for name in "abcd"}
    upstream, ours = [], []
    for number in range(7):
        for path, lines in texts.items():
            lines[2 * number] = f"lantern of {path} was moved by {number}"
        files = {path: "\n".join(lines) + "\n" for path, lines in texts.items()}
        upstream.append(story.commit(f"Change (#{number})", files, *upstream[-1:]))
        if number < 4:
            files = {
                path.replace("lantern", "beacon"): text.replace("lantern", "beacon") for path, text in files.items()
            }
            ours.append(story.commit(f"port {number}", files, *ours[-1:]))
    return upstream, ours[-1]


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("killed", [False, True])
def test_a_plan_by_two_processes_is_the_plan_by_one(story, policy, words, histories, monkeypatch, killed):
    upstream, down = histories

    def plan():
        return build_plan(story.repo, policy, words, base=upstream[0], through=upstream[-1], downstream=down)

    monkeypatch.setattr(present, "SHARED_FILES", 1 << 20)
    alone = plan()
    assert [str(item.decision.kind) for item in alone] == ["present"] * 3 + ["take"] * 3
    seen = []
    look = present.Presence.search

    def search(self, patches):
        seen.append(1)
        if killed and os.getpid() != FIRST and len(seen) > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return look(self, patches)

    monkeypatch.setattr(present, "SHARED_FILES", 4)
    monkeypatch.setattr(present.Presence, "search", search)
    assert plan() == alone
    assert len(seen) == (6 if killed else 3), "the first process looks at its half only, unless the second one is lost"
