# The chores of the project, the same for people and CI. `make help` lists them.
# `run`, `test` and the others set up what they need first; once set up they work offline.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# What may be given on the command line: make test ARGS="tests/cluster/state -x", make simulate SEEDS=20.
ARGS ?=
SEEDS ?= 300
# In how many processes the tests run: JOBS=1 is one, where `-s` and a debugger work.
JOBS ?= 2
# A file's tests run in one process, in their order, so that what they start together is started once.
in_processes = $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadfile --no-loadscope-reorder)

# Bytecode is kept, whatever the surroundings say: a cluster in a test is five processes, and each would compile all modules.
export PYTHONDONTWRITEBYTECODE :=

# System programs that tests start, and the distribution's packages that bring them.
PROGRAMS := etcd=etcd-server etcdctl=etcd-client redis-server=redis-server
# Containers: an engine that tests start, what runs them, and the one program in their image.
PROGRAMS += podman=podman /usr/sbin/runc=runc busybox=busybox-static /usr/lib/cni/bridge=containernetworking-plugins
PROGRAMS += /usr/sbin/iptables=iptables /usr/sbin/mkfs.ext4=e2fsprogs

PYTHON_HERE := .venv/bin/python

.PHONY: help setup environment programs run test check lock bench simulate faults clients fuzz changelog clean

help: ## say what there is
	@sed -n 's/^\([a-z]*\):.*## \(.*\)$$/  make \1\t\2/p' Makefile | expand -t 18

environment: # .venv/ with the locked dependencies and the package
	@tools/setup.sh

programs:
	@tools/install-programs.sh $(PROGRAMS)

setup: environment programs ## make .venv/ and install what tests need, without running anything
	@echo "Set up. Next: make run, make test."

run: environment ## start a whole cluster here: server, scheduler and one node on 127.0.0.1:4646
	@exec .venv/bin/wharf dev $(ARGS)

test: environment programs ## run the tests, in two processes (JOBS=1: in one)
	@exec $(PYTHON_HERE) -m pytest $(in_processes) $(ARGS)

check: environment ## format, lint, types, import rules, banned calls
	@exec $(PYTHON_HERE) -m tools.check $(ARGS)

lock: environment ## write requirements/*.txt from requirements/*.in (UPGRADE=1: newest versions)
	@exec tools/lock.sh

bench: environment programs ## run all benchmarks: a table, and JSON in benchmarks/results/
	@exec $(PYTHON_HERE) -m benchmarks $(ARGS)

simulate: environment ## run SEEDS=300 fresh seeds of the simulated cluster
	@exec env PYTHONHASHSEED=0 $(PYTHON_HERE) -m simulation --seeds $(SEEDS) $(ARGS)

faults: environment programs ## the long proofs: real servers killed, paused and cut off, many times
	@exec $(PYTHON_HERE) -m pytest -m faults $(ARGS)

clients: environment ## existing clients against the API and the gateway; installs them in build/clients/, so not offline
	@tools/install-clients.sh build/clients
	@exec env WHARF_CLIENTS=build/clients $(PYTHON_HERE) -m pytest tests/cluster/api/existing tests/limits/existing $(ARGS)

fuzz: environment ## all property tests with many fresh examples, and 100,000 made-up requests (FUZZ_SEED=1)
	@exec env HYPOTHESIS_PROFILE=fuzz $(PYTHON_HERE) -m pytest -m "hypothesis or fuzz" $(ARGS)

changelog: environment ## assemble changelog.d/ into CHANGELOG.md: make changelog VERSION=0.2.0
	@exec $(PYTHON_HERE) -m tools.changelog "$(VERSION)"

clean: ## remove what was made here, .venv/ too; data in .wharf/ stays
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
