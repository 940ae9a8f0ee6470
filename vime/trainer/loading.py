"""Where a trainer's weights come from when it starts: a checkpoint to resume, Megatron's, or Hugging Face's; and those kept beside."""

from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path
from typing import Any

from vime.convert import fp8, hf
from vime.convert.config import ModelShape
from vime.errors import VimeError
from vime.trainer import checkpoint, torch_dist
from vime.trainer.model import PolicyModel
from vime.trainer.saving import Checkpoints
from vime.trainer.weights import NamedWeights

log = logging.getLogger(__name__)

REFERENCE, TEACHER = "ref", "teacher"


class Loading:
    """Fills `model`, and `weights` with the other policies that the flags name. All methods are collectives."""

    def __init__(
        self,
        args: Any,
        checkpoints: Checkpoints,
        model: PolicyModel,
        weights: NamedWeights,
        shape: ModelShape,
        blocks: fp8.Blocks | None,
    ) -> None:
        self._args, self._checkpoints = args, checkpoints
        self._model, self._weights, self._shape, self._blocks = model, weights, shape, blocks

    def find(self) -> int | None:
        """The rollout after which the run in `--load` was saved; None for a fresh start."""
        root = self._args.load
        if not root or self._megatrons is not None:
            return None
        found = self._checkpoints.find(root, self._args.ckpt_step)
        if self._checkpoints.decides:
            if found is None:
                log.warning(
                    "no complete checkpoint in %s: starting at rollout 0 from %s", root, self._args.hf_checkpoint
                )
            else:
                log.info("resuming after rollout %d from %s", found, root)
        return found

    def start(self) -> None:
        """The weights of a run that begins."""
        folder = self._megatrons
        if folder is None:
            self._hugging_face(self._args.hf_checkpoint)
            return
        if self._checkpoints.decides:
            log.warning("%s is Megatron's: a new run starts from its weights, with an optimizer of its own", folder)
        self._checkpoints.fill_from_megatrons(folder, self._model)

    def reference(self, resume: int | None) -> None:
        """From --ref-load; after a resume, when the reference follows the policy, from beside the policy's checkpoint."""
        if resume is None or not self._args.ref_update_interval:
            self._named(REFERENCE, "ref_load", self._args.ref_ckpt_step)
            return
        saved = self._checkpoints.open_beside(Path(self._args.load) / REFERENCE, resume)
        self._checkpoints.fill(self._model, self._shape, saved)
        self._weights.keep(REFERENCE)

    def teacher(self) -> None:
        """From --opd-teacher-load."""
        self._named(TEACHER, "opd_teacher_load", self._args.opd_teacher_ckpt_step)

    @cached_property
    def _megatrons(self) -> Path | None:
        """The folder of a checkpoint in `--load` that Megatron wrote."""
        root = self._args.load
        return self._checkpoints.find_megatrons(root, self._args.ckpt_step) if root else None

    def _named(self, name: str, flag: str, step: int | None) -> None:
        """Read the weights at `flag`, a checkpoint of ours or Megatron's (at `step`, or its newest) or a Hugging Face directory, and
        keep them."""
        source, option = getattr(self._args, flag), f"--{flag.replace('_', '-')}"
        if not source:
            raise VimeError(f"the flags need another policy's weights ({name})", hint=f"give {option}")
        if (Path(source) / checkpoint.MARKER).exists() or torch_dist.find(source, step) is not None:
            self._checkpoints.fill_from(source, step, self._model, self._shape, option)
        else:
            self._hugging_face(source)
        self._weights.keep(name)

    def _hugging_face(self, directory: str | Path) -> None:
        hf.load_hf(self._model, directory, self._shape, self._checkpoints.cut, self._blocks)
