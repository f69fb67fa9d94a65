// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"encoding/json"
	mathrand "math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxPods is the kubelet's default.
const maxPods = 110

// register creates the Node, or takes over an existing one, as a kubelet does.
func (b *Body) register(ctx context.Context) error {
	want := b.nodeObject(metav1.Now())
	nodes := b.node.core.Nodes()
	var have *corev1.Node
	err := b.fleet.request(ctx, func(ctx context.Context) (err error) {
		have, err = nodes.Create(ctx, want, metav1.CreateOptions{})
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		have, err = b.takeOver(ctx, want)
	}
	if err != nil {
		return err
	}
	b.beating.Lock()
	defer b.beating.Unlock()
	b.node.heartbeat = heartbeat{uid: have.UID, status: time.Now()}
	return nil
}

// takeOver sets the labels and the status of an existing Node.
func (b *Body) takeOver(ctx context.Context, want *corev1.Node) (*corev1.Node, error) {
	nodes := b.node.core.Nodes()
	labels, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": want.Labels}})
	if err != nil {
		return nil, err
	}
	status, err := json.Marshal(map[string]any{"status": want.Status})
	if err != nil {
		return nil, err
	}
	var have *corev1.Node
	err = b.fleet.request(ctx, func(ctx context.Context) error {
		if _, err := nodes.Patch(ctx, want.Name, types.StrategicMergePatchType, labels, metav1.PatchOptions{}); err != nil {
			return err
		}
		have, err = nodes.Patch(ctx, want.Name, types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status")
		return err
	})
	return have, err
}

func (b *Body) nodeObject(now metav1.Time) *corev1.Node {
	k, m := b.kubelet, b.machine
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(m.CPU), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(m.MemoryMiB<<20, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(m.DiskGiB)<<30, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(maxPods, resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        k.node,
			Labels:      k.labels,
			Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		Spec: corev1.NodeSpec{ProviderID: k.providerID, Taints: k.taints},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			Conditions:  conditions(now, true),
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: k.nodeIP},
				{Type: corev1.NodeHostName, Address: k.node},
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: m.InstanceID, SystemUUID: m.InstanceID, BootID: m.InstanceID,
				KernelVersion: "6.12.0-simulated", OSImage: "Simulated Linux", ContainerRuntimeVersion: "containerd://2.1.0",
				KubeletVersion: m.KubeletVersion, OperatingSystem: m.OS, Architecture: m.Arch,
			},
		},
	}
}

// conditions returns a healthy kubelet's conditions. changed means that they are new.
func conditions(now metav1.Time, changed bool) []corev1.NodeCondition {
	list := []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory",
			Message: "kubelet has sufficient memory available"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure",
			Message: "kubelet has no disk pressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID",
			Message: "kubelet has sufficient PID available"},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"},
	}
	for i := range list {
		list[i].LastHeartbeatTime = now
		if changed {
			list[i].LastTransitionTime = now
		}
	}
	return list
}

// heartbeat is the state kept between two heartbeats.
type heartbeat struct {
	uid     types.UID
	version string
	// status is when the conditions were last written.
	status time.Time
}

// beat renews the Lease, reports the conditions when due, and schedules itself. Between two
// heartbeats it is only a timer.
func (b *Body) beat(ctx context.Context) {
	every := b.fleet.opts.LeaseInterval.Duration
	if b.kubelet.registers {
		b.beatOnce(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	// A kubelet jitters its renewals by 4 %.
	next := every + time.Duration(mathrand.Int64N(int64(every)/25+1))
	b.timer = time.AfterFunc(next, func() { b.fleet.spawn(func() { b.beat(ctx) }) })
}

// beatOnce renews the Lease and reads the Node, as often as a kubelet does: the control plane may
// have marked the node as not ready, and must learn at once that it is alive.
func (b *Body) beatOnce(ctx context.Context) {
	b.beating.Lock()
	defer b.beating.Unlock()
	h := &b.node.heartbeat
	if ctx.Err() != nil || b.renew(ctx, h) != nil {
		return
	}
	var have *corev1.Node
	err := b.fleet.request(ctx, func(ctx context.Context) (err error) {
		have, err = b.node.core.Nodes().Get(ctx, b.kubelet.node, metav1.GetOptions{ResourceVersion: "0"})
		return err
	})
	if err != nil {
		return
	}
	givenUp := !isReady(have)
	if givenUp || time.Since(h.status) > b.fleet.opts.StatusInterval.Duration {
		b.reportStatus(ctx, h, givenUp)
	}
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// renew updates the Lease with the known version. If that fails, it reads the Lease once.
func (b *Body) renew(ctx context.Context, h *heartbeat) error {
	var lease *coordinationv1.Lease
	err := b.fleet.request(ctx, func(ctx context.Context) (err error) {
		if h.version != "" {
			lease, err = b.node.leases.Update(ctx, b.lease(h), metav1.UpdateOptions{})
			if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return err
			}
		}
		lease, err = b.ensureLease(ctx, h)
		return err
	})
	if err != nil {
		return err
	}
	h.version = lease.ResourceVersion
	return nil
}

// ensureLease updates or creates the Lease. A kubelet creates none without a Node to own it.
func (b *Body) ensureLease(ctx context.Context, h *heartbeat) (*coordinationv1.Lease, error) {
	have, err := b.node.leases.Get(ctx, b.kubelet.node, metav1.GetOptions{})
	if err == nil {
		h.version = have.ResourceVersion
		return b.node.leases.Update(ctx, b.lease(h), metav1.UpdateOptions{})
	}
	if !apierrors.IsNotFound(err) {
		return nil, err
	}
	owner, err := b.node.core.Nodes().Get(ctx, b.kubelet.node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	h.uid, h.version = owner.UID, ""
	return b.node.leases.Create(ctx, b.lease(h), metav1.CreateOptions{})
}

func (b *Body) lease(h *heartbeat) *coordinationv1.Lease {
	name, now := b.kubelet.node, metav1.NowMicro()
	duration := int32(max(40, 4*b.fleet.opts.LeaseInterval.Seconds()))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "kube-node-lease", ResourceVersion: h.version,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: h.uid}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &duration, RenewTime: &now},
	}
}

func (b *Body) reportStatus(ctx context.Context, h *heartbeat, changed bool) {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": patchable(conditions(metav1.Now(), changed))}})
	if err != nil {
		return
	}
	err = b.fleet.request(ctx, func(ctx context.Context) error {
		_, err := b.node.core.Nodes().Patch(ctx, b.kubelet.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
	if err == nil {
		h.status = time.Now()
	}
}

// patchable drops unset transition times: as null they would remove the existing ones.
func patchable(list []corev1.NodeCondition) []map[string]any {
	out := make([]map[string]any, len(list))
	for i, c := range list {
		out[i] = map[string]any{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message,
			"lastHeartbeatTime": c.LastHeartbeatTime}
		if !c.LastTransitionTime.IsZero() {
			out[i]["lastTransitionTime"] = c.LastTransitionTime
		}
	}
	return out
}
