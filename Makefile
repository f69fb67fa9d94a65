# SPDX-License-Identifier: Apache-2.0
#
# Everything that people and CI run. Tools are built from hack/tools/go.mod on first use (hack/tool), and only those
# that the target needs.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-builtin-rules

# A compiler that leaves its garbage takes a quarter less of the processors, and so does all that is compiled here. What is run has
# Go's own settings, and what was compiled without is not compiled again.
TOOLEXEC := '-toolexec=env GOGC=off GOMEMLIMIT=4GiB'
export GOFLAGS := $(strip $(subst $(TOOLEXEC),,$(shell go env GOFLAGS 2>/dev/null)) $(TOOLEXEC))

# What `make release-manifests` stamps into the manifests.
VERSION ?= v0.1.0-rc.1
IMAGE   ?= ghcr.io/drover-io/drover:$(VERSION)
# What one package's tests may take before Go ends them with the stacks. Results are never taken from Go's cache (-count 1):
# many tests run bin/drover, of which the cache knows nothing.
TEST_TIMEOUT ?= 40m
# Packages whose tests run at the same time: twice as many as there are processors, because half of the time they wait.
TOGETHER := $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))
# Those that take longest begin first, so that nobody waits for one of them alone in the end.
FIRST := ./test/packaging ./test/integration
# `make lint` vets; here each package that one of ours imports would be, too, which takes minutes the first time.
GOTEST := go test -vet=off -count 1
# How long Gomega's Eventually waits where a test does not say. Its own default, a second, is too short for a busy computer.
export GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT := 1m
# Tests that need the whole computer, one after the other; `make test` leaves them out. Only the managers in them are ours, and
# those are built with the race detector: what stands around them, all traffic's proxies among it, does without.
LONG := test/aws test/takeover test/azure test/gcp test/lifecycle test/crash test/chaos test/orphans test/outage test/security test/autoscaler test/monitoring test/tilt test/e2e test/kubeadm test/cluster test/vsphere test/openstack test/openstack/fleet test/kubevirt test/vm
OTHERS := $(GOTEST) -p 1 -timeout 6h
# The packages with a driver.
DRIVERS := $(patsubst %,./cloud/%,aws azure gcp kubevirt openstack simulated vsphere) ./docs/examples/toycloud

# The first of the schedules that `make test-chaos` and `make test-orphans` run, so that they are the same each time. `make chaos` draws its own.
SEED ?= 1000
# Where `make test-crash` and `make test-chaos` make machines (simulated, aws, azure, gcp, vsphere or kubevirt), and how many schedules the latter runs.
CLOUD     ?= simulated
SCHEDULES ?= 50
# The budget of `make suites`.
MINUTES ?= 60

# Programs are built and then run, because "go run" passes on neither signals nor exit codes.

PLAYGROUND := etcd kube-apiserver kube-controller-manager capi-core
GENERATED  := api config/crd config/rbac config/webhook config/prometheus/prometheus_rule.yaml docs/reference/api.md

.DEFAULT_GOAL := help
.PHONY: help build test suites suites-plan test-long test-lifecycle test-crash test-chaos test-outage test-security test-aws test-takeover test-azure test-gcp test-storm test-orphans test-damage test-autoscaler test-monitoring test-tilt test-operator test-e2e test-e2e-whole test-e2e-kind test-kubeadm test-cluster test-cluster-long test-vsphere test-openstack test-kubevirt test-vm chaos bench bench-aws bench-vsphere demo demo-cluster demo-picture playground playground-takeover lint generate verify-generate vulncheck docs pictures release-manifests release image image-layout verify-release clean

help: ## Say what the targets are
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/drover
	CGO_ENABLED=0 go build -o bin/drover .

test: ## Run the tests that end in minutes, against the real API server and Cluster API, race detector on for all that is ours
	@hack/tool $(PLAYGROUND) >/dev/null
	@go build -race -o bin/drover-race . # which the first test would do while all is compiled for it, too
	$(GOTEST) -race -p $(TOGETHER) -timeout $(TEST_TIMEOUT) $(FIRST) $$(go list ./... | grep -v -x $(LONG:%=-e github.com/drover-io/drover/%))

suites: ## Run the long tests that the change can affect, and those whose turn it is, as many as fit into MINUTES, two at a time if both mostly wait
	@go build -o bin/suites ./hack/suites
	@exec bin/suites run -minutes $(MINUTES)

