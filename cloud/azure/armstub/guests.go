// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"encoding/base64"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
)

// Guest is what a machine reads about itself from its metadata service, and from its custom data.
type Guest struct {
	// Name of the machine, and of its resource group.
	Name, Group string
	// ComputerName is its host name.
	ComputerName string
	// AdminUsername is the user that SSHKeys let in.
	AdminUsername string
	SSHKeys       []string
	// Zone is the number of the availability zone, or "".
	Zone, IP string
	// Architecture in Go's terms.
	Architecture string
	CPUs         int32
	MemoryMiB    int64
	// UserData is the custom data, decoded from base64.
	UserData []byte
}

// CustomData returns the user data as Azure was told them.
func (g Guest) CustomData() string { return base64.StdEncoding.EncodeToString(g.UserData) }

// guestOf returns the guest of a machine.
func (c *Cloud) guestOf(m *machine) Guest {
	p := object(m.model, "properties")
	login := object(p, "osProfile")
	g := Guest{Name: m.name, Group: c.options.Group, IP: m.parts[0].ip, Architecture: "amd64"}
	g.ComputerName, g.AdminUsername = fmt.Sprint(login["computerName"]), fmt.Sprint(login["adminUsername"])
	for _, key := range list(object(object(login, "linuxConfiguration"), "ssh"), "publicKeys") {
		g.SSHKeys = append(g.SSHKeys, fmt.Sprint(key.(map[string]any)["keyData"]))
	}
	if zones := list(m.model, "zones"); len(zones) > 0 {
		g.Zone = fmt.Sprint(zones[0])
	}
	g.UserData, _ = base64.StdEncoding.DecodeString(fmt.Sprint(login["customData"])) // check refuses invalid base64
	size := sizeOf(object(p, "hardwareProfile")["vmSize"])
	g.CPUs = int32(number(size, "vCPUs"))
	memory, _ := strconv.ParseFloat(capability(size, "MemoryGB"), 64)
	g.MemoryMiB = int64(memory * 1024)
	if capability(size, "CpuArchitectureType") == "Arm64" {
		g.Architecture = "arm64"
	}
	return g
}

// boot starts the guest when the machine runs.
func (c *Cloud) boot(m *machine) {
	if c.options.Power == nil || m.failed != "" {
		return
	}
	guest := c.guestOf(m)
	m.timer = time.AfterFunc(c.options.Boot, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if m.gone.IsZero() {
			m.off = c.options.Power(guest)
		}
	})
}

// end begins the deletion of a machine, which takes d.
func (m *machine) end(d time.Duration) {
	if !m.gone.IsZero() {
		return
	}
	m.gone = time.Now().Add(d)
	if m.timer != nil {
		m.timer.Stop()
	}
	if m.off != nil {
		m.off()
	}
}

// Remove deletes a machine at once, as another user would, or an eviction. It does nothing if there
// is none.
func (c *Cloud) Remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.machines[strings.ToLower(name)]; m != nil {
		m.gone = time.Time{}
		m.end(0)
		c.removeDeleted()
	}
}

// Entry is one line of the cloud's own books: a machine, even one long gone, or a part.
type Entry struct {
	Name string
	// State of a machine: its provisioning state, or "Gone"; "" for a part.
	State string
	// Attached is the machine that a part belongs to, or "".
	Attached string
	Tags     map[string]string
}

// Books returns everything that was ever created, except parts that are gone.
func (c *Cloud) Books() (all []Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeDeleted()
	text := func(tags map[string]any) map[string]string {
		out := map[string]string{}
		for key, value := range tags {
			out[key] = fmt.Sprint(value)
		}
		return out
	}
	for _, m := range c.buried {
		all = append(all, Entry{Name: m.name, State: "Gone", Tags: text(object(m.model, "tags"))})
	}
	for m := range maps.Values(c.machines) {
		all = append(all, Entry{Name: m.name, State: m.state(), Tags: text(object(m.model, "tags"))})
	}
	for _, parts := range c.parts {
		for _, p := range parts {
			one := Entry{Name: p.name, Tags: text(p.tags)}
			if p.owner != nil {
				one.Attached = p.owner.name
			}
			all = append(all, one)
		}
	}
	return all
}
