"""Resolvers: pure functions from one hunk to its resolution, or None. ``proven`` ones are applied, ``proposed`` ones only suggested; ``toolbox`` says which."""
