"""Documentation of a translated fork: pages cut into sections, translated by prose span, kept in step, their links checked. No git and no command line here.

``page`` is the value that the rest works on, whether a page is Markdown (``markdown``) or reStructuredText (``rest``).
"""
