// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// streamTimeout is how long a stream may send nothing. An API server sends a bookmark within a
// minute of a stream's start and of the previous bookmark, so a stream that is cut off and
// restarted needs at most two of these intervals.
const streamTimeout = 130 * time.Second

// absentInterval is the interval between checks for CDI where it is not installed, and for the
// right to read load balancers where it is missing. A watch would cost a call as often.
const absentInterval = cloud.StreamTime

// heartbeatInterval is the least interval of heartbeats. The engine checks all machines for each.
const heartbeatInterval = time.Second

// Watch implements cloud.Watcher: it lists, and then watches each kind from that version. If a
// watch can't continue because the API server no longer has the events in between, it lists again.
func (d *driver) Watch(ctx context.Context, report func(cloud.Update)) error {
	for {
		if err := d.checkPlace(ctx); err != nil {
			return err
		}
		received, err := d.watchOnce(ctx, report)
		if !isOutdated(err) || !received {
			return err
		}
	}
}

// checkPlace checks again which cluster answers, if earlier watches have ended.
func (d *driver) checkPlace(ctx context.Context) error {
	if !d.watchedBefore.Swap(true) {
		return nil
	}
	_, err := d.verifyPlace(ctx)
	return err
}

// watchOnce lists everything and reports changes until one of the streams ends for good. received
// is false if no stream has reported anything by then.
func (d *driver) watchOnce(ctx context.Context, report func(cloud.Update)) (received bool, err error) {
	began := time.Now()
	found, versions, err := d.readAll(ctx)
	if err != nil {
		return false, err
	}
	report(cloud.Update{At: began, All: true, Resources: d.balancers.saw(found.resources())})
	ctx, cancel := context.WithCancel(ctx)
	var streams cloud.Group
	defer func() {
		cancel()
		_ = streams.Wait() // run has had the error
	}()
	f := newWatchState(found, func(u cloud.Update) {
		u.Resources = d.balancers.saw(u.Resources)
		report(u)
	})
	f.vmStream = d.stream(virtualMachines, wholeObject, f.vms.toChange)
	f.vmiStream = d.stream(virtualInstances, wholeObject, f.vmis.toChange)
	events := make(chan streamEvent)
	send := func(n streamEvent) {
		select {
		case events <- n:
		case <-ctx.Done():
		}
	}
	follow := func(s *stream, until func() error) {
		streams.Go(func() error {
			err := cloud.Recover(until)
			send(streamEvent{stream: s, err: err})
			return err
		})
	}
	start := func(s *stream, version string) {
		f.add(s, version)
		follow(s, func() error { return d.watchKind(ctx, s, version, send) })
	}
	start(f.vmStream, versions.vms)
	start(f.vmiStream, versions.vmis)
	start(d.stream(secrets, metadataOfOne, f.secrets.toChange), versions.secrets)
	volumes := d.stream(dataVolumes, wholeObject, f.volumes.toChange)
	if versions.volumes != "" {
		start(volumes, versions.volumes)
	} else {
		follow(volumes, func() error { return d.await(ctx, volumes, d.hasCDI) })
	}
	balancers := d.stream(services, wholeObject, f.services.toChange)
	if versions.services != "" {
		start(balancers, versions.services)
		start(d.stream(endpointSlices, wholeObject, f.slices.toChange), versions.slices)
	} else {
		follow(balancers, func() error { return d.await(ctx, balancers, d.mayReadBalancers) })
	}
	err = f.run(ctx, events, d.streamTimeout)
	return f.received, err
}

func (d *driver) stream(k resourceKind, accept string, read eventReader) *stream {
	return &stream{
		op:   operation{"Watch" + k.kind + "s", cloud.ClassRead, http.MethodGet, accept, k.kind},
		path: d.path(k, ""), read: read,
	}
}

// await polls for what can't be read yet. It returns an "outdated" error once it can.
func (d *driver) await(ctx context.Context, s *stream, isThere func(context.Context) (bool, error)) error {
	ticks := time.NewTicker(d.absentInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return driverkit.Redactor{}.NoResponse(s.op.name, ctx.Err())
		}
		switch there, err := isThere(ctx); {
		case err != nil:
			return err
		case there:
			return outdated(s.op, "nothing was there to be watched before")
		}
	}
}

