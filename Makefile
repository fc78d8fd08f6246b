# Everything the project checks, by name. Only Go, make, bash, git and what every Unix has are needed; the servers that tests
# need are those of REDIS_URL and DATABASE_URL, or private ones that the tests start, from programs that are
# there or that they install (apt, brew).

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS   += --no-print-directory
export ROOT := $(CURDIR)

# Every module of the checkout; tools/ holds no code, only the linter's pinned version.
MODULES := $(shell find . -name go.mod -not -path './tools/*' | sed 's|/go.mod$$||' | sort)
$(if $(MODULES),,$(error no modules found below $(ROOT)))

# $(call each,commands) runs commands in every module and stops at the first failure.
each = @for m in $(MODULES); do echo "-- $$m"; (cd "$$m"; $(1)); done

CPU      ?= 1,2,4
# The stores' clients do much side by side. What the other modules do with other numbers of Ps is in the packages that they use.
CPU_of    = $$(case $$m in (.) echo $(CPU);; (./pgstore|./redisstore) echo 1,4;; (*) echo 2;; esac)
FUZZTIME ?= 20s
BENCH    ?= .
SOAK     ?= 20000

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: race heavy ## all tests: race and heavy

.PHONY: race race-busy race-waiting
race: ## tests under the race detector, shuffled, the root's with 1, 2 and 4 Ps; not the heavy ones; each module by itself
	@$(MAKE) -j2 race-busy race-waiting

# Two at a time, since most modules wait for servers.
BUSY := . ./verify

# The root's packages that are about the suite and programs are tested as the other modules are.
race-busy:
	@echo "-- ."; .ci/race $(CPU) $$(go list ./... | grep -v -e /idemtest -e /cmd/ -e /internal/testserver)
	@.ci/race 2 ./idemtest/... ./cmd/... ./internal/testserver
	@for m in $(filter-out .,$(BUSY)); do echo "-- $$m"; (cd "$$m"; GOWORK=off "$$ROOT/.ci/race" $(CPU_of)); done

race-waiting:
	@for m in $(filter-out $(BUSY),$(MODULES)); do echo "-- $$m"; (cd "$$m"; GOWORK=off "$$ROOT/.ci/race" $(CPU_of)); done

.PHONY: heavy heavy-busy heavy-waiting
heavy: ## the heavy tests (TestHeavy…) and what fuzzing starts with, once, without the race detector; each module by itself
	@$(MAKE) -j2 heavy-busy heavy-waiting

heavy-busy:
	@for m in $(BUSY); do echo "-- $$m"; (cd "$$m"; GOWORK=off go test -timeout 20m -parallel 8 -run '^(TestHeavy|Fuzz)' ./...); done

heavy-waiting:
	@for m in $(filter-out $(BUSY),$(MODULES)); do echo "-- $$m"; (cd "$$m"; GOWORK=off go test -timeout 20m -parallel 8 -run '^(TestHeavy|Fuzz)' ./...); done

.PHONY: test-unit
test-unit: ## tests of the root module only, which need no server
	@.ci/race $(CPU)

.PHONY: quick
quick: ## tests once, as fast as they go; for the inner loop
	$(call each,go test -skip '^TestHeavy' ./...)

.PHONY: alone
alone: ## all but the heavy tests of each module by itself, as a user of it gets it
	$(call each,GOWORK=off go test -skip '^TestHeavy' ./...)

.PHONY: browser
browser: ## the page of idemdemo serve in a real Chromium; installs Debian's if there is none
	@.ci/install chromium chromium
	@cd verify; go test -count 1 -tags browser ./browser

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (20s)
	$(call each,"$$ROOT/.ci/fuzz" $(FUZZTIME))

.PHONY: bench
bench: ## benchmarks; BENCH=regexp BENCHFLAGS='-count 10 -benchtime 1s'
	$(call each,go test -run '^$$' -bench '$(BENCH)' -timeout 60m $(BENCHFLAGS) ./...)

.PHONY: bench-peers
bench-peers: ## the engine beside other libraries: tables and pictures into bench/results; minutes
	@cd bench; GOWORK=off go run ./peers $(PEERSFLAGS)

.PHONY: compare
compare: ## the engine's speed beside that of an older commit: BASE=commit, or where the branch left origin/main
	@.ci/compare $(BASE)

.PHONY: soak
soak: ## SOAK (20000) linearizability histories and as many state machine runs; minutes
	@cd verify; go test -timeout 0 -count 1 -run 'Linearizable|StateMachine' . -histories $(SOAK) -rapid.checks $(SOAK)

.PHONY: cover
cover: ## statement coverage of the root module; coverage.html shows the lines
	@go test -skip '^TestHeavy' -coverpkg ./... -coverprofile coverage.out ./...
	@go tool cover -html coverage.out -o coverage.html
	@go tool cover -func coverage.out | tail -1

.PHONY: fmt
fmt: ## format every Go file
	@gofmt -w .

.PHONY: fmt-check
fmt-check: ## fail if a Go file is not formatted
	@unformatted=$$(gofmt -l .); [[ -z "$$unformatted" ]] || { echo "not gofmt'ed:"; echo "$$unformatted"; exit 1; }

.PHONY: vet
vet: ## go vet, and of the root module also for 32 bits
	$(call each,go vet -tags browser ./...)
	@GOARCH=386 CGO_ENABLED=0 go vet ./...

.PHONY: lint
lint: ## golangci-lint, built from its pinned version (minutes the first time)
	$(call each,GOWORK=off go tool -modfile="$$ROOT/tools/go.mod" golangci-lint run --allow-serial-runners ./...)

.PHONY: tidy
tidy: ## go mod tidy in every module
	@for m in $(MODULES) ./tools; do (cd "$$m"; GOWORK=off go mod tidy); done

.PHONY: tidy-check
tidy-check: ## fail if a go.mod or go.sum is not tidy, or a module is not in go.work
	@for m in $(MODULES) ./tools; do echo "-- $$m"; (cd "$$m"; GOWORK=off go mod tidy -diff); done
	@diff <(for m in $(MODULES); do realpath "$$m"; done | sort) <(go list -m -f '{{.Dir}}' | sort) \
		|| { echo 'go.work does not use every module (<) or uses a strange one (>)'; exit 1; }

.PHONY: demo
demo: ## what idem does, in real calls
	@go run ./cmd/idemdemo
