// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The states of an instance, in EC2's words.
const (
	pending      = "pending"
	running      = "running"
	shuttingDown = "shutting-down"
	terminated   = "terminated"
)

// DeniedKey is a KMS key that the account may not use: EC2 accepts the request, and the instance
// ends before it runs.
const DeniedKey = "alias/denied"

type instance struct {
	id, zone, size, image, ip string
	spot, impaired, vanished  bool
	xen                       bool // has the Xen hypervisor, as few types do
	console                   string
	event                     *eventItem // the announced event, or nil
	made, ended               time.Time  // ended: when its termination began
	reason                    string     // why it ended; "" after a user's request
	tags                      map[string]string
	timer                     *time.Timer // until its guest boots
	off                       func()      // switches its guest off; nil while the guest is off
}

// leftover is a volume or a network interface that is not deleted with an instance.
type leftover struct {
	id       string
	attached string // ID of the instance that it is attached to
	made     time.Time
	tags     map[string]string
}

// zonalToken is the idempotency key if a request names a zone or a subnet.
type zonalToken struct{ token, zone string }

// launch is the result of a request with a token.
type launch struct {
	request  [sha256.Size]byte
	instance string // "" if it failed
}

func itoa(n int) string { return strconv.Itoa(n) }

// number returns an ID with 17 digits, as AWS's IDs have. IDs are unique across accounts and ascend
// within an account.
func (c *Cloud) number(prefix string) string {
	c.made++
	return fmt.Sprintf("%s%09x%08x", prefix, c.account, c.made)
}

func (c *Cloud) stateOf(i *instance) string {
	switch {
	case !i.ended.IsZero() && time.Since(i.ended) >= c.options.Stop:
		return terminated
	case !i.ended.IsZero():
		return shuttingDown
	case time.Since(i.made) >= c.options.Boot:
		return running
	}
	return pending
}

// tick detaches leftovers from terminated instances.
func (c *Cloud) tick() {
	for _, l := range c.leftovers {
		if i := c.instances[l.attached]; i != nil && c.stateOf(i) == terminated {
			l.attached = ""
		}
	}
}

func (c *Cloud) newInstance(zone, size, image string, tags map[string]string) *instance {
	i := &instance{id: c.number("i-"), zone: zone, size: size, image: image, made: time.Now(), tags: tags}
	i.ip = fmt.Sprintf("10.%d.%d.%d", c.options.Subnet, c.made>>8&255, c.made&255)
	c.instances[i.id] = i
	return i
}

func (c *Cloud) runInstances(form url.Values) (any, *failure) {
	subnet, fail := c.checkLaunch(form)
	if fail != nil {
		return nil, fail
	}
	if form.Get("DryRun") == "true" {
		return nil, &failure{http.StatusPreconditionFailed, "DryRunOperation", "Request would have succeeded, but DryRun flag is set."}
	}
	key := zonalToken{form.Get("ClientToken"), subnet.Zone}
	request := fingerprint(form)
	if before, ok := c.tokens[key]; ok {
		i := c.instances[before.instance]
		switch {
		case before.request != request:
			return nil, refuse("IdempotentParameterMismatch",
				"Arguments on this idempotent request are inconsistent with arguments used in previous request(s).")
		case i != nil && c.stateOf(i) == terminated:
			return nil, refuse("IdempotentInstanceTerminated", "The instance %s of this idempotent request is terminated.", i.id)
		case i != nil:
			return runResponse{Instances: []instanceItem{c.item(i)}}, nil
		}
	}
	c.tokens[key] = launch{request: request}
	if fail := c.checkRoom(subnet.Zone); fail != nil {
		return nil, fail
	}
	tags := map[string]map[string]string{}
	for _, spec := range tagged(form, "TagSpecification") {
		of := map[string]string{}
		for _, tag := range tagged(spec, "Tag") {
			of[tag.Get("Key")] = tag.Get("Value")
		}
		tags[spec.Get("ResourceType")] = of
	}
	i := c.newInstance(subnet.Zone, form.Get("InstanceType"), form.Get("ImageId"), tags["instance"])
	i.spot = form.Get("InstanceMarketOptions.MarketType") == "spot"
	c.leave(i, form, tags)
	switch {
	case usesKey(form, DeniedKey):
		i.end("Client.InternalError: Client error on launch")
	case c.birth == Stillborn:
		i.end("Server.InternalError: Internal error on launch")
	case c.birth == Roomless:
		i.end("Server.InsufficientInstanceCapacity: Insufficient capacity.")
	case c.birth != Lifeless:
		c.boot(i, c.guestOf(i, form))
	}
	c.tokens[key] = launch{request: request, instance: i.id}
	if n, ok := c.capacity[subnet.Zone]; ok {
		c.capacity[subnet.Zone] = n - 1
	}
	return runResponse{Instances: []instanceItem{c.item(i)}}, nil
}