// hasCDI reports whether CDI is installed.
func (d *driver) hasCDI(ctx context.Context) (bool, error) {
	probe := operation{"ListDataVolumes", cloud.ClassRead, http.MethodGet, wholeObject, "DataVolumeList"}
	err := d.call(ctx, probe, d.path(dataVolumes, ""), url.Values{"limit": {"1"}}, nil, nil)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// watchState holds what the streams have reported so far.
type watchState struct {
	vms     *store[kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachine]
	vmis    *store[kubevirtv1.VirtualMachineInstance, *kubevirtv1.VirtualMachineInstance]
	volumes *store[cdiv1.DataVolume, *cdiv1.DataVolume]
	secrets *store[metav1.PartialObjectMetadata, *metav1.PartialObjectMetadata]

	services *store[corev1.Service, *corev1.Service]
	slices   *store[discoveryv1.EndpointSlice, *discoveryv1.EndpointSlice]

	report      func(cloud.Update)
	streams     []*stream
	vmStream    *stream
	vmiStream   *stream
	early       map[string]bool // tokens whose guests or volumes were reported before their VMs
	received    bool
	heartbeatAt time.Time // when a heartbeat was last reported
}

func newWatchState(found objects, report func(cloud.Update)) *watchState {
	return &watchState{
		vms:     newStore[kubevirtv1.VirtualMachine](virtualMachines.kind, pruneVM, found.vms),
		vmis:    newStore[kubevirtv1.VirtualMachineInstance](virtualInstances.kind, pruneVMI, found.vmis),
		volumes: newStore[cdiv1.DataVolume](dataVolumes.kind, pruneVolume, found.volumes),
		secrets: newStore[metav1.PartialObjectMetadata]("PartialObjectMetadata", pruneSecret, found.secrets),

		services: newStore[corev1.Service](services.kind, pruneService, found.services),
		slices:   newStore[discoveryv1.EndpointSlice](endpointSlices.kind, pruneSlice, found.slices),

		report: report, early: map[string]bool{}, heartbeatAt: time.Now(),
	}
}

func (f *watchState) add(s *stream, version string) {
	s.version, s.lastEvent = version, f.heartbeatAt
	f.streams = append(f.streams, s)
}

// run processes events until a stream can't continue, or a stream sends nothing for too long.
func (f *watchState) run(ctx context.Context, events <-chan streamEvent, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	heartbeat := time.NewTimer(timeout)
	defer heartbeat.Stop()
	for {
		select {
		case n := <-events:
			if n.err != nil {
				return n.err
			}
			f.apply(n)
			if f.stored() > maxStored {
				return cloud.Errorf(cloud.Unknown, "%s: the objects with Drover's labels take more than %d MiB: use several accounts", n.stream.op.name,
					maxStored>>20)
			}
			if f.oldestStream().lastEvent.After(f.heartbeatAt) {
				heartbeat.Reset(time.Until(f.heartbeatAt.Add(heartbeatInterval)))
			}
		case <-heartbeat.C:
			f.heartbeat()
		case <-timer.C:
			oldest := f.oldestStream()
			if time.Since(oldest.lastEvent) >= timeout {
				return cloud.Errorf(cloud.Unavailable, "%s: the stream has stopped sending events", oldest.op.name)
			}
			timer.Reset(time.Until(oldest.lastEvent.Add(timeout)))
		case <-ctx.Done():
			return driverkit.Redactor{}.NoResponse(f.vmStream.op.name, ctx.Err())
		}
	}
}

// stored returns how much memory the objects take.
func (f *watchState) stored() int64 {
	return f.vms.bytes + f.vmis.bytes + f.volumes.bytes + f.secrets.bytes + f.services.bytes + f.slices.bytes
}

func (f *watchState) oldestStream() *stream {
	oldest := f.streams[0]
	for _, s := range f.streams[1:] {
		if s.lastEvent.Before(oldest.lastEvent) {
			oldest = s
		}
	}
	return oldest
}

// apply processes one event and reports the resulting changes.
func (f *watchState) apply(n streamEvent) {
	f.received = true
	n.stream.version, n.stream.lastEvent = n.version, n.at
	if n.change != nil {
		for _, token := range n.change() {
			f.reportMachine(token, n.at)
			if n.stream == f.vmiStream {
				f.reportBalancers(token, n.at)
			}
		}
	}
	if n.stream == f.vmStream {
		for token := range f.early {
			f.reportMachine(token, n.at)
		}
	}
}

// reportMachine reports what a machine, or a load balancer, has now. What arrives before the event
// of its VM is reported with that event, because events are ordered only within one stream.
func (f *watchState) reportMachine(token string, at time.Time) {
	o := objects{vms: f.vms.byToken(token), vmis: f.vmis.byToken(token), volumes: f.volumes.byToken(token), secrets: f.secrets.byToken(token),
		services: f.services.byToken(token), slices: f.slices.byToken(token)}
	if len(o.slices) > 0 {
		o.guests = f.vmis.ofOwner(o.slices[0].Labels[cloud.TagOwnership])
	}
	if f.isEarly(o) {
		f.early[token] = true
		return
	}
	delete(f.early, token)
	f.report(cloud.Update{At: at, Token: token, Resources: o.resources(), Stored: f.stored()})
}

// reportBalancers reports the load balancers of a machine's cluster, because the machine's guest
// has changed and may be a target. The machine's Secret, which is deleted last, tells the cluster.
func (f *watchState) reportBalancers(token string, at time.Time) {
	for _, s := range f.secrets.byToken(token) {
		for _, service := range f.services.ofOwner(s.Labels[cloud.TagOwnership]) {
			f.reportMachine(service.Labels[cloud.TagToken], at)
		}
	}
}

// isEarly reports whether the VM stream may still deliver the VM of these objects. All three kinds
// are custom resources, which an API server keeps in one store, so their versions share one
// sequence.
func (f *watchState) isEarly(o objects) bool {
	if len(o.vms) > 0 {
		return false
	}
	for _, vmi := range o.vmis {
		if newer(vmi.ResourceVersion, f.vmStream.version) {
			return true
		}
	}
	for _, v := range o.volumes {
		if newer(v.ResourceVersion, f.vmStream.version) {
			return true
		}
	}
	return false
}

func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// heartbeat reports a heartbeat if each stream has sent something since the last one. Its time is
// that of the stream that was heard from least recently.
func (f *watchState) heartbeat() {
	if oldest := f.oldestStream().lastEvent; oldest.After(f.heartbeatAt) {
		f.heartbeatAt = time.Now()
		f.report(cloud.Update{At: oldest, Stored: f.stored()})
	}
}
