"""The checks. Each module has ``RULES``, the kinds of finding it makes, and ``check(audit)``, which yields hits."""
