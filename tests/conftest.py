"""What all tests share: how property tests run."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: a busy machine is no fault of the code. `make test` draws the same examples every time, so that a change is judged by what it
# changed; the nightly run sets HYPOTHESIS_PROFILE=explore and draws new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
