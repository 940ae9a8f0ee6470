"""Checks from scratch: translate upstream's tip, lay it beside downstream, and explain every difference (``judge``) or list it as unexplained.

The fix-up tree cures just what is unexplained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from synctool.git.quoting import quote
from synctool.git.repo import Repo
from synctool.git.tree import SUBMODULE, Entry, Tree
from synctool.mirror.absence import Absence, DownstreamHistory
from synctool.mirror.filetext import is_binary
from synctool.mirror.guard import refusal
from synctool.mirror.judge import Difference, Facts, judge, self_test
from synctool.mirror.memory import Resolution, load_memory
from synctool.mirror.pieces import lines_of
from synctool.mirror.resolve.words import Canonical
from synctool.mirror.sides import Sides, Version
from synctool.mirror.spans import lines_diff
from synctool.policy.model import Policy
from synctool.progress import Progress, silent
from synctool.translate.translator import Translator


@dataclass(frozen=True, slots=True)
class Cure:
    """What an unexplained path should be: content before and after (None: no file) and its mode."""

    path: str
    mode: str
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Verification:
    """The whole check. ``fixup`` is the tree that downstream would have with every cure applied."""

    compared: int
    equal: int
    differences: tuple[Difference, ...]
    cures: tuple[Cure, ...]
    fixup: str
    self_test: int

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Differences without a rule or record."""
        return tuple(difference for difference in self.differences if not difference.cause.explained)


def verify(
    repo: Repo,
    policy: Policy,
    translator: Translator,
    *,
    ours: str,
    through: str,
    since: str | None = None,
    base: str | None = None,
    recorded: Iterable[tuple[str, str]] = (),
    progress: Progress = silent,
) -> Verification:
    """Compare the downstream commit ``ours`` with the translation of upstream's ``through``.

    ``since`` is an earlier downstream commit that is trusted, and ``base`` the upstream commit that it stood at: what
    differed then is an overlay. ``recorded`` are (upstream commit, reason) of changes that were left out or are recorded as
    ports: paths that they touch are explained by them.
    """
    canonical = Canonical(policy, translator)
    checks = self_test(canonical)
    check = _Check(repo, policy, translator, ours, through, since, base)
    fixed = repo.tree(ours)
    reasons = check.reasons(recorded)
    differences: list[Difference] = []
    cures: list[Cure] = []
    compared = equal = 0
    paths = check.paths()
    for number, (path, upstream_path) in enumerate(paths):
        progress(number, len(paths), path)
        facts = check.facts(path, upstream_path, reasons.get(path, ""))
        verdict = judge(facts, canonical)
        compared += facts.tip is not None and facts.ours is not None
        equal += verdict.difference is None
        if verdict.difference is not None:
            differences.append(verdict.difference)
        if verdict.delete or verdict.cure is not None:
            cures.append(Cure(path, check.mode(path, upstream_path), facts.ours, verdict.cure))
    for cure in cures:
        place = Entry(cure.mode, repo.objects.write_blob(cure.after)) if cure.after is not None else None
        if place is None:
            fixed.delete(cure.path)
        else:
            fixed.set(cure.path, place)
    progress(len(paths), len(paths))
    return Verification(compared, equal, tuple(differences), tuple(cures), fixed.write(), checks)


def fixup_patch(found: Verification) -> bytes:
    """The cures as one git patch. Binary files can't be shown in one and are left out; the list of differences names them."""
    shown: list[bytes] = []
    for cure in found.cures:
        if any(data is not None and is_binary(data) for data in (cure.before, cure.after)):
            continue
        old, new = (quote(f"{side}/{cure.path}").encode("utf-8", "surrogateescape") for side in "ab")
        shown.append(b"diff --git %s %s\n" % (old, new))
        if cure.before is None:
            shown.append(b"new file mode %s\n" % cure.mode.encode())
        elif cure.after is None:
            shown.append(b"deleted file mode %s\n" % cure.mode.encode())
        names = (old if cure.before is not None else b"/dev/null", new if cure.after is not None else b"/dev/null")
        shown.append(lines_diff(lines_of(cure.before or b""), lines_of(cure.after or b""), *names))
    return b"".join(shown)