suites-plan: ## Print which long tests `make suites` would run, which it would leave out, and why
	@go build -o bin/suites ./hack/suites
	@exec bin/suites plan -minutes $(MINUTES)

test-long: test-lifecycle test-crash test-chaos ## Run test-lifecycle, test-crash and test-chaos (an hour)

test-lifecycle: ## Have machines come, roll, heal, fail and go, with mistakes of users, clouds and guests (20 minutes)
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/lifecycle

test-crash: ## Crash the manager at every step of a machine's life, on CLOUD (30 minutes)
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/crash -skip '^TestStorm$$' -cloud $(CLOUD) -v

test-chaos: ## Run SCHEDULES random schedules of faults and user actions, on CLOUD (12 minutes for 50)
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/chaos -cloud $(CLOUD) -seed $(SEED) -schedules $(SCHEDULES) -v

test-outage: ## Take API servers and clouds away for minutes, and give etcd back as it was before (8 minutes, most of them waiting)
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/outage

test-security: ## Attack the manager as a tenant whose API server lies, sends without end, or hangs (1 minute)
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/security -v

test-aws: ## Have a stand-in for EC2 make, roll, lose and refuse machines, and count their calls
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/aws -v

test-takeover: ## Take machines of a stand-in for EC2 over from another system, with the command killed after each write
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/takeover -v

test-azure: ## Have a stand-in for Azure make, roll, lose and refuse machines, take those of other systems over, and count the calls of 300 with the rate limits of Azure, and of 100 in a busy subscription
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/azure -v

test-gcp: ## Have a stand-in for Compute Engine make, roll, lose and refuse machines, take those of other systems over, and count the calls of 300 with the rate limits of Google, and of 100 with a small quota
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/gcp -v

test-storm: ## Make, roll and delete 100 machines while the manager is killed every few seconds, on the simulated cloud and on a stand-in for EC2
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/crash -run '^TestStorm$$' -cloud simulated -v
	$(OTHERS) ./test/crash -run '^TestStorm$$' -cloud aws -v

test-orphans: ## Run 100 random schedules of mistakes that make orphans, with the collector armed
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/orphans -seed $(SEED) -v

test-damage: ## Give thousands of drivers of each cloud damaged answers, from other seeds each time (10 minutes)
	$(OTHERS) $(DRIVERS) -run '^TestDamagedAnswers$$' -seed 0 -drivers 6000 -v

test-autoscaler: ## Have the real cluster-autoscaler scale pools from zero and back (on stand-ins for EC2, Azure and Compute Engine, too), short of capacity, and frozen
	@hack/tool $(PLAYGROUND) kube-scheduler cluster-autoscaler >/dev/null
	$(OTHERS) ./test/autoscaler

test-monitoring: ## Show alerts, dashboard and configuration to the real Prometheus and kube-state-metrics, beside a manager in trouble
	@hack/tool $(PLAYGROUND) kube-state-metrics >/dev/null
	$(OTHERS) ./test/monitoring

test-tilt: ## Have the real Tilt run our Tiltfile and Cluster API's, and look at what it would build and apply
	@hack/tool tilt kustomize clusterctl >/dev/null
	$(OTHERS) ./test/tilt

test-operator: ## Have the cluster-api-operator install a release, after clusterctl has
	@hack/tool $(PLAYGROUND) cluster-api-operator >/dev/null
	$(OTHERS) ./test/packaging -run '^TestManagementCluster$$' -operator

test-e2e: ## Run Cluster API's own end-to-end specs, as far as they need no control plane machines (10 minutes)
	@hack/tool $(PLAYGROUND) kube-scheduler cluster-autoscaler >/dev/null
	$(OTHERS) ./test/e2e -ginkgo.label-filter='!whole'

test-e2e-whole: ## Run Cluster API's specs of control planes, on the simulated cloud with the real kubeadm and etcd (root, Linux; 30 minutes)
	@hack/tool $(PLAYGROUND) kube-scheduler capi-kubeadm-bootstrap capi-kubeadm-controlplane kubeadm clusterctl >/dev/null
	$(OTHERS) ./test/e2e -ginkgo.label-filter=whole

test-e2e-kind: ## Run the same specs on a kind cluster, with the image that the Dockerfile makes (Docker and the Internet)
	docker build --build-arg VERSION=$(VERSION) -t $(IMAGE) .
	$(OTHERS) ./test/e2e -kind -ginkgo.label-filter='!whole'

