# Every target does its own set-up, the first time. Needed: Python 3.11 to 3.13, make, and a JDK 17 or newer; nothing else.
# Arguments go through ARGS:  make test ARGS="-k lease"   make demo FORMAT=delta ARGS="--days 20"

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN ?= .venv/bin
DATA ?= build/dev
ARGS ?=
SEEDS ?=
PEERS ?=
comma := ,
# Test files run side by side: most of them wait, for leases and heartbeats to end. WORKERS=0 runs them in one process. In the
# order of their names, the long ones come before the short ones; by the number of their tests they would come last.
WORKERS ?= 5
SIDE_BY_SIDE = pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 10

# The contract's main cases that `test-matrix` runs on a cluster of Spark's own files, one sink of each format.
ON_CLUSTER := cluster or (declares or replayed_batch or while_tasks or foreign_commit) and (hudi or paimon-append or -upsert) and not paimon-upsert
# Likewise those of a client of Spark Connect, whose server runs the statements.
ON_CONNECT := (parquet or paimon-append or paimon-upsert or delta-upsert) and not (late or lease and parquet)
CLUSTER_TESTS := pytest -n 0 -m "not wide" tests/spark/test_cluster.py tests/spark/sinks/test_contract.py -k

UV_VERSION := 0.13.8
UV := build/tools/bin/uv
STAMP := .venv/.set-up
COMPILED := .venv/.tests-compiled

ZENSICAL_VERSION := 0.0.73

# A row of the table of releases (spark_jobs/sinks/releases.py): an environment with its PySpark, else as locked.
LOCKED := 4.1
RELEASE ?= $(LOCKED)
venv_of = $(if $(filter $(LOCKED),$(1)),.venv,build/venv-spark$(subst .,,$(1)))
SPARK35_BIN := $(call venv_of,3.5)/bin
SPARK35_STAMP := $(call venv_of,3.5)/.set-up

# `make test` runs the embedded Kafka, the newest.
OLDER_KAFKAS := 3.9.2 4.0.1

# The Pythons of these versions that this machine has, on PATH or of pyenv; PYTHONS="/path/to/python3.12 …" names them instead.
PYTHONS ?=
pythons = $(or $(PYTHONS),$(shell for each in $(1); do \
	for python in python$$each $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$each.*/bin/python$$each; do \
		$$python -c '' 2>/dev/null && command -v $$python && break; done; done; true))

# uv doesn't read pip's configuration; what it says of certificates holds for uv too.
export UV_SYSTEM_CERTS ?= true
export UV_PYTHON_DOWNLOADS ?= never

# Without byte code on disk, as some container images set it, each of the hundreds of processes that the tests start compiles
# again what it imports: 3.5 s of a core for the command line instead of 1.4.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo dev check unit test test-all test-spark35 test-releases test-platforms test-pythons test-matrix rows soak test-containers test-browser sim sim-whole explore bench release docs fmt check-format check-rules check-types check-imports python jdk namespace spark35-python
.NOTPARALLEL:

help:
	@echo "make setup | demo | dev | check | unit | test | test-all | test-spark35 | test-releases | test-platforms | test-pythons | test-matrix | rows | soak | test-containers | test-browser | sim | sim-whole | explore | bench | release | docs | fmt   (ARGS=... is passed on)"

setup: jdk $(STAMP)

# FORMAT=delta, hudi or iceberg: on tables of that format. Hudi's is on PySpark 3.5, in an environment of its own.
demo: jdk $(if $(filter hudi,$(FORMAT)),spark35-python,$(STAMP))
	$(if $(filter hudi,$(FORMAT)),$(SPARK35_BIN),$(BIN))/python docs/examples/demo/demo.py $(if $(FORMAT),--format $(FORMAT) )$(ARGS)

spark35-python: $(SPARK35_STAMP)
	@$(SPARK35_BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 12))' || \
		{ echo "error: Hudi needs PySpark 3.5, which needs Python 3.11: make a clone of its own with PYTHON=/path/to/it" >&2; exit 1; }

dev: jdk $(STAMP)
	$(BIN)/lakewarden dev --data $(DATA) $(ARGS)

# Proves the product within ten minutes on two idle cores. Each test is part of `make test`, `make test-all` or `make test-matrix`.
test: jdk $(COMPILED)
	$(BIN)/$(SIDE_BY_SIDE) -m "not wide and not matrix" $(ARGS)

