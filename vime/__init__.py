"""The RL runtime: Megatron-core trains, vLLM generates, Ray places. ``train.py`` at the root of the repository is the loop."""