// leave creates what outlives the instance: what neither the request nor the image deletes on
// termination.
func (c *Cloud) leave(i *instance, form url.Values, tags map[string]map[string]string) {
	add := func(prefix, kind string) {
		l := &leftover{id: c.number(prefix), attached: i.id, made: time.Now(), tags: tags[kind]}
		c.leftovers[l.id] = l
	}
	devices := tagged(form, "BlockDeviceMapping")
	named := slices.ContainsFunc(devices, func(d url.Values) bool { return d.Get("DeviceName") == keptDevice })
	if c.options.Keep || i.image == KeepingImage && !named {
		add("vol-", "volume")
	}
	for _, device := range devices {
		if device.Get("Ebs.DeleteOnTermination") != "true" {
			add("vol-", "volume")
		}
	}
	for _, nic := range tagged(form, "NetworkInterface") {
		if nic.Get("DeleteOnTermination") != "true" {
			add("eni-", "network-interface")
		}
	}
}

// usesKey reports whether a disk is to be encrypted with the key.
func usesKey(form url.Values, key string) bool {
	return slices.ContainsFunc(tagged(form, "BlockDeviceMapping"), func(d url.Values) bool { return d.Get("Ebs.KmsKeyId") == key })
}

func (c *Cloud) checkRoom(zone string) *failure {
	living := 0
	for _, i := range c.instances {
		if i.ended.IsZero() {
			living++
		}
	}
	if c.options.Quota > 0 && living >= c.options.Quota {
		return refuse("VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit allows.")
	}
	if n, ok := c.capacity[zone]; ok && n <= 0 {
		return &failure{http.StatusInternalServerError, "InsufficientInstanceCapacity",
			"We currently do not have sufficient capacity in the Availability Zone you requested (" + zone + ")."}
	}
	return nil
}

// named returns the IDs of the instances that a call names, or an error if one does not exist.
func (c *Cloud) named(form url.Values) ([]string, *failure) { return c.known(list(form, "InstanceId")) }

// known returns the IDs, or an error if one is not of an instance.
func (c *Cloud) known(ids []string) ([]string, *failure) {
	var missing []string
	for _, id := range ids {
		if !strings.HasPrefix(id, "i-") {
			return nil, refuse("InvalidInstanceID.Malformed", "Invalid id: \"%s\"", id)
		}
		if i := c.instances[id]; i == nil || i.vanished {
			missing = append(missing, id)
		}
	}
	if len(missing) == 1 {
		return nil, refuse("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", missing[0])
	}
	if len(missing) > 1 {
		return nil, refuse("InvalidInstanceID.NotFound", "The instance IDs '%s' do not exist", strings.Join(missing, ", "))
	}
	return ids, nil
}

func (c *Cloud) terminateInstances(form url.Values) (any, *failure) {
	ids, fail := c.named(form)
	if fail != nil {
		return nil, fail
	}
	for _, id := range ids {
		if c.protected[id] {
			return nil, refuse("OperationNotPermitted", "The instance '%s' may not be terminated. Modify its 'disableApiTermination' instance attribute and try again.", id)
		}
	}
	var out terminateResponse
	for _, id := range ids {
		i := c.instances[id]
		before := c.stateOf(i)
		i.end("")
		out.Instances = append(out.Instances, changeItem{ID: id, Before: stateItem{before}, Now: stateItem{c.stateOf(i)}})
	}
	return out, nil
}

