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

// silence is how long a stream may say nothing. An API server gives a sign within a minute of a
// stream's begin and of the sign before, so that a stream which is cut off and begun anew needs two
// at most.
const silence = 130 * time.Second

// lookForCDI is how often it is asked for where it is not installed: as often as a watch of its
// volumes would cost a call.
const lookForCDI = cloud.StreamTime

// signPace is how often a sign of life is told at most: the engine looks at every machine for each.
const signPace = time.Second

// Follow implements cloud.Follower: a listing, and from there on one watch for each kind. Where a
// watch can't go on because the API server has forgotten what was between, it lists anew.
func (d *driver) Follow(ctx context.Context, tell func(cloud.Change)) error {
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

// stillThere asks anew which cluster it is where the watches have ended before.
func (d *driver) stillThere(ctx context.Context) error {
	if !d.followed.Swap(true) {
		return nil
	}
	_, err := d.prove(ctx)
	return err
}

// followFrom reads everything and tells what changes, until one of the streams ends for good. heard
// is false when none has told anything before.
func (d *driver) followFrom(ctx context.Context, tell func(cloud.Change)) (heard bool, err error) {
	began := time.Now()
	found, versions, err := d.read(ctx, ofDrover)
	if err != nil {
		return false, err
	}
	tell(cloud.Change{At: began, All: true, Resources: found.resources()})
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

// awaitCDI looks now and then whether there are volumes by now, and returns once there may be.
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

// following is what the streams have told so far.
type following struct {
	vms     *shelf[kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachine]
	vmis    *shelf[kubevirtv1.VirtualMachineInstance, *kubevirtv1.VirtualMachineInstance]
	volumes *shelf[cdiv1.DataVolume, *cdiv1.DataVolume]
	secrets *shelf[metav1.PartialObjectMetadata, *metav1.PartialObjectMetadata]

	tell     func(cloud.Change)
	streams  []*stream
	vmStream *stream
	early    map[string]bool // tokens whose guests or volumes have been heard of before their VMs
	heard    bool
	signed   time.Time // when a sign of life was last told
}

func newFollowing(found objects, tell func(cloud.Change)) *following {
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

// listen takes the news in, until a stream says that it can't go on, or one says nothing for too
// long.
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

// take takes one piece of news, and tells what it means.
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

// show tells what a machine has now. What comes before the news of its VM is told with it: each
// stream is in order, and not one with another.
func (f *following) show(token string, at time.Time) {
	o := objects{vms: f.vms.of(token), vmis: f.vmis.of(token), volumes: f.volumes.of(token), secrets: f.secrets.of(token)}
	if f.isEarly(o) {
		f.early[token] = true
		return
	}
	delete(f.early, token)
	f.tell(cloud.Change{At: at, Token: token, Resources: o.resources()})
}

// isEarly tells whether the VM's own stream may yet tell of the VM that these are of. All three are
// custom resources, which an API server keeps in one store, so that their versions are of one
// count.
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

// live gives a sign of life when each stream has given one since the last: that is as of when the
// first of them did.
func (f *following) live() {
	if oldest := f.quietest().sign; oldest.After(f.signed) {
		f.signed = time.Now()
		f.tell(cloud.Change{At: oldest})
	}
}
