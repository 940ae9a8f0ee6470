"""The Megatron trainer: model and attention, batching, advantages and losses, optimizer, checkpoints, parity.

Pure tensor functions (`advantages`, `returns`, `kl`, `losses`, `mismatch`, `centering`, `reduce`, `schedule`) know no
process group, file or flag. `estimators` and `objective` read the flags and compose them; `support` and `routing` check what
engines recorded; `batching` lays samples out. A `Learner` steps one model (the policy, or the `critic`), and
`trainer.Trainer` is the rim that joins all to Megatron-core, one instance a rank. Importing this package loads neither torch
nor Megatron.
"""

import warnings

# Megatron warns at import, several times, of what is the normal case here: no Transformer Engine, no Apex.
warnings.filterwarnings("ignore", message="(Transformer Engine and )?Apex (is|are) not installed")
# Its distributed optimizer looks at the gradients of views.
warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf Tensor")
