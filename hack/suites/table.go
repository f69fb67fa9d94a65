// SPDX-License-Identifier: Apache-2.0

package main

// suite is a test target that takes too long for "make test".
type suite struct {
	name string
	// make is the target, and the variables that it needs.
	make string
	// packages hold the tests. What they import can affect the suite.
	packages []string
	// clouds are the drivers that the suite runs, except the simulated one, which all suites need.
	clouds []string
	// files are read by the suite at run time: folders, or single files.
	files []string
	// minutes is the duration on 2 cores, with tools and packages built, beside another suite
	// unless alone is set.
	minutes int
	// unproven is set while nobody has seen the suite pass in its minutes since a change that
	// concerns it. It can't be planned then.
	unproven bool
	// root is set if the suite needs root and namespaces.
	root bool
	// alone is set if no other suite may run at the same time: this one keeps 2 cores busy.
	alone bool
	// noManager is set if the suite does not run Drover's manager.
	noManager bool
}

// kubevirtFiles are the sources of KubeVirt's programs, and the page whose Role the tests use.
var kubevirtFiles = []string{"hack/kubevirt", "docs/clouds/kubevirt.md"}

// takenFrom are the pages whose commands take machines of other systems over.
var takenFrom = []string{"docs/migrate/machine-controller-manager.md", "docs/migrate/machine-controller.md"}

