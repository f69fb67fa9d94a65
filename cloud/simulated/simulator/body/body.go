// SPDX-License-Identifier: Apache-2.0

// Package body simulates the operating systems of machines: each reads its user data as cloud-init
// does. If that starts a kubelet, the body does a kubelet's part against the real API server that
// the user data names.
package body

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-io/drover/cloud/simulated/simulator/userdata"
)

// Options apply to all bodies of a Fleet. Zero values mean the defaults.
type Options struct {
	// LeaseInterval is the time between two renewals of a Node's Lease. Default: 10 s, a kubelet's.
	LeaseInterval metav1.Duration `json:"leaseInterval,omitempty"`
	// StatusInterval is the time between two reports of a Node's conditions. Default: 5 min, a
	// kubelet's.
	StatusInterval metav1.Duration `json:"statusInterval,omitempty"`
	// NoPods ignores pods: they are neither set Running nor finalized.
	NoPods bool `json:"noPods,omitempty"`
	// Requests limits the concurrent requests, not counting watches. Default: 64.
	Requests int `json:"requests,omitempty"`
}

// DefaultKubeletVersion is the Kubernetes release in images without another.
const DefaultKubeletVersion = "v1.36.3"

// Software is what an image has of Kubernetes. Zero values mean the defaults.
type Software struct {
	// KubeletVersion that the Node reports. Default: DefaultKubeletVersion.
	KubeletVersion string `json:"kubeletVersion,omitempty"`
	// ControlPlanePath are the folders of kubeadm, etcd, kube-apiserver, kube-controller-manager
	// and kube-scheduler. With it, machines whose user data make them part of a control plane run
	// these programs, as package host can. Without it, they stay idle.
	ControlPlanePath []string `json:"controlPlanePath,omitempty"`
}

func (o Options) withDefaults() Options {
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

// Machine is what a body knows of its machine, as from the cloud's metadata service.
type Machine struct {
	InstanceID, Region, Zone, Hostname, IP string
	CPU                                    int32
	MemoryMiB                              int64
	DiskGiB                                int32
	Arch, OS                               string
	UserData                               []byte
	Software
}

// Fleet runs bodies.
type Fleet struct {
	opts Options
	ctx  context.Context
	// slots limits the concurrent requests.
	slots chan struct{}

	mu       sync.Mutex
	clusters map[string]*cluster
	// disks is the folder of the disks of control planes, or "" before the first.
	disks   string
	closed  bool
	running sync.WaitGroup
}

// NewFleet returns a fleet whose bodies end with ctx at the latest.
func NewFleet(ctx context.Context, o Options) *Fleet {
	o = o.withDefaults()
	return &Fleet{opts: o, ctx: ctx, slots: make(chan struct{}, o.Requests), clusters: map[string]*cluster{}}
}

// New returns a body that is off.
func (f *Fleet) New(m Machine) *Body {
	m.KubeletVersion = cmp.Or(m.KubeletVersion, DefaultKubeletVersion)
	return &Body{fleet: f, machine: m, phase: PhaseOff}
}

// Wait returns once all bodies have ended, after the fleet's context. No body starts after that,
// and their disks are gone.
func (f *Fleet) Wait() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.running.Wait()
	if f.disks != "" {
		_ = os.RemoveAll(f.disks)
	}
}

// newDisk returns a new folder for a machine's files.
func (f *Fleet) newDisk(name string) (folder string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.disks == "" {
		if f.disks, err = os.MkdirTemp("", "drover-machines-"); err != nil {
			return "", err
		}
	}
	folder = filepath.Join(f.disks, name)
	return folder, os.Mkdir(folder, 0o700)
}

// spawn runs a function that ends with the fleet's context. It returns false if the fleet has
// ended.
func (f *Fleet) spawn(run func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.ctx.Err() != nil {
		return false
	}
	f.running.Go(run)
	return true
}

// request makes one request with a timeout, once the fleet has a free slot.
func (f *Fleet) request(ctx context.Context, do func(context.Context) error) error {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return do(ctx)
}

// Phase is a body's progress.
type Phase string

// The phases.
const (
	PhaseOff     Phase = "Off"
	PhaseBooting Phase = "Booting"
	// PhaseIdle: it runs, but nothing started a kubelet.
	PhaseIdle Phase = "Idle"
	// PhaseFailed: the user data or the kubelet's files are wrong. This is final.
	PhaseFailed  Phase = "Failed"
	PhaseJoining Phase = "Joining"
	PhaseJoined  Phase = "Joined"
)

// Report is a body's state as seen from outside.
type Report struct {
	Phase Phase `json:"phase"`
	// Node is the Node's name, once known.
	Node string `json:"node,omitempty"`
	// Console is the output, newest line last.
	Console []string `json:"console,omitempty"`
}

// consoleLines is the maximum number of lines in the console.
const consoleLines = 40

