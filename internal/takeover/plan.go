// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// Pool is a group of machines that the other system keeps at a number, as Drover would keep them.
type Pool struct {
	// Name is the name of the pool, and Set the name of what holds its machines.
	Name, Set string
	Replicas  int32
	Paused    bool
	// Version is the kubelet's version on most of the pool's Nodes.
	Version string
	// Template is the name of Machine, which several pools may share.
	Template   string
	Machine    *infrav1.DroverMachineFields
	NodeLabels map[string]string
	// MachineLabels are those of new machines that Cluster API sets on their Nodes.
	MachineLabels   map[string]string
	NodeTaints      []corev1.Taint
	MaxSurge        *intstr.IntOrString
	MaxUnavailable  *intstr.IntOrString
	MinReadySeconds int32
	// FailureDomain is where all of the pool's machines are; "": Drover chooses.
	FailureDomain string
	DrainTimeout  time.Duration
	// Deployment is the MachineDeployment's spec, if the other system has one: then the settings
	// above are in it. What is the target's own is not used: names, numbers, selector, references.
	Deployment *clusterv1.MachineDeploymentSpec
	// Annotations are those of the MachineDeployment.
	Annotations map[string]string
	// Config is what new machines are set up with, in addition to the Target's template.
	Config bootstrapv1.DroverConfigSpec
	// Health says when a machine is replaced; nil: never. It has neither cluster nor selector.
	Health *clusterv1.MachineHealthCheckSpec
	// Size is what an autoscaler may make of Replicas; nil: there is none.
	Size *Size
	// Keys are the tag keys by which the other system recognizes its VMs.
	Keys     []string
	Machines []Machine

	// cluster is the value of the first of the Keys that all of the pool's VMs have; "": any.
	cluster string
	// named: the other system deletes what has the name of a machine together with it.
	named bool
	// plan is the purchase plan of the image that a VM tells; nil: it has none.
	plan *infrav1.AzurePlan
	// sizeByID: the machine's fields have the ID of a size, and VMs report its name.
	sizeByID bool
}

// nameKey stands for a VM's name, as a tag that Taggers report. On some clouds, the other system
// knows its VMs by it alone. It can't be taken off.
const nameKey = "Name"

// role returns the one of the Keys whose loss makes a VM nobody's for the other system.
func (p *Pool) role() string {
	if len(p.Keys) == 0 {
		return ""
	}
	return p.Keys[len(p.Keys)-1]
}

// Size are the limits of an autoscaler, as its flag has them.
type Size struct{ Min, Max string }

// Machine is a VM that runs and is a Node.
type Machine struct {
	Name, Node string
	// VM is the name of the VM, if it is not that of the machine.
	VM string
	// ProviderID is the Node's, and Instance the cloud's own ID in it.
	ProviderID, Instance string
	// Version is the kubelet's.
	Version string
	// Identity is the value of the VM's tag with the first of the pool's Keys; "": any.
	Identity string
	// OwnedResources are the names or IDs of resources that the other system deletes together with
	// the VM, and the cloud does not: ports, volumes, floating IPs.
	OwnedResources []string
}

// instanceName returns the last part of the cloud's own ID.
func (m *Machine) instanceName() string { return m.Instance[strings.LastIndex(m.Instance, "/")+1:] }

// vm returns the name of the machine's VM.
func (m *Machine) vm() string { return cmp.Or(m.VM, m.Name) }

// Severity says what a Finding means for the takeover.
type Severity string

const (
	// Refused stops the takeover, until what it names has changed.
	Refused Severity = "Refused"
	// Lost stops the takeover, because new machines would lack what the field says, unless the user
	// drops the field.
	Lost Severity = "Lost"
	// Dropped is a Lost field that the user drops.
	Dropped Severity = "Dropped"
	// Noted is something to know. It stops nothing.
	Noted Severity = "Noted"
)

// Finding is what a plan can't carry over, or what changes with it.
type Finding struct {
	Severity Severity `json:"severity"`
	// Object is kind and name in the other system, or a VM.
	Object string `json:"object"`
	// Field is the path of the field, without indices; "" if it is about the whole object.
	Field string `json:"field,omitempty"`
	// Message says why, and what to do.
	Message string `json:"message"`
}

// Plan is what a takeover would do.
type Plan struct {
	Pools    []Pool
	Findings []Finding

	// drop are the fields that the user gives up, and known the names of all machines that the
	// other system has, also of those that can't be taken over.
	drop, known []string
}

