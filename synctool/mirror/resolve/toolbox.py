"""Which resolvers there are, which are applied, which proposed, and which of the proposals are offered unasked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from synctool.mirror.filetext import DROPPING, Resolver
from synctool.mirror.model import Proposal
from synctool.mirror.pieces import Hunk
from synctool.mirror.resolve import proposed, proven
from synctool.mirror.resolve.words import Canonical
from synctool.policy.model import Policy
from synctool.translate.translator import Translator

_PROPOSERS = (proposed.adjacent, proposed.token, proposed.imports, proposed.replaced)
#: Kinds that agreed with the maintainers in nine cases of ten or more (benchmarks/sync measures it). The others are shown when asked for.
OFFERED = frozenset({"memory"})


@dataclass(frozen=True)
class Toolbox:
    """The resolvers of a run."""

    canonical: Callable[[bytes], str]
    proven: tuple[tuple[str, Resolver], ...]
    proposers: tuple[Callable[[Hunk], Proposal | None], ...] = ()

    @classmethod
    def from_policy(cls, policy: Policy, translator: Translator) -> Toolbox:
        """All resolvers, with the policy's words."""
        canonical = Canonical(policy, translator)
        names = ("vocabulary", "present", "beside", *DROPPING)
        steps = (proven.vocabulary, proven.present, proven.beside, proven.removed, proven.rewritten)
        return cls(
            canonical,
            tuple((name, partial(step, canonical=canonical)) for name, step in zip(names, steps, strict=True)),
            tuple(partial(proposer, canonical=canonical) for proposer in _PROPOSERS),
        )

    def propose(self, hunk: Hunk) -> Iterator[Proposal]:
        """What might resolve a hunk."""
        for proposer in self.proposers:
            proposal = proposer(hunk)
            if proposal is not None:
                yield replace(proposal, offered=proposal.kind in OFFERED)
