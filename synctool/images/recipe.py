"""The Dockerfile of a candidate, rendered from its template and the facts that the image is bound to."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment

from synctool.errors import ConfigError

#: Everything that may stand in a value: no blanks, quotes, line ends or shell signs, so that a value is one word wherever it lands.
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+=-]*")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a template may name. ``pin`` is ``package==version``. The base is the Dockerfile's own argument ``BASE``: builders name theirs differently."""

    tree: str
    pin: str
    stack: str
    stack_folder: str
    archive: str
    python: str = "python3.11"


def render(template: str, recipe: Recipe, *, where: str) -> str:
    """The Dockerfile.

    Raises:
        ConfigError: the template does not parse or names something unknown, or a value is not one plain word.
    """
    for name, value in asdict(recipe).items():
        if not _WORD.fullmatch(value):
            raise ConfigError(
                f"{name} {value!r} cannot stand in a Dockerfile",
                where=where,
                hint="letters, digits and . _ / : @ + = -",
            )
    environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    try:
        return environment.from_string(template).render(asdict(recipe))
    except TemplateSyntaxError as error:
        raise ConfigError(f"template: {error.message}", where=f"{where}:{error.lineno}") from error
    except TemplateError as error:
        raise ConfigError(
            f"template: {error.message}", where=where, hint=f"it may name: {', '.join(asdict(recipe))}"
        ) from error
