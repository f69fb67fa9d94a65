// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/test/playground"
	"github.com/drover-io/drover/test/scenario"
)

// Options of one measurement.
type Options struct {
	// Cloud is where the machines are made; by default the simulated one, which is a process. The
	// others are in this one.
	Cloud Cloud
	// Machines to make.
	Machines int
	// Clusters that they are divided among, each with an account of its own, all of which are the
	// same one at the cloud; 0: one.
	Clusters int
	// PoolSize is how many machines a MachineDeployment has at most; 0: all in one.
	PoolSize int
	// Latency of each call of the cloud.
	Latency time.Duration
	// Joins is the time from the create to the moment when the machine boots.
	Joins time.Duration
	// Throttle is the cloud's preset, "none" by default. With "ec2" the CloudAccount has EC2's
	// limits too.
	Throttle string
	// Inventory of the CloudAccount. The zero value leaves the defaults.
	Inventory infrav1.InventorySpec
	// Idle is how long nothing happens between Ready and deletion. 0 leaves that out.
	Idle time.Duration
	// Vanish has one VM vanish at the end of Idle.
	Vanish bool
	// Binary is the drover program. By default it is built without the race detector.
	Binary string
	// Dir is where data and logs go. It must exist, and stays.
	Dir string
	// Profile writes CPU profiles of Drover, Cluster API's core and the API server, taken while
	// machines come, to Dir.
	Profile bool
	// Say gets a line now and then; nil: nobody.
	Say func(format string, args ...any)
}

// Cloud is where machines are made.
type Cloud string

// The clouds.
const (
	Simulated Cloud = "simulated"
	AWS       Cloud = "aws"     // a stand-in for EC2
	VSphere   Cloud = "vsphere" // govmomi's simulator of a vCenter
)

// placeOf is what a cloud is measured in.
func placeOf(c Cloud) (place, error) {
	switch c {
	case "", Simulated:
		return &simulated{}, nil
	case AWS:
		return &amazon{}, nil
	case VSphere:
		return &vsphere{}, nil
	}
	return nil, fmt.Errorf("there is no cloud %q to measure on", c)
}

// Result of one measurement.
type Result struct {
	Cloud    Cloud  `json:"cloud"`
	Machines int    `json:"machines"`
	Clusters int    `json:"clusters"`
	Throttle string `json:"throttle"`
	// Create lasts until all machines are Ready, Delete from there until all is gone.
	Create Phase  `json:"create"`
	Idle   *Phase `json:"idle,omitempty"`
	Delete Phase  `json:"delete"`
	// LastVM is when the cloud made the last one, in seconds after the MachineDeployments were
	// created.
	LastVM float64 `json:"lastVMSeconds"`
	// VanishSeen is how long it took until the CloudMachine of a VM that vanished said so, in
	// seconds; 0: not tried.
	VanishSeen float64 `json:"vanishSeenSeconds,omitempty"`
	// PeakMemory of Drover in bytes, over all phases.
	PeakMemory int64 `json:"peakMemoryBytes"`
	// Profiles are the files, where asked for.
	Profiles []string `json:"-"`
}

// namespace of all clusters. The first has its name.
const namespace = "fleet"

// fleet is what runs while it is measured.
type fleet struct {
	Options
	management *playground.Management
	place      place
	drover     *playground.Process
	profilers  map[string]string // process → base URL of its pprof

	client   client.Client
	view     *scenario.View
	audit    auditLog
	clusters []scenario.Adopted
	pools    []scenario.Pool
}

