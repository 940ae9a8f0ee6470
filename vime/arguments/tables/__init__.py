"""vime's own options, a file for each subject. A section is a title and its options; ``SECTIONS`` is all of them in the order of the help text."""

from __future__ import annotations

from vime.arguments.tables import algorithm, cluster, data, engine, observe, rollout, weights
from vime.arguments.tables.section import Section

SECTIONS: tuple[Section, ...] = (
    *cluster.SECTIONS,
    *data.SECTIONS,
    *rollout.SECTIONS,
    *engine.SECTIONS,
    *weights.SECTIONS,
    *algorithm.SECTIONS,
    *observe.SECTIONS,
)
