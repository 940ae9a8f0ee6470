"""The steps of a sync: begin, take, adopt a person's edits, finish. Pure but for object writes: each returns the next ``Session`` and moves no ref."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from synctool.errors import RepositoryError, UsageError
from synctool.git.commits import read_commits
from synctool.git.repo import Repo
from synctool.git.tree import Entry, Tree
from synctool.mirror.landing import (
    Names,
    change_trailers,
    final_message,
    land,
    land_steps,
    place,
    range_title,
    squash_message,
)
from synctool.mirror.model import Conflict, HunkNote, MirrorResult, Proposal, WorkItem
from synctool.mirror.pieces import Hunk, choose, hunks_of, lines_of, parse_conflicts, side
from synctool.mirror.session import SIDES, Resolution, Session
from synctool.plan.model import Plan
from synctool.translate.translator import Translator


def plan_subjects(repo: Repo, plan: Plan, translator: Translator) -> dict[str, str]:
    """Each change's subject in downstream's words; its pull request number stays upstream's and is marked so."""
    subjects = {}
    for item in plan.items:
        subject = translator.text(item.change.commit.subject, "")
        identity = item.change.identity
        if identity is not None and subject.endswith(f"(#{identity.number})"):
            subject = subject.removesuffix(f"(#{identity.number})").rstrip()
        subjects[item.change.oid] = subject or item.change.label
    return subjects


def begin(
    repo: Repo,
    plan: Plan,
    plan_json: dict[str, Any],
    result: MirrorResult,
    translator: Translator,
    names: Names,
    *,
    onto: str,
    branch: str,
    branch_before: str | None,
    squash: bool,
    record: bool,
    options: dict[str, Any],
) -> Session:
    """The session right after the engine ran: commits are written, conflicts wait."""
    subjects = plan_subjects(repo, plan, translator)
    if squash:
        chain = land(repo, result.tree, onto, names, squash_message(plan, result, names, subjects))
        landed = {step.change.change.oid: chain for step in result.steps}
    else:
        chain, landed = land_steps(repo, result, names, onto, subjects)
    unlanded = [step.change.change for step in result.steps if step.change.change.oid not in landed]
    session = Session(
        branch=branch,
        branch_before=branch_before,
        onto=onto,
        chain=chain,
        tree=result.tree,
        tip=chain,
        phase="conflicts",
        squash=squash,
        record=record,
        title=range_title(plan, names),
        plan=plan_json,
        landed=landed,
        unlanded=tuple(line for change in unlanded for line in change_trailers(change)),
        conflicts=result.conflicts,
        work=tuple(_work_json(repo, item) for item in result.work),
        warnings=result.warnings,
        options=options,
    )
    return show_open(repo, session, names)


def _work_json(repo: Repo, item: WorkItem) -> dict[str, Any]:
    return {
        "path": item.path,
        "upstream_path": item.upstream_path,
        "change": item.change,
        "label": item.label,
        "reason": item.reason,
        "diff": repo.objects.write_blob(item.diff),
    }


def outcome(repo: Repo, conflict: Conflict, resolution: Resolution | None) -> Entry | None:
    """What stands at a conflict's path now: markers, partly resolved text, or the resolution."""
    if resolution is None:
        return conflict.marked
    if resolution.whole:
        return resolution.entry
    assert conflict.marked is not None
    text = repo.objects.read(conflict.marked.oid, "blob")
    return Entry(conflict.marked.mode, repo.objects.write_blob(settle_text(text, resolution.choices)))


def settle_text(marked: bytes, choices: Mapping[int, bytes]) -> bytes:
    """A text with markers in which the chosen hunks are settled; the others keep their markers, byte for byte."""
    pieces = parse_conflicts(marked)
    if len(choices) >= len(hunks_of(pieces)):
        return b"".join(line for piece in choose(pieces, choices) if not isinstance(piece, Hunk) for line in piece)
    result: list[bytes] = []
    number, inside = 0, False
    for line in lines_of(marked):
        if line.startswith(b"<<<<<<< ") and not inside:
            inside, number = True, number + 1
            if number in choices:
                result.append(choices[number])
        if not inside or number not in choices:
            result.append(line)
        if line.startswith(b">>>>>>> ") and inside:
            inside = False
    return b"".join(result)


