// SPDX-License-Identifier: Apache-2.0

// Package simulator is the simulated cloud: a server with its state in memory, which runs as a
// separate process so that machines outlive the manager. It behaves like clouds at their worst and
// injects any fault on demand (Admin). Only main and tests import it. The driver never does: it
// uses only the wire API.
package simulator

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// Duration is written as "1.5s" in YAML and JSON.
type Duration = metav1.Duration

func seconds(s float64) Duration {
	return Duration{Duration: time.Duration(s * float64(time.Second))}
}

// Options configure a simulated cloud. The zero value is usable.
type Options struct {
	// Seed of everything random: IDs, latency, faults. 0 means a new seed each time.
	Seed uint64 `json:"seed,omitempty"`
	// Regions. Default: sim-1 with the zones sim-1a, sim-1b and sim-1c.
	Regions []Region `json:"regions,omitempty"`
	// InstanceTypes, Images and Networks of every region. Default: see withDefaults.
	InstanceTypes []wire.InstanceType `json:"instanceTypes,omitempty"`
	Images        []Image             `json:"images,omitempty"`
	Networks      []wire.Network      `json:"networks,omitempty"`
	// Accounts at the start. Default: one, "default", with the token DefaultToken.
	Accounts []AccountOptions `json:"accounts,omitempty"`
	// AdminToken opens /admin/. If empty, callers from the same machine have access.
	AdminToken string `json:"adminToken,omitempty"`
	// Settings can be changed at run time.
	Settings Settings `json:"settings,omitempty"`
	// Bodies configures the machines' kubelets.
	Bodies body.Options `json:"bodies,omitempty"`
}

// DefaultToken is the default account's token.
const DefaultToken = "simulated-cloud-token"

// Region is a region with its zones.
type Region struct {
	Name  string   `json:"name"`
	Zones []string `json:"zones"`
	// Capacity limits the instances of a type in a zone: zone → type → number. The type "*" applies
	// to all types without an entry. Without an entry there is no limit.
	Capacity map[string]map[string]int `json:"capacity,omitempty"`
}

// AccountOptions configures an account. Accounts are isolated, but share the capacity.
type AccountOptions struct {
	Name string `json:"name"`
	// Tokens are the account's bearer tokens.
	Tokens []string `json:"tokens,omitempty"`
	Quota  Quota    `json:"quota,omitempty"`
}

// Image is a boot image, and what machines of it run.
type Image struct {
	wire.Image
	body.Software
}

// Quota of an account in each region. 0 means no limit.
type Quota struct {
	Instances int `json:"instances,omitempty"`
	VCPUs     int `json:"vcpus,omitempty"`
	DiskGiB   int `json:"diskGiB,omitempty"`
}

// Settings can be changed while the cloud runs. Zero values mean the defaults.
type Settings struct {
	// BootMin and BootMax limit the time from create to running. Default: 1 s and 2 s.
	BootMin Duration `json:"bootMin,omitempty"`
	BootMax Duration `json:"bootMax,omitempty"`
	// Stop is the time from terminate to terminated. Default: 1 s.
	Stop Duration `json:"stop,omitempty"`
	// TerminatedVisible is how long terminated instances are shown. Default: 10 min.
	TerminatedVisible Duration `json:"terminatedVisible,omitempty"`
	// ConsistencyLag is the maximum lag of reads. Each resource has its own lag up to this value.
	// Default: 0.
	ConsistencyLag Duration `json:"consistencyLag,omitempty"`
	// Latency of each call. Default: none.
	Latency Latency `json:"latency,omitempty"`
	// Throttle: "generous" (the default), "ec2", "none".
	Throttle string `json:"throttle,omitempty"`
	// SpotLifetime is the mean time until a spot instance is taken back. Default: 0, never.
	SpotLifetime Duration `json:"spotLifetime,omitempty"`
	// TargetLag is how long a load balancer takes to use, and to show, new targets. Default: 0.
	TargetLag Duration `json:"targetLag,omitempty"`
	// PageSize limits a page. Default: wire.MaxResults.
	PageSize int `json:"pageSize,omitempty"`
}

