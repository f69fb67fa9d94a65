# SPDX-License-Identifier: Apache-2.0
#
# Everything that people and CI run. Tools are built from hack/tools/go.mod on first use (hack/tool), and only those
# that the target needs.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-builtin-rules

# What `make release-manifests` stamps into the manifests.
VERSION ?= v0.1.0-rc.2
IMAGE   ?= ghcr.io/drover-io/drover:$(VERSION)
# What one package's tests may take before Go ends them with the stacks. Results are never taken from Go's cache (-count 1):
# many tests run our programs, of which the cache knows nothing.
TEST_TIMEOUT ?= 60m
# Packages of a module whose tests run at the same time: as many as there are processors. The two modules' run side by side,
# because half of the time they wait.
TOGETHER := $(shell getconf _NPROCESSORS_ONLN)
# `make lint` vets; here each package that one of ours imports would be, too, which takes minutes the first time.
GOTEST := go test -vet=off -count 1
# How long Gomega's Eventually waits where a test does not say. Its own default, a second, is too short for a busy computer.
export GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT := 3m
# Tests that need the whole computer, which hack/suite runs one after the other; `make test` leaves them out. Only the managers in
# them are ours, and those are built with the race detector: what stands around them, all traffic's proxies among it, does without.
LONG := test/clouds test/takeover test/lifecycle test/faults/crash test/faults/chaos test/faults/orphans test/faults/outage test/security test/tools/autoscaler test/tools/monitoring test/tools/tilt test/e2e test/bootstrap/kubeadm test/cluster test/clouds/openstack test/clouds/openstack/fleet test/clouds/kubevirt test/clouds/vm

# The Go modules that `make lint` looks at.
MODULES := . test

# Programs are built and then run, because "go run" passes on neither signals nor exit codes.

PLAYGROUND := etcd kube-apiserver kube-controller-manager capi-core
GENERATED  := api config/crd config/rbac config/webhook config/prometheus/prometheus_rule.yaml docs/reference/api.md

.DEFAULT_GOAL := help
.PHONY: help build test unit-tests rig-tests lint generate verify-generate vulncheck docs pictures bench demo demo-cluster playground release-manifests release image image-layout verify-release clean

help: ## Say what the targets are
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/manager, and bin/drover, the command for people
	CGO_ENABLED=0 go build -o bin/manager .
	CGO_ENABLED=0 go build -o bin/drover ./cmd/drover

test: ## Run the tests that end in minutes, against the real API server and Cluster API, race detector on for all that is ours
	@hack/tool $(PLAYGROUND) >/dev/null
	@go build -race -o bin/manager-race . && go build -race -o bin/drover-race ./cmd/drover # which the first test would do while all is compiled for it, too
	@$(MAKE) --no-print-directory -j 2 unit-tests rig-tests

# The product's module, and the one in test/. The packages that take longest begin first, so that nobody waits for one of them
# alone in the end.
unit-tests:
	$(GOTEST) -race -p $(TOGETHER) -timeout $(TEST_TIMEOUT) ./cloud/vsphere ./internal/test/playground ./...

rig-tests:
	cd test && $(GOTEST) -race -p $(TOGETHER) -timeout $(TEST_TIMEOUT) ./packaging ./integration $$(go list ./... | grep -v -x $(LONG:%=-e github.com/drover-io/drover/%))

test-%: ## Run one of the long tests, test-crash CLOUD=aws FOCUS='^TestSteps$$' for example; hack/suite lists them
	@VERSION=$(VERSION) IMAGE=$(IMAGE) exec hack/suite run $*

bench: ## Print calls, writes, CPU, memory and times for fleets of 10 to 3,000 machines; ARGS="-cloud aws -sizes 300 -out out/aws" for a stand-in
	@hack/tool $(PLAYGROUND) >/dev/null
	@go build -C test -o ../bin/bench ./cmd/bench
	@exec bin/bench $(ARGS)

# Programs of Kubernetes and etcd that are installed are good enough to look at Drover. So are those that setup-envtest uses,
# except for a cluster that is upgraded from one patch release to the next.
demo demo-cluster playground: export DROVER_INSTALLED := 1
demo playground: export DROVER_ARCHIVES := 1

demo: ## Show the main job in a few minutes: machines come, roll, heal and go on a simulated cloud; ARGS="-film docs/pictures/demo.svg" records it
	@hack/tool $(PLAYGROUND) kube-scheduler kubectl >/dev/null
	@hack/program ./test/cmd/demo bin/demo . bin/manager ./cmd/drover bin/drover
	@exec bin/demo $(ARGS)

