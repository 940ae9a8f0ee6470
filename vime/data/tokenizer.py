"""The tokenizer of a checkpoint, loaded once a process."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from vime.errors import DataError


@lru_cache(maxsize=4)
def load_tokenizer(folder: str) -> Any:
    """The transformers tokenizer in `folder`. Nothing is fetched and no code of the checkpoint is run. Raises DataError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"no tokenizer can be loaded: {reason}",
            where=folder,
            hint="the folder needs tokenizer.json and tokenizer_config.json",
        ) from error
