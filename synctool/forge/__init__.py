"""Where pull requests live: the protocol (``base``), answers kept in files for work offline (``recorded``), and GitHub (``github``, imported lazily)."""
