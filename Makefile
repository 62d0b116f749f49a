# The one front door for people, CI and buildspec. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
STAMP := .venv/.ready
# modules are compiled once, not at each of the thousands of starts of a run: for torch in 2 s
unexport PYTHONDONTWRITEBYTECODE
TIMED := scripts/timed
# what an editable install is made from: the core is compiled anew when its sources change
PACKAGES := toolkit/version.py $(wildcard toolkit/*/pyproject.toml toolkit/parallel/hatch_build.py toolkit/parallel/csrc/*.h toolkit/parallel/csrc/*/*.[ch])
TARGET ?= cpu
# $(call said,NAME,WORD): WORD=value where make was called with NAME=value; the environment's does not count
said = $(if $(filter command,$(origin $(1))),$(2)=$($(1)))
CHOSEN = $(BUILD_ARGS) $(call said,PYTHON,PYTHON) $(call said,TORCH,TORCH_VERSION) $(call said,REFRESH,REFRESH) $(call said,SSH,SSH)
IMAGES = $(BIN)/python -m scripts.images

.PHONY: help setup demo test test-all test-collectives test-modelparallel test-gpu test-long soak check fmt lock bench-launcher bench-see bench-elsewhere bench-images bench-collectives bench-simulated bench-modelparallel wheels docs pictures clean
.PHONY: image image-name base-image test-image push lock-torch lock-neuron

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with everything development and the demo need

$(STAMP): constraints/dev.txt docker/versions.env scripts/setup $(PACKAGES)
	@$(if $(filter 3.%,$(PYTHON)),PYTHON= )scripts/setup  # 3.N is the Python of an image

demo: $(STAMP) ## train real data with DDP on 2 hosts of this machine (DISTRIBUTION=... chooses how)
	@$(BIN)/python examples/digits/demo.py $(if $(DISTRIBUTION),--distribution "$(DISTRIBUTION)")

check: $(STAMP) ## format, lint, types, import layers, size and shape, unit tests (a minute)
	@$(TIMED) check 300 scripts/check

fmt: $(STAMP) ## format the code and fix what lint can fix
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .

test: $(STAMP) ## everything that needs no root, Docker or apt (at most 10 minutes)
	@$(TIMED) test 600 scripts/run-tests fast

test-all: $(STAMP) ## all but what test runs: namespaces, frameworks, images, SDKs, other Pythons (70 minutes)
	@$(TIMED) test-all 4200 scripts/run-tests all

test-collectives: $(STAMP) ## the collective backend: operations, faults, torch's layers, sanitizers (20 minutes)
	@$(TIMED) test-collectives 1200 scripts/run-tests collectives

test-modelparallel: $(STAMP) ## model parallelism: settings, ranks that train together, checkpoints (20 minutes)
	@$(TIMED) test-modelparallel 1200 scripts/run-tests modelparallel

test-gpu: $(STAMP) ## what needs one GPU: streams, NCCL, a job on it; skips with a reason where there is none (20 minutes)
	@$(TIMED) test-gpu 1200 scripts/run-tests gpu

test-long: $(STAMP) ## fuzz, soak, full matrices
	@$(TIMED) test-long 10800 scripts/run-tests long

soak: $(STAMP) ## break RUNS=200 jobs at random, JOBS=2 at a time, from SEED=1; ONLY=n repeats one
	@$(BIN)/python -m tests.launcher.soak --runs $(or $(RUNS),200) --seed $(or $(SEED),1) \
	  --jobs $(or $(JOBS),2) $(if $(ONLY),--only $(ONLY),--output .cache/soak.json) $(if $(JSON),--json)

docs: $(STAMP) ## the documents as a site in .cache/docs/site, its links checked; opens offline
	@$(BIN)/python -m scripts.docs_site

pictures: $(STAMP) ## make docs/pictures anew: failing-rank.svg and model-plan.svg from real runs, all-reduce-nodes.svg from results
	@$(BIN)/python -m scripts.pictures
	@$(BIN)/python -m scripts.plan_picture
	@$(BIN)/python -m benchmarks.simulated.picture

bench-launcher: $(STAMP) ## the launcher's figures beside its peers', as a table and JSON (ROWS="trivial parent", PARENT=REVISION)
	@PARENT=$(PARENT) $(BIN)/python -m benchmarks.launcher $(ROWS)

