"""How sure a learned rule is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Support:
    """``seen`` places out of ``total`` that could have shown it agree with a rule."""

    seen: int
    total: int

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return self.seen / self.total if self.total else 0.0

    def __str__(self) -> str:
        if self.share >= 0.95 and self.seen >= 10:
            how = "sure"
        elif self.share >= 0.8 and self.seen >= 3:
            how = "likely"
        else:
            how = "a guess: check it"
        return f"{self.seen} of {self.total} ({round(100 * self.share)} %), {how}"
