# Everything a developer types. The first target that needs it makes the environment in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SMALL := $(VENV)/.installed-for-use
TWINS := sample_runs/bad-batch

.DEFAULT_GOAL := help

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(SMALL): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gradclip needs Python 3.11 or newer; set PYTHON=python3.12, say"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing gradclip into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(STAMP): $(SMALL)
	@echo "installing what tests and checks need into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torch,test,lint,bench]'
	@touch $@

setup: $(STAMP) ## Make the environment in .venv

demo: $(SMALL) ## A training that a bad batch ruined: what happened, which threshold, and the twin that it saves
	@printf '\n1. What happened? Here nothing was clipped.\n\n'
	$(BIN)/gradclip analyze $(TWINS)/max_norm-none
	@printf '\n2. Which threshold would have held?\n\n'
	$(BIN)/gradclip suggest-threshold $(TWINS)/max_norm-none
	@printf '\n3. The same training, with the same bad batch, clipped at that threshold:\n\n'
	$(BIN)/gradclip analyze $(TWINS)/max_norm-suggested

# A file goes to one worker as a whole: what its tests share, a training by real libraries say, is made once.
test: $(STAMP) ## Run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(STAMP) ## Formatting, lint, types, and whether the generated documentation is current
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m docs.generate --check

format: $(STAMP) ## Format the code and repair what lint can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP) ## Write the generated parts of README.md, docs/rules.md and the picture anew
	$(BIN)/python -m docs.generate
	$(BIN)/gradclip analyze $(TWINS) --plot docs/bad-batch.png --force > /dev/null

bench: $(STAMP) ## Measure speed and memory beside the alternatives, in one run
	$(BIN)/python -m tests.bench

samples: $(STAMP) ## Train the sample runs anew
	$(BIN)/python sample_runs/make.py

clean: ## Remove the environment and what tools left behind
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup demo test check format docs bench samples clean