bench-see: $(STAMP) ## figures of seeing into a job: stuck ranks, 1,000 hosts, agents, reports, jobs from Python
	@$(BIN)/python -m benchmarks.launcher seeing agent trivial report --results benchmarks/results/see.json

bench-elsewhere: $(STAMP) ## jobs of a real Slurm beside Slurm's own commands and torchx; needs root and scripts/ci-machine
	@$(BIN)/python -m benchmarks.launcher elsewhere

image: $(STAMP) ## build the image TARGET=cpu (or base, cpu-devel, cuda-efa, neuron); PYTHON=3.13 TORCH=... REFRESH=1 SSH=0
	@$(IMAGES) build $(TARGET) $(addprefix --build-arg ,$(CHOSEN))

image-name: $(STAMP) ## print the reference of the last build of TARGET=cpu (with make -s)
	@$(IMAGES) name $(TARGET)

base-image: $(STAMP) ## make the base (of PYTHON=3.13) with debootstrap, where no registry can be reached
	@$(IMAGES) base $(if $(call said,PYTHON,x),--python $(PYTHON))

test-image: $(STAMP) ## build the test child of TARGET=cpu and run its tests in a container
	@$(IMAGES) test $(TARGET)

push: $(STAMP) ## push TARGET=cpu to REGISTRY=... REPOSITORY=... (CREATE=1, TAG=..., BUILD=N, MANIFEST=...)
	@$(IMAGES) push $(TARGET) --registry "$(REGISTRY)" --repository "$(REPOSITORY)" $(if $(filter-out 0 no false,$(CREATE)),--create) \
	  $(if $(IMAGE),--image "$(IMAGE)") $(if $(BUILD),--build "$(BUILD)") $(if $(TAG),--tag "$(TAG)") $(if $(MANIFEST),--manifest "$(MANIFEST)")

push-tools: ## install skopeo, with which a push is verified (root; Debian, Ubuntu)
	@command -v skopeo >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends skopeo; }

bench-images: $(STAMP) ## figures of the images: sizes, rebuild, stop, start, scan
	@$(BIN)/python -m benchmarks.images

bench-collectives: $(STAMP) ## the collectives' figures beside gloo's and Open MPI's (ONLY=sizes,... for some)
	@$(BIN)/python -m benchmarks.collectives

bench-simulated: $(STAMP) ## a model of sums over nodes: fitted to two, compared with four and eight, asked about 1,024; needs root
	@$(BIN)/python -m benchmarks.simulated

bench-modelparallel: $(STAMP) ## steps of cut models beside torch's pipelines, DeepSpeed's and DDP (ROWS="pipeline relay-1MiB", ROUNDS=3)
	@$(BIN)/python -m benchmarks.modelparallel $(ROWS)

wheels: $(STAMP) ## the wheels of a release in dist/: x86_64 and aarch64, glibc 2.17
	@scripts/release-wheels

lock: ## make constraints/*.txt anew from their .in files
	@cd constraints && for name in dev incumbent peers tensorflow mxnet horovod deepspeed transformers4 transformers5 sdk2 sdk3 release docs browser kubernetes; do \
	  ../$(BIN)/uv pip compile --quiet $$name.in --excludes excluded.txt --universal --python-version 3.10 --no-annotate \
	    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	    --output-file $$name.txt || exit 1; done
	@cd docker/constraints && for name in base cpu cuda-efa build test sagemaker-training; do \
	  env -u UV_FIND_LINKS ../../$(BIN)/uv pip compile --quiet $$name.in --generate-hashes --python-version 3.10 \
	    --universal --no-annotate --no-emit-index-url --no-emit-find-links \
	    --custom-compile-command "make lock" --output-file $$name.txt || exit 1; done
	@cd examples/tensorflow-image && env -u UV_FIND_LINKS ../../$(BIN)/uv pip compile --quiet requirements.in \
	  --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-annotate \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --output-file requirements.txt

lock-torch: $(STAMP) ## make docker/constraints/torch-TORCH.txt, on a machine that reaches torch's CPU index
	@scripts/lock-torch $(TORCH)

lock-neuron: $(STAMP) ## make docker/constraints/neuron.txt, on a machine that reaches the Neuron index
	@scripts/lock-neuron

clean: ## remove what set-up and runs left in the checkout
	@rm -rf .venv .cache muster-runs dist build
