// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
)

// noRoom is the node label of which no node has the value: a pod that wants it is told what a scheduler would say.
const noRoom = "no-room"

const schedulerSays = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."

// nodes play what an API server alone has not: scheduler, kubelet and virt-handler of one node with endless room, and CDI, which
// fills every volume at once. They do no more than to write what the real ones would write.
type nodes struct {
	admin   client.WithWatch
	handler client.Client // virt-handler's service account
	cancel  context.CancelFunc
	loops   sync.WaitGroup
	// broken has CDI fail to fill volumes.
	broken atomic.Bool
	// fleet runs the guests, by what their Secrets say. nil: they do nothing.
	fleet  atomic.Pointer[body.Fleet]
	bodies sync.Map // name of the VM → *body.Body
}

func startNodes(ctx context.Context, c *cluster) (*nodes, error) {
	unhurried := rest.CopyConfig(c.kubevirt.Handler)
	unhurried.QPS = -1 // one plays the virt-handlers of as many nodes as VMs need
	handler, err := client.New(unhurried, client.Options{Scheme: scheme()})
	if err != nil {
		return nil, err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"kubevirt.io/schedulable": "true"}}}
	if err := c.admin.Create(ctx, node); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	n := &nodes{admin: c.admin, handler: handler, cancel: cancel}
	follow(ctx, n, &corev1.PodList{}, n.pod)
	follow(ctx, n, &kubevirtv1.VirtualMachineInstanceList{}, n.instance)
	follow(ctx, n, &cdiv1.DataVolumeList{}, n.volume)
	return n, nil
}

func (n *nodes) stop() {
	n.cancel()
	n.loops.Wait()
}

// follow calls do for each object of the namespace, at its coming and at each change, and again where that failed. A watch that
// breaks is begun anew, with all that there is.
func follow[T client.Object](ctx context.Context, n *nodes, list client.ObjectList, do func(context.Context, T) error) {
	n.loops.Go(func() {
		for ctx.Err() == nil {
			w, err := n.admin.Watch(ctx, list, client.InNamespace(namespace))
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

// insist tries again with the object as it is by then.
func (n *nodes) insist(ctx context.Context, o client.Object, do func() error) {
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

// kubelet answers what the API server asks node-1's kubelet for, until the test is over.
func (n *nodes) kubelet(t testing.TB, answer http.HandlerFunc) {
	t.Helper()
	g := NewWithT(t)
	server := httptest.NewTLSServer(answer)
	t.Cleanup(server.Close)
	node := &corev1.Node{}
	g.Expect(n.admin.Get(t.Context(), client.ObjectKey{Name: "node-1"}, node)).To(Succeed())
	before := node.DeepCopy()
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(server.Listener.Addr().(*net.TCPAddr).Port)
	g.Expect(n.admin.Status().Patch(t.Context(), node, client.MergeFrom(before))).To(Succeed())
}

// pod is bound, and runs; one that is to go is gone.
func (n *nodes) pod(ctx context.Context, p *corev1.Pod) error {
	switch {
	case p.DeletionTimestamp != nil:
		return client.IgnoreNotFound(n.admin.Delete(ctx, p, client.GracePeriodSeconds(0)))
	case p.Spec.NodeSelector[noRoom] != "":
		return n.unschedulable(ctx, p)
	case p.Spec.NodeName == "":
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"}}
		return client.IgnoreNotFound(n.admin.SubResource("binding").Create(ctx, p, binding))
	case p.Status.Phase == corev1.PodRunning:
		return nil
	}
	before := p.DeepCopy()
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: addressOf(p.Labels["vm.kubevirt.io/name"]), PodIPs: []corev1.PodIP{{IP: addressOf(p.Labels["vm.kubevirt.io/name"])}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue}},
	}
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Ready: true, Started: ptr.To(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
	return client.IgnoreNotFound(n.admin.Status().Patch(ctx, p, client.MergeFrom(before)))
}

func (n *nodes) unschedulable(ctx context.Context, p *corev1.Pod) error {
	if len(p.Status.Conditions) > 0 {
		return nil
	}
	before := p.DeepCopy()
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: schedulerSays}}
	return client.IgnoreNotFound(n.admin.Status().Patch(ctx, p, client.MergeFrom(before)))
}

// addressOf is a VM's, by its name.
func addressOf(name string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	sum := h.Sum32()
	return fmt.Sprintf("10.%d.%d.%d", 64+sum>>16%64, sum>>8%256, 1+sum%250)
}

// instance runs as soon as its pod does, and ends when it is to go.
func (n *nodes) instance(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) error {
	switch {
	case vmi.DeletionTimestamp != nil && !vmi.IsFinal() && vmi.Status.Phase != kubevirtv1.Pending && vmi.Status.Phase != kubevirtv1.VmPhaseUnset:
		vmi.Status.Phase = kubevirtv1.Succeeded
	case vmi.DeletionTimestamp == nil && vmi.Status.Phase == kubevirtv1.Scheduled:
		vmi.Status.Phase = kubevirtv1.Running
		ip := addressOf(vmi.Name)
		vmi.Status.Interfaces = []kubevirtv1.VirtualMachineInstanceNetworkInterface{
			{Name: "default", IP: ip, IPs: []string{ip, "fe80::1"}},
			{InterfaceName: "cni0", IP: "10.244.0.1", IPs: []string{"10.244.0.1"}}, // what the guest agent sees
		}
	default:
		return nil
	}
	if err := n.handler.Update(ctx, vmi); err != nil {
		return client.IgnoreNotFound(err)
	}
	return n.power(ctx, vmi)
}

// power switches the guest on or off.
func (n *nodes) power(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) error {
	if vmi.IsFinal() {
		if b, ok := n.bodies.LoadAndDelete(vmi.Name); ok {
			b.(*body.Body).Stop()
		}
		return nil
	}
	fleet := n.fleet.Load()
	if fleet == nil {
		return nil
	}
	secret := &corev1.Secret{}
	for _, v := range vmi.Spec.Volumes {
		if v.CloudInitNoCloud == nil {
			continue
		}
		if err := n.admin.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: v.CloudInitNoCloud.UserDataSecretRef.Name}, secret); err != nil {
			return err
		}
	}
	b := fleet.New(body.Machine{
		InstanceID: string(vmi.UID), Hostname: vmi.Spec.Hostname, IP: addressOf(vmi.Name),
		CPU: int32(vmi.Spec.Domain.CPU.Cores), MemoryMiB: vmi.Spec.Domain.Memory.Guest.Value() >> 20, DiskGiB: 10,
		Arch: vmi.Spec.Architecture, OS: "linux", UserData: secret.Data["userdata"],
	})
	n.bodies.Store(vmi.Name, b)
	b.Start()
	return nil
}