# The rest: more cases, longer runs, rarer failures, and PySpark 3.5.
test-all: jdk $(COMPILED)
	$(BIN)/$(SIDE_BY_SIDE) -m "wide and not matrix" $(ARGS)
	@$(if $(ARGS),,$(MAKE) --no-print-directory test-spark35)

# The gate, the sinks and the jobs on PySpark 3.5: what is not wide, and all of Hudi's. `make test-all` runs it, unless ARGS selects tests.
test-spark35:
	@$(MAKE) --no-print-directory test-releases RELEASE=3.5 WHAT=newest

# The same on RELEASE=4.2, and so on: with the newest releases of the formats, then each sink's tests with each older one. WHAT=newest
# or WHAT=older runs one of the two.
test-releases: jdk $(call venv_of,$(RELEASE))/.set-up
	@if test $(RELEASE) != 3.5 || $(SPARK35_BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then \
		set -x; $(call venv_of,$(RELEASE))/bin/python -m tests.spark.releases $(or $(WHAT),all) $(ARGS); \
	else \
		echo "PySpark 3.5 needs Python 3.11: its tests don't run"; \
	fi

# The sinks with the formats' releases that platforms bring, by the same table, each on the PySpark of its row.
test-platforms:
	@set -e; for release in 3.5 4.0 4.1.1; do $(MAKE) --no-print-directory test-releases RELEASE=$$release WHAT=platforms; done

# The unit tests, the simulations and the tests of the writers' side on the other Pythons, with the locked versions.
test-pythons: jdk $(STAMP)
	@test -n "$(strip $(call pythons,3.12 3.13))" || echo "no Python 3.12 or 3.13 found: name them, make test-pythons PYTHONS=/path/to/python3.12"
	@$(UV) export --quiet --frozen --all-extras --all-groups --no-emit-project --output-file build/requirements-pythons.txt
	@set -e; for python in $(call pythons,3.12 3.13); do \
		venv=build/venv-$$($$python -c 'import sys; print("python%d.%d" % sys.version_info[:2])'); \
		echo "== $$venv"; \
		if ! test -e $$venv/.set-up; then \
			$$python -m venv --clear $$venv; \
			if build/tools/bin/pip config list | grep -qE "index-url|no-index"; then \
				$$venv/bin/pip install --quiet --requirement build/requirements-pythons.txt; \
			else \
				$(UV) pip install --quiet --python $$venv/bin/python --requirement build/requirements-pythons.txt; \
			fi; \
			$(UV) pip install --quiet --python $$venv/bin/python --no-deps --no-build-isolation --editable .; \
			touch $$venv/.set-up; \
		fi; \
		$$venv/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "(unit or real) and not matrix" tests/unit tests/simulation tests/spark $(ARGS); \
	done

# What doesn't fit into `make test-all`: every step of every sink at which a driver can die, and so on, then ten minutes of soak.
test-matrix: jdk $(STAMP) $(SPARK35_STAMP)
	$(BIN)/pytest -n 2 -m "matrix" $(ARGS)
	@$(if $(ARGS),,LAKEWARDEN_TEST_RANDOM=1 $(BIN)/pytest -n 2 -m "not matrix" tests/unit)
	@$(if $(ARGS),,$(MAKE) --no-print-directory test-spark35 ARGS="-m matrix -k hudi tests/spark/sinks tests/demo/test_demo_end_to_end.py")
	@$(if $(ARGS),,LAKEWARDEN_TEST_CLUSTER=1 $(BIN)/$(CLUSTER_TESTS) "$(ON_CLUSTER)")
	@$(if $(ARGS),,$(MAKE) --no-print-directory build/venv-thin/.set-up)
	@$(if $(ARGS),,LAKEWARDEN_TEST_CLIENT=build/venv-thin/bin/python $(BIN)/pytest -n 0 -m "not wide" tests/spark/connect)
	@$(if $(ARGS),,LAKEWARDEN_TEST_CONNECT=1 $(BIN)/pytest -n 0 -m "not wide" tests/spark/sinks/test_contract.py -k "$(ON_CONNECT)")
	@$(if $(ARGS),,LAKEWARDEN_TEST_CLUSTER=1 $(SPARK35_BIN)/$(CLUSTER_TESTS) "hudi and ($(ON_CLUSTER))")
	@$(if $(ARGS),,LAKEWARDEN_TEST_ICEBERG_FORMAT=3 $(BIN)/pytest -n 2 -m real -k iceberg tests/spark/sinks/test_iceberg_sink.py tests/spark/sinks/test_contract.py)
	@$(if $(ARGS),,$(MAKE) --no-print-directory test-spark35 ARGS="-m 'wide and not (hudi or matrix)'")
	@$(if $(ARGS),,$(MAKE) --no-print-directory test-releases RELEASE=3.5 WHAT=older)
	@$(if $(ARGS),,set -e; for each in $(OLDER_KAFKAS); do \
		LAKEWARDEN_TEST_KAFKA_VERSION=$$each $(BIN)/pytest -n 2 -m "real and not matrix" tests/real; done)
	@$(if $(ARGS),,$(MAKE) --no-print-directory soak)

# Batches of generated schemas and values, by each sink and by its format alone: EXAMPLES=n of each format and mode, from SEED.
# `make test` and `make test-all` compare some. SPARK35=1: on PySpark 3.5, with Hudi. ARGS="-k delta-upsert" for some of them.
rows: jdk $(STAMP) $(if $(SPARK35),$(SPARK35_STAMP))
	LAKEWARDEN_TEST_ROWS=$(or $(EXAMPLES),100) LAKEWARDEN_TEST_ROWS_SEED=$(or $(SEED),$(shell date +%s)) \
		$(if $(SPARK35),$(SPARK35_BIN),$(BIN))/pytest -n 0 tests/spark/rows $(ARGS)

# What starts no server: unit tests, the contract of stores on memory and disk, a short piece of both simulations, small scopes.
unit: $(STAMP)
	$(BIN)/pytest -n 2 -m unit tests/unit tests/contract/test_stores.py tests/simulation tests/exhaustive $(ARGS)

# Ten minutes of work by a fleet among hostile records, or SECONDS=n; `make test-all` does one minute of it.
soak: jdk $(STAMP)
	LAKEWARDEN_TEST_SOAK_SECONDS=$(or $(SECONDS),600) $(BIN)/pytest -n 0 -s tests/real/serving/test_soak.py $(ARGS)

# The container images, docker-compose.yml and the Dockerfile, on the Docker of this machine.
test-containers: $(STAMP)
	$(BIN)/pytest -n 0 tests/containers $(ARGS)

# The page in Chromium, which is installed by apt where it is missing and the user is root. SCREENSHOTS=docs renews docs/web-*.png.
test-browser: jdk $(STAMP)
	$(if $(SCREENSHOTS),LAKEWARDEN_TEST_SCREENSHOTS=$(SCREENSHOTS) )$(BIN)/python -m tests.browser $(ARGS)

# The lock through so many seeds, or through SEEDS=from-to; `make test` runs the first 500.
sim: $(STAMP)
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),20000) $(ARGS)