def current_tree(repo: Repo, session: Session) -> Tree:
    """The result's tree with the resolutions so far in place."""
    tree = Tree(repo.objects, session.tree)
    for conflict in session.conflicts:
        resolution = session.resolutions.get(conflict.path)
        if resolution is not None:
            place(tree, conflict.path, outcome(repo, conflict, resolution))
    return tree


def show_open(repo: Repo, session: Session, names: Names) -> Session:
    """The session with its branch showing what is open: the chain, and one more commit with the conflicts in place."""
    tree = current_tree(repo, session).write()
    chain_tree = read_commits(repo.objects, [session.chain])[0].tree
    if tree == chain_tree:
        return replace(session, tip=session.chain)
    resolved = {path: r.how for path, r in session.resolutions.items()}
    open_paths = [c.path for c in session.open_conflicts()]
    message = final_message(session.title, names, unlanded=(), open_paths=open_paths, resolved=resolved)
    return replace(session, tip=land(repo, tree, session.chain, names, message))


def take(
    repo: Repo,
    session: Session,
    path: str,
    how: str,
    who: str,
    *,
    hunks: tuple[int, ...] = (),
    kind: str | None = None,
    text: bytes | None = None,
) -> Session:
    """Resolve a file, or some of its hunks, by a side, a proposal (of a ``kind``, else one that is offered), or given text.

    Given text goes with ``edited``; None with it removes the file.

    Raises:
        UsageError: the path is not in conflict, has no such hunk or no proposal, or the text still holds markers.
    """
    conflict = session.conflict(path)
    if how == "edited":
        if text is not None and has_markers(text):
            raise UsageError(
                "the text still holds conflict markers", where=path, hint="resolve every hunk, then take it"
            )
        mode = next((e.mode for e in (conflict.marked, conflict.ours, conflict.theirs) if e), "100644")
        entry = Entry(mode, repo.objects.write_blob(text)) if text is not None else None
        return _with(session, conflict, Resolution("edited", who, entry=entry))
    if not conflict.hunks and how in SIDES:
        return _with(session, conflict, Resolution(how, who, entry=getattr(conflict, how)))
    if not conflict.hunks:
        raise UsageError(
            f"a conflict of kind '{conflict.kind}' has no proposal", where=path, hint="take ours, theirs or --file"
        )
    known = {note.number: note for note in conflict.hunks}
    wanted = hunks or tuple(known)
    for number in wanted:
        if number not in known:
            raise UsageError(f"there is no hunk {number}", where=path, hint=f"the file has hunks 1 to {len(known)}")
    if how in SIDES and not hunks:
        return _with(session, conflict, Resolution(how, who, entry=_side_entry(repo, conflict, how)))
    assert conflict.marked is not None
    pieces = hunks_of(parse_conflicts(repo.objects.read(conflict.marked.oid, "blob")))
    before = session.resolutions.get(conflict.path)
    choices = dict(before.choices) if before and not before.whole else {}
    used = []
    for number in wanted:
        if how == "proposal":
            proposal = proposal_of(known[number], kind)
            if proposal is None:
                raise UsageError(
                    f"hunk {number} has no proposal" + (f" of kind {kind!r}" if kind else ""),
                    where=path,
                    hint=f"'vime-sync show {path} --all-proposals' lists what each hunk has",
                )
            choices[number] = proposal.text
            used.append(proposal.kind)
        else:
            choices[number] = b"".join(getattr(pieces[number - 1], how))
    label = f"{how} ({', '.join(dict.fromkeys(used))})" if used else how
    if before and not before.whole and before.how != label:
        label = f"{before.how}, {label}"
    return _with(session, conflict, Resolution(label, who, whole=False, choices=choices))


