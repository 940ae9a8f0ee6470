"""Publication: look at the forge, decide (pure), do it, and read back whether it is so.

Our pull request is found by the marker in its description, not by its title or text, which people edit; if they removed the marker, by its branch. Nothing is
pushed: the branch must already be at the forge, at the head that the body speaks of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from synctool.errors import EnvironmentFailure, Refused, RepositoryError, UsageError
from synctool.evidence.record import Topic
from synctool.evidence.standing import Ledger
from synctool.forge.base import Forge, PublishingForge, PullRequest
from synctool.report.body import merge, split


class Do(StrEnum):
    """What happens to the pull request."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the forge has. ``twins`` are other open pull requests with our head; ``closed`` one of ours that someone closed."""

    mine: PullRequest | None
    twins: tuple[PullRequest, ...]
    closed: PullRequest | None
    at_forge: str | None


@dataclass(frozen=True, slots=True)
class Action:
    """One change of the forge. ``number`` is None for a new pull request."""

    do: Do
    title: str
    body: str
    number: int | None = None
    remarks: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """The state that it shall have afterwards."""
        return "closed" if self.do is Do.CLOSE else "open"


def key_of(branch: str) -> str:
    """What the marker carries: the branch, in characters that no comment trips over."""
    return quote(branch, safe="/:._-").replace("--", "-%2D")


def look(forge: PublishingForge, branch: str, head: str, number: int | None = None) -> Situation:
    """Ask the forge. ``number`` names our pull request outright.

    Raises:
        UsageError: ``number`` names none.
        as ``Forge``: the forge can't be asked.
    """
    key = key_of(branch)
    at_forge = forge.branch_head(branch)
    pulls = forge.open_pulls()
    mine: PullRequest | None
    if number is not None:
        mine = forge.pull(number)
        if mine is None:
            raise UsageError(f"there is no pull request #{number}", where=forge.name)
    else:
        mine = next((p for p in pulls if _carries(p, key)), None)
        mine = mine or next((p for p in pulls if _is_branch(p.branch, branch)), None)
    ours = mine.number if mine else None
    twins = tuple(p for p in pulls if p.head == head and p.number != ours)
    closed = None
    if mine is None:
        closed = next((p for p in forge.pulls_of_commit(head) if p.state == "closed" and _carries(p, key)), None)
    return Situation(mine, twins, closed, at_forge)


def _carries(pull: PullRequest, key: str) -> bool:
    try:
        parts = split(pull.body)
    except Refused:
        return f"key={key} " in pull.body
    return parts is not None and parts.key == key


def _is_branch(label: str, branch: str) -> bool:
    return label == branch if ":" in branch else label.partition(":")[2] == branch


def decide(
    situation: Situation,
    *,
    text: str,
    branch: str,
    head: str,
    title: str,
    replaced_by: int | None = None,
    replace_edits: bool = False,
    another: bool = False,
) -> Action:
    """What to do.

    Raises:
        RepositoryError: the branch at the forge is not at the head that the text speaks of.
        Refused: it would make a second pull request of one head, reopen what someone closed, or overwrite what someone wrote into our part.
        UsageError: nothing is there that could be replaced.
    """
    mine = situation.mine
    if situation.at_forge != head:
        there = f"at {situation.at_forge[:12]}" if situation.at_forge else "missing"
        raise RepositoryError(
            f"branch {branch} is {there} at the forge, and the body speaks of {head[:12]}",
            hint=f"push it first: git push REMOTE {head[:12]}:refs/heads/{branch.rpartition(':')[2]}",
        )
    if mine is None:
        if replaced_by is not None:
            raise UsageError("there is no open pull request of this sync to close", where=branch)
        if situation.twins:
            raise Refused(
                f"{_names(situation.twins)} already has the head {head[:12]}",
                hint="two open pull requests with one head stop merge bots: use that one (--pr N), or close it first",
            )
        if situation.closed is not None and not another:
            raise Refused(
                f"someone closed #{situation.closed.number}, the pull request of this sync",
                hint="open another with --new, or reopen it at the forge",
            )
        return Action(Do.CREATE, title, merge("", text, key_of(branch)))
    parts = split(mine.body)
    if parts is not None and parts.edited and not replace_edits:
        raise Refused(
            f"someone edited the generated part of #{mine.number}",
            where=mine.url or None,
            hint="move their text out of the markers, or give --replace-edits to write over it",
        )
    body = merge(mine.body, text, key_of(branch))
    if replaced_by is not None:
        return Action(Do.CLOSE, mine.title, body, mine.number)
    remarks: tuple[str, ...] = ()
    if situation.twins:
        remarks = (
            f"{_names(situation.twins)} has the same head {head[:12]}: merge bots stop at two; close one, "
            f"such as with 'vime-sync publish --replaced-by {situation.twins[0].number}'",
        )
    same = same_text(body, mine.body)
    return Action(Do.UNCHANGED if same else Do.UPDATE, mine.title, body, mine.number, remarks)


def _names(pulls: tuple[PullRequest, ...]) -> str:
    return ", ".join(f"#{pull.number}" for pull in pulls)


def same_text(one: str, other: str) -> bool:
    """Whether two descriptions are equal but for line ends, which forges change."""
    return one.replace("\r\n", "\n").strip() == other.replace("\r\n", "\n").strip()


def do(forge: PublishingForge, action: Action, *, head: str, base: str, draft: bool) -> PullRequest:
    """Carry out an action and read the pull request back.

    Raises:
        EnvironmentFailure: the forge refused, or what is there now is not what was written.
    """
    number = action.number
    if action.do is Do.CREATE:
        number = forge.create_pull(title=action.title, body=action.body, head=head, base=base, draft=draft)
    elif action.do in (Do.UPDATE, Do.CLOSE):
        assert number is not None
        forge.update_pull(number, body=action.body, state="closed" if action.do is Do.CLOSE else None)
    assert number is not None
    found = forge.pull(number)
    if found is None or not same_text(found.body, action.body) or found.state != action.state:
        what = (
            "is not there"
            if found is None
            else f"is {found.state}"
            if found.state != action.state
            else "has another text"
        )
        raise EnvironmentFailure(
            f"#{number} was written, and read back it {what}",
            where=found.url if found else forge.name,
            hint="someone may have edited it at the same moment: run publish again",
        )
    return found


def containing(forge: Forge, number: int, head: str, contains: Callable[[str, str], bool]) -> PullRequest:
    """The pull request that replaces ours; its head must contain our head, or our evidence would speak of something that it does not bring.

    ``contains`` is ``(ancestor, descendant) -> bool``.

    Raises:
        UsageError: there is no such pull request, or it was closed.
        Refused: it does not contain our head.
    """
    other = forge.pull(number)
    if other is None or other.state == "closed":
        raise UsageError(f"#{number} is {'closed' if other else 'not there'}, so it can't replace this one")
    if other.head != head and not contains(head, other.head):
        raise Refused(
            f"#{number} is at {other.head[:12]}, which does not contain {head[:12]}",
            hint="fast-forward its branch to this head first, and fetch it",
        )
    return other


def dependencies(forge: Forge, ledger: Ledger) -> list[tuple[int, str]]:
    """``(number, state)`` of the pull requests of this project that the sync is stated to depend on; ``missing`` when there is none."""
    numbers = [
        int(s.target[1:]) for s in ledger.said(Topic.DEPENDS_ON) if s.target[1:].isdigit() and s.target[0] == "#"
    ]
    found = []
    for number in dict.fromkeys(numbers):
        pull = forge.pull(number)
        found.append((number, pull.state if pull else "missing"))
    return found
