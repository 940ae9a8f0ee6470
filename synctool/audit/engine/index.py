"""The index of an engine's source: built once, kept in the user's cache by the source's key, extended when a module is asked for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from synctool.audit.engine.arguments import argument_fields, registered_options
from synctool.audit.engine.names import ModuleNames, module_names
from synctool.audit.engine.routes import Model, Route, is_program, models, served_routes
from synctool.audit.engine.source import EngineSource
from synctool.audit.files import parse

#: Changes whenever the index is built differently.
FORMAT = 4
_INTERESTING = re.compile(
    rb"router\.|app\.|api_route|BaseModel|add_argument|class \w*Args\b|Struct\b|class SamplingParams"
)


@dataclass
class EngineIndex:
    """What the engine accepts. ``package`` is its import name."""

    package: str
    label: str
    fields: frozenset[str]
    options: frozenset[str]
    routes: tuple[Route, ...]
    models: dict[str, Model]
    requirements: tuple[tuple[str, int, str], ...]
    source: EngineSource
    names: dict[str, ModuleNames] = field(default_factory=dict)
    grown: bool = False
    #: SHA-256 of the patches that are in the source already, each of which was applied exactly.
    patched_with: frozenset[str] = frozenset()

    @cached_property
    def arguments(self) -> frozenset[str]:
        """Every accepted option, without its leading dashes."""
        spelled = {name.replace("_", "-") for name in self.fields}
        return frozenset(spelled | {option.lstrip("-") for option in self.options})

    def served(self) -> frozenset[str]:
        """Every served path."""
        return frozenset(route.path for route in self.routes)

    def module_path(self, module: str) -> str | None:
        """The file of a dotted module, or None when there is none. A folder without ``__init__.py`` is a namespace: its own path."""
        base = module.replace(".", "/")
        for path in (f"{base}.py", f"{base}/__init__.py", f"{base}.pyi"):
            if path in self.source.paths:
                return path
        return base if base in self._folders else None

    def has_module(self, module: str) -> bool:
        """Whether a module is there, in source or as a compiled extension built from this source."""
        if self.module_path(module) is not None:
            return True
        head, _, last = module.rpartition(".")
        return last.startswith("_") and head.count(".") <= 1  # compiled extensions: vllm._C, vllm.vllm_flash_attn._x

    @cached_property
    def _folders(self) -> frozenset[str]:
        found = set()
        for path in self.source.paths:
            if path.startswith(f"{self.package}/") and path.endswith(".py"):
                while "/" in path:
                    path = path.rpartition("/")[0]
                    found.add(path)
        return frozenset(found)

    def module(self, module: str) -> ModuleNames | None:
        """The top-level names of a module; None for a namespace, an extension or a file that does not parse."""
        path = self.module_path(module)
        if path is None or not path.endswith(".py"):
            return None
        if path not in self.names:
            parsed = parse(path, self.source.read(path).decode(errors="replace"))
            if parsed is None:
                return None
            self.names[path] = module_names(parsed)
            self.grown = True
        return self.names[path]

    def fields_of(self, model: str) -> frozenset[str] | None:
        """All fields of a request model, inherited ones too; None when a base is not known here."""
        known = self.models.get(model)
        if known is None:
            return None
        found = set(known.fields)
        for base in known.bases:
            inherited = self.fields_of(base) if base != model else None
            if inherited is None and base not in ("BaseModel", "Generic", "Struct", "OpenAIBaseModel", "ABC", ""):
                return None
            found |= inherited or set()
        return frozenset(found)


def build_index(source: EngineSource, package: str, label: str) -> EngineIndex:
    """Read the engine's entry points, argument classes and request models."""
    front = f"{package}/"
    wanted = [
        path
        for path in sorted(source.paths)
        if path.endswith(".py")
        and path.startswith(front)
        and ("/entrypoints/" in path or path.endswith(("arg_utils.py", "cli_args.py", "sampling_params.py")))
    ]
    fields: set[str] = set()
    options: set[str] = set()
    routes: list[Route] = []
    found_models: dict[str, Model] = {}
    for path, data in source.read_many(wanted).items():
        if not _INTERESTING.search(data):
            continue
        module = parse(path, data.decode(errors="replace"))
        if module is None:
            continue
        fields |= argument_fields(module)
        options |= {option for option, _ in registered_options(module)}
        if not is_program(module):
            routes += [route for route, _ in served_routes(module)]
        found_models.update(models(module))
    index = EngineIndex(
        package,
        label,
        frozenset(fields),
        frozenset(options),
        tuple(routes),
        found_models,
        _requirements(source),
        source,
    )
    index.grown = True
    return index


def _requirements(source: EngineSource) -> tuple[tuple[str, int, str], ...]:
    """``(file, line, requirement)`` of what an installed engine asks for on a GPU: the common list and CUDA's."""
    found = []
    for path in ("requirements/common.txt", "requirements/cuda.txt"):
        if path in source.paths:
            for number, line in enumerate(source.read(path).decode(errors="replace").splitlines(), 1):
                text = line.split("#")[0].strip()
                if text and not text.startswith("-"):
                    found.append((path, number, text))
    return tuple(found)


def dump(index: EngineIndex) -> bytes:
    """The index as JSON bytes, for the cache."""
    return json.dumps(
        {
            "format": FORMAT,
            "fields": sorted(index.fields),
            "options": sorted(index.options),
            "routes": [[route.path, list(route.models)] for route in index.routes],
            "models": {name: [list(model.fields), list(model.bases)] for name, model in index.models.items()},
            "requirements": [list(row) for row in index.requirements],
            "names": {path: names.to_json() for path, names in index.names.items()},
        }
    ).encode()


def load(data: bytes, source: EngineSource, package: str, label: str) -> EngineIndex | None:
    """The index from the cache; None when it is of another format or damaged."""
    try:
        raw: dict[str, Any] = json.loads(data)
        if raw["format"] != FORMAT:
            return None
        return EngineIndex(
            package,
            label,
            frozenset(raw["fields"]),
            frozenset(raw["options"]),
            tuple(Route(path, tuple(names)) for path, names in raw["routes"]),
            {name: Model(tuple(fields), tuple(bases)) for name, (fields, bases) in raw["models"].items()},
            tuple((path, line, text) for path, line, text in raw["requirements"]),
            source,
            {path: ModuleNames.from_json(names) for path, names in raw["names"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
