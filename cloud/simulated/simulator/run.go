// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func refuse(code, format string, args ...any) *wire.ErrorResponse {
	return &wire.ErrorResponse{Code: code, Message: fmt.Sprintf(format, args...)}
}

// run creates an instance. fate is a fault of the instance itself, or "". The caller holds s.mu.
func (s *Server) run(a *account, req wire.RunInstancesRequest, fate FaultKind) (*wire.RunInstancesResponse, *wire.ErrorResponse) {
	region := s.region(req.Region)
	if region == nil {
		return nil, refuse(wire.InvalidParameterValue, "there is no region %q", req.Region)
	}
	now, p := time.Now(), a.place(req.Region)
	p.sweep(now, s.settings.TerminatedVisible.Duration)
	params := digest(req)
	if b := p.bindings[req.ClientToken]; b != nil && req.ClientToken != "" {
		if b.params != params {
			return nil, refuse(wire.IdempotentParameterMismatch, "the client token was used with other parameters")
		}
		r, _ := b.inst.view(now)
		return &wire.RunInstancesResponse{Instance: r}, nil
	}
	shape, err := s.check(region, &req)
	if err != nil {
		return nil, err
	}
	if err := a.room(p.usage(now), shape, req); err != nil {
		return nil, err
	}
	zone, err := s.chooseZone(region, req, now)
	if err != nil {
		return nil, err
	}
	if req.DryRun {
		return nil, refuse(wire.DryRunOperation, "the request would have succeeded")
	}
	i := s.make(p, req, shape, zone, now)
	if req.ClientToken != "" {
		p.bindings[req.ClientToken] = &binding{params, i, now}
	}
	s.begin(i, now, fate)
	r, _ := i.view(now)
	return &wire.RunInstancesResponse{Instance: r}, nil
}

func digest(req wire.RunInstancesRequest) [32]byte {
	req.DryRun = false
	text, err := json.Marshal(req)
	if err != nil {
		panic(err) // only strings, numbers and maps of strings: can't fail
	}
	return sha256.Sum256(text)
}

// shape holds the catalog's entries for a request.
type shape struct {
	size  wire.InstanceType
	image Image
}

// check validates a request and sets its defaults.
func (s *Server) check(region *Region, req *wire.RunInstancesRequest) (shape, *wire.ErrorResponse) {
	var out shape
	if req.Network == "" {
		req.Network = s.networks[0].Name
	}
	if req.DiskGiB == 0 {
		req.DiskGiB = 20
	}
	t := slices.IndexFunc(s.types, func(t wire.InstanceType) bool { return t.Name == req.InstanceType })
	i := slices.IndexFunc(s.images, func(i Image) bool { return i.Name == req.Image })
	switch {
	case t < 0:
		return out, refuse(wire.InvalidParameterValue, "there is no instance type %q", req.InstanceType)
	case i < 0:
		return out, refuse(wire.InvalidParameterValue, "there is no image %q", req.Image)
	case s.images[i].Arch != s.types[t].Arch:
		return out, refuse(wire.InvalidParameterValue, "image %q is for %s, instance type %q is %s", req.Image, s.images[i].Arch,
			req.InstanceType, s.types[t].Arch)
	case req.Spot && s.types[t].SpotPricePerHour == 0:
		return out, refuse(wire.InvalidParameterValue, "instance type %q can't be had as spot", req.InstanceType)
	case req.Zone != "" && !slices.Contains(region.Zones, req.Zone):
		return out, refuse(wire.InvalidParameterValue, "region %q has no zone %q", region.Name, req.Zone)
	case s.pools[req.Network] == nil:
		return out, refuse(wire.InvalidParameterValue, "there is no network %q", req.Network)
	case req.Name != "" && !namePattern.MatchString(req.Name):
		return out, refuse(wire.InvalidParameterValue, "the name is not a host name of at most %d characters", wire.MaxName)
	case len(req.ClientToken) > wire.MaxClientToken:
		return out, refuse(wire.InvalidParameterValue, "the client token is longer than %d characters", wire.MaxClientToken)
	case len(req.UserData) > wire.MaxUserData:
		return out, refuse(wire.InvalidParameterValue, "the user data has %d bytes; the limit is %d", len(req.UserData), wire.MaxUserData)
	case len(req.DataDisksGiB) > 16:
		return out, refuse(wire.InvalidParameterValue, "%d data disks; the limit is 16", len(req.DataDisksGiB))
	}
	for _, size := range append([]int32{req.DiskGiB}, req.DataDisksGiB...) {
		if size < 1 || size > 1<<16 {
			return out, refuse(wire.InvalidParameterValue, "a disk of %d GiB can't be had", size)
		}
	}
	return shape{s.types[t], s.images[i]}, checkTags(req.Tags)
}

