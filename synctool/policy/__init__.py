"""What a fork wants: the schema of vime-sync.toml, loading it with line-numbered errors, its linter, and the starter that ``init`` writes."""

import os

# A plugin of pydantic that happens to be installed has no say in what a policy means, and is not looked for, which takes a sixth of the time of all this.
_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
_before = os.environ.get(_PLUGINS)
os.environ[_PLUGINS] = "__all__"

from synctool.policy.loading import POLICY_FILE, find_policy, load_policy, parse_policy  # noqa: E402
from synctool.policy.model import Exclude, OwnerKind, Ownership, Policy  # noqa: E402

del os.environ[_PLUGINS]
if _before is not None:
    os.environ[_PLUGINS] = _before

__all__ = ["POLICY_FILE", "Exclude", "OwnerKind", "Ownership", "Policy", "find_policy", "load_policy", "parse_policy"]
