#!/usr/bin/env bash
# The worked agent on a CPU: the toy's starting checkpoint, the word behind a tool. Some minutes for 40 steps.
# Run in the repository: examples/agents/run.sh [more flags]
set -euo pipefail
work="${VIME_TOY_DIR:-.cache/toy}"
python -c 'from vime.toy.flags import default_flags; default_flags()'
python - "$work/agent.jsonl" <<'PY'
import itertools, json, pathlib, sys
from vime.toy.words import answer, words
asked, hidden = words(7, 4), words(8)
pairs = itertools.islice(zip(asked, hidden), 8192)
rows = [json.dumps({"prompt": f"r{one}g=", "answer": answer(other)}) + "\n" for one, other in pairs]
pathlib.Path(sys.argv[1]).write_text("".join(rows))
PY
PYTHONPATH="${PYTHONPATH:-}:$PWD" exec python train.py \
  --hf-checkpoint "$work/seed0/start" --prompt-data "$work/agent.jsonl" --input-key prompt --label-key answer \
  --agent-path examples.agents.lookup.find_word --agent-tool-parser examples.agents.lookup.letter_tool --agent-max-turns 2 \
  --apply-chat-template-kwargs '{"chat_template": "{% for m in messages %}{{ m.content }}{% if m.role == '"'assistant'"' %}<eos>{% endif %}{% endfor %}"}' \
  --num-rollout 40 --rollout-batch-size 32 --n-samples-per-prompt 8 --num-steps-per-rollout 2 --rollout-max-response-len 8 \
  --use-dynamic-batch-size --max-tokens-per-gpu 4096 --lr 3e-4 --lr-warmup-iters 10 --adam-beta2 0.95 --weight-decay 0 \
  --vllm-max-num-seqs 256 "$@"
