// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"encoding/base64"
	"net/url"
	"strings"
	"time"
)

// rootGiB is the size of every image's root volume.
const rootGiB = 8

// Guest is what an instance reads about itself from its metadata service.
type Guest struct {
	ID, Zone, Name, IP string
	// Architecture in Go's terms.
	Architecture string
	CPUs         int32
	MemoryMiB    int64
	DiskGiB      int32
	// UserData as the instance reads it: decoded from base64, still compressed if sent so.
	UserData []byte
}

// guestOf returns the guest of an instance from the request that created it.
func (c *Cloud) guestOf(i *instance, form url.Values) Guest {
	data, _ := base64.StdEncoding.DecodeString(form.Get("UserData")) // checkLaunch refuses invalid base64
	size := sizes[i.size]
	architecture := map[string]string{"x86_64": "amd64", "arm64": "arm64"}[size.Architecture]
	return Guest{
		ID: i.id, Zone: i.zone, Name: i.name(), IP: i.ip, Architecture: architecture,
		CPUs: int32(size.CPUs), MemoryMiB: int64(size.MemoryMiB), DiskGiB: rootGiB, UserData: data,
	}
}

// name returns the instance's private DNS name, which is also its host name.
func (i *instance) name() string { return "ip-" + strings.ReplaceAll(i.ip, ".", "-") + ".ec2.internal" }

// boot starts the guest when the instance runs.
func (c *Cloud) boot(i *instance, guest Guest) {
	if c.options.Power == nil {
		return
	}
	i.timer = time.AfterFunc(c.options.Boot, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if i.ended.IsZero() {
			i.off = c.options.Power(guest)
		}
	})
}

// end stops the instance, with a reason, or with "" after a user's request.
func (i *instance) end(reason string) {
	if !i.ended.IsZero() {
		return
	}
	i.ended, i.reason = time.Now(), reason
	if i.timer != nil {
		i.timer.Stop()
	}
	if i.off != nil {
		i.off()
	}
}

// getConsoleOutput answers as in the EC2 API Reference. The refusal is EC2's own.
func (c *Cloud) getConsoleOutput(form url.Values) (any, *failure) {
	id := form.Get("InstanceId")
	i := c.instances[id]
	if i == nil || i.vanished {
		return nil, refuse("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", id)
	}
	if i.xen && form.Get("Latest") == "true" {
		return nil, refuse("UnsupportedOperation", "This instance type does not support retrieving the latest console logs.")
	}
	return consoleResponse{ID: id, Time: time.Now().UTC().Format(time.RFC3339),
		Output: base64.StdEncoding.EncodeToString([]byte(i.console))}, nil
}

// Entry is one line of the cloud's own books: an instance, even one long gone, or a leftover.
type Entry struct {
	ID string
	// State of an instance in EC2's terms; "" for a volume or a network interface.
	State, Reason string
	// Attached is the instance that a volume or a network interface is attached to, or "".
	Attached string
	Tags     map[string]string
	Made     time.Time
}

// Living reports whether the entry would be billed.
func (e Entry) Living() bool { return e.State != terminated }

// Books returns everything that was created and not deleted, including terminated instances,
// whatever the API shows.
func (c *Cloud) Books() (all []Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick()
	for _, i := range c.instances {
		all = append(all, Entry{ID: i.id, State: c.stateOf(i), Reason: i.reason, Tags: i.tags, Made: i.made})
	}
	for _, l := range c.leftovers {
		all = append(all, Entry{ID: l.id, Attached: l.attached, Tags: l.tags, Made: l.made})
	}
	return all
}
