"""The default run: reverse a five-letter word. Its words, its tiny model, its supervised start, and the flags of its GRPO run."""