// suites is in the order of the rotation: a suite's index decides the day of its turn. Each block
// has one suite for each day, such that the suites of one day fit into one run (TestTurnsFit).
var suites = []suite{
	{name: "crash-azure", make: "test-crash CLOUD=azure", packages: []string{"test/crash"}, clouds: []string{"azure"}, minutes: 23, alone: true},
	{name: "crash-vsphere", make: "test-crash CLOUD=vsphere", packages: []string{"test/crash"}, clouds: []string{"vsphere"}, minutes: 26, alone: true},
	{name: "crash-kubevirt", make: "test-crash CLOUD=kubevirt", packages: []string{"test/crash"}, clouds: []string{"kubevirt"},
		files: kubevirtFiles, minutes: 24, alone: true},
	{name: "openstack", make: "test-openstack", packages: []string{"test/openstack", "test/openstack/fleet"}, clouds: []string{"openstack"},
		files: []string{"hack/openstack", "hack/debian.sh"}, minutes: 40, unproven: true, root: true, alone: true},
	{name: "e2e", make: "test-e2e", packages: []string{"test/e2e"},
		files: []string{"config", "templates", "metadata.yaml", "docs/examples/autoscaler", "hack/release-manifests"}, minutes: 14, alone: true},
	{name: "storm", make: "test-storm", packages: []string{"test/crash"}, clouds: []string{"aws"}, minutes: 20, alone: true},
	{name: "crash", make: "test-crash", packages: []string{"test/crash"}, minutes: 30, alone: true},
	{name: "vm", make: "test-vm", packages: []string{"test/vm"}, clouds: []string{"azure", "gcp", "kubevirt", "openstack"},
		files: append([]string{"hack/vm", "hack/openstack", "hack/debian.sh", "templates"}, kubevirtFiles...), minutes: 26, unproven: true, root: true, alone: true},
	{name: "crash-aws", make: "test-crash CLOUD=aws", packages: []string{"test/crash"}, clouds: []string{"aws"}, minutes: 20, alone: true},
	{name: "crash-gcp", make: "test-crash CLOUD=gcp", packages: []string{"test/crash"}, clouds: []string{"gcp"}, minutes: 14, alone: true},

	{name: "chaos-azure", make: "test-chaos CLOUD=azure SCHEDULES=25", packages: []string{"test/chaos"}, clouds: []string{"azure"}, minutes: 6, alone: true},
	{name: "kubevirt", make: "test-kubevirt", packages: []string{"test/kubevirt"}, clouds: []string{"kubevirt"},
		files: kubevirtFiles, minutes: 17},
	{name: "chaos-kubevirt", make: "test-chaos CLOUD=kubevirt SCHEDULES=25", packages: []string{"test/chaos"}, clouds: []string{"kubevirt"},
		files: kubevirtFiles, minutes: 5, alone: true},
	{name: "chaos-gcp", make: "test-chaos CLOUD=gcp SCHEDULES=25", packages: []string{"test/chaos"}, clouds: []string{"gcp"}, minutes: 6, alone: true},
	{name: "cluster-long", make: "test-cluster-long", packages: []string{"test/cluster"}, files: []string{"templates"}, minutes: 35, root: true},
	{name: "takeover", make: "test-takeover", packages: []string{"test/takeover"}, clouds: []string{"aws"},
		files: append([]string{"docs/migrate/cluster-api-providers.md"}, takenFrom...), minutes: 14, alone: true},
	{name: "gcp", make: "test-gcp", packages: []string{"test/gcp"}, clouds: []string{"gcp"},
		files: takenFrom, minutes: 18},
	{name: "azure", make: "test-azure", packages: []string{"test/azure"}, clouds: []string{"azure"},
		files: takenFrom, minutes: 21},
	{name: "chaos-aws", make: "test-chaos CLOUD=aws SCHEDULES=25", packages: []string{"test/chaos"}, clouds: []string{"aws"}, minutes: 4, alone: true},
	{name: "e2e-whole", make: "test-e2e-whole", packages: []string{"test/e2e"},
		files: []string{"config", "templates", "metadata.yaml", "hack/release-manifests"}, minutes: 33, root: true},

	{name: "autoscaler", make: "test-autoscaler", packages: []string{"test/autoscaler"}, clouds: []string{"aws", "azure", "gcp"},
		files: []string{"docs/examples/autoscaler", "docs/autoscaling.md"}, minutes: 8},
	{name: "vsphere", make: "test-vsphere", packages: []string{"test/vsphere"}, clouds: []string{"vsphere"},
		files: takenFrom, minutes: 10},
	{name: "outage", make: "test-outage", packages: []string{"test/outage"}, minutes: 11},
	{name: "tilt", make: "test-tilt", packages: []string{"test/tilt"},
		files: []string{"Tiltfile", "tilt-provider.json", "CONTRIBUTING.md", "config", "templates"}, minutes: 1, noManager: true},
	{name: "operator", make: "test-operator", packages: []string{"test/packaging"},
		files: []string{"config", "templates", "metadata.yaml", "docs/clusterctl.md", "hack/release-manifests"}, minutes: 9},
	{name: "chaos", make: "test-chaos", packages: []string{"test/chaos"}, minutes: 12, alone: true},
	{name: "monitoring", make: "test-monitoring", packages: []string{"test/monitoring"},
		files: []string{"config/prometheus", "docs/monitoring.md", "hack/debs"}, minutes: 7},
	{name: "aws", make: "test-aws", packages: []string{"test/aws"}, clouds: []string{"aws"}, minutes: 12},
	{name: "lifecycle", make: "test-lifecycle", packages: []string{"test/lifecycle"}, minutes: 20, alone: true},
	{name: "cluster", make: "test-cluster", packages: []string{"test/cluster"}, files: []string{"templates"}, minutes: 7, root: true},

	{name: "orphans", make: "test-orphans", packages: []string{"test/orphans"}, minutes: 5},
	{name: "chaos-vsphere", make: "test-chaos CLOUD=vsphere SCHEDULES=25", packages: []string{"test/chaos"}, clouds: []string{"vsphere"}, minutes: 5, alone: true},
	{name: "kubeadm", make: "test-kubeadm", packages: []string{"test/kubeadm"}, files: []string{"docs/bootstrap.md"}, minutes: 10},
	{name: "security", make: "test-security", packages: []string{"test/security"}, minutes: 3},
}

// everySuite are the files that each suite reads: the modules and tools, and what the playground
// installs.
var everySuite = []string{"go.mod", "go.sum", "hack/tool", "hack/tools", "hack/progress.sh", "config/crd", "config/rbac", "config/webhook"}

// onlyFor are the folders that only suites with a certain cloud need, though all import them: the
// manager imports all drivers, and test/rig all clouds to try them on.
var onlyFor = map[string][]string{
	"aws":       {"cloud/aws"},
	"azure":     {"cloud/azure"},
	"gcp":       {"cloud/gcp"},
	"kubevirt":  {"cloud/kubevirt", "test/virt"},
	"openstack": {"cloud/openstack"},
	"vsphere":   {"cloud/vsphere", "test/vcenter"},
}
