"""vime-sync: mirrors an upstream project into a translated fork, and proves that the result holds.

Values flow policy -> plan -> mirror -> findings -> candidate -> evidence. Packages in the middle are pure functions over git objects;
effects (refs, files, network, terminal) live in ``git/refs.py``, ``mirror/session.py``, ``forge/`` and ``cli/``.
"""

__version__ = "0.1.0"
