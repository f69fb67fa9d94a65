// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/drover-io/drover/cloud"
)

// The ID of a resource is the UID of a VM, or a prefix with the kind or name followed by the UID of
// any other object, because a Resource holds neither kind nor name.
const (
	instanceID = "vmi/"
	volumeID   = "datavolume/"
	secretID   = "secret/"
	serviceID  = "service/"
	sliceID    = "endpointslice/"
)

// resources groups objects into resources. An object with the tags but without the name is a copy
// and belongs to no machine and no load balancer.
func (o *objects) resources() (all []cloud.Resource) {
	running := map[string]*kubevirtv1.VirtualMachineInstance{}
	for i := range o.vmis {
		if named(&o.vmis[i].ObjectMeta) {
			running[o.vmis[i].Name] = &o.vmis[i]
		}
	}
	filled := map[string][]*cdiv1.DataVolume{}
	for i := range o.volumes {
		if v := &o.volumes[i]; strings.HasPrefix(v.Name, dataVolumeName(v.Labels[cloud.TagToken], "")) {
			filled[v.Labels[cloud.TagToken]] = append(filled[v.Labels[cloud.TagToken]], v)
			all = append(all, dependant(&v.ObjectMeta, volumeID+v.Name+"/"))
		}
	}
	for i := range o.secrets {
		if m := &o.secrets[i].ObjectMeta; m.Name == m.Labels[cloud.TagToken] { // a VM that others made has none of Drover's
			all = append(all, dependant(&o.secrets[i].ObjectMeta, secretID))
		}
	}
	for i := range o.vms {
		if vm := &o.vms[i]; named(&vm.ObjectMeta) {
			all = append(all, instance(vm, running[vm.Name], filled[vm.Labels[cloud.TagToken]]))
			delete(running, vm.Name)
		}
	}
	for _, vmi := range running {
		if mayHaveVM(vmi) {
			continue
		}
		all = append(all, cloud.Resource{
			Kind: cloud.KindInstance, ID: instanceID + string(vmi.UID), ProviderID: providerID(vmi.Name),
			Token: vmi.Labels[cloud.TagToken], OwnershipID: vmi.Labels[cloud.TagOwnership], CreatedAt: vmi.CreationTimestamp.Time,
			State: cloud.StateStopping, Reason: "its VirtualMachine is gone",
		})
	}
	return append(all, o.balancers()...)
}

// mayHaveVM reports whether a guest whose VM lacks the labels may still have that VM. Then the VM is
// the machine, which only a read by its name shows. A VM that is deleted takes its guest along, or
// leaves it without an owner.
func mayHaveVM(vmi *kubevirtv1.VirtualMachineInstance) bool {
	return vmi.DeletionTimestamp.IsZero() && len(vmi.OwnerReferences) > 0
}

func dependant(m *metav1.ObjectMeta, id string) cloud.Resource {
	return cloud.Resource{
		Kind: cloud.KindDisk, ID: id + string(m.UID), Token: m.Labels[cloud.TagToken], OwnershipID: m.Labels[cloud.TagOwnership],
		CreatedAt: m.CreationTimestamp.Time,
	}
}