func (c *Cloud) describeInstances(form url.Values) (any, *failure) {
	ids, fail := c.named(form)
	if fail != nil {
		return nil, fail
	}
	var found []*instance
	for _, id := range slices.Sorted(keys(c.instances)) {
		if i := c.instances[id]; c.shows(i) && (len(ids) == 0 || slices.Contains(ids, id)) {
			found = append(found, i)
		}
	}
	found, next, fail := page(c, form, found, func(i *instance, name string) []string {
		if name == "instance-state-name" {
			return []string{c.stateOf(i)}
		}
		return tagValues(i.tags, name)
	})
	out := instancesResponse{NextToken: next}
	for _, i := range found {
		out.Reservations = append(out.Reservations, reservationItem{Instances: []instanceItem{c.item(i)}})
	}
	return out, fail
}

// describeInstanceStatus lists running instances only, as EC2 does by default.
func (c *Cloud) describeInstanceStatus(form url.Values) (any, *failure) {
	var all []statusItem
	for _, id := range slices.Sorted(keys(c.instances)) {
		if i := c.instances[id]; c.stateOf(i) == running {
			all = append(all, i.status())
		}
	}
	found, next, fail := page(c, form, all, func(s statusItem, name string) []string {
		switch {
		case name == "instance-status.status":
			return []string{s.Instance}
		case name == "system-status.status":
			return []string{s.System}
		case name == "event.code" && len(s.Events) > 0:
			return []string{s.Events[0].Code}
		}
		return nil
	})
	return statusResponse{Statuses: found, NextToken: next}, fail
}

func (i *instance) status() statusItem {
	s := statusItem{ID: i.id, Instance: "ok", System: "ok"}
	if i.impaired {
		s.Instance = "impaired"
	}
	if i.event != nil {
		s.Events = []eventItem{*i.event}
	}
	return s
}

// shows reports whether the API shows an instance: after Options.Lag, until Options.Remember ends.
func (c *Cloud) shows(i *instance) bool {
	forgotten := c.options.Remember > 0 && !i.ended.IsZero() && time.Since(i.ended) >= c.options.Stop+c.options.Remember
	return time.Since(i.made) >= c.options.Lag && !forgotten && !i.vanished
}

func (c *Cloud) describeVolumes(form url.Values) (any, *failure) {
	found, next, fail := c.findLeftovers(form, "vol-")
	out := volumesResponse{NextToken: next}
	for _, l := range found {
		out.Volumes = append(out.Volumes, l.volume())
	}
	return out, fail
}

func (c *Cloud) describeNetworkInterfaces(form url.Values) (any, *failure) {
	found, next, fail := c.findLeftovers(form, "eni-")
	out := interfacesResponse{NextToken: next}
	for _, l := range found {
		out.Interfaces = append(out.Interfaces, l.networkInterface())
	}
	return out, fail
}

func (c *Cloud) findLeftovers(form url.Values, prefix string) ([]*leftover, string, *failure) {
	c.tick()
	var found []*leftover
	for _, id := range slices.Sorted(keys(c.leftovers)) {
		if l := c.leftovers[id]; strings.HasPrefix(id, prefix) && time.Since(l.made) >= c.options.Lag {
			found = append(found, l)
		}
	}
	return page(c, form, found, func(l *leftover, name string) []string {
		if name == "status" {
			return []string{l.status()}
		}
		return tagValues(l.tags, name)
	})
}

func (l *leftover) status() string {
	if l.attached != "" {
		return "in-use"
	}
	return "available"
}

func (c *Cloud) deleteLeftover(id, kind, inUse string) (any, *failure) {
	c.tick()
	l := c.leftovers[id]
	switch {
	case l == nil:
		return nil, refuse(kind+".NotFound", "'%s' does not exist.", id)
	case l.attached != "":
		return nil, refuse(inUse, "%s is attached to %s", id, l.attached)
	}
	delete(c.leftovers, id)
	c.buried = append(c.buried, l)
	return doneResponse{Done: true}, nil
}
