"""Several processes that generate for one pool: the pool decides what starts and what is trained, workers hold claims on groups for as long as
they are heard of.

`desk` is the manager's side, `worker` the other end of the line, `wire` what goes over it, `fleet` the rollout context of a manager that has
workers. `vime.cluster.generation` starts them.
"""
