"""The patch stack on a pinned release: one concern a patch, applied exactly, proven, rebased and installed.

From the middle outwards: ``difftext`` (a patch file as values), ``pathpolicy`` (what a patch may touch), ``apply`` (exact application over git
trees), ``header``, ``series`` and ``stack`` (a stack folder), ``landed``, ``rebase`` and ``refresh`` (a stack against another pin or an edited
tree), ``gate`` (does it parse), ``digest``. At the rim: ``pin``, ``archive``, ``acquire`` and ``store`` (the pinned source as git objects in a
cache) and ``install``, ``swap``, ``processes`` (an environment's site-packages). Patch files and archives are untrusted input: nothing of them
is ever executed.
"""