func checkTags(tags map[string]string) *wire.ErrorResponse {
	if len(tags) > wire.MaxTags {
		return refuse(wire.InvalidParameterValue, "%d tags; the limit is %d", len(tags), wire.MaxTags)
	}
	for k, v := range tags {
		if k == "" || len(k) > wire.MaxTagKey || len(v) > wire.MaxTagValue {
			return refuse(wire.InvalidParameterValue, "a tag's key has 1 to %d bytes, its value at most %d", wire.MaxTagKey, wire.MaxTagValue)
		}
	}
	return nil
}

// room checks the quota.
func (a *account) room(used Quota, what shape, req wire.RunInstancesRequest) *wire.ErrorResponse {
	disk := int(req.DiskGiB)
	for _, d := range req.DataDisksGiB {
		disk += int(d)
	}
	over := func(limit, used, more int) bool { return limit > 0 && used+more > limit }
	switch {
	case over(a.quota.Instances, used.Instances, 1):
		return refuse(wire.InstanceLimitExceeded, "the quota of %d instances is used up", a.quota.Instances)
	case over(a.quota.VCPUs, used.VCPUs, int(what.size.CPU)):
		return refuse(wire.InstanceLimitExceeded, "the quota of %d vCPUs leaves no room for %d", a.quota.VCPUs, what.size.CPU)
	case over(a.quota.DiskGiB, used.DiskGiB, disk):
		return refuse(wire.InstanceLimitExceeded, "the quota of %d GiB of disks leaves no room for %d", a.quota.DiskGiB, disk)
	}
	return nil
}

// chooseZone returns the requested zone if it has capacity, or the emptiest one that has.
func (s *Server) chooseZone(region *Region, req wire.RunInstancesRequest, now time.Time) (string, *wire.ErrorResponse) {
	all, ofType := map[string]int{}, map[string]int{}
	for _, a := range s.accounts {
		for _, i := range a.place(region.Name).instances {
			if i.alive(now) {
				all[i.res.Zone]++
				if i.res.InstanceType == req.InstanceType {
					ofType[i.res.Zone]++
				}
			}
		}
	}
	best := ""
	for _, zone := range region.Zones {
		if req.Zone != "" && req.Zone != zone {
			continue
		}
		if limit, bounded := region.capacity(zone, req.InstanceType); bounded && ofType[zone] >= limit {
			continue
		}
		if best == "" || all[zone] < all[best] {
			best = zone
		}
	}
	if best == "" {
		where := req.Zone
		if where == "" {
			where = region.Name
		}
		return "", refuse(wire.InsufficientInstanceCapacity, "no capacity for %s in %s", req.InstanceType, where)
	}
	return best, nil
}

func (r *Region) capacity(zone, size string) (int, bool) {
	if n, ok := r.Capacity[zone][size]; ok {
		return n, true
	}
	n, ok := r.Capacity[zone]["*"]
	return n, ok
}

