"""A small working example of every function that a user may give to `train.py`; `tests/vime/rollout` and `tests/vime/trainer` run them.

Each file holds the hooks of one place: `rollout` (steps, data, filters), `answers` (generation), `rewards`, `train_data`, `losses`, `trainer_hooks`,
`logs`. Put the folder that contains `examples` on PYTHONPATH and name a function by its dotted path.
"""