// Blocked returns how many findings stop the takeover.
func (p *Plan) Blocked() (n int) {
	for _, f := range p.Findings {
		if f.Severity == Refused || f.Severity == Lost {
			n++
		}
	}
	return n
}

// findingsFor returns the findings about one object, to add to.
func (p *Plan) findingsFor(kind, name string) findings { return findings{p, kind + " " + name} }

// findings adds to a plan what is found of one object.
type findings struct {
	plan   *Plan
	object string
}

func (s findings) add(severity Severity, field, format string, args ...any) {
	s.plan.Findings = append(s.plan.Findings, Finding{severity, s.object, field, fmt.Sprintf(format, args...)})
}

func (s findings) addRefused(field, format string, args ...any) {
	s.add(Refused, field, format, args...)
}

func (s findings) addNote(field, format string, args ...any) { s.add(Noted, field, format, args...) }

// addLost adds a field that new machines can't have.
func (s findings) addLost(field, format string, args ...any) {
	severity := Lost
	if slices.Contains(s.plan.drop, field) {
		severity = Dropped
	}
	s.add(severity, field, format, args...)
}

// checkDrop refuses names of fields that nothing lacks: they hide a typing error.
func (p *Plan) checkDrop() {
	for _, field := range p.drop {
		if !slices.ContainsFunc(p.Findings, func(f Finding) bool { return f.Field == field && f.Severity == Dropped }) {
			p.findingsFor("--drop", field).addRefused("", "no object has this field, or it can be carried over")
		}
	}
}

// joinable finds what would keep new machines from being made, or from joining.
func (p *Plan) joinable(target *Target) {
	account := &target.Account.Spec
	for i := range p.Pools {
		pool := &p.Pools[i]
		s := p.findingsFor("MachineDeployment", pool.Name)
		if m := pool.Machine; m != nil && len(pool.Machines) == 0 &&
			(m.Cloud.AWS != nil && m.Cloud.AWS.Image.ID == "" || m.Cloud.Azure != nil && m.Cloud.Azure.Image == (infrav1.AzureImage{})) {
			s.addRefused("", "it names no image, and has no machine whose image new ones could get: scale it to 1 first")
		}
		if cmp.Or(pool.Config.NodeNameSource, target.Bootstrap.Spec.Template.Spec.NodeNameSource) != bootstrapv1.NodeNameHostname {
			continue
		}
		bootstrap := p.findingsFor("DroverConfigTemplate", target.Bootstrap.Name)
		const field, why = "spec.template.spec.nodeNameSource", "it is Hostname: the instance data have the name with a domain"
		switch {
		case account.Cloud.GCP != nil:
			bootstrap.addRefused(field, "%s, which Google does not tell Drover, so no new machine would join: leave it out", why)
		case account.Cloud.OpenStack != nil:
			bootstrap.addNote(field, "%s, unless Nova's dhcp_domain is empty, and OpenStack tells Drover only the server's name: then no new machine joins; Machine names Nodes after their server", why)
		}
	}
}

// KeySets returns each set of tag keys by which the other system recognizes VMs of the plan.
func (p *Plan) KeySets() (sets [][]string) {
	for i := range p.Pools {
		keys := p.Pools[i].Keys
		if len(keys) > 0 && !slices.ContainsFunc(sets, func(s []string) bool { return slices.Equal(s, keys) }) {
			sets = append(sets, keys)
		}
	}
	return sets
}

// MatchInstances compares the plan with the VMs that the cloud lists with one of the KeySets.
func (p *Plan) MatchInstances(keys []string, listed []tagging.Instance, target *Target) {
	byID, names, clusters := map[string]*tagging.Instance{}, map[string][]string{}, map[string]bool{}
	for i := range listed {
		vm := &listed[i]
		byID[vm.ID] = vm
		names[vm.Tags[nameKey]] = append(names[vm.Tags[nameKey]], vm.ID)
	}
	for i := range p.Pools {
		pool := &p.Pools[i]
		if !slices.Equal(pool.Keys, keys) {
			continue
		}
		if pool.cluster != "" {
			clusters[pool.cluster] = true
		}
		for _, m := range pool.Machines {
			s := p.findingsFor("Machine", m.Name)
			vm := byID[m.Instance]
			delete(byID, m.Instance)
			if vm == nil {
				s.addRefused("", "the account has no VM %s with the tags %s: check the DroverAccount's region or namespace, and its credentials",
					m.Instance, strings.Join(keys, " and "))
				continue
			}
			s.compare(pool, m, vm, target)
			if same := names[m.vm()]; len(same) > 1 {
				slices.Sort(same)
				s.addRefused("", "%d VMs have its name, %s: let the other system delete the one that it does not use", len(same),
					strings.Join(same, " and "))
			}
		}
	}
	for i := range listed {
		vm := &listed[i]
		if slices.Equal(keys, []string{nameKey}) || len(clusters) > 0 && !clusters[vm.Tags[keys[0]]] {
			continue // it may be anybody's
		}
		if byID[vm.ID] != nil && !slices.Contains(p.known, vm.Tags[nameKey]) {
			p.findingsFor("VM", vm.ID).addNote("", "it has the tags %s and is of no Machine: it is not taken over", strings.Join(keys, " and "))
		}
	}
}

