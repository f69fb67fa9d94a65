// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// adopter is the service account of the workload cluster that its kubeconfig uses. It is a service
// account because its token passes through proxies.
const adopter = "drover-adopter"

// Rig is the test bench. Its clients bypass all proxies.
type Rig struct {
	Management *playground.Management
	Workload   *playground.ControlPlane
	// Cloud is the simulated cloud, and Admin its admin API. With other clouds, Cloud is nil and
	// Admin is unusable.
	Cloud *playground.Simulator
	Admin simulator.Admin
	// Client and Nodes are administrator clients of the management and the workload cluster,
	// without a cache.
	Client, Nodes client.Client
	// View watches Clusters, Machines, MachineDeployments, DroverAccounts, DroverMachines and
	// DroverConfigs of all namespaces.
	View *scenario.View

	place  place
	binary string // the manager, with the race detector unless Ship was called
	dir    string // for kubeconfigs
	ctx    context.Context
	stop   context.CancelFunc
	later  sync.WaitGroup

	snapshot memo[simulator.Snapshot]
	secrets  memo[[]corev1.Secret]
	nodes    memo[[]corev1.Node]
}

// place is the cloud in which the tenants' machines are created.
type place interface {
	// start is called once. It may fill in fields of the rig.
	start(ctx context.Context, r *Rig) error
	// open creates an account for a tenant, and returns the upstream of its calls and how to parse
	// them.
	open(ctx context.Context, t *Tenant) (faultproxy.Options, error)
	// books returns the cloud's own records.
	books(ctx context.Context) (simulator.Snapshot, error)
	// remember sets how long the cloud shows terminated instances. 0 is the cloud's default.
	remember(ctx context.Context, d time.Duration) error
	stop() error
}

// Start starts everything except managers and tenants, with arguments for the workload cluster's
// kube-controller-manager. Stop ends it.
func Start(ctx context.Context, controllerManagerArgs ...string) (*Rig, error) {
	return start(ctx, &simulated{}, controllerManagerArgs)
}

// StartOnAWS is Start with a stand-in for EC2 instead of the simulated cloud. Each tenant has its
// own account there.
func StartOnAWS(ctx context.Context, controllerManagerArgs ...string) (*Rig, error) {
	return start(ctx, &amazon{}, controllerManagerArgs)
}

// StartOnAzure is Start with a stand-in for Azure instead of the simulated cloud. Each tenant has
// its own resource group there.
func StartOnAzure(ctx context.Context, controllerManagerArgs ...string) (*Rig, error) {
	return start(ctx, &azure{}, controllerManagerArgs)
}

// StartOnGCP is Start with a stand-in for Compute Engine instead of the simulated cloud. Each
// tenant has its own project there.
func StartOnGCP(ctx context.Context, controllerManagerArgs ...string) (*Rig, error) {
	return start(ctx, &gcp{}, controllerManagerArgs)
}

// StartOnVSphere is Start with govmomi's simulated vCenter instead of the simulated cloud. Each
// tenant has its own vCenter.
func StartOnVSphere(ctx context.Context, controllerManagerArgs ...string) (*Rig, error) {
	return start(ctx, &vsphere{}, controllerManagerArgs)
}

// StartOnOpenStack is Start with the real OpenStack of hack/openstack, which must be running,
// instead of the simulated cloud. The tenants share a project.
func StartOnOpenStack(ctx context.Context, controllerManagerArgs ...string) (*Rig, error) {
	return start(ctx, &openstack{}, controllerManagerArgs)
}

// StartOnKubeVirt is Start with a cluster that runs KubeVirt instead of the simulated cloud. Each
// tenant has its own namespace there.
func StartOnKubeVirt(ctx context.Context, controllerManagerArgs ...string) (*Rig, error) {
	return start(ctx, &kubevirt{}, controllerManagerArgs)
}

func start(ctx context.Context, where place, controllerManagerArgs []string) (_ *Rig, err error) {
	r := &Rig{place: where}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Stop())
		}
	}()
	if r.dir, err = os.MkdirTemp("", "drover-rig-"); err != nil {
		return nil, err
	}
	if r.binary, err = playground.Build(ctx, true); err != nil {
		return nil, err
	}
	if err := r.startClusters(ctx, controllerManagerArgs); err != nil {
		return nil, err
	}
	if err := r.place.start(ctx, r); err != nil {
		return nil, err
	}
	if r.Client, err = scenario.NewClient(r.Management.AdminConfig()); err != nil {
		return nil, err
	}
	if r.Nodes, err = scenario.NewClient(r.Workload.AdminConfig()); err != nil {
		return nil, err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: adopter}}
	rights := scenario.Rights("system:serviceaccount:" + metav1.NamespaceSystem + ":" + adopter)
	if err := scenario.Create(ctx, r.Nodes, append(rights, account)...); err != nil {
		return nil, err
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.View, err = scenario.Follow(r.ctx, r.Management.AdminConfig(), "",
		&clusterv1.Machine{}, &clusterv1.MachineDeployment{}, &clusterv1.Cluster{},
		&infrav1.DroverAccount{}, &infrav1.DroverMachine{}, &bootstrapv1.DroverConfig{})
	return r, err
}

