# Commands for development and CI. `make help` lists them.
# Each command installs what it needs on its first run. After that it works offline.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# Variables for the command line: make test ARGS="tests/cluster/state -x", make simulate SEEDS=20,
# make fuzz REQUESTS=1000000 JOB_FILES=1000000.
ARGS ?=
SEEDS ?= 300
COUNT ?= 300
REQUESTS ?= 100000
JOB_FILES ?= 100000
# The number of test processes: two for each of two cores, because most tests wait. With JOBS=1, `-s` and a debugger work.
JOBS ?= 4
# The tests of a file run in one process and in order, so that a shared service is started once.
in_processes = $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadfile --no-loadscope-reorder)

# Always store bytecode: a cluster in a test has five processes, and each would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

# System programs that tests start, as program=package of the distribution.
PROGRAMS := etcd=etcd-server etcdctl=etcd-client redis-server=redis-server
# For container tests: the engine, its runtime, the only program of the test image, and network plugins.
PROGRAMS += podman=podman /usr/sbin/runc=runc busybox=busybox-static /usr/lib/cni/bridge=containernetworking-plugins
# For the pages: the browser that opens them in tests.
PROGRAMS += chromium=chromium
PROGRAMS += gcc=gcc /usr/sbin/iptables=iptables /usr/sbin/mkfs.ext4=e2fsprogs /usr/sbin/nginx=nginx-light systemd-analyze=systemd
# Shells in which the completion of commands is tested.
PROGRAMS += zsh=zsh fish=fish

PYTHON_HERE := .venv/bin/python

.PHONY: help setup environment programs run test check lock bench simulate faults clients fuzz mutants site changelog clean

help: ## list the commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)$$/  make \1\t\2/p' Makefile | expand -t 18

environment: # create .venv/ with the locked dependencies and the package
	@tools/setup.sh

programs:
	@tools/install-programs.sh $(PROGRAMS)

setup: environment programs ## create .venv/ and install the programs that tests need
	@echo "Setup complete. Next: make run, make test."

run: environment ## start a cluster on this machine: one server and one node on 127.0.0.1:4646
	@exec .venv/bin/wharf dev $(ARGS)

test: environment programs ## run the tests in four processes (JOBS=1: in one)
	@exec $(PYTHON_HERE) -m pytest $(in_processes) --slowest-files=25 $(ARGS)

check: environment ## check format, lint, types, import rules and banned calls
	@exec $(PYTHON_HERE) -m tools.check $(ARGS)

lock: environment ## write requirements/*.txt from requirements/*.in (UPGRADE=1: newest versions)
	@exec tools/lock.sh

bench: environment programs ## run all benchmarks; print a table, write JSON to benchmarks/results/, fail if a target is missed
	@exec $(PYTHON_HERE) -m benchmarks $(ARGS)

simulate: environment ## run the simulated cluster with SEEDS=300 new seeds
	@exec env PYTHONHASHSEED=0 $(PYTHON_HERE) -m simulation --seeds $(SEEDS) $(ARGS)

faults: environment programs ## run the long tests: kill, pause and disconnect real servers many times
	@exec $(PYTHON_HERE) -m pytest -m faults $(ARGS)

clients: environment ## test existing clients, proxies and installers with the API, the gateway, the limiter and the wheel; installs them in build/clients/ (needs a network)
	@tools/install-clients.sh build/clients
	@exec env WHARF_CLIENTS=build/clients $(PYTHON_HERE) -m pytest tests/cluster/api/existing tests/limits/existing tests/packaging/existing $(ARGS)

fuzz: environment ## run all property tests with many new examples, REQUESTS=100000 requests (FUZZ_SEED=1), JOB_FILES=100000
	@exec env HYPOTHESIS_PROFILE=fuzz FUZZ_REQUESTS=$(REQUESTS) FUZZ_JOB_FILES=$(JOB_FILES) $(PYTHON_HERE) -m pytest -o faulthandler_timeout=0 -m "hypothesis or fuzz" $(ARGS)

mutants: environment programs ## plant 300 random mistakes, one at a time, and list those that no test notices (COUNT=50)
	@exec $(PYTHON_HERE) -m tools.mutants --count $(COUNT) $(ARGS)

site: environment ## build the documentation as a site in build/site/, with a search; a broken link is an error
	@exec $(PYTHON_HERE) -m sphinx -W --keep-going -q -b html -d build/site-trees -c tools/site docs build/site $(ARGS)
	@echo "wrote build/site/index.html"

changelog: environment ## move the notes of changelog.d/ to CHANGELOG.md: make changelog VERSION=0.2.0
	@exec $(PYTHON_HERE) -m tools.changelog "$(VERSION)"

clean: ## delete generated files and .venv/; data in .wharf/ stays
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
