"""The patch stack on a pinned release: one concern a patch, applied exactly, proven, rebased and installed.

From the middle outwards: ``filepatch`` and ``difftext`` (a patch file as values), ``pathpolicy`` (what a patch may touch), ``apply`` (exact
application over git trees), ``header``, ``series``, ``stack`` and ``lint`` (a stack folder), ``landed``, ``rebase`` and ``refresh`` (a stack
against another release or an edited tree), ``gate`` (does it parse), ``verify``, ``digest``. At the rim: ``pin``, ``archive``, ``acquire``,
``store`` and ``release`` (the pinned source as git objects in a cache), ``mail`` (patches in and out), ``install``, ``target``, ``swap``,
``record`` and ``processes`` (an environment's site-packages). Patch files and archives are untrusted input: nothing of them is ever executed.
"""