def proposal_of(note: HunkNote, kind: str | None) -> Proposal | None:
    """The first proposal of a kind, or without one the first that is offered by default."""
    return next((p for p in note.proposals if (p.kind == kind if kind else p.offered)), None)


def _side_entry(repo: Repo, conflict: Conflict, how: str) -> Entry | None:
    """A side of a content conflict: what merged cleanly stays, the hunks take the side."""
    assert conflict.marked is not None
    text = repo.objects.read(conflict.marked.oid, "blob")
    return Entry(conflict.marked.mode, repo.objects.write_blob(side(parse_conflicts(text), how)))


def _with(session: Session, conflict: Conflict, resolution: Resolution) -> Session:
    return replace(session, resolutions={**session.resolutions, conflict.path: resolution})


def has_markers(data: bytes) -> bool:
    """Whether a text holds a conflict marker as git writes them."""
    return any(isinstance(piece, Hunk) for piece in parse_conflicts(data)) or (
        b"\n<<<<<<< " in b"\n" + data and b"\n>>>>>>> " in data
    )


def adopt_edits(repo: Repo, session: Session, head: str, who: str) -> Session:
    """Resolutions that a person committed on the sync's branch (``head``), for conflicts still open here.

    Raises:
        RepositoryError: ``head`` does not descend from the sync's tip.
    """
    if head == session.tip:
        return session
    if not repo.is_ancestor(session.tip, head):
        raise RepositoryError(
            f"{session.branch.removeprefix('refs/heads/')} no longer descends from the sync's last commit {session.tip[:12]}",
            hint="put the branch back, or 'vime-sync abort' and start again",
        )
    edited = repo.tree(head)
    for conflict in session.open_conflicts():
        entry = edited.get(conflict.path)
        if entry is not None and entry.mode != "160000" and has_markers(repo.objects.read(entry.oid, "blob")):
            continue
        if (
            entry == outcome(repo, conflict, session.resolutions.get(conflict.path))
            and entry is not None
            and conflict.hunks
        ):
            continue
        session = _with(session, conflict, Resolution("edited", who, entry=entry))
    return session


def carry_over(old: Session, new: Session) -> Session:
    """The new session with the old one's resolutions of conflicts that are the same in both."""
    before = {c.path: c for c in old.conflicts}
    kept = {}
    for conflict in new.conflicts:
        same = before.get(conflict.path)
        if same is not None and same.marked == conflict.marked and same.path in old.resolutions:
            kept[conflict.path] = old.resolutions[conflict.path]
    return replace(new, resolutions=kept)


def finish(
    repo: Repo, session: Session, names: Names, *, files: Mapping[str, bytes], parent: str | None = None
) -> Session:
    """The finished session: one last commit holds the resolutions and ``files`` (the manifest, what is remembered of conflicts).

    ``parent`` is the branch's head where a person committed on it: their commits stay. No commit is made where it would hold nothing.

    Raises:
        RepositoryError: conflicts are still open.
    """
    if session.open_conflicts():
        count = len(session.open_conflicts())
        raise RepositoryError(f"{count} files are still in conflict", hint="'vime-sync conflicts' lists them")
    edited = parent is not None and parent != session.tip
    tree = repo.tree(parent) if edited and parent else current_tree(repo, session)
    if edited:
        for conflict in session.conflicts:
            resolution = session.resolutions[conflict.path]
            if resolution.how != "edited":
                place(tree, conflict.path, outcome(repo, conflict, resolution))
    for path, data in sorted(files.items()):
        tree.set(path, Entry("100644", repo.objects.write_blob(data)))
    base = parent if edited and parent else session.chain
    written = tree.write()
    if written == read_commits(repo.objects, [base])[0].tree:
        return replace(session, tip=base, phase="finished")
    resolved = {path: r.how for path, r in session.resolutions.items()}
    message = final_message(session.title, names, unlanded=session.unlanded, open_paths=(), resolved=resolved)
    return replace(session, tip=land(repo, written, base, names, message), phase="finished")
