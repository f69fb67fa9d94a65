// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"net/http"
	"net/url"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// silence is how long a stream may send nothing. An API server sends a bookmark within a minute of
// a stream's start and of the previous bookmark, so a stream that is cut off and restarted needs at
// most two of these intervals.
const silence = 130 * time.Second

// lookForCDI is the interval between checks for CDI where it is not installed. A watch of its
// volumes would cost a call as often.
const lookForCDI = cloud.StreamTime

// signPace is the shortest interval of signs of life. For each, the engine looks at every machine.
const signPace = time.Second

// Watch implements cloud.Follower: it lists, and then watches each kind from that version. If a
// watch can't continue because the API server no longer has the events in between, it lists again.
func (d *driver) Watch(ctx context.Context, tell func(cloud.Update)) error {
	for {
		if err := d.stillThere(ctx); err != nil {
			return err
		}
		heard, err := d.followFrom(ctx, tell)
		if !isOutdated(err) || !heard {
			return err
		}
	}
}

// stillThere checks again which cluster answers, if earlier watches have ended.
func (d *driver) stillThere(ctx context.Context) error {
	if !d.followed.Swap(true) {
		return nil
	}
	_, err := d.prove(ctx)
	return err
}

// followFrom lists everything and reports changes until one of the streams ends for good. heard is
// false if no stream has reported anything by then.
func (d *driver) followFrom(ctx context.Context, tell func(cloud.Update)) (heard bool, err error) {
	began := time.Now()
	found, versions, err := d.read(ctx, ofDrover)
	if err != nil {
		return false, err
	}
	tell(cloud.Update{At: began, All: true, Resources: found.resources()})
	ctx, cancel := context.WithCancel(ctx)
	var streams sync.WaitGroup
	defer streams.Wait()
	defer cancel()
	f := newFollowing(found, tell)
	f.vmStream = d.stream(virtualMachines, wholeObject, f.vms.read)
	incoming := make(chan news)
	pass := func(n news) {
		select {
		case incoming <- n:
		case <-ctx.Done():
		}
	}
	follow := func(s *stream, version string) {
		f.add(s, version)
		streams.Go(func() { pass(news{of: s, err: d.watch(ctx, s, version, pass)}) })
	}
	follow(f.vmStream, versions.vms)
	follow(d.stream(virtualInstances, wholeObject, f.vmis.read), versions.vmis)
	follow(d.stream(secrets, metadataOfOne, f.secrets.read), versions.secrets)
	volumes := d.stream(dataVolumes, wholeObject, f.volumes.read)
	if versions.volumes != "" {
		follow(volumes, versions.volumes)
	} else {
		streams.Go(func() { pass(news{of: volumes, err: d.awaitCDI(ctx, volumes.op)}) })
	}
	err = f.listen(ctx, incoming, d.silence)
	return f.heard, err
}

func (d *driver) stream(k resourceKind, accept string, read eventReader) *stream {
	return &stream{
		op:   operation{"Watch" + k.kind + "s", cloud.ClassRead, http.MethodGet, accept, k.kind},
		path: d.path(k, ""), read: read,
	}
}

// awaitCDI polls for DataVolumes. It returns an "outdated" error once CDI is installed.
func (d *driver) awaitCDI(ctx context.Context, op operation) error {
	ticks := time.NewTicker(d.lookForCDI)
	defer ticks.Stop()
	look := operation{"ListDataVolumes", cloud.ClassRead, http.MethodGet, wholeObject, "DataVolumeList"}
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return driverkit.Redactor{}.NoAnswer(op.name, ctx.Err())
		}
		err := d.call(ctx, look, d.path(dataVolumes, ""), url.Values{"limit": {"1"}}, nil, nil)
		switch {
		case err == nil:
			return outdated(op, "CDI was installed meanwhile")
		case !withoutCDI(err):
			return err
		}
	}
}