// startClusters starts both clusters at once.
func (r *Rig) startClusters(ctx context.Context, controllerManagerArgs []string) error {
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() {
		m, err := playground.StartManagement(ctx, playground.ManagementOptions{
			ControlPlaneOptions: playground.ControlPlaneOptions{Name: "management", Progress: os.Stderr},
		})
		if errs[0] = err; err == nil {
			r.Management = m
			errs[0] = m.InstallDrover(ctx)
		}
	})
	wg.Go(func() {
		r.Workload, errs[1] = playground.StartControlPlane(ctx, playground.ControlPlaneOptions{
			Name: "workload", Progress: os.Stderr, ControllerManagerArgs: controllerManagerArgs,
		})
	})
	wg.Wait()
	return errors.Join(errs[:]...)
}

// Remember sets how long the cloud shows terminated instances. 0 is the cloud's default.
func (r *Rig) Remember(ctx context.Context, d time.Duration) error { return r.place.remember(ctx, d) }

// Confirmed returns a check for frequent polling of many tenants. It reads the View first, which is
// cheap, and then the API server, because the View may be stale.
func (r *Rig) Confirmed(check func(client.Reader) scenario.Check) scenario.Check {
	return scenario.All(check(r.View), check(r.Client))
}

// Later calls do after d. Settle waits for it.
func (r *Rig) Later(d time.Duration, do func(context.Context)) {
	r.later.Go(func() {
		scenario.Pause(r.ctx, d)
		ctx, cancel := context.WithTimeout(r.ctx, 20*time.Second)
		defer cancel()
		do(ctx)
	})
}

// Settle returns when all calls scheduled by Later are done.
func (r *Rig) Settle() { r.later.Wait() }

// Stop ends all processes, including managers. It also works after a Start that failed.
func (r *Rig) Stop() error {
	if r.stop != nil {
		r.stop()
		r.later.Wait()
	}
	var errs []error
	if r.Management != nil {
		errs = append(errs, r.Management.Stop())
	}
	if r.Workload != nil {
		errs = append(errs, r.Workload.Stop())
	}
	return errors.Join(append(errs, r.place.stop(), os.RemoveAll(r.dir))...)
}

// Seat is where Drover managers run, one after another. They reach the management cluster through
// the seat's own proxy.
type Seat struct {
	// API is the proxy between the manager and the management cluster's API server.
	API *faultproxy.Proxy
	// Process is the manager. It is nil before the first Start.
	Process *playground.Process

	rig        *Rig
	kubeconfig string
}

// Ship makes later managers run as shipped: without the race detector.
func (r *Rig) Ship(ctx context.Context) (err error) {
	r.binary, err = playground.Build(ctx, false)
	return err
}

// NewSeat creates a seat without a running manager.
func (r *Rig) NewSeat(ctx context.Context, name string) (*Seat, error) {
	api, err := faultproxy.Start(faultproxy.Options{
		Name: name, Upstream: r.Management.URL, CA: r.Management.CA(), Parse: faultproxy.Kubernetes,
	})
	if err != nil {
		return nil, err
	}
	raw, err := r.Management.ServiceAccountKubeconfig(ctx, "drover-system", "drover-manager")
	s := &Seat{API: api, rig: r, kubeconfig: filepath.Join(r.dir, name+".kubeconfig")}
	if err == nil {
		err = api.WriteKubeconfig(s.kubeconfig, raw)
	}
	if err != nil {
		api.Close()
		return nil, fmt.Errorf("make the seat %s: %w", name, err)
	}
	return s, nil
}

// Start runs a manager and returns when it is ready. args are appended to its command line.
func (s *Seat) Start(ctx context.Context, args ...string) error {
	p, err := s.rig.Management.StartDrover(ctx, playground.DroverOptions{
		Binary: s.rig.binary, Args: append([]string{"--kubeconfig=" + s.kubeconfig}, args...),
	})
	if err == nil {
		s.Process = p
	}
	return err
}

// Close stops the seat's proxy. Rig.Stop stops the manager, if one runs.
func (s *Seat) Close() { s.API.Close() }
