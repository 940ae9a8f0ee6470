"""Prompt files, chat templates, the data source that deals prompts exactly once, and loss masks for supervised turns."""
