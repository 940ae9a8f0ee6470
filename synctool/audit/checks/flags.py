"""Engine flags, and overrides in YAML, that no argument of the pinned engine accepts."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from functools import cache

from synctool.audit.context import Audit
from synctool.audit.engine.arguments import registered_options
from synctool.audit.files import PythonFile, flat
from synctool.audit.finding import Edit, Hit, Rule

FLAG = Rule(
    "engine-flag",
    "an engine flag that no argument of the engine accepts",
    "the parser stops with 'unrecognized arguments', or drops it in silence",
)
OVERRIDE = Rule(
    "engine-override",
    "an override that is no argument of the engine",
    "the engine does not start, or starts with its default",
)
RULES = (FLAG, OVERRIDE)


def check(audit: Audit) -> Iterator[Hit]:
    """Needs the engine."""
    if audit.engine is None:
        return
    prefix = f"--{audit.engine.package}-"
    own = _own_options(audit)
    meant = _meant(audit)
    # `--vllm-` alone, and names that go on with a placeholder or a star, speak about the family of flags.
    pattern = re.compile(
        rf"(?<![\w-])(--(?:no-)?{re.escape(audit.engine.package)}-[a-z0-9](?:[a-z0-9_.-]*[a-z0-9])?)(?![\w*<{{-])"
    )
    known = sorted(audit.engine.arguments)

    @cache
    def nearest(flag: str) -> str | None:
        if flag in meant:
            return meant[flag]
        name = flag.removeprefix("--no-").removeprefix("--").removeprefix(f"{audit.engine.package}-")  # type: ignore[union-attr]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.7) or _by_words(name, known)
        return prefix + near[0] if near else None

    for path in audit.tree.ending(".sh", ".py", ".yml", ".yaml", ".md", ".rst", ".toml", "Dockerfile"):
        if prefix[2:] not in (audit.tree.text(path) or "") or _is_about_flags(path):
            continue
        for number, line in enumerate(audit.tree.lines(path), 1):
            for flag in pattern.findall(line):
                if flag in own or _accepted(flag, audit):
                    continue
                target = nearest(flag)
                mend = f"the nearest is {target}" if target else "the engine has nothing near: drop it"
                edit = Edit(path, number, flag, target) if target and flag in meant else None
                yield Hit(
                    FLAG,
                    _subject(path),
                    path,
                    number,
                    f"{audit.engine.label} has no {flag} ({mend})",
                    "use what the engine has, or drop it",
                    edit,
                )
    yield from _overrides(audit)


def _subject(path: str) -> str:
    """Documents are mended together; a script or module by itself."""
    return "documents" if path.endswith((".md", ".rst")) else path


def _is_about_flags(path: str) -> bool:
    """The tests of the argument wrapper name flags that must be refused."""
    return path.startswith("tests/") and "argument" in path


def _accepted(flag: str, audit: Audit) -> bool:
    assert audit.engine is not None
    bare = flag.removeprefix("--").removeprefix("no-").removeprefix(f"{audit.engine.package}-").replace("_", "-")
    name = bare.split(".")[0]
    return name in audit.engine.arguments or name.removeprefix("no-") in audit.engine.arguments


def _own_options(audit: Audit) -> set[str]:
    """Options that the tree registers itself, with the negative form of switches: by ``add_argument``, or in a table of its own."""
    found: set[str] = set()
    for module in audit.modules():
        if b"--" not in audit.tree.data(module.path):
            continue
        for option, call in registered_options(module):
            found.add(option)
            if any("BooleanOptional" in getattr(k.value, "attr", "") for k in call.keywords):
                found.add(option.replace("--", "--no-", 1))
        if not module.path.startswith("tests/"):
            found |= _table(module)
    return found


def _table(module: PythonFile) -> set[str]:
    """Options that begin calls of one module, three at least: rows of a declarative table."""
    heads = [
        flat(call.args[0]) for call in module.nodes(ast.Call) if call.args and len(call.args) + len(call.keywords) > 1
    ]
    rows = {head for head in heads if head is not None and re.fullmatch(r"--[a-z0-9][a-z0-9-]*", head)}
    return rows if len(rows) >= 3 else set()


def _meant(audit: Audit) -> dict[str, str]:
    """What the policy says about a flag, by the spelling that the families give to upstream's."""
    found = {}
    for flag in audit.policy.flags:
        if flag.to is not None and audit.engine is not None:
            for family in audit.policy.families:
                for old, new in ((family.from_.lower(), family.to.lower()),):
                    spelled = flag.from_.replace(f"--{old}-", f"--{new}-")
                    if spelled != flag.from_:
                        found[spelled] = flag.to
    return found


