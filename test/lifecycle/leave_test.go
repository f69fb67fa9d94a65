// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

const (
	preDrain     = clusterv1.PreDrainDeleteHookAnnotationPrefix + "/lifecycle-test"
	preTerminate = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/lifecycle-test"
)

// TestMachinesAreHeld checks that everything that must precede a machine's deletion happens before
// its VM is touched: hooks are removed, pods are evicted, volumes are detached. A step that never
// happens delays the deletion no longer than its timeout. Four Machines are deleted at once,
// because Cluster API checks every 20 s.
func TestMachinesAreHeld(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const timeout = 5 * time.Second
	seconds := ptr.To(int32(timeout.Seconds()))
	hooked := s.single("hooked", func(m *clusterv1.Machine) {
		m.Annotations = map[string]string{preDrain: "", preTerminate: ""}
	})
	budgeted := s.single("budgeted", func(m *clusterv1.Machine) { m.Spec.Deletion.NodeDrainTimeoutSeconds = seconds })
	attached := s.single("attached")
	clinging := s.single("clinging", func(m *clusterv1.Machine) { m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds = seconds })
	all := []*clusterv1.Machine{hooked, budgeted, attached, clinging}
	for _, m := range all {
		s.until("the Machine has a Node", s.hasNode(m))
	}

	pod := s.pod(budgeted, nil)
	s.create(&policyv1.PodDisruptionBudget{ObjectMeta: s.meta("budget"), Spec: policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: pod.Labels}, MinAvailable: ptr.To(intstr.FromInt32(1)),
	}})
	s.withVolume(attached)
	s.withVolume(clinging)
	s.soon("the budget counts the pod, which may not go", func(ctx context.Context) (string, error) {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: s.meta("budget")}
		err := env.client.Get(ctx, client.ObjectKeyFromObject(budget), budget)
		if budget.Status.CurrentHealthy != 1 || budget.Status.DisruptionsAllowed != 0 {
			return fmt.Sprintf("its status is %+v", budget.Status), err
		}
		return "", err
	})

	ends := s.ends()
	for _, m := range all {
		if err := scenario.Delete(s.ctx, env.client, m); err != nil {
			t.Fatal(err)
		}
	}
	deleting := clusterv1.MachineDeletingCondition
	s.soon("a budget holds the drain, for a while",
		says(budgeted, deleting, clusterv1.MachineDeletingDrainingNodeReason, pod.Name, "disruption budget"))
	s.soon("a hook holds the drain", says(hooked, deleting, clusterv1.MachineDeletingWaitingForPreDrainHookReason, preDrain))
	if s.node(hooked).Spec.Unschedulable {
		t.Error("a Node is cordoned before its pre-drain hook is done")
	}
	s.unhook(hooked, preDrain)
	s.soon("a hook holds the VM", says(hooked, deleting, clusterv1.MachineDeletingWaitingForPreTerminateHookReason, preTerminate))
	if !s.node(hooked).Spec.Unschedulable {
		t.Error("a Node is not cordoned, and drained")
	}
	s.soon("a volume holds the VM", says(attached, deleting, clusterv1.MachineDeletingWaitingForVolumeDetachReason, "volume-of-attached"))
	s.stays("two VMs that are held", func() string {
		for _, m := range []*clusterv1.Machine{hooked, attached} {
			machine := &infrav1.DroverMachine{ObjectMeta: s.meta(m.Name)}
			if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(machine), machine); err != nil {
				return err.Error()
			}
			if !machine.DeletionTimestamp.IsZero() || s.instanceOf(machine).State != "running" {
				return fmt.Sprintf("DroverMachine %s is deleted at %s", m.Name, machine.DeletionTimestamp)
			}
		}
		return ""
	})
	s.unhook(hooked, preTerminate)
	s.detach(attached)
	for _, m := range all {
		s.until("the Machine is gone", s.deleted(m))
	}
	s.soon("nothing is left", s.gone())
	s.soon("all ends are recorded", ends.complete(len(all)))
	s.detach(clinging) // the volume's attacher comes back

	for _, m := range all { // times have a precision of whole seconds
		status, touched := ends.owner(m.Name).Status.Deletion, ends.machine(m.Name).DeletionTimestamp.Time
		t.Logf("%s: %+v, then its VM at %s", m.Name, status, touched.Format(time.TimeOnly))
		if status == nil {
			t.Errorf("Machine %s does not say how it went", m.Name)
			continue
		}
		late := map[string]metav1.Time{
			hooked.Name:   status.WaitForPreTerminateHookStartTime,
			budgeted.Name: {Time: status.NodeDrainStartTime.Add(timeout)},
			attached.Name: status.WaitForNodeVolumeDetachStartTime,
			clinging.Name: {Time: status.WaitForNodeVolumeDetachStartTime.Add(timeout)},
		}[m.Name]
		if touched.Before(late.Time) || late.IsZero() {
			t.Errorf("the VM of %s was deleted at %s, want %s at the earliest", m.Name, touched, late)
		}
	}
	if p := last[*corev1.Pod](ends, pod.Name); p != nil && p.DeletionTimestamp.Before(ends.machine(budgeted.Name).DeletionTimestamp) {
		t.Errorf("the pod with the budget was deleted at %s, before its VM", p.DeletionTimestamp)
	}
}

// node returns a Machine's Node.
func (s *stage) node(m *clusterv1.Machine) *corev1.Node {
	s.Helper()
	node := &corev1.Node{}
	if err := env.client.Get(s.ctx, client.ObjectKey{Name: m.Name}, node); err != nil {
		s.Fatal(err)
	}
	return node
}

// unhook removes an annotation from a Machine that is being deleted.
func (s *stage) unhook(m *clusterv1.Machine, hook string) {
	s.Helper()
	if err := s.change(m, func() { delete(m.Annotations, hook) }); err != nil {
		s.Fatal(err)
	}
}