// volume is filled: it gets its claim, as CDI makes one.
func (n *nodes) volume(ctx context.Context, v *cdiv1.DataVolume) error {
	if v.DeletionTimestamp != nil || v.Status.Phase == cdiv1.Succeeded || v.Status.Phase == cdiv1.Failed {
		return nil
	}
	before := v.DeepCopy()
	if n.broken.Load() {
		v.Status.Phase = cdiv1.Failed
		v.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeRunning, Status: corev1.ConditionFalse, Reason: "Error", Message: importSays}}
		return client.IgnoreNotFound(n.admin.Status().Patch(ctx, v, client.MergeFrom(before)))
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: v.Name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: v.Name, UID: v.UID, Controller: ptr.To(true),
		}}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			VolumeName:  "pv-" + v.Name,
		},
	}
	if err := client.IgnoreAlreadyExists(n.admin.Create(ctx, claim)); err != nil {
		return err
	}
	v.Status.Phase, v.Status.ClaimName = cdiv1.Succeeded, v.Name
	v.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeReady, Status: corev1.ConditionTrue}}
	return client.IgnoreNotFound(n.admin.Status().Patch(ctx, v, client.MergeFrom(before)))
}

const importSays = "Unable to connect to http data source: expected status code 200, got 404"

func mebibytes(n int64) *resource.Quantity { return resource.NewQuantity(n<<20, resource.BinarySI) }

// end ends a guest from within, as a shutdown does.
func (n *nodes) end(t testing.TB, name string) {
	t.Helper()
	n.change(t, name, func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.Status.Phase = kubevirtv1.Succeeded })
}

// change changes a guest as virt-handler does.
func (n *nodes) change(t testing.TB, name string, change func(*kubevirtv1.VirtualMachineInstance)) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		vmi := &kubevirtv1.VirtualMachineInstance{}
		if err := n.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, vmi); err != nil {
			return err
		}
		change(vmi)
		return n.handler.Update(t.Context(), vmi)
	}, "2m", "100ms").Should(Succeed())
}

// setCondition is a change of one condition.
func setCondition(kind kubevirtv1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus) func(*kubevirtv1.VirtualMachineInstance) {
	return func(vmi *kubevirtv1.VirtualMachineInstance) {
		all := slices.DeleteFunc(vmi.Status.Conditions, func(c kubevirtv1.VirtualMachineInstanceCondition) bool { return c.Type == kind })
		vmi.Status.Conditions = append(all, kubevirtv1.VirtualMachineInstanceCondition{Type: kind, Status: status})
	}
}

// evict asks for a guest's pod to go, as the drain of its node does, until virt-api has taken note. KubeVirt lets no such pod go by itself.
func (n *nodes) evict(t testing.TB, name string) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func() error {
		pods := &corev1.PodList{}
		g.Expect(n.admin.List(t.Context(), pods, client.InNamespace(namespace))).To(Succeed())
		i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Annotations[kubevirtv1.DomainAnnotation] == name })
		g.Expect(i).To(BeNumerically(">=", 0), "the guest has a pod")
		return n.admin.SubResource("eviction").Create(t.Context(), &pods.Items[i], &policyv1.Eviction{})
	}, "2m", "500ms").Should(MatchError(ContainSubstring("triggered evacuation of VMI")))
}