// compare compares a machine with its VM.
func (s findings) compare(pool *Pool, m Machine, vm *tagging.Instance, target *Target) {
	if vm.State != cloud.StateRunning {
		s.addRefused("", "its VM %s is %s, not running", vm.ID, vm.State)
	}
	if name := vm.Tags[nameKey]; name != m.vm() {
		s.addRefused("", "its VM %s has the name %q", vm.ID, name)
	}
	if vm.Token != "" && vm.Token != target.token(m) || vm.OwnershipID != "" && vm.OwnershipID != target.OwnershipID {
		s.addRefused("", "its VM %s has tags of Drover already, and they are of another machine or cluster", vm.ID)
	}
	if vm.ProviderID != m.ProviderID {
		s.addRefused("", "the provider ID of its VM is %s, but its Node has %s: the DroverAccount must be for the same place, and on OpenStack have regionalProviderIDs as the Nodes have it",
			vm.ProviderID, m.ProviderID)
	}
	if owner := vm.Tags[ownerKey]; owner != "" && target.Account.Spec.Cloud.KubeVirt != nil {
		s.addRefused("", "its VM %s is owned by %s, together with which Kubernetes would delete it: take the owner off the VM", vm.ID, owner)
	}
	if is := vm.Tags[pool.Keys[0]]; m.Identity != "" && is != m.Identity {
		other := map[bool]string{true: "Machine", false: "cluster"}[pool.cluster == ""]
		s.addRefused("", "its VM %s has the tag %s of another %s, %q", vm.ID, pool.Keys[0], other, is)
	}
	if pool.Machine == nil {
		return
	}
	var size, image string
	if aws := pool.Machine.Cloud.AWS; aws != nil {
		if aws.Image.ID == "" {
			aws.Image.ID = vm.ImageID
			s.plan.findingsFor("MachineDeployment", pool.Name).addNote("", "it names no image: new machines get that of VM %s, %s", vm.ID,
				vm.ImageID)
		}
		size, image = aws.InstanceType, aws.Image.ID
	}
	if openstack := pool.Machine.Cloud.OpenStack; openstack != nil {
		size, image = openstack.Flavor, openstack.Image.ID
	}
	if azure := pool.Machine.Cloud.Azure; azure != nil {
		if azure.Image == (infrav1.AzureImage{}) {
			azure.Image = azureImage(vm.ImageID)
			about := s.plan.findingsFor("MachineDeployment", pool.Name)
			about.addNote("", "it names no image: new machines get that of VM %s, %s", vm.Tags[nameKey], vm.ImageID)
			if !buy(&azure.Image, pool.plan) {
				about.addRefused("", "its purchase plan, %s %s %s, is not that of the image of VM %s: name the image and its plan", pool.plan.Publisher,
					pool.plan.Product, pool.plan.Name, vm.Tags[nameKey])
			}
		}
		size, image = azure.VMSize, imageOnAzure(&azure.Image)
	}
	if gcp := pool.Machine.Cloud.GCP; gcp != nil {
		size = gcp.MachineType // Google does not tell the image
	}
	if vsphere := pool.Machine.Cloud.VSphere; vsphere != nil {
		size = sizeOnVSphere(vsphere)
	}
	if kubevirt := pool.Machine.Cloud.KubeVirt; kubevirt != nil {
		size, image = sizeOnKubeVirt(kubevirt), imageOnKubeVirt(kubevirt)
	}
	if size != "" && vm.Type != size && !pool.sizeByID {
		s.addNote("", "its VM is of type %s; the next rollout makes it %s", vm.Type, size)
	}
	if vm.ImageID != "" && image != "" && vm.ImageID != image {
		s.addNote("", "its VM was made from image %s; the next rollout uses %s", vm.ImageID, image)
	}
}
