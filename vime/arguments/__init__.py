"""The command line of the runtime: declarative option tables, one source for flags, help, defaults, configuration files and the reference page.

``parse_args(argv=None)`` is the entry. Three groups: vime's own options (``tables/``), Megatron's (``megatron.py``), vLLM's (``vllm.py``).
"""

from vime.arguments.parse import parse_args

__all__ = ["parse_args"]
