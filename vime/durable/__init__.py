"""Durable rollouts: what the generation pool claims, finishes and plans survives any process, on a shared folder, through Straw.

`codec` turns groups into records and back, `pool` opens the folder and owns it alone, `queue` is one branch of its work, `history` folds that
queue's journal into the fate of every prompt, `writer` commits in the background, `store` is what the generation pool sees, `audit` proves the
fates, `archive` exports and replays rollouts. Straw is imported only here, and only when a run asks for it.
"""
