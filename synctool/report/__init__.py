"""The body of a sync's pull request, rendered from records, and its publication.

``facts`` (reads the manifest, policy, patch stack, trees and evidence of one head), ``claims`` (a sentence with its sources, and the proof that the sources
say it), ``sections`` (facts to claims: pure), ``body`` (the template, and the part of a description that is ours), ``publish`` (what to do at the forge: pure
decisions, then the doing, then reading back).
"""
