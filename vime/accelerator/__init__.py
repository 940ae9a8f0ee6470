"""Kinds of accelerators and what each can do, as values; and the few driver calls that torch has no name for."""
