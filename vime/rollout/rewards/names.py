"""What ``--rm-type`` may be. Apart from the rewards themselves, so that arguments can be checked without them."""

from __future__ import annotations

#: Compare an answer with a reference.
LABELLED = ("math", "dapo", "deepscaler", "f1", "gpqa", "reverse_word")
KNOWN = (*LABELLED, "ifbench", "remote_rm", "random")


def base_name(rm_type: str) -> str:
    r"""The type without ``boxed_``, which takes the last \boxed{} of the answer first."""
    return rm_type.removeprefix("boxed_")