class _Check:
    """Reads what ``judge`` needs to know."""

    def __init__(
        self,
        repo: Repo,
        policy: Policy,
        translator: Translator,
        ours: str,
        through: str,
        since: str | None,
        base: str | None,
    ) -> None:
        self._repo, self._policy, self._translator = repo, policy, translator
        self._sides = Sides(repo.objects, translator)
        self._tip, self._ours = repo.tree(through), repo.tree(ours)
        self._base = repo.tree(base) if base else None
        self._earlier = repo.tree(since) if since else None
        self._history = DownstreamHistory(repo, ours, through, policy.upstream.baseline, translator)
        self._resolutions: dict[str, tuple[Resolution, ...]] = {}
        for record in load_memory(repo.objects, self._ours).known.values():
            self._resolutions[record.path] = (*self._resolutions.get(record.path, ()), record)
        self._upstream = {translator.path(path): path for path, _ in self._tip.items()}
        older = base or self._history.fork
        self._older = {translator.path(path): path for path, _ in repo.tree(older).items()} if older else {}

    def paths(self) -> list[tuple[str, str]]:
        """(downstream path, upstream path) of every file of either side."""
        names = dict(self._older)
        names.update(self._upstream)
        here = {path for path, _ in self._ours.items()}
        return [(path, names.get(path, path)) for path in sorted(here | set(self._upstream))]

    def facts(self, path: str, upstream_path: str, recorded: str) -> Facts:
        """All about one path."""
        tip = self._translated(self._tip, upstream_path, path) if path in self._upstream else None
        ours = self._content(self._ours, path)
        absent = ours is None and tip is not None
        return Facts(
            path=path,
            upstream_path=upstream_path,
            owner=self._policy.owner_of(path),
            tip=tip,
            ours=ours,
            base=self._translated(self._base, self._older.get(path, upstream_path), path) if self._base else None,
            earlier=self._content(self._earlier, path) if self._earlier else None,
            absence=self._history.why_absent(path, upstream_path) if absent else Absence.NEVER,
            was_upstream=path in self._older,
            recorded=recorded,
            refused=self._refused(path, upstream_path) if path in self._upstream and tip != ours else "",
            resolved=self._resolutions.get(path, ()),
        )

    def mode(self, path: str, upstream_path: str) -> str:
        """The mode that a cured file gets."""
        entry = self._ours.get(path) or self._tip.get(upstream_path)
        return entry.mode if entry else "100644"

    def reasons(self, recorded: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Downstream paths that recorded changes touch, with the reason."""
        from synctool.git.diff import tree_diff

        found: dict[str, str] = {}
        for commit, reason in recorded:
            for change in tree_diff(self._repo, f"{commit}^1", commit):
                found[self._translator.path(change.path)] = reason
        return found

    def _refused(self, path: str, upstream_path: str) -> str:
        entry = self._tip.get(upstream_path)
        return (entry and refusal(self._sides, Version(entry.mode, entry.oid, path), self._ours.get(path))) or ""

    def _translated(self, tree: Tree, upstream_path: str, path: str) -> bytes | None:
        entry = tree.get(upstream_path)
        return self._bytes(entry, self._sides.content(Version(entry.mode, entry.oid, path))) if entry else None

    def _content(self, tree: Tree, path: str) -> bytes | None:
        entry = tree.get(path)
        return self._bytes(entry, self._sides.raw(entry)) if entry else None

    @staticmethod
    def _bytes(entry: Entry, content: bytes | None) -> bytes:
        """Content for comparison; what can't be read stands as its id, behind a NUL so that it counts as binary."""
        if content is None or entry.mode == SUBMODULE:
            return b"\0" + entry.oid.encode()
        return content