// object returns which API object a resource stands for. The provider ID of an instance has its
// name.
func object(r cloud.Resource) (k resourceKind, name string, uid types.UID, err error) {
	vm := cmp.Or(strings.TrimPrefix(r.ProviderID, providerID("")), nameOf(r.Token))
	switch {
	case r.Kind == cloud.KindDisk && strings.HasPrefix(r.ID, secretID):
		return secrets, r.Token, types.UID(strings.TrimPrefix(r.ID, secretID)), nil
	case r.Kind == cloud.KindDisk && strings.HasPrefix(r.ID, volumeID):
		if name, uid, ok := strings.Cut(strings.TrimPrefix(r.ID, volumeID), "/"); ok {
			return dataVolumes, name, types.UID(uid), nil
		}
	case r.Kind == cloud.KindBalancer && strings.HasPrefix(r.ID, serviceID):
		return services, balancerName(r.Token), types.UID(strings.TrimPrefix(r.ID, serviceID)), nil
	case r.Kind == cloud.KindBalancer && strings.HasPrefix(r.ID, sliceID):
		return endpointSlices, balancerName(r.Token), types.UID(strings.TrimPrefix(r.ID, sliceID)), nil
	case r.Kind == cloud.KindInstance && strings.HasPrefix(r.ID, instanceID):
		return virtualInstances, vm, types.UID(strings.TrimPrefix(r.ID, instanceID)), nil
	case r.Kind == cloud.KindInstance:
		return virtualMachines, vm, types.UID(r.ID), nil
	}
	return k, "", "", cloud.Invalid("delete %s %s: the kind is not supported on KubeVirt", r.Kind, cloud.Clip(r.ID, 256))
}

func instance(vm *kubevirtv1.VirtualMachine, vmi *kubevirtv1.VirtualMachineInstance, volumes []*cdiv1.DataVolume) cloud.Resource {
	state, code, reason := stateOf(vm, vmi, volumes)
	all, guests := addresses(vmi)
	notice, reclaim := evacuation(vmi)
	return cloud.Resource{
		Kind: cloud.KindInstance, ID: string(vm.UID), ProviderID: providerID(vm.Name),
		Token: vm.Labels[cloud.TagToken], OwnershipID: vm.Labels[cloud.TagOwnership], CreatedAt: vm.CreationTimestamp.Time,
		State: state, Code: code, Reason: cloud.Clip(reason, 512), FailureDomain: vm.Labels[labelDomain],
		Addresses: all, GuestReported: guests,
		Interruptible: isPreemptible(vm, vmi), Notice: notice, Reclaim: reclaim,
	}
}

// isPreemptible reports whether the VM's eviction strategy is External. When the node of such a VM
// is drained, the cluster that runs the VM takes it back, and waits until it is gone.
func isPreemptible(vm *kubevirtv1.VirtualMachine, vmi *kubevirtv1.VirtualMachineInstance) bool {
	var strategy *kubevirtv1.EvictionStrategy
	switch {
	case vmi != nil: // it keeps the strategy that it was started with
		strategy = vmi.Spec.EvictionStrategy
	case vm.Spec.Template != nil:
		strategy = vm.Spec.Template.Spec.EvictionStrategy
	}
	return strategy != nil && *strategy == kubevirtv1.EvictionStrategyExternal
}

// evacuation returns what the drain of its node means for a guest. virt-api refuses to evict the
// pod and sets the node in the VMI's status ("Node maintenance" in KubeVirt's user guide). Then
// KubeVirt migrates the guest. With the strategy External, KubeVirt does nothing and the Machine
// has to give way. A guest that has ended, or is being deleted, is not migrated.
func evacuation(vmi *kubevirtv1.VirtualMachineInstance) (notice string, reclaim cloud.Reclaim) {
	if vmi == nil || vmi.Status.EvacuationNodeName == "" || vmi.IsFinal() || !vmi.DeletionTimestamp.IsZero() {
		return "", ""
	}
	node := cloud.Clip(vmi.Status.EvacuationNodeName, 253)
	if isPreemptible(nil, vmi) {
		return "its node " + node + " is being drained, and waits until the VM is gone", cloud.ReclaimAdvised
	}
	return "its node " + node + " is being drained: KubeVirt migrates the VM", ""
}

// beingDeleted is the reason of a VM or a Service whose deletion the API server has accepted.
// Deleting it again changes nothing.
const beingDeleted = "it is being deleted"

