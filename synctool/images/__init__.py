"""Candidate images: from a tree, a pin and a patch stack to an OCI layout whose digest is the truth.

Values: ``oci`` (layouts), ``contents`` (what is in the layers),
``tags``, ``recipe`` (the rendered Dockerfile), ``sbom``, ``statement``, ``permission`` (may it be built, may it be pushed).
Effects: ``base`` (debootstrap), ``context`` (what the builder sees), ``builders``, ``unpack`` (layers to a folder), ``hosts`` (ssh routes), ``registry``,
``promote``.
"""
