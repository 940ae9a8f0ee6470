"""``python -m synctool`` is ``vime-sync``."""

from synctool.cli.app import main

main()
