"""The table of supported model types, from the families themselves."""

from __future__ import annotations

from vime.convert.families import FAMILIES, Family, Says, Switch, _always


def support_table() -> str:
    """Markdown: one row a model type, with what its layers have."""
    rows = [
        f"| `{name}` | {_attention(family)} | {_norms(family)} | {_experts(family)} |"
        for name, family in FAMILIES.items()
    ]
    return "\n".join(("| `model_type` | attention | norms | experts |", "|---|---|---|---|", *rows))


def _attention(family: Family) -> str:
    parts = ["latent" if family.latent else "grouped queries"]
    parts += _when("q/k/v bias", family.qkv_bias) + _when("interleaved rotation", family.interleaved)
    return ", ".join(parts)


def _norms(family: Family) -> str:
    parts = ["before"] + (["after"] if family.post_norms else [])
    return ", ".join(parts + _when("q/k", family.qk_norm))


def _experts(family: Family) -> str:
    return "-" if family.experts is None else family.experts.__name__.strip("_").replace("_experts", "")


def _when(what: str, switch: Switch) -> list[str]:
    if isinstance(switch, Says):
        return [f"{what} if `{switch.field}`"]
    return [what] if switch is _always else []
