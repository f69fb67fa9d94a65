// SPDX-License-Identifier: Apache-2.0

package gcpstub

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"
)

// Guest is what an instance reads about itself from its metadata server.
type Guest struct {
	ID                  uint64
	Project, Name, Zone string
	IP                  string
	// Architecture in Go's terms.
	Architecture string
	CPUs         int32
	MemoryMiB    int64
	// Metadata are the entries of the instance's metadata.
	Metadata map[string]string
}

// UserData returns the user data, decoded.
func (g Guest) UserData() []byte {
	value := g.Metadata["user-data"]
	if g.Metadata["user-data-encoding"] != "base64" {
		return []byte(value)
	}
	data, _ := base64.StdEncoding.DecodeString(value) // the driver's test of user data judges it
	return data
}

// guest returns the guest of an instance.
func (c *Cloud) guest(i *instance) Guest {
	g := Guest{ID: i.id, Project: c.options.Project, Name: i.name, Zone: i.zone, IP: i.ip, Architecture: "amd64",
		Metadata: map[string]string{}}
	for _, raw := range list(object(i.model, "metadata"), "items") {
		item, _ := raw.(map[string]any)
		g.Metadata[fmt.Sprint(item["key"])] = fmt.Sprint(item["value"])
	}
	machine := fmt.Sprint(i.model["machineType"])
	if kind := catalog()[machine[strings.LastIndexByte(machine, '/')+1:]]; kind != nil {
		g.CPUs, g.MemoryMiB = int32(kind["guestCpus"].(int)), int64(kind["memoryMb"].(int))
		if kind["architecture"] != "X86_64" {
			g.Architecture = "arm64"
		}
	}
	return g
}

// Guests returns the guests of all instances.
func (c *Cloud) Guests() (all []Guest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeEnded()
	for _, i := range c.instances {
		all = append(all, c.guest(i))
	}
	return all
}

// boot starts the guest when the instance runs.
func (c *Cloud) boot(i *instance) {
	if c.options.Power == nil || i.failed != "" {
		return
	}
	guest := c.guest(i)
	i.timer = time.AfterFunc(c.options.Boot, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if i.gone.IsZero() {
			i.off = c.options.Power(guest)
		}
	})
}

// end begins the deletion of an instance, which takes d.
func (i *instance) end(d time.Duration) {
	if !i.gone.IsZero() {
		return
	}
	i.gone = time.Now().Add(d)
	if i.timer != nil {
		i.timer.Stop()
	}
	if i.off != nil {
		i.off()
	}
}

// Remove deletes an instance at once, as another user would. It does nothing if there is none.
func (c *Cloud) Remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.instances {
		if i.name == name {
			i.end(0)
			i.gone = time.Now()
		}
	}
	c.removeEnded()
}

// Entry is one line of the cloud's own books: an instance, even one long gone, or a disk.
type Entry struct {
	Name string
	// State of an instance: its status, "Gone", or "Refused" if it was accepted and never made; ""
	// for a disk.
	State string
	// Attached is the instance that a disk belongs to, or "".
	Attached string
	Labels   map[string]string
	// Description and NetworkTags of an instance.
	Description string
	NetworkTags []string
}

// Books returns everything that was ever created, except disks that are gone.
func (c *Cloud) Books() (all []Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeEnded()
	text := func(labels any) map[string]string {
		out := map[string]string{}
		l, _ := labels.(map[string]any)
		for key, value := range l {
			out[key] = fmt.Sprint(value)
		}
		return out
	}
	add := func(i *instance, state string) {
		description, _ := i.model["description"].(string)
		one := Entry{Name: i.name, State: state, Labels: text(i.model["labels"]), Description: description}
		for _, tag := range list(object(i.model, "tags"), "items") {
			one.NetworkTags = append(one.NetworkTags, fmt.Sprint(tag))
		}
		all = append(all, one)
	}
	for _, i := range c.buried {
		if i.failed != "" {
			add(i, "Refused")
			continue
		}
		add(i, "Gone")
	}
	for _, i := range c.instances {
		add(i, i.state())
	}
	for _, d := range c.disks {
		one := Entry{Name: d.name, Labels: text(d.labels)}
		if d.owner != nil {
			one.Attached = d.owner.name
		}
		all = append(all, one)
	}
	return all
}