test-kubeadm: ## Have Cluster API's kubeadm providers set up machines of an adopted cluster, and a control plane for CloudInitConfigs to join (10 minutes)
	@hack/tool $(PLAYGROUND) capi-kubeadm-bootstrap capi-kubeadm-controlplane kubeadm >/dev/null
	$(OTHERS) ./test/kubeadm

test-cluster: ## Make a whole cluster on the simulated cloud with the real kubeadm and etcd, replace a machine of its control plane, delete it, and ask its endpoint meanwhile (root, Linux; 5 minutes)
	@hack/tool $(PLAYGROUND) kube-scheduler capi-kubeadm-bootstrap capi-kubeadm-controlplane kubeadm clusterctl >/dev/null
	$(OTHERS) ./test/cluster -v -run TestWholeCluster

test-cluster-long: ## Take a whole cluster through its life: upgrades to another minor and patch release, a move into itself, and a load balancer with faults (root, Linux; 30 minutes)
	@hack/tool $(PLAYGROUND) kube-scheduler capi-kubeadm-bootstrap capi-kubeadm-controlplane kubeadm clusterctl >/dev/null
	$(OTHERS) ./test/cluster -v -run TestLife

test-vsphere: ## Have govmomi's vCenter make, roll, lose and replace machines, and take those of other systems over
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/vsphere -v

# TestNova… ends services that the other tests need.
test-openstack: ## Try the OpenStack driver, and machines through Cluster API, on a real OpenStack, which is installed on first use (root, Debian 12; 20 minutes)
	@hack/tool $(PLAYGROUND) >/dev/null
	hack/openstack/install
	trap hack/openstack/stop EXIT; hack/openstack/start; \
	$(OTHERS) -race -p 2 -parallel 3 -v -skip '^TestNova' ./test/openstack ./test/openstack/fleet; \
	$(OTHERS) -race -v -run '^TestNova' ./test/openstack/fleet

test-vm: ## Boot real guests from CloudInitConfigs, one each of Azure's, Google Cloud's, KubeVirt's and OpenStack's, and one that becomes a control plane, with QEMU and images that are made on first use (root, Debian 12)
	@hack/tool $(PLAYGROUND) kube-scheduler capi-kubeadm-bootstrap capi-kubeadm-controlplane kubeadm clusterctl >/dev/null
	@hack/vm/install >/dev/null
	@hack/kubevirt/build >/dev/null
	hack/openstack/install
	trap hack/openstack/stop EXIT; hack/openstack/start; $(GOTEST) -timeout $(TEST_TIMEOUT) -parallel 8 -v ./test/vm

test-kubevirt: ## Try the KubeVirt driver on KubeVirt's own API server, webhooks and controller, which are built on first use
	@hack/tool $(PLAYGROUND) >/dev/null
	hack/kubevirt/build >/dev/null
	$(GOTEST) -race -timeout $(TEST_TIMEOUT) ./test/kubevirt

chaos: ## Run 1,000 seeded random schedules of faults and user actions, and 1,000 of mistakes that make orphans (hours)
	@hack/tool $(PLAYGROUND) >/dev/null
	$(OTHERS) ./test/orphans -schedules 1000 -v
	$(OTHERS) ./test/chaos -run TestSchedules -schedules 1000 -shipped -v

bench: ## Print calls, writes, CPU, memory and times for fleets of 10 to 3,000 machines
	@hack/tool $(PLAYGROUND) >/dev/null
	@go build -o bin/bench ./test/bench
	@exec bin/bench

bench-aws: ## Print the same for fleets of 300, and of 100 that EC2 throttles, on a stand-in for it
	@hack/tool $(PLAYGROUND) >/dev/null
	@go build -o bin/bench ./test/bench
	@exec bin/bench -cloud aws -sizes 300 -out out/aws

bench-vsphere: ## Print the same for 300 machines of govmomi's vCenter
	@hack/tool $(PLAYGROUND) >/dev/null
	@go build -o bin/bench ./test/bench
	@exec bin/bench -cloud vsphere -sizes 300 -out out/vsphere

# Programs of Kubernetes and etcd that are installed are good enough to look at Drover.
demo demo-cluster playground: export DROVER_INSTALLED := 1

demo: ## Show the main job in a few minutes: machines come, roll, heal and go on a simulated cloud
	@hack/tool $(PLAYGROUND) kube-scheduler kubectl >/dev/null
	@hack/program ./test/demo bin/demo
	@hack/program . bin/drover
	@exec bin/demo

