"""Hugging Face <-> Megatron weights: one table of rules a model family, applied shard by shard in both directions.

`rules` holds the layout rules (pure, no process group), `shape` what a model is, `config` reads that from a Hugging Face
configuration, `families` says which model types are known and what their weights are, `cut` which of them a rank holds, `hf`
reads, streams and writes checkpoints.
"""
