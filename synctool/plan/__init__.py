"""A range of upstream history becomes a plan: which change came from which pull request, what is reverted, already here, excluded or taken, and why.

Values in ``model``; ``build`` puts the parts together; ``manifest`` keeps the plan as a file that people review and edit.
"""

from synctool.plan.build import build_plan
from synctool.plan.model import Change, Decision, Evidence, Identity, Kind, Plan, PlannedChange

__all__ = ["Change", "Decision", "Evidence", "Identity", "Kind", "Plan", "PlannedChange", "build_plan"]
