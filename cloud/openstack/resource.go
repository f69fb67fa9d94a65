// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/drover-io/drover/cloud"
)

// server is Nova's, as far as it is read: "List Servers Detailed" in its API reference.
type server struct {
	ID         string               `json:"id"`
	Name       string               `json:"name"`
	Status     string               `json:"status"`
	Task       string               `json:"OS-EXT-STS:task_state"`
	Zone       string               `json:"OS-EXT-AZ:availability_zone"`
	Created    time.Time            `json:"created"`
	Launched   string               `json:"OS-SRV-USG:launched_at"`
	Metadata   map[string]string    `json:"metadata"`
	Addresses  map[string][]address `json:"addresses"`
	AccessIPv4 string               `json:"accessIPv4"`
	AccessIPv6 string               `json:"accessIPv6"`
	Fault      struct {
		Message string `json:"message"`
	} `json:"fault"`
}

type address struct {
	Address string `json:"addr"`
	Type    string `json:"OS-EXT-IPS:type"`
}

func (d *driver) resource(s *server) cloud.Resource {
	state, code, reason := s.state()
	return cloud.Resource{
		Kind: cloud.KindInstance, ID: s.ID, ProviderID: providerID(d.account, s.ID),
		Token: s.Metadata[cloud.TagToken], OwnershipID: s.Metadata[cloud.TagOwnership],
		CreatedAt: s.Created, State: state, Code: code, Reason: reason, FailureDomain: s.Zone, Addresses: s.addresses(),
	}
}

// state follows "Server status" in Nova's API reference. A server is in ERROR that never came to
// be, and also one that an action failed on, a migration for one: the latter may be brought back by
// its operator.
func (s *server) state() (state cloud.State, code cloud.Code, reason string) {
	switch s.Status {
	case "DELETED", "SOFT_DELETED":
		return cloud.StateTerminated, "", ""
	}
	if s.Task == "deleting" || s.Task == "soft-deleting" {
		return cloud.StateStopping, "", ""
	}
	switch s.Status {
	case "BUILD":
		return cloud.StatePending, "", ""
	case "ERROR":
		reason = cmp.Or(cloud.Clip(s.Fault.Message, maxWords), "the server is in ERROR, and Nova does not say why")
		if s.Launched == "" {
			return cloud.StateFailed, faultCode(s.Fault.Message), reason
		}
		return cloud.StateStopped, "", reason
	case "SHUTOFF", "SUSPENDED", "PAUSED", "SHELVED", "SHELVED_OFFLOADED":
		return cloud.StateStopped, "", s.Status
	}
	return cloud.StateRunning, "", ""
}

// faultCode is what Nova's words for a fault mean. That its scheduler found no host is a lack of
// capacity, or a request that no host can serve. A fault has a text and no kind; where a volume
// exceeds a quota of Cinder's, the text names the quota.
func faultCode(fault string) cloud.Code {
	switch {
	case strings.HasPrefix(fault, "No valid host was found"):
		return cloud.NoCapacity
	case strings.HasPrefix(fault, "Build of instance") && strings.Contains(strings.ToLower(fault), "quota"):
		return cloud.QuotaExceeded
	}
	return ""
}

// addresses are those that OpenStack's cloud controller gives the Node: fixed ones are internal,
// floating and access ones external. IPv4 comes before IPv6 where the server has both in one
// network.
func (s *server) addresses() []clusterv1.MachineAddress {
	var all []clusterv1.MachineAddress
	add := func(kind clusterv1.MachineAddressType, value string) {
		a := clusterv1.MachineAddress{Type: kind, Address: value}
		if value != "" && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	add(clusterv1.MachineHostName, s.Name)
	for _, name := range slices.Sorted(maps.Keys(s.Addresses)) {
		in := slices.Clone(s.Addresses[name])
		slices.SortStableFunc(in, func(a, b address) int { return cmp.Compare(family(a.Address), family(b.Address)) })
		for _, a := range in {
			if a.Type == "floating" {
				add(clusterv1.MachineExternalIP, a.Address)
			} else {
				add(clusterv1.MachineInternalIP, a.Address)
			}
		}
	}
	add(clusterv1.MachineExternalIP, s.AccessIPv4)
	add(clusterv1.MachineExternalIP, s.AccessIPv6)
	return all
}

func family(text string) int {
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		return 4
	}
	return 6
}

// port is Neutron's, as far as it is read. Its name carries the token, its description the rest:
// see portDescription.
type port struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	Description string    `json:"description"`
	CreatedAt   time.Time `json:"created_at"`
	Trunk       trunk     `json:"trunk_details,omitzero"`
}

func (p *port) token() string { return tokenOf(p.Name) }

// tokenOf reads what portName has written, or returns "".
func tokenOf(name string) string {
	token, ok := strings.CutPrefix(name, portName(""))
	if !ok {
		return ""
	}
	return token
}

func (p *port) ownership() string { return p.word(cloud.TagOwnership) }

// index is the port's place among its machine's, or -1.
func (p *port) index() int {
	index, err := strconv.Atoi(p.word("drover-port"))
	if err != nil {
		return -1
	}
	return index
}

// floating tells whether a floating IP is made for the port.
func (p *port) floating() bool { return p.word(floatingWord) != "" }

// volumes tells whether volumes are made for the port's machine.
func (p *port) volumes() bool { return p.word(volumesWord) != "" }

func (p *port) word(key string) string {
	for word := range strings.FieldsSeq(p.Description) {
		if value, ok := strings.CutPrefix(word, key+"="); ok {
			return value
		}
	}
	return ""
}

// resource is the port, or its trunk, which goes before it.
func (p *port) resource() cloud.Resource {
	id := p.ID
	if p.Trunk.ID != "" {
		id = trunkID + p.Trunk.ID
	}
	return cloud.Resource{Kind: cloud.KindNIC, ID: id, Token: p.token(), OwnershipID: p.ownership(), CreatedAt: p.CreatedAt}
}
