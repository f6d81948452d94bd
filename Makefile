# `make demo` and `make test` set up everything they need; `make setup` is the set-up alone.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
KERNEL := $(wildcard src/torchleap/native/*.[ch] src/torchleap/native/build.py)
TRITON := .venv-triton
TORCHREC := .venv-torchrec
LIGHT_ZOOS := rechub torchfm rtdl  # in the environment of the other tests
HEAVY_ZOOS := deepctr fuxictr recbole widedeep frame tabular deeptab
ZOO ?= $(LIGHT_ZOOS) $(HEAVY_ZOOS) loops

.PHONY: help setup demo test mutants test-triton test-torchrec test-zoos zoos lint format type bench bench-quick picture clean

help:
	@echo "make demo     select fields of synthetic rows with known ground truth, with a report (about a minute)"
	@echo "make test     run the tests"
	@echo "make mutants  make small mistakes in copies of the source: do the tests notice? ONLY=surgery for a part (ten minutes)"
	@echo "make test-triton  test the GPU kernel in Triton's interpreter (downloads a gigabyte)"
	@echo "make test-torchrec  test gates and surgery on TorchRec's models, sharded over two processes (four minutes)"
	@echo "make test-zoos  test all models of public zoos, each zoo in its own environment; ZOO=\"rechub deepctr\" for some"
	@echo "make zoos     the same models on 40,000 rows: the table of docs/zoos.md"
	@echo "make lint     ruff: check and format check"
	@echo "make type     mypy --strict on src"
	@echo "make bench    what LeAP costs a training step, as ratios, and the speed of memory (four minutes)"
	@echo "make bench-quick  small versions of the paper's three tables, on synthetic data (some minutes)"
	@echo "make picture  run the demo and draw the README's picture from its report"

setup: $(READY)

$(READY): pyproject.toml constraints.txt hatch_build.py $(KERNEL)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "torchleap needs Python 3.11 or newer, but found " + sys.version)'
	@echo "Setting up $(VENV): a minute or two, once."
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# The report is tested in a real browser; without one those tests are skipped and say so.
.PHONY: browser
browser:
	-@if ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing chromium, for the tests of the report."; \
		(apt-get install -qq -y chromium || (apt-get update -qq && apt-get install -qq -y chromium)) >/dev/null 2>&1 \
			|| echo "chromium could not be installed: the tests in a browser will be skipped."; \
	fi

demo: $(READY)
	$(RUN) -m torchleap.cli demo

# In strict mode what a rule of surgery did wrong is raised, instead of falling back to a simpler way.
test: $(READY) browser
	TORCHLEAP_STRICT=1 $(RUN) -m pytest -n auto --dist worksteal

# Fails if more than a tenth of the mistakes in tests/mutants survive.
ONLY ?=
mutants: $(READY)
	$(RUN) -m tests.mutants $(ONLY)

# Triton is a gigabyte, so it has a virtual environment of its own. No GPU is needed.
test-triton: $(TRITON)/.ready
	TRITON_INTERPRET=1 $(TRITON)/bin/python -m pytest tests/mix/test_triton.py
	$(TRITON)/bin/python -m pytest tests/mix/test_triton.py

$(TRITON)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TRITON)
	$(TRITON)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . pytest hypothesis
	$(TRITON)/bin/python -m pip install --quiet --disable-pip-version-check triton
	@touch $@

# TorchRec asks for gigabytes of CUDA, so it comes without its dependencies, see docs/torchrec.md. No GPU is needed.
# The tests run examples/torchrec_dlrm.py as well, with two processes.
test-torchrec: $(TORCHREC)/.ready
	$(TORCHREC)/bin/python -m pytest tests/torchrec tests/distributed/test_torchrec.py

$(TORCHREC)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TORCHREC)
	$(TORCHREC)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . pytest hypothesis
	$(TORCHREC)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt fbgemm-gpu-cpu==1.8.0
	$(TORCHREC)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torchrec==1.8.0
	$(TORCHREC)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		tensordict torchmetrics tqdm pyre-extensions
	@touch $@

# Each heavy zoo has an environment of its own: what it needs under constraints, then the packages
# that ask for other versions than they need, without their dependencies. torch stays pinned.
ENVIRONMENTS := $(foreach zoo,$(filter-out $(LIGHT_ZOOS),$(ZOO)),.venv-zoo-$(zoo)/.ready)
in_zoo = $(if $(filter $(1),$(LIGHT_ZOOS)),$(RUN),.venv-zoo-$(1)/bin/python)

test-zoos: $(READY) $(ENVIRONMENTS)
	$(foreach zoo,$(ZOO),TORCHLEAP_STRICT=1 TORCHLEAP_ZOO=$(zoo) $(call in_zoo,$(zoo)) -m pytest tests/zoos/test_all.py tests/zoos/test_loops.py &&) true

zoos: $(READY) $(ENVIRONMENTS)
	$(foreach zoo,$(filter-out loops,$(ZOO)),$(call in_zoo,$(zoo)) benchmarks/zoos.py --zoo $(zoo) > /dev/null &&) true
	$(RUN) benchmarks/zoos.py --print

.venv-zoo-%/.ready: tests/zoos/requirements/%.txt pyproject.toml
	$(PYTHON) -m venv .venv-zoo-$*
	.venv-zoo-$*/bin/python -m pip install --quiet --disable-pip-version-check -e . pytest hypothesis -r $<
	@if [ -e tests/zoos/requirements/$*.alone.txt ]; then \
		.venv-zoo-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
			-r tests/zoos/requirements/$*.alone.txt; \
	fi
	@touch $@

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

format: $(READY)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

type: $(READY)
	$(RUN) -m mypy

bench: $(READY)
	$(RUN) benchmarks/overhead.py --quick
	$(RUN) benchmarks/roofline.py --repeats 7

# The store in bench-quick/ is kept: a second call only prints. Remove the folder to run again.
bench-quick: $(READY)
	$(RUN) -m torchleap.cli bench --grid benchmarks/grids/quick.toml --out bench-quick/table1
	$(RUN) -m torchleap.cli bench stepwise --grid benchmarks/grids/quick-stepwise.toml --out bench-quick/table2
	$(RUN) -m torchleap.cli bench roi --rows 40000 --fields 64 --dims 1000 --epochs 6 --steps 30 --seeds 2 --out bench-quick/table3

picture: $(READY)
	$(RUN) -m torchleap.cli demo
	$(RUN) examples/demo.py torchleap-demo --picture docs/images/gates.png

clean:
	rm -rf $(VENV) $(TRITON) $(TORCHREC) .venv-zoo-* src/torchleap/native/*.so build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