// make creates the instance and its dependants.
func (s *Server) make(p *place, req wire.RunInstancesRequest, what shape, zone string, now time.Time) *instance {
	base := wire.Resource{Region: req.Region, Zone: zone, CreatedAt: now}
	ip := s.pools[req.Network].take()
	i := &instance{res: base, lag: s.drawLag(), vcpus: int(what.size.CPU)}
	i.res.Kind, i.res.ID, i.res.Tags = wire.Instance, newID("i", s.rand), maps.Clone(req.Tags)
	i.res.Name, i.res.InstanceType, i.res.Image, i.res.Spot = req.Name, req.InstanceType, req.Image, req.Spot
	i.res.Network, i.res.PrivateIP = req.Network, ip
	if i.res.Name == "" {
		i.res.Name = "ip-" + strings.ReplaceAll(ip, ".", "-")
	}
	attach := func(kind wire.Kind, prefix string, ends bool) *dependant {
		d := &dependant{res: base, lag: s.drawLag()}
		d.res.Kind, d.res.ID, d.res.Tags = kind, newID(prefix, s.rand), maps.Clone(req.Tags)
		d.res.AttachedTo, d.res.DeleteOnTerminated = i.res.ID, ends
		p.dependants[d.res.ID] = d
		return d
	}
	nic := attach(wire.NIC, "nic", true)
	nic.res.Network, nic.res.PrivateIP = req.Network, ip
	root := attach(wire.Disk, "disk", true)
	root.res.SizeGiB = req.DiskGiB
	i.own = []*dependant{nic, root}
	for _, size := range req.DataDisksGiB {
		d := attach(wire.Disk, "disk", false)
		d.res.SizeGiB = size
		i.data = append(i.data, d)
	}
	i.body = s.fleet.New(body.Machine{
		InstanceID: i.res.ID, Region: req.Region, Zone: zone, Hostname: i.res.Name, IP: ip,
		CPU: what.size.CPU, MemoryMiB: what.size.MemoryMiB, DiskGiB: req.DiskGiB,
		Arch: what.image.Arch, OS: what.image.OS, Software: what.image.Software, UserData: slices.Clone(req.UserData),
	})
	p.instances[i.res.ID] = i
	return i
}

// begin plans the instance's boot, and when a spot instance is taken back.
func (s *Server) begin(i *instance, now time.Time, fate FaultKind) {
	boot := s.settings.BootMin.Duration
	if span := s.settings.BootMax.Duration - boot; span > 0 {
		boot += time.Duration(s.rand.Int64N(int64(span)))
	}
	i.plan(now, event{now, wire.Pending, ""})
	switch fate {
	case StuckPending:
		return
	case FailBoot:
		const reason = "Server.InternalError: the instance failed to start"
		i.plan(now, event{now.Add(boot), wire.Terminated, reason})
		i.release(now.Add(boot))
		return
	}
	i.plan(now, event{now.Add(boot), wire.Running, ""})
	if fate != DeadBody {
		i.timers = append(i.timers, time.AfterFunc(boot, i.body.Start))
	}
	if mean := s.settings.SpotLifetime.Duration; i.res.Spot && mean > 0 {
		life := time.Duration(s.rand.ExpFloat64() * float64(mean))
		i.timers = append(i.timers, time.AfterFunc(boot+life, func() { s.endInstance(i, reclaimed) }))
	}
}

// reclaimed is EC2's reason for a spot instance that was taken back.
const reclaimed = "Server.SpotInstanceTermination: the cloud took the spot instance back"

// endInstance terminates an instance, unless it is already terminating.
func (s *Server) endInstance(i *instance, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(i, reason)
}

// end is endInstance for callers that hold s.mu.
func (s *Server) end(i *instance, reason string) {
	if i.terminating() {
		return
	}
	i.stopTimers()
	i.end(time.Now(), s.settings.Stop.Duration, reason)
	i.body.Discard()
}

func (s *Server) drawLag() time.Duration {
	if lag := s.settings.ConsistencyLag.Duration; lag > 0 {
		return time.Duration(s.rand.Int64N(int64(lag) + 1))
	}
	return 0
}
