// SPDX-License-Identifier: Apache-2.0

package virt

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
)

// NodeName is the name of the only node.
const NodeName = "node-1"

// NoRoom is a node label that no node has. A pod that selects it gets the condition of an
// unschedulable pod.
const NoRoom = "no-room"

// schedulerSays is the message of that condition.
const schedulerSays = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."

// Node simulates what an API server alone lacks: scheduler, kubelet and virt-handler of one node
// with unlimited room, CDI's importers, which fill every volume immediately, and the storage for
// volumes. It only writes what the real components would write.
type Node struct {
	// Handler is a client with virt-handler's service account.
	Handler client.Client
	// Power starts guests. nil means that nothing runs in them.
	Power atomic.Pointer[Power]
	// Broken is the failure that importers report. nil means that they succeed.
	Broken atomic.Pointer[Failure]
	// Birth decides what happens to a guest that starts. nil starts every guest.
	Birth atomic.Pointer[func(*kubevirtv1.VirtualMachineInstance) Birth]

	admin  client.WithWatch
	cancel context.CancelFunc
	loops  sync.WaitGroup
	guests sync.Map // VM's namespace and name → function that powers off its guest
}

// Guest is what a VM knows of itself.
type Guest struct {
	// ID is the instance's UID. UserData is the content of its Secret.
	ID, Namespace, Name, Hostname, IP, Architecture string
	Cores                                           int32
	MemoryMiB                                       int64
	UserData                                        []byte
}

// Power starts a guest, and returns a function that stops it.
type Power func(Guest) (off func())

// Bodies returns a Power that uses bodies of the fleet as guests.
func Bodies(fleet *body.Fleet) *Power {
	power := Power(func(g Guest) (off func()) {
		b := fleet.New(body.Machine{
			InstanceID: g.ID, Hostname: g.Hostname, IP: g.IP, CPU: g.Cores, MemoryMiB: g.MemoryMiB, DiskGiB: 10,
			Arch: g.Architecture, OS: "linux", UserData: g.UserData,
		})
		b.Start()
		return b.Stop
	})
	return &power
}

// Birth is how a guest starts.
type Birth string

const (
	Alive Birth = ""
	// Stillborn never starts: its instance fails.
	Stillborn Birth = "Stillborn"
	// Lifeless runs, but nothing runs in it.
	Lifeless Birth = "Lifeless"
)

func startNode(ctx context.Context, c *Cluster) (*Node, error) {
	unhurried := rest.CopyConfig(c.KubeVirt.Handler)
	unhurried.QPS = -1 // one client acts for the virt-handlers of many nodes
	handler, err := client.New(unhurried, client.Options{Scheme: c.Admin.Scheme()})
	if err != nil {
		return nil, err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName, Labels: map[string]string{"kubevirt.io/schedulable": "true"}}}
	if err := c.Admin.Create(ctx, node); err != nil {
		return nil, err
	}
	if err := makeStorage(ctx, c.Admin); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	n := &Node{admin: c.Admin, Handler: handler, cancel: cancel}
	follow(ctx, n, &corev1.PodList{}, n.pod)
	follow(ctx, n, &kubevirtv1.VirtualMachineInstanceList{}, n.instance)
	follow(ctx, n, &corev1.PersistentVolumeClaimList{}, n.claim)
	follow(ctx, n, &corev1.PersistentVolumeList{}, n.volume)
	return n, nil
}

func (n *Node) stop() {
	n.cancel()
	n.loops.Wait()
}

// follow calls do for each object when it is added or changed, and retries after errors. A watch
// that ends is restarted and sends all objects again.
func follow[T client.Object](ctx context.Context, n *Node, list client.ObjectList, do func(context.Context, T) error) {
	n.loops.Go(func() {
		for ctx.Err() == nil {
			w, err := n.admin.Watch(ctx, list)
			if err != nil {
				pause(ctx)
				continue
			}
			for e := range w.ResultChan() {
				o, ok := e.Object.(T)
				if !ok || e.Type == watch.Deleted {
					continue
				}
				n.loops.Go(func() { n.insist(ctx, o, func() error { return do(ctx, o) }) })
			}
			w.Stop()
		}
	})
}

// insist retries do with the current state of the object, up to 20 times.
func (n *Node) insist(ctx context.Context, o client.Object, do func() error) {
	for tries := 0; do() != nil && tries < 20 && ctx.Err() == nil; tries++ {
		pause(ctx)
		if client.IgnoreNotFound(n.admin.Get(ctx, client.ObjectKeyFromObject(o), o)) != nil {
			continue
		}
	}
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
}

