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

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/test/faultproxy"
	"github.com/drover-io/drover/test/playground"
	"github.com/drover-io/drover/test/scenario"
)

// adopter is the workload cluster's user that its kubeconfig speaks for: a service account, because
// its token passes through proxies.
const adopter = "drover-adopter"

// Rig is the bench. Its clients go past all proxies.
type Rig struct {
	Management *playground.Management
	Workload   *playground.ControlPlane
	// Cloud is the simulated one, Admin the hand on it; nil and of no use where the tenants'
	// machines are made elsewhere.
	Cloud *playground.Simulator
	Admin simulator.Admin
	// Client and Nodes are administrators of the management and the workload cluster. They read
	// live.
	Client, Nodes client.Client
	// View follows Machines, MachineDeployments, Clusters, CloudMachines and CloudInitConfigs of
	// all namespaces.
	View *scenario.View

	place  place
	binary string // drover, with the race detector unless Ship was called
	dir    string // for kubeconfigs
	ctx    context.Context
	stop   context.CancelFunc
	later  sync.WaitGroup

	snapshot memo[simulator.Snapshot]
	secrets  memo[[]corev1.Secret]
	nodes    memo[[]corev1.Node]
}

// place is where tenants' machines are made.
type place interface {
	// start is called once, with the rig to fill in.
	start(ctx context.Context, r *Rig) error
	// open makes an account for a tenant, and returns where its calls go and what they are.
	open(ctx context.Context, t *Tenant) (faultproxy.Options, error)
	// books are the cloud's own.
	books(ctx context.Context) (simulator.Snapshot, error)
	// remember has the cloud show what is terminated for so long; 0 is its default.
	remember(ctx context.Context, d time.Duration) error
	stop() error
}

// Start starts everything but managers and tenants, with arguments for the workload cluster's
// kube-controller-manager. Stop ends it.
func Start(ctx context.Context, controllerManagerArgs ...string) (*Rig, error) {
	return start(ctx, &simulated{}, controllerManagerArgs)
}

// StartOnAWS is Start with a stand-in for EC2 in the place of the simulated cloud: each tenant has
// an account of its own there.
func StartOnAWS(ctx context.Context, controllerManagerArgs ...string) (*Rig, error) {
	return start(ctx, &amazon{}, controllerManagerArgs)
}

// StartOnVSphere is Start with govmomi's simulator of a vCenter in the place of the simulated
// cloud. Each tenant has its own.
func StartOnVSphere(ctx context.Context, controllerManagerArgs ...string) (*Rig, error) {
	return start(ctx, &vsphere{}, controllerManagerArgs)
}

// StartOnOpenStack is Start with the real OpenStack of hack/openstack, which runs already, in the
// place of the simulated cloud. The tenants share a project.
func StartOnOpenStack(ctx context.Context, controllerManagerArgs ...string) (*Rig, error) {
	return start(ctx, &openstack{}, controllerManagerArgs)
}

// StartOnKubeVirt is Start with a cluster that runs KubeVirt in the place of the simulated cloud.
// Each tenant has a namespace of its own there.
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
		&infrav1.CloudAccount{}, &infrav1.CloudMachine{}, &bootstrapv1.CloudInitConfig{})
	return r, err
}

// startClusters starts both at once.
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

// Remember has the cloud show instances that are terminated for so long; 0 is its default.
func (r *Rig) Remember(ctx context.Context, d time.Duration) error { return r.place.remember(ctx, d) }

// Confirmed is a check that is asked again and again, of many tenants: it looks at the View, which
// costs nothing, and then, because a copy may be behind, at the API server.
func (r *Rig) Confirmed(check func(client.Reader) scenario.Check) scenario.Check {
	return scenario.All(check(r.View), check(r.Client))
}

// Later does something after a while. Settle waits for it.
func (r *Rig) Later(d time.Duration, do func(context.Context)) {
	r.later.Go(func() {
		scenario.Pause(r.ctx, d)
		ctx, cancel := context.WithTimeout(r.ctx, 20*time.Second)
		defer cancel()
		do(ctx)
	})
}

// Settle returns when all that was to be done Later is done.
func (r *Rig) Settle() { r.later.Wait() }

// Stop ends all processes, managers included. It may be called on what Start left behind.
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

// Seat is where a Drover manager runs, time after time: it reaches the management cluster through a
// proxy of its own.
type Seat struct {
	// API is the proxy between the manager and the management cluster's API server.
	API *faultproxy.Proxy
	// Process is the manager; nil before the first Start.
	Process *playground.Process

	rig        *Rig
	kubeconfig string
}

// Ship has managers run from now on as they are shipped: without the race detector.
func (r *Rig) Ship(ctx context.Context) (err error) {
	r.binary, err = playground.Build(ctx, false)
	return err
}

// NewSeat makes a seat. Nothing runs there yet.
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

// Start runs a manager and returns when it is ready. args come last on its command line.
func (s *Seat) Start(ctx context.Context, args ...string) error {
	p, err := s.rig.Management.StartDrover(ctx, playground.DroverOptions{
		Binary: s.rig.binary, Args: append([]string{"--kubeconfig=" + s.kubeconfig}, args...),
	})
	if err == nil {
		s.Process = p
	}
	return err
}

// Close ends the seat's proxy. The manager, if one runs, is the rig's to stop.
func (s *Seat) Close() { s.API.Close() }
