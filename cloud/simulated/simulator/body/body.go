// SPDX-License-Identifier: Apache-2.0

// Package body gives the simulated machines a life: each reads its user data as cloud-init would, and, if that starts a
// kubelet, does a kubelet's part against the real API server that it finds there.
package body

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Options hold for all bodies of a Fleet. Zero values are the defaults.
type Options struct {
	// KubeletVersion that Nodes report. Default: DefaultKubeletVersion.
	KubeletVersion string `json:"kubeletVersion,omitempty"`
	// LeaseInterval is the time between two renewals of a Node's Lease. Default: 10 s, a kubelet's.
	LeaseInterval metav1.Duration `json:"leaseInterval,omitempty"`
	// StatusInterval is the time between two reports of a Node's conditions. Default: 5 min, a kubelet's.
	StatusInterval metav1.Duration `json:"statusInterval,omitempty"`
	// NoPods leaves pods alone: they are neither set Running nor finalized.
	NoPods bool `json:"noPods,omitempty"`
	// Requests bounds how many requests (watches apart) are under way at once. Default: 64.
	Requests int `json:"requests,omitempty"`
}

// DefaultKubeletVersion is the Kubernetes release that the simulated image holds.
const DefaultKubeletVersion = "v1.36.3"

func (o Options) withDefaults() Options {
	if o.KubeletVersion == "" {
		o.KubeletVersion = DefaultKubeletVersion
	}
	if o.LeaseInterval.Duration <= 0 {
		o.LeaseInterval.Duration = 10 * time.Second
	}
	if o.StatusInterval.Duration <= 0 {
		o.StatusInterval.Duration = 5 * time.Minute
	}
	if o.Requests <= 0 {
		o.Requests = 64
	}
	return o
}

// Machine is what a body knows of its machine: what the cloud's metadata service would tell it.
type Machine struct {
	InstanceID, Region, Zone, Hostname, IP string
	CPU                                    int32
	MemoryMiB                              int64
	DiskGiB                                int32
	Arch, OS                               string
	UserData                               []byte
}

// Fleet runs bodies.
type Fleet struct {
	opts Options
	ctx  context.Context
}

// NewFleet makes a fleet whose bodies live as long as ctx, at most.
func NewFleet(ctx context.Context, o Options) *Fleet {
	return &Fleet{opts: o.withDefaults(), ctx: ctx}
}

// New makes a body that does not run yet.
func (f *Fleet) New(m Machine) *Body { return &Body{fleet: f, machine: m} }

// Wait returns when all bodies have ended, after the fleet's context has.
func (f *Fleet) Wait() {}

// Body is one machine's operating system and kubelet.
type Body struct {
	fleet   *Fleet
	machine Machine
}

// Start boots it. It does not wait.
func (b *Body) Start() {}

// Stop pulls the plug. It does not wait.
func (b *Body) Stop() {}

// Report is what can be seen of a body from outside.
type Report struct {
	// Phase says how far it got: Off, Booting, Joining, Joined, Failed or Idle (nothing started a kubelet).
	Phase string `json:"phase"`
	// Node is the Node's name, once it is known.
	Node string `json:"node,omitempty"`
	// Console is what it printed, newest last.
	Console []string `json:"console,omitempty"`
}

// Report tells how the body is.
func (b *Body) Report() Report { return Report{} }