demo-cluster: ## Show a whole cluster: its control plane comes, is upgraded, heals, manages itself and goes, on a simulated cloud (Linux, root)
	@hack/tool $(PLAYGROUND) kube-scheduler kubectl clusterctl kubeadm capi-kubeadm-bootstrap capi-kubeadm-controlplane >/dev/null
	@hack/program ./test/demo bin/demo
	@hack/program . bin/drover
	@exec bin/demo -cluster

demo-picture: ## Run the demo, and record it as the picture that the README shows
	@hack/tool $(PLAYGROUND) kube-scheduler kubectl >/dev/null
	@hack/program ./test/demo bin/demo
	@exec bin/demo -film docs/pictures/demo.svg

playground: ## Start a management cluster with Drover and a simulated cloud, and leave it to you until Ctrl-C
	@hack/tool $(PLAYGROUND) kubectl >/dev/null
	@hack/program ./test/playground/cmd bin/playground
	@hack/program . bin/drover
	@exec bin/playground

playground-takeover: ## The same, with a stand-in for EC2 and three machines of machine-controller-manager, to rehearse their takeover
	@hack/tool $(PLAYGROUND) kubectl >/dev/null
	@hack/program . bin/drover
	@go test -c -o bin/takeover.test ./test/takeover
	@cd test/takeover && exec ../../bin/takeover.test -test.run '^TestRehearsal$$' -test.timeout 0 -stay

lint: ## Check formatting, go vet, staticcheck, the API, the workflows and the words
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$out" ]; then echo "not formatted (gofmt -w):"; echo "$$out"; exit 1; fi
	go vet ./...
	@staticcheck=$$(hack/tool staticcheck); "$$staticcheck" ./...
	@linter=$$(hack/tool kube-api-linter); "$$linter" hack/kube-api-linter.yaml ./api/...
	@actionlint=$$(hack/tool actionlint); "$$actionlint"
	hack/words

vulncheck: ## Look for known weaknesses in what the manager calls (asks vuln.go.dev)
	@govulncheck=$$(hack/tool govulncheck); "$$govulncheck" .

generate: ## Write deepcopy code, CRDs, RBAC, webhook manifests and the API reference again
	hack/generate

verify-generate: generate ## Fail when what is committed differs from what `make generate` writes
	@git status --porcelain -- $(GENERATED) | { ! grep .; } || { \
	  git --no-pager diff -- $(GENERATED); echo "the files above are not what 'make generate' writes: run it and commit"; exit 1; }

docs: ## Build the book as a site to out/site/; a broken link is an error (Debian's or Ubuntu's mkdocs and its theme, not installed)
	rm -rf out/book out/theme && mkdir -p out/book
	echo "module out" >out/go.mod # so that ./... leaves out what of our sources the book shows
	git ls-files -co --exclude-standard '*.md' docs config/prometheus config/network-policy config/secret-policy cloud/error.go cloud/aws/queue.go tilt-provider.json Tiltfile LICENSE test/outage/restore_test.go | xargs cp --parents -t out/book
	mkdocs=$$(hack/debs mkdocs mkdocs-material); ln -s "$$(dirname "$$mkdocs")/root/usr/share/mkdocs/themes/material" out/theme; \
	"$$mkdocs" python3 -m mkdocs build --strict

pictures: docs ## Look at the book in Chromium: no page may scroll sideways, and each is shown at two widths in out/pictures/
	hack/pictures

release-manifests: ## Write infrastructure-components.yaml, metadata.yaml and the templates to out/release/
	VERSION=$(VERSION) IMAGE=$(IMAGE) hack/release-manifests out/release

release: ## Write a whole release to out/release/: manifests, programs, what they are made of, checksums; and inspect the programs
	VERSION=$(VERSION) IMAGE=$(IMAGE) hack/release out/release
	$(GOTEST) ./test/packaging -run '^TestPrograms$$' -release $(CURDIR)/out/release/infrastructure-drover/$(VERSION)

image: ## Push the image for all architectures, without Docker
	VERSION=$(VERSION) IMAGE=$(IMAGE) hack/image

image-layout: ## Write the image for all architectures to out/image, an OCI layout, and print its digest
	@VERSION=$(VERSION) hack/image-layout out/image

verify-release: ## Build manager and image twice, in two folders, and compare
	hack/verify-release

clean: ## Remove what was built here (the tools' cache is kept: rm -r ~/.cache/drover)
	rm -rf bin out _artifacts
