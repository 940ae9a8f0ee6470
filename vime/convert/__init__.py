"""Hugging Face <-> Megatron weights: one table of rules a model family, applied shard by shard in both directions.

`rules` holds the layout rules (pure, no process group), `families` the tables, `config` what a Hugging Face
configuration means for a Megatron model, `hf` the reading, streaming and writing of checkpoints.
"""