// Latency is a shifted exponential distribution: never below Min, Mean on average, never above Max
// (default: 10 × Mean).
type Latency struct {
	Min  Duration `json:"min,omitempty"`
	Mean Duration `json:"mean,omitempty"`
	Max  Duration `json:"max,omitempty"`
}

func (l Latency) draw(r *rand.Rand) time.Duration {
	mean, low, high := l.Mean.Duration, l.Min.Duration, l.Max.Duration
	if high == 0 {
		high = 10 * mean
	}
	d := low
	if mean > low {
		d += time.Duration(r.ExpFloat64() * float64(mean-low))
	}
	return max(low, min(d, high))
}

func (s Settings) withDefaults() Settings {
	if s.BootMin.Duration == 0 && s.BootMax.Duration == 0 {
		s.BootMin, s.BootMax = seconds(1), seconds(2)
	}
	s.BootMax.Duration = max(s.BootMin.Duration, s.BootMax.Duration)
	if s.Stop.Duration == 0 {
		s.Stop = seconds(1)
	}
	if s.TerminatedVisible.Duration == 0 {
		s.TerminatedVisible = seconds(600)
	}
	if s.Throttle == "" {
		s.Throttle = ThrottleGenerous
	}
	if s.PageSize <= 0 || s.PageSize > wire.MaxResults {
		s.PageSize = wire.MaxResults
	}
	return s
}

func (s Settings) validate() error {
	if _, ok := throttlePreset(s.Throttle); !ok {
		return fmt.Errorf("throttle %q: want %q, %q or %q", s.Throttle, ThrottleGenerous, ThrottleEC2, ThrottleNone)
	}
	for _, d := range []Duration{s.BootMin, s.BootMax, s.Stop, s.TerminatedVisible, s.ConsistencyLag, s.Latency.Min, s.Latency.Mean,
		s.Latency.Max, s.SpotLifetime, s.TargetLag} {
		if d.Duration < 0 {
			return fmt.Errorf("a duration is negative: %s", d.Duration)
		}
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if len(o.Regions) == 0 {
		o.Regions = []Region{{Name: "sim-1", Zones: []string{"sim-1a", "sim-1b", "sim-1c"}}}
	}
	if len(o.InstanceTypes) == 0 {
		o.InstanceTypes = []wire.InstanceType{
			{Name: "small", CPU: 2, MemoryMiB: 4 << 10, PricePerHour: 0.02, SpotPricePerHour: 0.008, Arch: "amd64"},
			{Name: "medium", CPU: 4, MemoryMiB: 16 << 10, PricePerHour: 0.08, SpotPricePerHour: 0.03, Arch: "amd64"},
			{Name: "large", CPU: 8, MemoryMiB: 32 << 10, PricePerHour: 0.16, SpotPricePerHour: 0.06, Arch: "amd64"},
			{Name: "small-arm", CPU: 2, MemoryMiB: 4 << 10, PricePerHour: 0.016, SpotPricePerHour: 0.006, Arch: "arm64"},
		}
	}
	if len(o.Images) == 0 {
		o.Images = []Image{
			{Image: wire.Image{Name: "node-image", Arch: "amd64", OS: "linux"}},
			{Image: wire.Image{Name: "node-image-arm64", Arch: "arm64", OS: "linux"}},
		}
	}
	if len(o.Networks) == 0 {
		o.Networks = []wire.Network{{Name: "default", CIDR: "10.64.0.0/12"}}
	}
	if len(o.Accounts) == 0 {
		o.Accounts = []AccountOptions{{Name: "default", Tokens: []string{DefaultToken}}}
	}
	o.Settings = o.Settings.withDefaults()
	return o
}

func (o Options) validate() error {
	for _, r := range o.Regions {
		if r.Name == "" || len(r.Zones) == 0 {
			return fmt.Errorf("region %q: a region needs a name and zones", r.Name)
		}
		for zone := range r.Capacity {
			if !slices.Contains(r.Zones, zone) {
				return fmt.Errorf("region %q has capacity for %q, which is not one of its zones", r.Name, zone)
			}
		}
	}
	for _, n := range o.Networks {
		if p, err := netip.ParsePrefix(n.CIDR); err != nil || !p.Addr().Is4() {
			return fmt.Errorf("network %q: %q is not an IPv4 prefix", n.Name, n.CIDR)
		}
	}
	return o.Settings.validate()
}
