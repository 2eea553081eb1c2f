# make run is the way to a cluster; see README.md.
.DEFAULT_GOAL := build
.PHONY: run build test unit race e2e guest vet lint bench clean

run: build ## from a bare Debian with Go to a cluster in the foreground
	scripts/packages run
	bin/clusterd server

build: ## bin/clusterd, with everything in it
	scripts/build

test: ## everything: lint, build, vet, unit tests, race detector, end-to-end tests, a guest with cgroup v2
	scripts/test all

unit race e2e guest vet lint: ## one part of the tests
	scripts/test $@

bench: ## the figures beside the baseline's
	scripts/bench cluster

clean:
	rm -rf bin
