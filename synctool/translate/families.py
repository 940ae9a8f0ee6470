"""One word in all its spellings: what a ``[[family]]`` and a ``[[flag]]`` stand for."""

from __future__ import annotations

import re

from synctool.policy.model import Family, Flag


def identifier_form(family: Family) -> str | None:
    """How downstream's word is spelled inside an identifier, where that differs from prose: ``vLLM`` becomes the ``VLLM`` of ``VLLMEngine``.

    A class name begins with a capital; a prose word such as ``vLLM`` does not. None where prose and identifier agree.
    """
    if family.identifier is not None:
        return family.identifier
    if family.from_[0].isupper() and family.to[0].islower():
        return family.to[0].upper() + family.to[1:]
    return None


def family_forms(family: Family) -> dict[str, str]:
    """Upstream spelling -> downstream spelling: as given, lower, UPPER, Capitalised; for words joined by ``-``, ``_`` or a space also
    kebab-case, snake_case, SCREAMING_SNAKE and PascalCase. ``forms`` overrides and adds, ``omit`` removes.
    """
    source, target = family.from_, family.to
    forms = {source: target}
    source_words, target_words = (re.split(r"[-_ ]", word) for word in (source, target))
    if len(source_words) > 1:
        for separator in "-_":
            forms.setdefault(separator.join(source_words).lower(), separator.join(target_words).lower())
        forms.setdefault("_".join(source_words).upper(), "_".join(target_words).upper())
        pascal = ("".join(word[:1].upper() + word[1:] for word in words) for words in (source_words, target_words))
        forms.setdefault(next(pascal), next(pascal))
    else:
        forms.setdefault(source.lower(), target.lower())
        forms.setdefault(source.upper(), target.upper())
        forms.setdefault(source.capitalize(), target.capitalize())
    forms.update(family.forms)
    return {key: value for key, value in forms.items() if key not in family.omit}


def flag_forms(flag: Flag) -> dict[str, str]:
    """Upstream spelling -> downstream spelling of a flag: ``--sglang-dp-size``, ``sglang-dp-size``, ``sglang_dp_size`` and, with ``bare``,
    ``--dp-size``, ``dp-size`` and ``dp_size``. Without ``attribute`` the underscored ones are left out. A flag without a target maps to itself.
    """
    source, target = flag.from_[2:], (flag.to or flag.from_)[2:]
    pairs = [(source, target)]
    if flag.bare and "-" in source and "-" in target:
        pairs.append((source.partition("-")[2], target.partition("-")[2]))
    forms: dict[str, str] = {}
    for one, other in pairs:
        forms[f"--{one}"] = f"--{other}"
        forms[one] = other
        if flag.attribute:
            forms[one.replace("-", "_")] = other.replace("-", "_")
    return forms