# The whole, likewise; `make test` runs the first 240.
sim-whole: $(STAMP)
	$(BIN)/python -m tests.simulation.whole --seeds $(or $(SEEDS),2000) $(ARGS)

# Every order of the steps of small worlds, MINUTES=10 for all scopes together; ARGS="-k lock:" for some of them.
explore: $(STAMP)
	$(BIN)/python -m tests.exhaustive --minutes $(or $(MINUTES),10) $(ARGS)

# PEERS="delta iceberg hudi" compares the formats' own ways with the gate instead, on real Spark. ARGS="--workload 2-same --ways
# native auto" selects some of it.
bench: jdk $(STAMP) $(if $(findstring hudi,$(PEERS)),$(SPARK35_STAMP))
	$(BIN)/python -m tests.bench $(if $(PEERS),--peers $(subst $(comma), ,$(PEERS))) $(ARGS)

# Wheel, sdist, bill of materials, licences and checksums of the newest commit, in dist/, after each extra was installed alone and
# tried, on this Python and on the others of this machine. Some ten minutes each; ARGS=--no-install builds and checks only.
release: jdk $(STAMP)
	$(BIN)/python -m tests.release $(foreach python,$(call pythons,3.11 3.12 3.13 3.14),--python $(python)) $(ARGS)

# The pages of docs/ as a site with search, in build/site. It loads nothing from other hosts. A broken link or anchor fails.
docs: build/venv-docs/.set-up
	build/venv-docs/bin/python docs/site_links.py build/docs
	build/venv-docs/bin/zensical build --strict --clean $(ARGS)

