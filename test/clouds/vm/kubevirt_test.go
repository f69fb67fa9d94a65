// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	kubevirtv1 "kubevirt.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/virt"
)

// podNetwork holds the addresses of pods in the cluster that runs the VMs, and the gateway.
const podNetwork = "10.0.0.0/9"

// kubeVirtTenant is the namespace of the VMs.
const kubeVirtTenant = "machines"

// networkData makes the guest use DHCP, which is also its default. The MTU shows that the guest
// used this configuration.
const networkData = "version: 2\nethernets: {card: {match: {name: 'e*'}, dhcp4: true, mtu: 1400}}\n"

// kubeVirt tests a machine of KubeVirt's own programs on a simulated node. The guest gets the disk
// that virt-launcher would write, with the data from the VM's Secret, and the address that the
// instance reports.
func (s *stand) kubeVirt(t *testing.T) {
	g := NewWithT(t)
	ctx := context.WithoutCancel(t.Context())
	infra, err := virt.Start(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(infra.Stop()).To(Succeed()) })
	power := virt.Power(func(told virt.Guest) (off func()) {
		guest, err := s.fromKubeVirt(ctx, infra.Admin, told)
		if err != nil {
			t.Error(err)
			return func() {}
		}
		t.Cleanup(guest.Kill)
		return guest.Kill
	})
	infra.Node.Power.Store(&power)
	g.Expect(infra.NewTenant(ctx, kubeVirtTenant)).To(Succeed())
	account, err := infra.ServiceAccountKubeconfig(ctx, kubeVirtTenant, virt.User)
	g.Expect(err).NotTo(HaveOccurred())

	cluster := s.clusterOf(t, "kubevirt", func(o client.Object) { dressKubeVirt(o, account) })
	config := s.common()
	config.PreKubeletCommands = []string{"test \"$(cat /sys/class/net/e*/mtu)\" = 1400"}
	pool := s.pool("virt", "", config)
	pool.Cluster = cluster
	s.becomesNode(t, pool, func(machine *clusterv1.Machine) {
		name, ok := strings.CutPrefix(machine.Spec.ProviderID, "kubevirt://")
		g.Expect(ok).To(BeTrue(), machine.Spec.ProviderID)
		g.Expect(machinesIn(ctx, infra.Admin)).To(ConsistOf("VM "+name, "instance "+name, "Secret "+name))
	})
	g.Eventually(func() ([]string, error) { return machinesIn(ctx, infra.Admin) }, time.Minute, time.Second).Should(BeEmpty())
}

// dressKubeVirt changes an object for the simulated cloud into one for KubeVirt, with this
// kubeconfig.
func dressKubeVirt(object client.Object, kubeconfig []byte) {
	switch o := object.(type) {
	case *corev1.Secret:
		if _, ok := o.Data["token"]; ok {
			scenario.FillCredentials(o, "kubevirt", map[string][]byte{"kubeconfig": kubeconfig})
		}
	case *infrav1.DroverAccount:
		o.Spec.Cloud.Simulated, o.Spec.Cloud.KubeVirt = nil, &infrav1.KubeVirtAccount{Namespace: kubeVirtTenant}
	case *infrav1.DroverMachineTemplate:
		o.Spec.Template.Spec.Cloud.Simulated = nil
		o.Spec.Template.Spec.Cloud.KubeVirt = &infrav1.KubeVirtMachine{
			CPU: infrav1.KubeVirtCPU{Cores: 2}, MemoryMiB: 1280, Architecture: "amd64",
			RootDisk: infrav1.KubeVirtRootDisk{ContainerDisk: &infrav1.KubeVirtContainerDisk{Image: "registry.example.com/prebuilt:1"}},
			// With masquerade the guest would have another address than its instance.
			Networks: []infrav1.KubeVirtNetwork{{Name: "default", Binding: "Bridge"}}, NetworkData: networkData,
		}
	}
}

// fromKubeVirt boots a guest from the prebuilt image, in place of the container disk.
func (s *stand) fromKubeVirt(ctx context.Context, infra client.Client, told virt.Guest) (*guest, error) {
	vmi := &kubevirtv1.VirtualMachineInstance{}
	if err := infra.Get(ctx, client.ObjectKey{Namespace: told.Namespace, Name: told.Name}, vmi); err != nil {
		return nil, fmt.Errorf("read the instance: %w", err)
	}
	files, err := noCloud(ctx, infra, vmi)
	if err != nil {
		return nil, err
	}
	g := &guest{elsewhere: true, network: podNetwork, machine: body.Machine{
		InstanceID: told.Name, Hostname: told.Hostname, IP: told.IP, UserData: files["user-data"], CPU: told.Cores, MemoryMiB: told.MemoryMiB,
	}}
	return g, s.hypervisor.power(ctx, g, "prebuilt", anyMAC, func(path string) (string, error) {
		return "", s.hypervisor.writeDisk(ctx, path, "cidata", files)
	})
}

// noCloud returns the files that virt-launcher writes for an instance with NoCloud data: see
// GenerateLocalData in KubeVirt's pkg/cloud-init. The VM's API objects do not contain them. They
// come from the referenced Secrets, by the keys that virt-launcher reads.
func noCloud(ctx context.Context, infra client.Client, vmi *kubevirtv1.VirtualMachineInstance) (map[string][]byte, error) {
	at := slices.IndexFunc(vmi.Spec.Volumes, func(v kubevirtv1.Volume) bool { return v.CloudInitNoCloud != nil })
	if at < 0 || vmi.Spec.Domain.Firmware == nil {
		return nil, fmt.Errorf("the instance %s has no volume for NoCloud, or no UUID", vmi.Name)
	}
	metaData, err := json.Marshal(map[string]string{"instance-id": string(vmi.Spec.Domain.Firmware.UUID), "local-hostname": vmi.Spec.Hostname})
	if err != nil {
		return nil, fmt.Errorf("write the metadata: %w", err)
	}
	files := map[string][]byte{"meta-data": metaData}
	source := vmi.Spec.Volumes[at].CloudInitNoCloud
	for _, part := range []struct {
		file, key string
		from      *corev1.LocalObjectReference
	}{{"user-data", "userdata", source.UserDataSecretRef}, {"network-config", "networkdata", source.NetworkDataSecretRef}} {
		if part.from == nil {
			continue
		}
		secret := &corev1.Secret{}
		if err := infra.Get(ctx, client.ObjectKey{Namespace: vmi.Namespace, Name: part.from.Name}, secret); err != nil {
			return nil, fmt.Errorf("read the Secret of %s: %w", vmi.Name, err)
		}
		files[part.file] = secret.Data[part.key]
	}
	return files, nil
}

// machinesIn returns what is left of machines in the tenant's namespace, which holds nothing else
// of these kinds.
func machinesIn(ctx context.Context, infra client.Client) (left []string, err error) {
	for kind, list := range map[string]client.ObjectList{
		"VM": &kubevirtv1.VirtualMachineList{}, "instance": &kubevirtv1.VirtualMachineInstanceList{}, "Secret": &corev1.SecretList{},
	} {
		if err := infra.List(ctx, list, client.InNamespace(kubeVirtTenant)); err != nil {
			return nil, fmt.Errorf("list what is left of machines: %w", err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			left = append(left, kind+" "+o.(client.Object).GetName())
			return nil
		}); err != nil {
			return nil, fmt.Errorf("read a list: %w", err)
		}
	}
	return left, nil
}
