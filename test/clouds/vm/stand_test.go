// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// late is Drover's --node-late-after. It is short, for the tests of failures. A healthy guest may
// exceed it.
const late = 45 * time.Second

// cloudConfig describes the cloud: its images are hack/vm's, its network is the guests', and its
// only instance type is the size of a guest.
const cloudConfig = `
networks: [{name: default, cidr: ` + network + `}]
images: [{name: bare, arch: amd64, os: linux}, {name: prebuilt, arch: amd64, os: linux}]
instanceTypes: [{name: small, cpu: 2, memoryMiB: 1280, arch: amd64, pricePerHour: 0.01}]
settings: {bootMin: 100ms, bootMax: 200ms, stop: 200ms, throttle: none}
`

// stand holds everything that the guests need.
type stand struct {
	management *playground.Management
	workload   *playground.ControlPlane
	cloud      *playground.Simulator
	hypervisor *hypervisor
	mirror     *mirror
	// client and nodes are administrators of the management and the workload cluster.
	client, nodes client.Client
	view          *scenario.View
	cluster       scenario.Adopted
}

// newStand builds missing images, and starts everything except guests.
func newStand(t *testing.T) *stand {
	t.Helper()
	g := NewWithT(t)
	ctrl.SetLogger(logr.Discard())
	s := &stand{hypervisor: newHypervisor(t)}
	s.mirror = newMirror(t, s.hypervisor.images)
	t.Cleanup(func() { g.Expect(s.stop()).To(Succeed()) })
	g.Expect(s.start(t.Context(), t.TempDir())).To(Succeed())
	s.hypervisor.start(t, simulator.Admin{URL: s.cloud.URL})

	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(stop)
	var err error
	s.view, err = scenario.Follow(ctx, s.management.AdminConfig(), "", &clusterv1.Machine{}, &clusterv1.MachineDeployment{},
		&clusterv1.Cluster{},
		&infrav1.DroverMachine{}, &bootstrapv1.DroverConfig{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.adopt(t.Context())).To(Succeed())
	return s
}

// start starts both clusters, the cloud and Drover, in parallel where possible.
func (s *stand) start(ctx context.Context, dir string) error {
	binary, err := playground.Build(ctx, false)
	if err != nil {
		return err
	}
	var parts sync.WaitGroup
	var errs [3]error
	parts.Go(func() {
		s.management, errs[0] = playground.StartManagement(ctx, playground.ManagementOptions{
			ControlPlaneOptions: playground.ControlPlaneOptions{Name: "management", Progress: os.Stderr},
		})
		if errs[0] == nil {
			_, errs[0] = s.management.StartDrover(ctx, playground.DroverOptions{Binary: binary,
				Args: []string{"--node-late-after=" + late.String()}})
		}
	})
	parts.Go(func() {
		s.workload, errs[1] = playground.StartControlPlane(ctx, playground.ControlPlaneOptions{
			Name: "workload", Progress: os.Stderr, Addresses: []net.IP{net.ParseIP(gateway)},
		})
		if errs[1] == nil {
			errs[1] = s.workload.InitKubeadm(ctx, body.DefaultKubeletVersion)
		}
	})
	parts.Go(func() { errs[2] = s.startCloud(ctx, filepath.Join(dir, "cloud.yaml")) })
	parts.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if s.client, err = scenario.NewClient(s.management.AdminConfig()); err != nil {
		return err
	}
	s.nodes, err = scenario.NewClient(s.workload.AdminConfig())
	return err
}

// startCloud starts the cloud.
func (s *stand) startCloud(ctx context.Context, config string) error {
	err := os.WriteFile(config, []byte(cloudConfig), 0o600)
	if err == nil {
		s.cloud, err = playground.StartSimulator(ctx, playground.SimulatorOptions{Args: []string{"--config=" + config}})
	}
	return err
}

// stop stops what start has started.
func (s *stand) stop() error {
	var errs []error
	if s.cloud != nil {
		errs = append(errs, s.cloud.Stop())
	}
	if s.workload != nil {
		errs = append(errs, s.workload.Stop())
	}
	if s.management != nil {
		errs = append(errs, s.management.Stop())
	}
	return errors.Join(errs...)
}

// adopt makes Drover adopt the workload cluster. Machines reach its API server through their own
// network.
func (s *stand) adopt(ctx context.Context) error {
	const user = "drover-adopter"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: user}}
	rights := scenario.Rights("system:serviceaccount:" + metav1.NamespaceSystem + ":" + user)
	if err := scenario.Create(ctx, s.nodes, append(rights, account)...); err != nil {
		return err
	}
	kubeconfig, err := s.workload.ServiceAccountKubeconfig(ctx, metav1.NamespaceSystem, user)
	if err != nil {
		return err
	}
	u, err := url.Parse(s.workload.URL)
	if err != nil {
		return err
	}
	s.cluster, err = s.newCluster(ctx, "guests", kubeconfig, u.Port(), nil)
	return err
}

// clusterOf creates another Cluster that adopts the workload cluster, for machines of the cloud
// that dress changes the objects to.
func (s *stand) clusterOf(t *testing.T, name string, dress func(client.Object)) scenario.Adopted {
	t.Helper()
	g := NewWithT(t)
	u, err := url.Parse(s.workload.URL)
	g.Expect(err).NotTo(HaveOccurred())
	cluster, err := s.newCluster(t.Context(), name, s.cluster.Kubeconfig, u.Port(), dress)
	g.Expect(err).NotTo(HaveOccurred())
	return cluster
}

// newCluster creates a Cluster that adopts the workload cluster, and waits until it can get
// machines. Machines reach the API server at a port of this computer. They are the simulated
// cloud's, or those of the cloud that dress changes the objects to.
func (s *stand) newCluster(ctx context.Context, name string, kubeconfig []byte, port string,
	dress func(client.Object)) (scenario.Adopted, error) {
	cluster := scenario.Adopted{
		Namespace: name, Name: name, Kubeconfig: kubeconfig, Endpoint: s.cloud.URL, Token: s.cloud.Token,
		Inventory: infrav1.InventorySpec{IdleSeconds: 1, ActiveSeconds: 1}, Dress: dress,
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return cluster, fmt.Errorf("read the port: %w", err)
	}
	objects := cluster.Objects()
	for _, o := range objects {
		if adopted, ok := o.(*controlplanev1.AdoptedControlPlane); ok {
			adopted.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: gateway, Port: int32(number)}
		}
	}
	if err := scenario.Create(ctx, s.client, objects...); err != nil {
		return cluster, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return cluster, s.view.Until(ctx, "the Cluster can get machines", cluster.Available(s.view))
}