check: $(STAMP)
	@$(MAKE) --no-print-directory check-format check-rules check-types check-imports

fmt: $(STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format --quiet

# The parts of `check`. They need the tools at BIN and no set-up, so that a test can run them on a copy of the repository.
check-format:
	$(BIN)/ruff format --check

check-rules:
	$(BIN)/ruff check

check-types: namespace
	$(BIN)/mypy

check-imports: namespace
	PYTHONPATH=build/namespace $(BIN)/lint-imports

# The folders under the names they are installed by. Editable installs do this with an import hook, which mypy can't follow.
namespace:
	@mkdir -p build/namespace/lakewarden
	@for folder in agent events handlers spark_jobs; do ln -sfn ../../../$$folder build/namespace/lakewarden/$$folder; done
	@ln -sfn ../../tests build/namespace/tests

python:
	@test -n "$(PYTHON)" || { echo "error: no Python found: install Python 3.11, or run make PYTHON=/path/to/it" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "error: $(PYTHON) is not Python 3.11 to 3.13: install Python 3.11, or run make PYTHON=/path/to/it" >&2; exit 1; }

jdk: python
	@$(PYTHON) -P agent/embedded/jdk.py

# Exactly the locked versions. Where pip is configured to use another index (a mirror, a machine without PyPI), pip fetches
# them, hashes checked, since the lock file names PyPI's own addresses.
$(STAMP): $(UV) pyproject.toml uv.lock
	@if build/tools/bin/pip config list | grep -qE "index-url|no-index"; then \
		set -ex; \
		test -x .venv/bin/pip || $(PYTHON) -m venv --clear .venv; \
		$(UV) export --quiet --frozen --all-extras --all-groups --no-emit-project --output-file build/requirements.txt; \
		.venv/bin/pip install --quiet --requirement build/requirements.txt; \
		.venv/bin/pip install --quiet --no-deps --no-build-isolation --editable .; \
	else \
		set -ex; \
		$(UV) sync --quiet --frozen --all-extras --all-groups --python $(PYTHON); \
	fi
	@touch $@

# The tests are compiled once, before the processes that run them side by side would each do it for itself.
$(COMPILED): $(STAMP)
	@$(BIN)/pytest --collect-only -qq tests > /dev/null || true
	@touch $@

# Without PySpark, which pyspark.txt names: 35 is the line of 3.5, 411 that of 4.1.1.
build/venv-spark%/.set-up: tests/spark/pyspark.txt $(STAMP)
	$(UV) export --quiet --frozen --all-extras --all-groups --no-emit-project --no-emit-package pyspark \
		--output-file build/requirements-spark$*.txt
	@echo $* | sed 's/./&./g; s/^/^pyspark==/' | grep -m 1 -f - $< >> build/requirements-spark$*.txt || \
		{ echo "error: $< has no PySpark $*" >&2; exit 1; }
	.venv/bin/python -m venv --clear $(@D)
	@if build/tools/bin/pip config list | grep -qE "index-url|no-index"; then \
		set -ex; \
		$(@D)/bin/pip install --quiet --requirement build/requirements-spark$*.txt; \
	else \
		set -ex; \
		$(UV) pip install --quiet --python $(@D)/bin/python --requirement build/requirements-spark$*.txt; \
	fi
	$(UV) pip install --quiet --python $(@D)/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

# A client of Spark Connect without a JVM. The newest `pyspark-client` of the locked minor release.
build/venv-thin/.set-up: $(STAMP)
	.venv/bin/python -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet 'pyspark-client==$(LOCKED).*' --editable '.[paimon]'
	@touch $@

# In a folder of its own: uv removes from .venv what isn't locked, itself included.
build/venv-docs/.set-up: Makefile | python
	$(PYTHON) -m venv --clear build/venv-docs
	build/venv-docs/bin/pip install --quiet zensical==$(ZENSICAL_VERSION)
	@touch $@

$(UV): Makefile | python
	@$(PYTHON) -m venv --clear build/tools || \
		{ echo "error: $(PYTHON) can't make a virtual environment: install its venv package (python3.11-venv)" >&2; exit 1; }
	build/tools/bin/pip install --quiet uv==$(UV_VERSION)
	@touch $@
