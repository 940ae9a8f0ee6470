"""The generation pool: groups in flight across steps, admitted so that nothing is trained under too old weights.

`policy` says how far generation may run ahead, `schedule` decides with numbers alone, `pool` runs groups on the event loop, `store` keeps what
was claimed, finished and planned.
"""