// stateOf follows the phases of VMIs and the run strategies of VMs ("Run Strategies", "Lifecycle"
// in KubeVirt's user guide). A VM that migrates to another node is the same VM, and runs.
func stateOf(vm *kubevirtv1.VirtualMachine, vmi *kubevirtv1.VirtualMachineInstance,
	volumes []*cdiv1.DataVolume) (cloud.State, cloud.Code, string) {
	strategy := kubevirtv1.RunStrategyAlways
	switch {
	case vm.Spec.RunStrategy != nil:
		strategy = *vm.Spec.RunStrategy
	case !ptr.Deref(vm.Spec.Running, true): // others' VMs may have the older field
		strategy = kubevirtv1.RunStrategyHalted
	}
	stopped := strategy == kubevirtv1.RunStrategyHalted || strategy == kubevirtv1.RunStrategyManual
	switch {
	case !vm.DeletionTimestamp.IsZero():
		return cloud.StateStopping, "", beingDeleted
	case vmi == nil && stopped:
		return cloud.StateStopped, "", "its run strategy was changed to " + string(strategy)
	case vmi == nil:
		return startingState(vm, volumes)
	case !vmi.DeletionTimestamp.IsZero():
		return cloud.StateStopping, "", ""
	}
	switch vmi.Status.Phase {
	case kubevirtv1.Running:
		if isTrue(vmi, kubevirtv1.VirtualMachineInstancePaused) != nil {
			return cloud.StateStopped, "", "it is paused"
		}
		return cloud.StateRunning, "", ""
	case kubevirtv1.Succeeded, kubevirtv1.Failed:
		if strategy == kubevirtv1.RunStrategyAlways || strategy == kubevirtv1.RunStrategyRerunOnFailure && vmi.Status.Phase == kubevirtv1.Failed {
			return cloud.StatePending, "", "the guest has shut down and is restarting"
		}
		return cloud.StateStopped, "", strings.TrimSpace("the guest has shut down " + vmi.Status.Reason)
	}
	code, reason := startingReason(vm, vmi)
	return cloud.StatePending, code, reason
}

// guestConditions and volumeConditions are the conditions that are read from a VMI and a volume.
var (
	guestConditions = []kubevirtv1.VirtualMachineInstanceConditionType{
		kubevirtv1.VirtualMachineInstanceConditionType(corev1.PodScheduled), kubevirtv1.VirtualMachineInstanceSynchronized,
		kubevirtv1.VirtualMachineInstancePaused, kubevirtv1.VirtualMachineInstanceReady,
	}
	// Running is about the pod that fills the volume. Ready says what keeps CDI from creating it.
	volumeConditions = []cdiv1.DataVolumeConditionType{cdiv1.DataVolumeRunning, cdiv1.DataVolumeReady}
)

// startingState returns the state of a VM that has not started yet, mostly for lack of volumes.
func startingState(vm *kubevirtv1.VirtualMachine, volumes []*cdiv1.DataVolume) (cloud.State, cloud.Code, string) {
	for _, v := range volumes {
		message := ""
		for _, c := range v.Status.Conditions {
			if slices.Contains(volumeConditions, c.Type) && c.Status != corev1.ConditionTrue && c.Reason != "Completed" {
				message = cmp.Or(c.Message, message)
			}
		}
		switch {
		case v.Status.Phase == cdiv1.Failed:
			return cloud.StateFailed, "", "the volume " + v.Name + " could not be populated: " + cmp.Or(message, "CDI gives no reason")
		case message != "" && v.Status.Phase != cdiv1.Succeeded:
			return cloud.StatePending, "", "the volume " + v.Name + " is not populated yet: " + message
		}
	}
	for _, c := range vm.Status.Conditions {
		if c.Type == kubevirtv1.VirtualMachineFailure && c.Status == corev1.ConditionTrue {
			return cloud.StatePending, refusalOf(c.Message), steady(c.Message)
		}
	}
	return cloud.StatePending, "", ""
}

// refusalOf returns QuotaExceeded if a quota has no room for the guest's pod, and "" for any other
// reason that keeps KubeVirt from starting it.
func refusalOf(message string) cloud.Code {
	if strings.Contains(message, "exceeded quota:") {
		return cloud.QuotaExceeded
	}
	return ""
}

