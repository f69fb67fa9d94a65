// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"net/url"
	"time"
)

type addressesResponse struct {
	Addresses []addressItem `xml:"addressesSet>item"`
}

type addressItem struct {
	Allocation  string    `xml:"allocationId"`
	Association string    `xml:"associationId,omitempty"`
	Instance    string    `xml:"instanceId,omitempty"`
	Domain      string    `xml:"domain"`
	Tags        []tagItem `xml:"tagSet>item"`
}

// Allocate creates an elastic IP address with tags, and associates it with an instance unless that
// is "".
func (c *Cloud) Allocate(instance string, tags map[string]string) (id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &leftover{id: c.number("eipalloc-"), attached: instance, made: time.Now(), tags: tags}
	c.leftovers[l.id] = l
	return l.id
}

// Plug creates a network interface with tags that is attached to an instance and outlives it.
func (c *Cloud) Plug(instance string, tags map[string]string) (id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &leftover{id: c.number("eni-"), attached: instance, made: time.Now(), tags: tags}
	c.leftovers[l.id] = l
	return l.id
}

// describeAddresses has no pages, as in EC2.
func (c *Cloud) describeAddresses(form url.Values) (any, *failure) {
	found, _, fail := c.findLeftovers(form, "eipalloc-")
	var out addressesResponse
	for _, l := range found {
		item := addressItem{Allocation: l.id, Domain: "vpc", Instance: l.attached, Tags: toTags(l.tags)}
		if l.attached != "" {
			item.Association = "eipassoc-" + l.id[len("eipalloc-"):]
		}
		out.Addresses = append(out.Addresses, item)
	}
	return out, fail
}
