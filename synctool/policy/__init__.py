"""What a fork wants: the schema of vime-sync.toml, loading it with line-numbered errors, its linter, and the starter that ``init`` writes."""

from synctool.policy.loading import POLICY_FILE, find_policy, load_policy, parse_policy
from synctool.policy.model import Exclude, OwnerKind, Ownership, Policy

__all__ = ["POLICY_FILE", "Exclude", "OwnerKind", "Ownership", "Policy", "find_policy", "load_policy", "parse_policy"]
