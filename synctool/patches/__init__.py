"""The ordered patch stack on a pinned release: headers, series, exact apply, landed proof, rebase, parse gate."""