// Run measures a fleet's life from nothing to nothing, on processes of its own. The management
// cluster is its own workload cluster.
func Run(ctx context.Context, o Options) (_ *Result, err error) {
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	if o.Throttle == "" {
		o.Throttle = simulator.ThrottleNone
	}
	o.Clusters = max(o.Clusters, 1)
	where, err := placeOf(o.Cloud)
	if err != nil {
		return nil, err
	}
	f := &fleet{Options: o, place: where, profilers: map[string]string{}}
	defer func() { err = errors.Join(err, f.stop()) }()
	if err := f.start(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := f.adopt(ctx); err != nil {
		return nil, err
	}
	return f.measure(ctx)
}

func (f *fleet) start(ctx context.Context) (err error) {
	if err := write(filepath.Join(f.Dir, "audit-policy.yaml"), policy); err != nil {
		return err
	}
	f.audit.path = filepath.Join(f.Dir, "audit.log")
	coreArgs := []string{"--kube-api-qps=1000", "--kube-api-burst=2000", "--clustercache-client-qps=1000", "--clustercache-client-burst=2000"}
	// With thousands of machines on few cores, the API server takes longer over a lease than the
	// manager would wait; and nobody starts it again here.
	droverArgs := []string{"--leader-elect-lease-duration=3m", "--leader-elect-renew-deadline=2m"}
	if f.Profile {
		for _, name := range []string{"drover", "capi-core"} {
			address, err := freeAddress()
			if err != nil {
				return err
			}
			f.profilers[name] = "http://" + address
		}
		coreArgs = append(coreArgs, "--profiler-address="+strings.TrimPrefix(f.profilers["capi-core"], "http://"))
		droverArgs = append(droverArgs, "--profiler-address="+strings.TrimPrefix(f.profilers["drover"], "http://"))
	}
	f.management, err = playground.StartManagement(ctx, playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{
			Dir: f.Dir, Progress: os.Stderr,
			APIServerArgs: []string{
				"--audit-policy-file=" + filepath.Join(f.Dir, "audit-policy.yaml"), "--audit-log-path=" + f.audit.path,
				"--audit-log-maxsize=100000", // never begin another file
				"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000",
			},
			// Bodies hardly ever renew their Leases here: a kubelet's heartbeats are no part of
			// what is measured.
			ControllerManagerArgs: []string{"--node-monitor-grace-period=24h", "--kube-api-qps=1000", "--kube-api-burst=2000"},
		},
		CoreArgs: coreArgs,
	})
	if err != nil {
		return err
	}
	if f.Profile {
		f.profilers["kube-apiserver"] = f.management.URL
	}
	if err := f.place.start(ctx, f.Options); err != nil {
		return err
	}
	f.drover, err = f.management.StartDrover(ctx, playground.DroverOptions{Binary: f.Binary, Args: droverArgs})
	return err
}

func write(file, text string) error {
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// quietBodies hardly ever renew their Leases: a kubelet's heartbeats are no part of what is
// measured.
func quietBodies() body.Options {
	return body.Options{
		NoPods: true, LeaseInterval: simulator.Duration{Duration: time.Hour}, StatusInterval: simulator.Duration{Duration: time.Hour},
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// adopt brings the clusters to where machines can be made.
func (f *fleet) adopt(ctx context.Context) (err error) {
	if f.client, err = scenario.NewClient(f.management.AdminConfig()); err != nil {
		return err
	}
	// Of the Machines only their existence is followed: to decode thousands of whole ones would
	// cost what is measured.
	machines := &metav1.PartialObjectMetadata{}
	machines.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("Machine"))
	f.view, err = scenario.Follow(ctx, f.management.AdminConfig(), namespace, &clusterv1.Cluster{}, &clusterv1.MachineDeployment{}, machines)
	if err != nil {
		return err
	}
	kubeconfig, err := f.management.Kubeconfig(adopter)
	if err != nil {
		return err
	}
	if err := scenario.Create(ctx, f.client, scenario.Rights(adopter)...); err != nil {
		return err
	}
	checks := make([]scenario.Check, 0, f.Clusters)
	for n := range f.Clusters {
		cluster := f.cluster(n, kubeconfig)
		objects := cluster.Objects()
		if n > 0 {
			objects = objects[1:] // the namespace is there
		}
		if err := scenario.Create(ctx, f.client, objects...); err != nil {
			return err
		}
		f.clusters = append(f.clusters, cluster)
		checks = append(checks, cluster.Available(f.view))
	}
	limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return f.view.Until(limited, "the clusters are adopted", scenario.All(checks...))
}

// cluster is the one of this number. All of them adopt the management cluster.
func (f *fleet) cluster(n int, kubeconfig []byte) scenario.Adopted {
	a := scenario.Adopted{Namespace: namespace, Name: namespace, Kubeconfig: kubeconfig, Inventory: f.Inventory}
	if n > 0 {
		a.Name = fmt.Sprintf("%s-%d", namespace, n)
	}
	if f.Throttle == simulator.ThrottleEC2 {
		a.RateLimits = &infrav1.RateLimits{
			Create: &infrav1.RateLimit{PerSecond: "2", Burst: 5},
			Delete: &infrav1.RateLimit{PerSecond: "5", Burst: 50},
			Read:   &infrav1.RateLimit{PerSecond: "20", Burst: 100},
		}
	}
	f.place.adopt(&a)
	return a
}

// stop ends everything but leaves the logs.
func (f *fleet) stop() error {
	var errs []error
	if f.management != nil {
		errs = append(errs, f.management.Stop())
	}
	return errors.Join(append(errs, f.place.stop())...)
}