// following holds what the streams have reported so far.
type following struct {
	vms     *shelf[kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachine]
	vmis    *shelf[kubevirtv1.VirtualMachineInstance, *kubevirtv1.VirtualMachineInstance]
	volumes *shelf[cdiv1.DataVolume, *cdiv1.DataVolume]
	secrets *shelf[metav1.PartialObjectMetadata, *metav1.PartialObjectMetadata]

	tell     func(cloud.Update)
	streams  []*stream
	vmStream *stream
	early    map[string]bool // tokens whose guests or volumes were reported before their VMs
	heard    bool
	signed   time.Time // when a sign of life was last reported
}

func newFollowing(found objects, tell func(cloud.Update)) *following {
	return &following{
		vms:     newShelf[kubevirtv1.VirtualMachine](virtualMachines.kind, keepVM, found.vms),
		vmis:    newShelf[kubevirtv1.VirtualMachineInstance](virtualInstances.kind, keepVMI, found.vmis),
		volumes: newShelf[cdiv1.DataVolume](dataVolumes.kind, keepVolume, found.volumes),
		secrets: newShelf[metav1.PartialObjectMetadata]("PartialObjectMetadata", keepSecret, found.secrets),
		tell:    tell, early: map[string]bool{}, signed: time.Now(),
	}
}

func (f *following) add(s *stream, version string) {
	s.version, s.sign = version, f.signed
	f.streams = append(f.streams, s)
}

// listen processes news until a stream can't continue, or a stream sends nothing for too long.
func (f *following) listen(ctx context.Context, incoming <-chan news, silence time.Duration) error {
	silent := time.NewTimer(silence)
	defer silent.Stop()
	sign := time.NewTimer(silence)
	defer sign.Stop()
	for {
		select {
		case n := <-incoming:
			if n.err != nil {
				return n.err
			}
			f.take(n)
			if f.quietest().sign.After(f.signed) {
				sign.Reset(time.Until(f.signed.Add(signPace)))
			}
		case <-sign.C:
			f.live()
		case <-silent.C:
			quiet := f.quietest()
			if time.Since(quiet.sign) >= silence {
				return cloud.Errorf(cloud.Unavailable, "%s: the stream says nothing any more", quiet.op.name)
			}
			silent.Reset(time.Until(quiet.sign.Add(silence)))
		case <-ctx.Done():
			return driverkit.Redactor{}.NoAnswer(f.vmStream.op.name, ctx.Err())
		}
	}
}

func (f *following) quietest() *stream {
	quiet := f.streams[0]
	for _, s := range f.streams[1:] {
		if s.sign.Before(quiet.sign) {
			quiet = s
		}
	}
	return quiet
}

// take processes one piece of news and reports the resulting changes.
func (f *following) take(n news) {
	f.heard = true
	n.of.version, n.of.sign = n.version, n.at
	if n.change != nil {
		for _, token := range n.change() {
			f.show(token, n.at)
		}
	}
	if n.of == f.vmStream {
		for token := range f.early {
			f.show(token, n.at)
		}
	}
}

// show reports what a machine has now. What arrives before the event of its VM is reported with
// that event, because events are ordered only within one stream.
func (f *following) show(token string, at time.Time) {
	o := objects{vms: f.vms.of(token), vmis: f.vmis.of(token), volumes: f.volumes.of(token), secrets: f.secrets.of(token)}
	if f.isEarly(o) {
		f.early[token] = true
		return
	}
	delete(f.early, token)
	f.tell(cloud.Update{At: at, Token: token, Resources: o.resources()})
}

// isEarly reports whether the VM stream may still deliver the VM of these objects. All three kinds
// are custom resources, which an API server keeps in one store, so their versions share one
// sequence.
func (f *following) isEarly(o objects) bool {
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

// live reports a sign of life if each stream has sent one since the last report. Its time is that
// of the oldest of these signs.
func (f *following) live() {
	if oldest := f.quietest().sign; oldest.After(f.signed) {
		f.signed = time.Now()
		f.tell(cloud.Update{At: oldest})
	}
}
