// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/virt"
)

// kubevirt is a cluster with KubeVirt's own programs, whose VMs are bodies of the simulated cloud.
// Each tenant has a namespace of its name there, with the permissions that the docs give to Drover.
type kubevirt struct {
	cluster *virt.Cluster
	fleet   *body.Fleet
	cancel  context.CancelFunc
	watched sync.WaitGroup
	page    memo[simulator.Snapshot]

	mu  sync.Mutex
	vms map[client.ObjectKey][]*vm // all VMs that ever had the name, the oldest first
}

// vm is a VM that exists or existed.
type vm struct {
	uid  types.UID
	tags map[string]string
}

func (k *kubevirt) start(ctx context.Context, _ *Rig) (err error) {
	if k.cluster, err = virt.Start(ctx); err != nil {
		return err
	}
	alive, cancel := context.WithCancel(context.Background())
	k.cancel, k.fleet, k.vms, k.page.age = cancel, body.NewFleet(alive, body.Options{}), map[client.ObjectKey][]*vm{}, 500*time.Millisecond
	k.cluster.Node.Power.Store(virt.Bodies(k.fleet))
	k.watched.Go(func() { k.watch(alive) })
	return nil
}

func (k *kubevirt) open(ctx context.Context, t *Tenant) (o faultproxy.Options, err error) {
	t.KubeVirt = k.cluster
	if err := k.cluster.NewTenant(ctx, t.Name); err != nil {
		return o, err
	}
	kubeconfig, err := k.cluster.ServiceAccountKubeconfig(ctx, t.Name, virt.User)
	t.Dress = func(o client.Object) { dressKubeVirt(o, t, kubeconfig) }
	return faultproxy.Options{Upstream: k.cluster.URL, CA: k.cluster.CA(), Parse: faultproxy.Kubernetes}, err
}

// dressKubeVirt turns an object for the simulated cloud into one for KubeVirt in the tenant's
// namespace.
func dressKubeVirt(object client.Object, t *Tenant, kubeconfig []byte) {
	switch o := object.(type) {
	case *corev1.Secret:
		if _, ok := o.Data["token"]; ok {
			behind, err := t.Cloud.Kubeconfig(kubeconfig)
			if err != nil {
				behind = []byte(err.Error()) // the account's condition will report that it cannot read this
			}
			scenario.FillCredentials(o, "kubevirt", map[string][]byte{"kubeconfig": behind})
		}
	case *infrav1.DroverAccount:
		o.Spec.Cloud.Simulated, o.Spec.Cloud.KubeVirt = nil, &infrav1.KubeVirtAccount{Namespace: t.Name}
		hurry(o)
	case *infrav1.DroverMachineTemplate:
		o.Spec.Template.Spec.Cloud.Simulated = nil
		o.Spec.Template.Spec.Cloud.KubeVirt = &infrav1.KubeVirtMachine{
			CPU: infrav1.KubeVirtCPU{Cores: 1}, MemoryMiB: 128, Architecture: "amd64",
			RootDisk: infrav1.KubeVirtRootDisk{ContainerDisk: &infrav1.KubeVirtContainerDisk{Image: "registry.example.com/node:1"}},
			DataDisks: []infrav1.KubeVirtDataDisk{{Name: "data", DataVolume: &infrav1.KubeVirtDataVolume{
				SizeGiB: 1, Source: infrav1.KubeVirtDataVolumeSource{Blank: &infrav1.KubeVirtBlankSource{}},
			}}},
		}
	}
}

// watch records all VMs, so that deleted ones stay known.
func (k *kubevirt) watch(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := k.cluster.Admin.Watch(ctx, &kubevirtv1.VirtualMachineList{})
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(glance):
			}
			continue
		}
		for e := range w.ResultChan() {
			if o, ok := e.Object.(*kubevirtv1.VirtualMachine); ok {
				k.note(o)
			}
		}
		w.Stop()
	}
}

func (k *kubevirt) note(o *kubevirtv1.VirtualMachine) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := client.ObjectKeyFromObject(o)
	for _, known := range k.vms[key] {
		if known.uid == o.UID {
			return
		}
	}
	k.vms[key] = append(k.vms[key], &vm{o.UID, tagsOf(&o.ObjectMeta)})
}

func tagsOf(m *metav1.ObjectMeta) map[string]string {
	tags := maps.Clone(m.Labels)
	if tags == nil {
		tags = map[string]string{}
	}
	tags[cloud.TagMachine] = m.Annotations[cloud.TagMachine]
	return tags
}

// books returns the API server's records, in the format of the simulated cloud. A VM's ID is its
// name, unless it is not the first VM of that name: then it was created twice.
func (k *kubevirt) books(ctx context.Context) (simulator.Snapshot, error) {
	return k.page.get(func() (s simulator.Snapshot, err error) {
		if err := k.parts(ctx, &s); err != nil {
			return s, err
		}
		live := &kubevirtv1.VirtualMachineList{}
		if err := k.cluster.Admin.List(ctx, live); err != nil {
			return s, fmt.Errorf("list the VMs: %w", err)
		}
		there := map[types.UID]bool{}
		for i := range live.Items {
			k.note(&live.Items[i])
			there[live.Items[i].UID] = true
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		for key, all := range k.vms {
			for i, vm := range all {
				r := wire.Resource{Kind: wire.Instance, ID: key.Name, Name: key.Name, State: wire.Running, Tags: vm.tags}
				if i > 0 {
					r.ID += fmt.Sprintf("#%d", i+1)
				}
				if !there[vm.uid] {
					r.State = wire.Terminated
				}
				s.Resources = append(s.Resources, simulator.SnapshotResource{Resource: r, Account: key.Namespace})
			}
		}
		return s, nil
	})
}

// parts adds the other resources besides VMs: VirtualMachineInstances, volumes and Secrets.
func (k *kubevirt) parts(ctx context.Context, s *simulator.Snapshot) error {
	instances, volumes := &kubevirtv1.VirtualMachineInstanceList{}, &cdiv1.DataVolumeList{}
	secrets := &corev1.SecretList{}
	for _, list := range []client.ObjectList{instances, volumes, secrets} {
		if err := k.cluster.Admin.List(ctx, list); err != nil {
			return fmt.Errorf("list what belongs to VMs: %w", err)
		}
	}
	add := func(kind string, m *metav1.ObjectMeta) {
		s.Resources = append(s.Resources, simulator.SnapshotResource{Account: m.Namespace, Resource: wire.Resource{
			Kind: wire.Disk, ID: kind + "/" + m.Name, Tags: tagsOf(m), AttachedTo: m.Labels[cloud.TagToken],
		}})
	}
	for i := range instances.Items {
		add("instance", &instances.Items[i].ObjectMeta)
	}
	for i := range volumes.Items {
		add("volume", &volumes.Items[i].ObjectMeta)
	}
	for i := range secrets.Items {
		add("secret", &secrets.Items[i].ObjectMeta)
	}
	return nil
}

// remember does nothing: deleted VMs are not shown.
func (k *kubevirt) remember(context.Context, time.Duration) error { return nil }

func (k *kubevirt) stop() error {
	if k.cancel == nil {
		if k.cluster != nil {
			return k.cluster.Stop()
		}
		return nil
	}
	k.cancel()
	k.watched.Wait()
	err := k.cluster.Stop()
	k.fleet.Wait()
	return err
}
