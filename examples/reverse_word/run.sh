#!/usr/bin/env bash
# The toy with every flag spelled out: what `python train.py` without arguments does. A start for a task of your own:
# change the prompts, the checkpoint and the reward. Also shown: saving, and resuming by the same command.
set -euo pipefail
here="$(cd "$(dirname "$0")/../.." && pwd)"
work="${1:-$here/.cache/reverse_word}"
python="${PYTHON:-$here/.venv/bin/python}"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"

# Words and a starting checkpoint (a few dozen supervised steps), made once.
"$python" -c "from pathlib import Path; from vime.toy.flags import default_flags; default_flags(folder=Path('$work'))"

"$python" "$here/train.py" \
  --hf-checkpoint "$work/seed0/start" \
  --prompt-data "$work/seed0/train.jsonl" --input-key prompt --label-key answer \
  --rm-type reverse_word \
  --eval-config "$work/seed0/eval.yaml" --eval-interval 10 \
  --num-rollout "${STEPS:-40}" --rollout-batch-size 32 --n-samples-per-prompt 8 --num-steps-per-rollout 2 \
  --rollout-max-response-len 8 \
  --use-dynamic-batch-size --max-tokens-per-gpu 4096 --calculate-per-token-loss \
  --lr 3e-4 --lr-warmup-iters 10 --lr-decay-style linear --adam-beta2 0.95 --weight-decay 0 --eps-clip 0.2 \
  --vllm-max-num-seqs 256 \
  --save "$work/checkpoint" --load "$work/checkpoint" --save-interval 10