def _by_words(name: str, known: list[str]) -> list[str]:
    """The argument that shares most words, two at least."""
    words = set(name.split("-"))
    best = max(known, key=lambda other: (len(words & set(other.split("-"))), -len(other)), default="")
    return [best] if len(words & set(best.split("-"))) >= 2 else []


_OVERRIDES = re.compile(r"^(\s*)(?:-\s+)?overrides:\s*(?:#.*)?$")
_ENGINE_GROUP = re.compile(
    r"^\s*(?:-\s+)?(?:worker_type|num_gpus_per_engine|num_gpus|engine_groups|server_groups)\s*:", re.MULTILINE
)


def _overrides(audit: Audit) -> Iterator[Hit]:
    """Keys below ``overrides:`` of a group of engines, in YAML files and in YAML shown in documents."""
    engine = audit.engine
    assert engine is not None
    allowed = {name.replace("-", "_") for name in engine.arguments}
    for path in audit.tree.ending(".yml", ".yaml", ".md", ".rst", ".py"):
        if "overrides:" not in (audit.tree.text(path) or ""):
            continue
        lines = audit.tree.lines(path)
        for number, line in enumerate(lines):
            head = _OVERRIDES.match(line)
            if head is None:
                continue
            indent = len(line) - len(line.lstrip(" -"))
            above = "\n".join(_block_above(lines, number))
            if not _ENGINE_GROUP.search(above):
                continue
            for offset, key in _keys_below(lines, number, indent):
                bare = key.removeprefix(f"{engine.package}_")
                if bare not in allowed:
                    near = difflib.get_close_matches(bare, allowed, n=1, cutoff=0.5)
                    target = _policy_field(audit, bare) or (near[0] if near else None)
                    mend = f"the nearest is {target}" if target else "nothing is near: drop it"
                    edit = Edit(path, offset, key, target) if _policy_field(audit, bare) and target else None
                    yield Hit(
                        OVERRIDE,
                        _subject(path),
                        path,
                        offset,
                        f"{engine.label} has no argument {key} ({mend})",
                        "use an argument of the engine",
                        edit,
                    )


def _policy_field(audit: Audit, key: str) -> str | None:
    """The argument that the policy gives for upstream's field of that name."""
    for flag in audit.policy.flags:
        if flag.to is not None and flag.from_.removeprefix("--").partition("-")[2].replace("-", "_") == key:
            return flag.to.removeprefix("--").partition("-")[2].replace("-", "_")
    return None


def _block_above(lines: list[str], number: int) -> list[str]:
    """The lines of the same block of YAML, up to a blank line or a fence."""
    start = number
    while start > 0 and lines[start - 1].strip() and "```" not in lines[start - 1] and number - start < 25:
        start -= 1
    return lines[start:number]


def _keys_below(lines: list[str], number: int, indent: int) -> Iterator[tuple[int, str]]:
    child: int | None = None
    for offset in range(number + 1, len(lines)):
        line = lines[offset]
        if not line.strip() or line.strip().startswith("#"):
            continue
        depth = len(line) - len(line.lstrip())
        if depth <= indent:
            return
        child = depth if child is None else child
        found = re.match(r"\s*([A-Za-z_]\w*)\s*:", line)
        if depth == child and found:
            yield offset + 1, found[1]