// pod binds a pod once its volumes exist, and runs it. It runs an importer to completion, and
// deletes a terminating pod.
func (n *Node) pod(ctx context.Context, p *corev1.Pod) error {
	switch {
	case p.DeletionTimestamp != nil:
		return client.IgnoreNotFound(n.admin.Delete(ctx, p, client.GracePeriodSeconds(0)))
	case p.Spec.NodeSelector[NoRoom] != "":
		return n.unschedulable(ctx, p)
	case p.Spec.NodeName == "":
		return n.schedule(ctx, p)
	case p.Labels[importerLabel] == importer:
		return n.fill(ctx, p)
	case p.Status.Phase != corev1.PodPending:
		return nil
	}
	before := p.DeepCopy()
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: addressOf(p.Labels["vm.kubevirt.io/name"]),
		PodIPs: []corev1.PodIP{{IP: addressOf(p.Labels["vm.kubevirt.io/name"])}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}},
	}
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Ready: true, Started: ptr.To(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
	return client.IgnoreNotFound(n.admin.Status().Patch(ctx, p, client.MergeFrom(before)))
}

// schedule binds a pod to the node. A pod that waits for a claim is handled again when the claim is
// bound.
func (n *Node) schedule(ctx context.Context, p *corev1.Pod) error {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		err := n.admin.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: v.PersistentVolumeClaim.ClaimName}, claim)
		if err != nil || claim.Status.Phase != corev1.ClaimBound {
			return client.IgnoreNotFound(err)
		}
	}
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: NodeName}}
	return client.IgnoreNotFound(n.admin.SubResource("binding").Create(ctx, p, binding))
}

func (n *Node) unschedulable(ctx context.Context, p *corev1.Pod) error {
	if len(p.Status.Conditions) > 0 {
		return nil
	}
	before := p.DeepCopy()
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable, Message: schedulerSays}}
	return client.IgnoreNotFound(n.admin.Status().Patch(ctx, p, client.MergeFrom(before)))
}

// addressOf returns the address of a VM, derived from its name.
func addressOf(name string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	sum := h.Sum32()
	return fmt.Sprintf("10.%d.%d.%d", 64+sum>>16%64, sum>>8%256, 1+sum%250)
}

// instance runs an instance once its pod runs, and ends it when it is deleted.
func (n *Node) instance(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) error {
	birth := Alive
	switch {
	case vmi.DeletionTimestamp != nil && !vmi.IsFinal() && vmi.Status.Phase != kubevirtv1.Pending &&
		vmi.Status.Phase != kubevirtv1.VmPhaseUnset:
		vmi.Status.Phase = kubevirtv1.Succeeded
	case vmi.DeletionTimestamp == nil && vmi.Status.Phase == kubevirtv1.Scheduled:
		if ask := n.Birth.Load(); ask != nil {
			birth = (*ask)(vmi)
		}
		vmi.Status.Phase = kubevirtv1.Running
		if birth == Stillborn {
			vmi.Status.Phase = kubevirtv1.Failed
		}
		ip := addressOf(vmi.Name)
		vmi.Status.Interfaces = []kubevirtv1.VirtualMachineInstanceNetworkInterface{
			{Name: "default", IP: ip, IPs: []string{ip, "fe80::1"}},
			{InterfaceName: "cni0", IP: "10.244.0.1", IPs: []string{"10.244.0.1"}}, // seen by the guest agent
		}
	default:
		return nil
	}
	if err := n.Handler.Update(ctx, vmi); err != nil {
		return client.IgnoreNotFound(err)
	}
	if vmi.IsFinal() {
		if off, ok := n.guests.LoadAndDelete(client.ObjectKeyFromObject(vmi)); ok {
			off.(func())()
		}
		return nil
	}
	if birth == Lifeless {
		return nil
	}
	return n.switchOn(ctx, vmi)
}

// switchOn starts the guest with its user data.
func (n *Node) switchOn(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) error {
	power := n.Power.Load()
	if power == nil {
		return nil
	}
	secret := &corev1.Secret{}
	for _, v := range vmi.Spec.Volumes {
		ref := &corev1.LocalObjectReference{}
		switch {
		case v.CloudInitNoCloud != nil:
			ref = v.CloudInitNoCloud.UserDataSecretRef
		case v.CloudInitConfigDrive != nil:
			ref = v.CloudInitConfigDrive.UserDataSecretRef
		default:
			continue
		}
		if err := n.admin.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: ref.Name}, secret); err != nil {
			return fmt.Errorf("read the user data of %s: %w", vmi.Name, err)
		}
	}
	off := (*power)(Guest{
		ID: string(vmi.UID), Namespace: vmi.Namespace, Name: vmi.Name, Hostname: vmi.Spec.Hostname, IP: addressOf(vmi.Name),
		Architecture: vmi.Spec.Architecture,
		Cores:        int32(vmi.Spec.Domain.CPU.Cores), MemoryMiB: vmi.Spec.Domain.Memory.Guest.Value() >> 20, UserData: secret.Data["userdata"],
	})
	n.guests.Store(client.ObjectKeyFromObject(vmi), off)
	return nil
}