// pod runs a pod on a Machine's Node, and waits until its kubelet reports it as running.
func (s *stage) pod(m *clusterv1.Machine, volumes []corev1.Volume) *corev1.Pod {
	s.Helper()
	pod := &corev1.Pod{ObjectMeta: s.meta("pod-on-" + m.Name), Spec: corev1.PodSpec{
		NodeName: m.Name, Volumes: volumes,
		Containers:                    []corev1.Container{{Name: "app", Image: "app:1"}},
		TerminationGracePeriodSeconds: ptr.To(int64(1)),
	}}
	pod.Labels = map[string]string{"on": m.Name}
	s.soon("the namespace takes pods", func(ctx context.Context) (string, error) {
		account := &corev1.ServiceAccount{ObjectMeta: s.meta("default")}
		if err := env.client.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
			return "it has no service account", client.IgnoreNotFound(err)
		}
		return "", nil
	})
	s.create(pod)
	s.soon("the pod runs", func(ctx context.Context) (string, error) {
		err := env.client.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		if pod.Status.Phase != corev1.PodRunning {
			return "it is " + string(pod.Status.Phase), err
		}
		return "", err
	})
	return pod
}

// driver is the name of a volume driver that does not exist. withVolume and detach do what it would
// do.
const driver = "volumes.lifecycle-test"

// withVolume runs a pod with a volume on a Machine's Node. kube-controller-manager binds the
// volume, requests its attachment, and requests its detachment when the pod is gone. The test acts
// as the driver's external-attacher.
func (s *stage) withVolume(m *clusterv1.Machine) {
	s.Helper()
	name := "volume-of-" + m.Name
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: s.volume(m)}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: s.volume(m)}},
		ClaimRef:               &corev1.ObjectReference{Namespace: s.Namespace, Name: name},
	}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: s.meta(name), Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, StorageClassName: ptr.To(""), VolumeName: volume.Name, Resources: corev1.VolumeResourceRequirements{Requests: size},
	}}
	s.create(volume, claim)
	s.Cleanup(func() { _ = scenario.Delete(context.WithoutCancel(s.ctx), env.client, volume) })
	s.pod(m, []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}})
	s.soon("the volume is attached, and the Node says so", func(ctx context.Context) (string, error) {
		if len(s.node(m).Status.VolumesAttached) == 1 {
			return "", nil
		}
		a, err := s.attachment(ctx, m)
		if err != nil || a == nil {
			return "nobody has asked for it", err
		}
		if controllerutil.AddFinalizer(a, driver+"/attacher") {
			return "it is asked for", env.client.Update(ctx, a)
		}
		if !a.Status.Attached {
			a.Status.Attached = true
			return "it is asked for", env.client.Status().Update(ctx, a)
		}
		return "it does not", nil
	})
}

// detach releases a Machine's volume after its detachment was requested.
func (s *stage) detach(m *clusterv1.Machine) {
	s.Helper()
	s.soon("the volume is detached", func(ctx context.Context) (string, error) {
		a, err := s.attachment(ctx, m)
		if err != nil || a == nil {
			return "", err
		}
		if a.DeletionTimestamp.IsZero() {
			return "nobody has asked for it", nil
		}
		controllerutil.RemoveFinalizer(a, driver+"/attacher")
		return "it is about to be", client.IgnoreNotFound(env.client.Update(ctx, a))
	})
}

// volume returns the name of a Machine's volume.
func (s *stage) volume(m *clusterv1.Machine) string { return s.Name + "-" + m.Name }

// attachment returns the VolumeAttachment of a Machine's volume, or nil when there is none.
func (s *stage) attachment(ctx context.Context, m *clusterv1.Machine) (*storagev1.VolumeAttachment, error) {
	list := &storagev1.VolumeAttachmentList{}
	if err := env.client.List(ctx, list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if ptr.Deref(list.Items[i].Spec.Source.PersistentVolumeName, "") == s.volume(m) {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// ends holds the last seen state of objects, including deleted ones.
type ends struct {
	mu   sync.Mutex
	last map[string]client.Object // by type and name
	gone int                      // the number of deleted Machines and DroverMachines
}

// ends watches the Machines, DroverMachines and pods of the test from now on.
func (s *stage) ends() *ends {
	s.Helper()
	e := &ends{last: map[string]client.Object{}}
	for _, list := range []client.ObjectList{&clusterv1.MachineList{}, &infrav1.DroverMachineList{}, &corev1.PodList{}} {
		events := s.watch(list)
		go func() {
			for event := range events {
				if o, ok := event.Object.(client.Object); ok {
					e.see(event.Type, o)
				}
			}
		}()
	}
	return e
}

func (e *ends) see(kind watch.EventType, o client.Object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last[fmt.Sprintf("%T %s", o, o.GetName())] = o
	if _, pod := o.(*corev1.Pod); !pod && kind == watch.Deleted {
		e.gone++
	}
}

// complete checks that n Machines and their DroverMachines were seen deleted.
func (e *ends) complete(n int) scenario.Check {
	return func(context.Context) (string, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.gone != 2*n {
			return fmt.Sprintf("there are %d, want %d", e.gone, 2*n), nil
		}
		return "", nil
	}
}

func (e *ends) owner(name string) *clusterv1.Machine { return last[*clusterv1.Machine](e, name) }
func (e *ends) machine(name string) *infrav1.DroverMachine {
	return last[*infrav1.DroverMachine](e, name)
}

func last[object client.Object](e *ends, name string) object {
	e.mu.Lock()
	defer e.mu.Unlock()
	var o object
	o, _ = e.last[fmt.Sprintf("%T %s", o, name)].(object)
	return o
}
