"""A range of upstream history becomes a plan: which change came from which pull request, what is reverted, already here, excluded or taken, and why.

Values in ``model``; ``build`` puts the parts together; ``manifest`` keeps the plan as a file that people review and edit. Nothing is imported here, so that
git can begin to read (``ahead``) before the rest is loaded.
"""