demo-cluster: ## Show a whole cluster: its control plane comes, is upgraded, heals, manages itself and goes, on a simulated cloud (Linux, root)
	@hack/tool $(PLAYGROUND) kube-scheduler kubectl clusterctl kubeadm capi-kubeadm-bootstrap capi-kubeadm-controlplane >/dev/null
	@hack/program ./test/cmd/demo bin/demo . bin/manager ./cmd/drover bin/drover
	@exec bin/demo -cluster

playground: ## Start a management cluster with Drover and a simulated cloud, and leave it to you until Ctrl-C; TAKEOVER=1 for EC2's stand-in and machines of another system
	@hack/tool $(PLAYGROUND) kubectl >/dev/null
	@hack/program . bin/manager ./cmd/drover bin/drover
ifdef TAKEOVER
	@go test -C test -c -o ../bin/takeover.test ./takeover
	@cd test/takeover && exec ../../bin/takeover.test -test.run '^TestRehearsal$$' -test.timeout 0 -stay
else
	@hack/program ./test/cmd/playground bin/playground
	@exec bin/playground
endif

lint: ## Check formatting, requirements, go vet, staticcheck, golangci-lint, the API, the workflows and unfinished merges
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$out" ]; then echo "not formatted (gofmt -w):"; echo "$$out"; exit 1; fi
	@staticcheck=$$(hack/tool staticcheck); linter=$$(hack/tool golangci-lint); \
	for module in $(MODULES); do \
	  echo "lint $$module"; \
	  (cd "$$module"; go mod tidy -diff; go vet ./...; "$$staticcheck" ./...; "$$linter" run -c $(CURDIR)/.golangci.yml ./...); \
	done; \
	"$$linter" run -c .golangci-kal.yml ./api/...
	@actionlint=$$(hack/tool actionlint); "$$actionlint"
	@! git grep -nE '^(<{7}|>{7}) ' || { echo "finish the merge"; exit 1; }

vulncheck: ## Look for known weaknesses in what the manager calls (asks vuln.go.dev)
	@govulncheck=$$(hack/tool govulncheck); "$$govulncheck" . ./cmd/drover

generate: ## Write deepcopy code, CRDs, RBAC, webhook manifests and the API reference again
	hack/generate

verify-generate: generate ## Fail when what is committed differs from what `make generate` writes
	@git status --porcelain -- $(GENERATED) | { ! grep .; } || { \
	  git --no-pager diff -- $(GENERATED); echo "the files above are not what 'make generate' writes: run it and commit"; exit 1; }

docs: ## Build the book as a site to out/site/; a broken link is an error (Debian's or Ubuntu's mkdocs and its theme, not installed)
	rm -rf out/book out/theme && mkdir -p out/book
	echo "module out" >out/go.mod # so that ./... leaves out what of our sources the book shows
	git ls-files -co --exclude-standard '*.md' docs config/prometheus config/network-policy config/secret-policy cloud/driver.go cloud/error.go cloud/preflight/preflight.go cloud/tagging/tagging.go cloud/aws/queue.go tilt-provider.json Tiltfile LICENSE test/faults/outage/restore_test.go | xargs cp --parents -t out/book
	mkdocs=$$(hack/debs mkdocs mkdocs-material); ln -s "$$(dirname "$$mkdocs")/root/usr/share/mkdocs/themes/material" out/theme; \
	BOOK_VERSION="Drover $(VERSION), commit $$(git rev-parse --short HEAD)" "$$mkdocs" python3 -m mkdocs build --strict

pictures: docs ## Look at the book in Chromium: no page may scroll sideways, and each is shown at two widths in out/pictures/
	hack/pictures

release-manifests: ## Write infrastructure-components.yaml, metadata.yaml and the templates to out/release/
	VERSION=$(VERSION) IMAGE=$(IMAGE) hack/release-manifests out/release

release: ## Write a whole release to out/release/: manifests, programs, what they are made of, checksums; and inspect the programs
	VERSION=$(VERSION) IMAGE=$(IMAGE) hack/release out/release
	cd test && $(GOTEST) ./packaging -run '^TestPrograms$$' -release $(CURDIR)/out/release/infrastructure-drover/$(VERSION)

image: ## Push the image for all architectures, without Docker
	VERSION=$(VERSION) IMAGE=$(IMAGE) hack/image

image-layout: ## Write the image for all architectures to out/image, an OCI layout, and print its digest
	@VERSION=$(VERSION) hack/image-layout out/image

verify-release: ## Build manager and image twice, in two folders, and compare
	hack/verify-release

clean: ## Remove what was built here (the tools' cache is kept: rm -r ~/.cache/drover)
	rm -rf bin out _artifacts