// Body is one machine's operating system and kubelet. Its disk survives Stop.
type Body struct {
	fleet   *Fleet
	machine Machine

	mu     sync.Mutex
	cancel context.CancelFunc
	// ended is closed when the last run has ended: two runs never overlap.
	ended   chan struct{}
	timer   *time.Timer
	phase   Phase
	console []string
	// kubelet and node are the disk: the kubelet's view of the files, and what it got from the
	// cluster. Each is written once, by run.
	kubelet *kubelet
	node    *node
	// folder has the files of a machine of a control plane; first are those of the user data, until
	// its first boot.
	folder string
	first  *userdata.Machine

	// beating is held during a heartbeat, and guards the state kept between two heartbeats.
	beating sync.Mutex
}

// Machine returns the body's machine. It includes the user data until that is used.
func (b *Body) Machine() Machine {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.machine
}

// Start boots the body. It does not block.
func (b *Body) Start() {
	ctx, cancel := context.WithCancel(b.fleet.ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	before, ended := b.ended, make(chan struct{})
	if b.cancel != nil || !b.fleet.spawn(func() {
		defer close(ended)
		if before != nil {
			<-before
		}
		b.run(ctx)
	}) {
		cancel()
		return
	}
	b.cancel, b.phase, b.ended = cancel, PhaseBooting, ended
}

// Stop switches the body off. It does not block.
func (b *Body) Stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cancel == nil {
		return
	}
	b.cancel()
	b.cancel, b.phase = nil, PhaseOff
	if b.timer != nil {
		b.timer.Stop()
	}
	if b.node != nil {
		b.node.transport.CloseIdleConnections()
	}
}

// Discard stops the body for good, and deletes its disk.
func (b *Body) Discard() {
	b.Stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	if folder, ended := b.folder, b.ended; folder != "" {
		b.fleet.spawn(func() {
			<-ended
			_ = os.RemoveAll(folder)
		})
	}
}

// Report returns the body's state.
func (b *Body) Report() Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := Report{Phase: b.phase, Console: slices.Clone(b.console)}
	if b.kubelet != nil {
		r.Node = b.kubelet.node
	}
	return r
}

// say prints to the console. It omits a line that repeats the last one.
func (b *Body) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.console); n > 0 && b.console[n-1] == line {
		return
	}
	if b.console = append(b.console, line); len(b.console) > consoleLines {
		b.console = slices.Clone(b.console[1:])
	}
}

// enter changes the phase, unless the body was stopped.
func (b *Body) enter(ctx context.Context, p Phase) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx.Err() == nil {
		b.phase = p
	}
}

// run is the machine's life, from power on to power off.
func (b *Body) run(ctx context.Context) {
	if b.kubelet == nil && b.folder == "" && !b.boot(ctx) {
		return
	}
	b.enter(ctx, PhaseJoining)
	if b.folder != "" {
		b.runControlPlane(ctx)
		return
	}
	if b.becomeNode(ctx) && !b.fleet.opts.NoPods {
		b.keepPods(ctx)
	}
}

// becomeNode joins the cluster, and begins to report the Node.
func (b *Body) becomeNode(ctx context.Context) bool {
	if !b.join(ctx) {
		return false
	}
	b.enter(ctx, PhaseJoined)
	b.beat(ctx)
	if b.kubelet.servingCSR {
		b.fleet.spawn(func() { b.requestServing(ctx) })
	}
	return true
}

// boot does cloud-init's part: it reads the user data, once.
func (b *Body) boot(ctx context.Context) bool {
	m := b.machine
	disk, err := userdata.Parse(m.UserData, userdata.InstanceData{
		InstanceID: m.InstanceID, AvailabilityZone: m.Zone, Region: m.Region, LocalHostname: m.Hostname, CloudName: "simulated",
	})
	if err != nil {
		b.say("cloud-init: %v", err)
		b.enter(ctx, PhaseFailed)
		return false
	}
	for _, w := range disk.Warnings {
		b.say("cloud-init: warning: %s", w)
	}
	b.say("cloud-init: wrote %d files, ran %d commands", len(disk.Files), len(disk.Commands))
	does := commanded(disk)
	if len(m.ControlPlanePath) > 0 && startsControlPlane(disk, does) {
		return b.prepare(ctx, disk)
	}
	if file := does.join; file != "" {
		b.enter(ctx, PhaseJoining)
		if err := b.kubeadm(ctx, disk, file); err != nil {
			b.say("kubeadm join: %s", plain(err))
			b.enter(ctx, PhaseFailed)
			return false
		}
	}
	k, err := plan(disk, m)
	switch {
	case errors.Is(err, errNotStarted):
		b.say("%v", err)
		b.enter(ctx, PhaseIdle)
		return false
	case err != nil:
		b.say("kubelet: %v", err)
		b.enter(ctx, PhaseFailed)
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kubelet, b.machine.UserData = k, nil
	return true
}

// prepare makes the disk of a machine of a control plane.
func (b *Body) prepare(ctx context.Context, disk userdata.Machine) bool {
	folder, err := b.fleet.newDisk(b.machine.InstanceID)
	if err != nil {
		b.say("disk: %v", err)
		b.enter(ctx, PhaseFailed)
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.folder, b.first = folder, &disk
	return true
}
