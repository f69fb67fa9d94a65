// SPDX-License-Identifier: Apache-2.0

package gcpstub

import (
	"fmt"
)

// Guest is what an instance reads about itself from its metadata server.
type Guest struct {
	ID         uint64
	Name, Zone string
	IP         string
	// Metadata are the entries of the instance's metadata.
	Metadata map[string]string
}

// guest returns the guest of an instance.
func (i *instance) guest() Guest {
	g := Guest{ID: i.id, Name: i.name, Zone: i.zone, IP: i.ip, Metadata: map[string]string{}}
	for _, raw := range list(object(i.model, "metadata"), "items") {
		item, _ := raw.(map[string]any)
		g.Metadata[fmt.Sprint(item["key"])] = fmt.Sprint(item["value"])
	}
	return g
}

// Guests returns the guests of all instances.
func (c *Cloud) Guests() (all []Guest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	for _, i := range c.instances {
		all = append(all, i.guest())
	}
	return all
}
