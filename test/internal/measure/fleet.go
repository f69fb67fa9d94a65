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
	"k8s.io/apimachinery/pkg/labels"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// Options configures a measurement.
type Options struct {
	// Cloud is the cloud to create the machines in. The default is the simulated cloud, which runs
	// as a process. The others run in this process.
	Cloud Cloud
	// Machines is the number of machines to create.
	Machines int
	// Clusters is the number of clusters to spread the machines over. Each has its own
	// DroverAccount, all for the same account of the cloud. 0 means one.
	Clusters int
	// Bare makes the machines without Cluster API's core, whose own CPU hides Drover's: the bench
	// takes its part, and the kubelets'. Without MachineDeployments, there is no bootstrap config,
	// and Clusters must be 1.
	Bare bool
	// PoolSize is the maximum number of machines of a MachineDeployment. 0 means all in one.
	PoolSize int
	// Latency is the latency of each cloud call.
	Latency time.Duration
	// Joins is the time from the create call until the machine boots.
	Joins time.Duration
	// Throttle is the cloud's throttling preset, "none" by default. With "ec2" the DroverAccount
	// has EC2's rate limits too.
	Throttle string
	// Inventory is the inventory setting of the DroverAccount. The zero value means the defaults.
	Inventory infrav1.InventorySpec
	// Idle is how long nothing happens between Ready and deletion. 0 skips this phase.
	Idle time.Duration
	// Vanish makes one VM vanish at the end of Idle.
	Vanish bool
	// Binary is the path of the manager. By default it is built without the race detector.
	Binary string
	// Dir is the folder for data and logs. It must exist, and is not removed.
	Dir string
	// Profile writes CPU profiles of Drover, Cluster API's core and the API server to Dir. They
	// cover the time in which the machines are created.
	Profile bool
	// Say is called with progress messages. It may be nil.
	Say func(format string, args ...any)
}

// Cloud names the cloud to create machines in.
type Cloud string

// The clouds.
const (
	Simulated Cloud = "simulated"
	AWS       Cloud = "aws"     // a stand-in for EC2
	VSphere   Cloud = "vsphere" // govmomi's simulator of a vCenter
)

// placeOf returns the place for a cloud.
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

// Result is the result of a measurement.
type Result struct {
	Cloud    Cloud  `json:"cloud"`
	Machines int    `json:"machines"`
	Bare     bool   `json:"bare,omitempty"`
	Clusters int    `json:"clusters"`
	Throttle string `json:"throttle"`
	// Create lasts until all machines are Ready. Delete lasts from then until everything is gone.
	Create Phase  `json:"create"`
	Idle   *Phase `json:"idle,omitempty"`
	Delete Phase  `json:"delete"`
	// LastVM is the time at which the cloud created the last VM, in seconds after the creation of
	// the MachineDeployments.
	LastVM float64 `json:"lastVMSeconds"`
	// VanishSeen is the time until the DroverMachine reported its vanished VM, in seconds. 0 means
	// not measured.
	VanishSeen float64 `json:"vanishSeenSeconds,omitempty"`
	// Restart is the time until a restarted Drover has reconciled every machine, in seconds. 0
	// means not measured.
	Restart float64 `json:"restartSeconds,omitempty"`
	// PeakMemory is the peak memory of Drover in bytes, over all phases.
	PeakMemory int64 `json:"peakMemoryBytes"`
	// Profiles lists the profile files, if requested.
	Profiles []string `json:"-"`
}

// namespace is the namespace of all clusters, and the name of the first.
const namespace = "fleet"

// fleet is the state of a measurement.
type fleet struct {
	Options
	management    *playground.Management
	place         place
	drover        *playground.Process
	droverOptions playground.DroverOptions
	peakMemory    int64             // of a Drover that has ended
	profilers     map[string]string // process → base URL of its pprof

	client   client.Client
	view     *scenario.View
	audit    auditLog
	clusters []scenario.Adopted
	pools    []scenario.Pool
	bare     []bareMachine
	bareView *scenario.View // of DroverMachines
}

// Run measures the life of a fleet from creation to deletion, with its own processes. The
// management cluster is also the workload cluster.
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
	// With thousands of machines on few cores, the API server takes longer to renew a lease than
	// the manager would wait. Nothing restarts the manager here.
	droverArgs := []string{"--leader-elect-lease-duration=3m", "--leader-elect-renew-deadline=2m"}
	if f.Bare {
		coreArgs = append(coreArgs, "--watch-filter="+watchFilter)
	}
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
				"--audit-log-maxsize=100000", // never rotate the file
				"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000",
			},
			// The Nodes hardly ever renew their Leases, because heartbeats of kubelets are not part
			// of the measurement.
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
	f.droverOptions = playground.DroverOptions{Binary: f.Binary, Args: droverArgs}
	f.drover, err = f.management.StartDrover(ctx, f.droverOptions)
	return err
}

func write(file, text string) error {
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// quietBodies returns options with which Nodes hardly ever renew their Leases, because heartbeats
// of kubelets are not part of the measurement.
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

// adopt creates the clusters and waits until machines can be created.
func (f *fleet) adopt(ctx context.Context) (err error) {
	if f.client, err = scenario.NewClient(f.management.AdminConfig()); err != nil {
		return err
	}
	// Watch only the metadata of Machines. Decoding thousands of whole Machines would distort the
	// measurement.
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
		if f.Bare {
			for _, o := range objects {
				o.SetLabels(labels.Merge(o.GetLabels(), labels.Set{clusterv1.WatchLabel: watchFilter}))
			}
		}
		if n > 0 {
			objects = objects[1:] // the namespace exists
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

// cluster returns the cluster with this number. All of them adopt the management cluster.
func (f *fleet) cluster(n int, kubeconfig []byte) scenario.Adopted {
	a := scenario.Adopted{Namespace: namespace, Name: namespace, Kubeconfig: kubeconfig, Inventory: f.Inventory}
	if n > 0 {
		a.Name = fmt.Sprintf("%s-%d", namespace, n)
	}
	if f.Throttle == simulator.ThrottleEC2 {
		a.RateLimits = &infrav1.RateLimits{
			Create: infrav1.RateLimit{PerSecond: "2", Burst: 5},
			Delete: infrav1.RateLimit{PerSecond: "5", Burst: 50},
			Read:   infrav1.RateLimit{PerSecond: "20", Burst: 100},
		}
	}
	f.place.adopt(&a)
	return a
}

// stop stops everything and keeps the logs.
func (f *fleet) stop() error {
	var errs []error
	if f.management != nil {
		errs = append(errs, f.management.Stop())
	}
	return errors.Join(append(errs, f.place.stop())...)
}