// startingReason returns what a guest that is starting waits for: a node with enough room, or its
// image.
func startingReason(vm *kubevirtv1.VirtualMachine, vmi *kubevirtv1.VirtualMachineInstance) (cloud.Code, string) {
	for _, c := range vmi.Status.Conditions {
		switch {
		case c.Type == kubevirtv1.VirtualMachineInstanceConditionType(corev1.PodScheduled) && c.Status == corev1.ConditionFalse:
			return cloud.NoCapacity, steady(c.Message)
		case c.Type == kubevirtv1.VirtualMachineInstanceSynchronized && c.Status == corev1.ConditionFalse:
			return refusalOf(c.Message), steady(c.Message)
		}
	}
	switch s := vm.Status.PrintableStatus; s {
	case kubevirtv1.VirtualMachineStatusErrImagePull, kubevirtv1.VirtualMachineStatusImagePullBackOff,
		kubevirtv1.VirtualMachineStatusPvcNotFound,
		kubevirtv1.VirtualMachineStatusUnschedulable, kubevirtv1.VirtualMachineStatusWaitingForVolumeBinding:
		return "", string(s)
	}
	return "", ""
}

// What changes in KubeVirt's and the scheduler's messages while a guest waits for the same reason:
// the numbers of nodes, the name of the pod of each attempt, and what others use of a quota.
var (
	nodesAvailable = regexp.MustCompile(`^\d+/\d+ nodes are available: `)
	nodeCount      = regexp.MustCompile(`^\d+ `)
	launcherPod    = regexp.MustCompile(`pods "virt-launcher-[^"]*"`)
	quotaUsed      = regexp.MustCompile(`used: \S+, `)
)

// steady returns a message without what changes while its reason stays. Otherwise, each change
// would be a write of the machine's status.
func steady(message string) string {
	if found := nodesAvailable.FindString(message); found != "" {
		reasons, _, _ := strings.Cut(strings.TrimPrefix(message, found), " preemption: ")
		all := strings.Split(strings.TrimSuffix(reasons, "."), ", ")
		for i := range all {
			all[i] = nodeCount.ReplaceAllString(all[i], "")
		}
		slices.Sort(all) // the scheduler sorts by number
		return "no node is available: " + strings.Join(slices.Compact(all), ", ")
	}
	return quotaUsed.ReplaceAllString(launcherPod.ReplaceAllString(message, "its pod"), "")
}

func isTrue(vmi *kubevirtv1.VirtualMachineInstance,
	kind kubevirtv1.VirtualMachineInstanceConditionType) *kubevirtv1.VirtualMachineInstanceCondition {
	for i, c := range vmi.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return &vmi.Status.Conditions[i]
		}
	}
	return nil
}

// guestAgent is part of an interface's infoSource if the guest has reported some of its data.
const guestAgent = "guest-agent"

// addresses returns the addresses of the interfaces that the machine asked for. It leaves out other
// interfaces that the guest agent reports, such as container bridges, because many machines have
// the same. guests are the addresses that only the guest reports: KubeVirt takes the address
// families that the pod lacks from the agent, and does not say which.
func addresses(vmi *kubevirtv1.VirtualMachineInstance) (all []clusterv1.MachineAddress, guests []string) {
	if vmi == nil {
		return nil, nil
	}
	vouched := map[netip.Addr]bool{} // by a source other than the guest
	for _, i := range vmi.Status.Interfaces {
		if i.Name == "" {
			continue
		}
		for _, text := range append([]string{i.IP}, i.IPs...) {
			ip, err := netip.ParseAddr(text)
			if err != nil || !ip.IsGlobalUnicast() {
				continue
			}
			if _, seen := vouched[ip]; !seen {
				all = append(all, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: ip.String()})
			}
			vouched[ip] = vouched[ip] || !strings.Contains(i.InfoSource, guestAgent)
		}
	}
	for ip, known := range vouched {
		if !known {
			guests = append(guests, ip.String())
		}
	}
	slices.Sort(guests) // stable order
	return all, guests
}
