"""The three-way engine: a plan and a downstream commit become one tree an upstream change, and the conflicts of the whole range.

Base and theirs are upstream's file before and after a change, in downstream's words; ours is downstream's. Only touched
files are read. A file in conflict is parked: later changes to it accumulate, and each of them tries again whether the
waiting edits merge as a whole, from what downstream had when it was parked or when the run began. What is still parked at
the end is one conflict, shown once. Nothing is checked out; only blobs and trees are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from synctool.git.diff import PathChange, commit_diffs
from synctool.git.repo import Repo
from synctool.git.tree import Entry
from synctool.mirror.absence import Absence, DownstreamHistory, Twins
from synctool.mirror.conflicts import build_conflict
from synctool.mirror.guard import Neighbours, programs, refusal
from synctool.mirror.memory import Memory
from synctool.mirror.model import Action, ConflictKind, MirrorResult, PathOutcome, Step, WorkItem
from synctool.mirror.resolve.toolbox import Toolbox
from synctool.mirror.sides import Sides, Version
from synctool.mirror.spans import Edit, Track, compose, edit_diff, lines_diff, ours_side
from synctool.mirror.textmerge import TextMerger
from synctool.mirror.threeway import Clash, Merged, Side, merge_entries
from synctool.plan.model import Change, Plan
from synctool.policy.model import OwnerKind, Policy
from synctool.progress import Progress, silent
from synctool.translate.translator import Translator

#: Similarity in percent from which upstream's delete and add count as a move; git's own default.
_RENAMES = 50
#: Changes whose diffs are held at once.
_BATCH = 200


def mirror(
    repo: Repo,
    policy: Policy,
    translator: Translator,
    plan: Plan,
    ours: str,
    *,
    memory: Memory | None = None,
    toolbox: Toolbox | None = None,
    progress: Progress = silent,
) -> MirrorResult:
    """Mirror the changes that the plan takes onto the downstream commit ``ours``.

    Deterministic: the same arguments give the same trees. Objects are written to ``repo`` (kept in memory when it is dry);
    refs, index and work tree are not touched.
    """
    with TextMerger(repo.git_dir) as merger:
        run = _Run(repo, policy, translator, plan, ours, merger, toolbox or Toolbox.from_policy(policy, translator))
        return run.all(memory or Memory(), progress)


class _Run:
    """The state of one run: downstream's tree as it grows, and a track for each file touched."""

    def __init__(
        self,
        repo: Repo,
        policy: Policy,
        translator: Translator,
        plan: Plan,
        ours: str,
        merger: TextMerger,
        toolbox: Toolbox,
    ) -> None:
        self.repo, self.policy, self.translator, self.plan = repo, policy, translator, plan
        self.merger, self.toolbox = merger, toolbox
        self.sides = Sides(repo.objects, translator)
        self.before = repo.resolve(ours, "tree")
        self.tree = repo.tree(self.before)
        self.history = DownstreamHistory(repo, ours, plan.through, policy.upstream.baseline, translator)
        self.neighbours = Neighbours(self.tree)
        self.twins: Twins | None = None
        self.tracks: dict[str, Track] = {}
        self.work: list[WorkItem] = []
        self.programs: list[str] = []

    def all(self, memory: Memory, progress: Progress) -> MirrorResult:
        """Run every change, then show what is left in conflict."""
        items = self.plan.taken()
        steps: list[Step] = []
        for start in range(0, len(items), _BATCH):
            batch = items[start : start + _BATCH]
            diffs = commit_diffs(self.repo, [(i.change.parent, i.change.oid) for i in batch], renames=_RENAMES)
            for item in batch:
                progress(len(steps), len(items), item.change.label)
                paths = diffs[(item.change.parent, item.change.oid)]
                outcomes = tuple(outcome for path in self._ordered(paths) for outcome in self._apply(item.change, path))
                steps.append(Step(item, self.tree.write(), outcomes))
        progress(len(items), len(items))
        return self._finish(steps, memory)

    def _ordered(self, paths: Iterable[PathChange]) -> list[PathChange]:
        """Deletions first: a folder may take the place of a file that goes away in the same change."""
        ordered = sorted(paths, key=lambda path: (path.status != "D", path.path))
        self.sides.preload(
            [
                oid
                for path in ordered
                if self.policy.owner_of(self.translator.path(path.path)).kind in (OwnerKind.MIRROR, OwnerKind.PORT)
                for mode, oid in ((path.old_mode, path.old_oid), (path.mode, path.oid))
                if mode not in ("000000", "160000")
            ]
        )
        return ordered

    # ------------------------------------------------------------ one path of one change

    def _apply(self, change: Change, path: PathChange) -> list[PathOutcome]:
        before = self._version(path.old_mode, path.old_oid, path.old_path)
        after = self._version(path.mode, path.oid, path.path)
        if path.status == "R" and before is not None and after is not None and self._must_split(path, before, after):
            removed = path._replace(status="D", path=path.old_path, mode="000000", oid="0" * len(path.oid))
            added = path._replace(status="A", old_path=path.path, old_mode="000000", old_oid="0" * len(path.oid))
            return [*self._apply(change, removed), *self._apply(change, added)]
        target = (after or before or Version("", "", "")).path
        edit = Edit(change, before, after)
        owner = self.policy.owner_of(target)
        if owner.kind is OwnerKind.PORT:
            diff = edit_diff(self.sides, edit)
            self.work.append(WorkItem(target, path.path, change.oid, change.label, diff, owner.reason))
            return [PathOutcome(target, path.path, Action.FILED, owner.reason, owner.where)]
        if owner.kind is not OwnerKind.MIRROR:
            return [PathOutcome(target, path.path, Action.KEPT, f"{owner.kind}: {owner.reason}", owner.where)]
        if after is None and self.policy.deleted.upstream_deleted == "keep":
            reason = "the policy keeps what upstream deletes"
            return [PathOutcome(target, path.path, Action.KEPT, reason, self.policy.where(self.policy.deleted))]
        if after is not None:
            why = refusal(self.sides, after, self.tree.get(after.path))
            if why is not None:
                return [PathOutcome(target, path.path, Action.REFUSED, why)]
            self._note_programs(change, before, after)
        track = self.tracks.pop(path.old_path, None)
        if track is None:
            track = self._begin(path, before, target)
        track.upstream_path = path.path
        self.tracks[path.path] = track
        if track.left is not None:
            return [replace(track.left, path=target, upstream_path=path.path)]
        return [self._merge(track, edit)]

    def _note_programs(self, change: Change, before: Version | None, after: Version) -> None:
        """Remember when a ``.gitattributes`` newly asks for programs of the user's: a person should know before the next checkout."""
        if after.path.rpartition("/")[2] != ".gitattributes":
            return
        old = self.sides.content(before) if before is not None else None
        fresh = programs(self.sides.content(after) or b"") - programs(old or b"")
        if fresh:
            self.programs.append(
                f"{change.label}: {after.path!r} asks for {', '.join(sorted(fresh))}: git runs such a program of your configuration at the next checkout"
            )

    def _version(self, mode: str, oid: str, path: str) -> Version | None:
        return None if mode == "000000" else Version(mode, oid, self.translator.path(path))

    def _must_split(self, path: PathChange, before: Version, after: Version) -> bool:
        """Whether a move is to be seen as a deletion and an addition: its ends have different owners, or downstream has files at both."""
        if self.policy.owner_of(before.path).kind is not self.policy.owner_of(after.path).kind:
            return True
        track = self.tracks.get(path.old_path)
        here = track.place if track is not None else before.path
        return before.path != after.path and here in self.tree and here != after.path and after.path in self.tree

    def _begin(self, path: PathChange, before: Version | None, target: str) -> Track:
        """A track for a file met for the first time: where downstream has it, or why not."""
        place = self._locate(path, before, target)
        if place is not None:
            return Track(place, path.path, self.tree.get(place), place)
        track = Track(target, path.path, None, target)
        track.left = self._left_alone(path, before, target)
        return track

    def _locate(self, path: PathChange, before: Version | None, target: str) -> str | None:
        """Downstream's path of the file, or None where it has none."""
        if before is None:
            return target if target in self.tree else None
        moved = self.history.moved_to(before.path, path.old_path) if before.path not in self.tree else None
        for place in (before.path, target, moved):
            if place is not None and place in self.tree:
                return place
        if self.twins is None:
            first = self.plan.taken()[0].change.parent
            upstream = [self.repo.tree(first), self.repo.tree(self.plan.through)]
            self.twins = Twins(self.sides, self.translator, self.repo.tree(self.before), upstream)
        twin = self.twins.find(before)
        return twin if twin is not None and twin in self.tree else None

    def _left_alone(self, path: PathChange, before: Version | None, target: str) -> PathOutcome | None:
        """Why a file that downstream lacks stays away, or None when it comes in."""
        rules = self.policy.deleted
        where = self.policy.where(rules)
        folder = self.history.dropped_folder(target) if rules.folder_deleted == "stays-deleted" else None
        if folder is not None:
            reason = f"downstream deleted all of {folder}"
            return PathOutcome(target, path.path, Action.KEPT, reason, where)
        if before is None:
            return None
        why = self.history.why_absent(before.path, path.old_path)
        if why is Absence.DELETED and rules.once_deleted == "stays-deleted":
            return PathOutcome(target, path.path, Action.KEPT, "downstream deleted this file", where)
        if why is Absence.NEVER and rules.never_ported == "skip":
            return PathOutcome(target, path.path, Action.KEPT, "downstream never had this file", where)
        return None

    # ------------------------------------------------------------ merging and parking

    def _merge(self, track: Track, edit: Edit) -> PathOutcome:
        track.edits.append(edit)
        ours = track.held if track.parked is not None else self.tree.get(track.place)
        if track.parked is None:
            track.held, track.held_place = ours, track.place
        start = track.parked if track.parked is not None else len(track.edits) - 1
        target = self._target(track, edit)
        result: Merged | Clash
        if ours is None and edit.after is not None and (what := self._ambiguous(track, edit, target)) is not None:
            waiting = tuple(track.edits[start:])
            result, track.span, track.span_edits = what, compose(self.sides, self.merger, waiting), waiting
        else:
            result = self._try(track, start)
        if isinstance(result, Clash):
            track.parked, track.clash, track.place = start, result, target
            return PathOutcome(target, track.upstream_path, Action.PARKED, str(result.kind))
        track.parked = track.clash = None
        return self._land(track, edit, result, target, was=track.held)

    def _ambiguous(self, track: Track, edit: Edit, target: str) -> Clash | None:
        """A file that would come in but for something in its way, or of which nobody knows whether downstream deleted it."""
        if self.neighbours.collision(target) is not None:
            return Clash(ConflictKind.COLLISION)
        if (
            edit.before is not None
            and self.history.why_absent(edit.before.path, track.upstream_path) is Absence.UNKNOWN
        ):
            return Clash(ConflictKind.DELETED_HERE)
        return None

    def _target(self, track: Track, edit: Edit) -> str:
        """Where the file is after an edit: it moves along with upstream unless downstream gave it a place of its own."""
        if edit.before is None or edit.after is None or edit.before.path == edit.after.path:
            return track.place
        return edit.after.path if track.place == edit.before.path else track.place

    def _try(self, track: Track, start: int) -> Merged | Clash:
        """Merge the waiting edits as a whole, from what is held; when that clashes, all edits of the run from where it began. The cleanest counts."""
        best: Clash | None = None
        starts = [(track.held, track.edits[start:])]
        if start:
            starts.append((track.origin, track.edits))
        for ours, edits in starts:
            span = compose(self.sides, self.merger, edits)
            result = merge_entries(
                self.merger, self.toolbox.proven, ours_side(self.sides, ours, edits[0].before), span.base, span.theirs
            )
            if isinstance(result, Merged) and not span.left_out:
                return result
            if isinstance(result, Merged):
                continue
            if best is None or result.weight() < best.weight():
                best, track.span, track.span_edits = result, span, tuple(edits)
        assert best is not None
        return best

    def _land(self, track: Track, edit: Edit, result: Merged, target: str, was: Entry | None) -> PathOutcome:
        entry = self._entry(result)
        path = track.upstream_path
        self._file_dropped(track, edit.change, result)
        if entry is None:
            self.tree.delete(track.held_place)
            self.neighbours.removed(track.held_place)
            return PathOutcome(track.held_place, path, Action.PRESENT if was is None else Action.DELETED)
        if track.held_place != target:
            self.tree.delete(track.held_place)
            self.neighbours.removed(track.held_place)
        track.place = target
        if entry == self.tree.get(target):
            return PathOutcome(target, path, Action.PRESENT)
        self.tree.set(target, entry)
        self.neighbours.added(target)
        if was is None:
            return PathOutcome(target, path, Action.ADDED if edit.before is None else Action.BACKFILLED)
        if track.held_place != target:
            return PathOutcome(target, path, Action.MOVED, f"from {track.held_place}")
        return PathOutcome(
            target, path, Action.TAKEN if result.data is None else Action.MERGED, ", ".join(result.settled)
        )

    def _file_dropped(self, track: Track, change: Change, result: Merged | Clash) -> None:
        """File upstream's edits to lines that downstream removed or rewrote."""
        for hunk in result.dropped:
            reason = "downstream removed or rewrote the lines that this edits"
            diff = lines_diff(hunk.base, hunk.theirs)
            self.work.append(WorkItem(track.place, track.upstream_path, change.oid, change.label, diff, reason))

    def _entry(self, result: Merged) -> Entry | None:
        if result.data is not None:
            return Entry(result.mode, self.repo.objects.write_blob(result.data))
        return self._written(result.side)

    def _written(self, side: Side | None) -> Entry | None:
        if side is None:
            return None
        if side.made and side.data is not None:
            self.repo.objects.write_blob(side.data)
        return Entry(side.mode, side.oid)

    # ------------------------------------------------------------ the end

    def _finish(self, steps: list[Step], memory: Memory) -> MirrorResult:
        conflicts = []
        final = self.tree.copy()
        for track in sorted(self.tracks.values(), key=lambda track: track.place):
            if track.parked is None:
                continue
            conflict = build_conflict(track, self.sides, self.toolbox, memory, self.policy.upstream.name)
            last = track.edits[-1].change
            if track.clash is not None:
                self._file_dropped(track, last, track.clash)
            if track.span is not None and track.span.left_out:
                reason = "stands on a change that is left out, so it could not be merged"
                self.work.append(
                    WorkItem(track.place, track.upstream_path, last.oid, last.label, track.span.left_out, reason)
                )
            for path in conflict.replaces:
                final.delete(path)
            if conflict.marked is not None:
                final.set(conflict.path, conflict.marked)
            conflicts.append(conflict)
        return MirrorResult(
            self.before,
            final.write(),
            tuple(steps),
            tuple(conflicts),
            tuple(self.work),
            (*_refusals(steps), *self.programs),
        )


def _refusals(steps: Iterable[Step]) -> tuple[str, ...]:
    """One line for each upstream file that was not let in: it must not be missed in silence."""
    return tuple(
        f"{step.change.change.label}: {outcome.upstream_path!r} was refused: {outcome.reason}"
        for step in steps
        for outcome in step.paths
        if outcome.action is Action.REFUSED
    )
