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

// server holds the fields read from "List Servers Detailed" in Nova's API reference.
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
	Tags       []string             `json:"tags"`
	Volumes    []attachment         `json:"os-extended-volumes:volumes_attached"`
	Image      any                  `json:"image"` // "" for some servers that boot from a volume
	Flavor     struct {
		Name string `json:"original_name"`
	} `json:"flavor"`
	Fault struct {
		Message string `json:"message"`
	} `json:"fault"`
}

// attachment is a volume that is attached to a server.
type attachment struct {
	ID                  string `json:"id"`
	DeleteOnTermination bool   `json:"delete_on_termination"`
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

// state follows "Server status" in Nova's API reference. ERROR is the status of a server that was
// never created, and also of one with a failed action, such as a migration. The cloud's operator
// may repair the latter.
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
		reason = cmp.Or(cloud.Clip(s.Fault.Message, maxWords), "the server is in ERROR, and Nova gives no reason")
		if s.Launched == "" {
			return cloud.StateFailed, faultCode(s.Fault.Message), reason
		}
		return cloud.StateStopped, "", reason
	case "SHUTOFF", "SUSPENDED", "PAUSED", "SHELVED", "SHELVED_OFFLOADED":
		return cloud.StateStopped, "", s.Status
	}
	return cloud.StateRunning, "", ""
}

// faultCode classifies Nova's fault message. If the scheduler found no host, or tried several in
// vain, the cloud lacks capacity, or no host can serve the request. A fault has a message but no
// type; if a volume or a port exceeds a quota, the message names it.
func faultCode(fault string) cloud.Code {
	words := strings.ToLower(fault)
	has := func(part string) bool { return strings.Contains(words, part) }
	switch {
	case strings.HasPrefix(fault, "Build of instance") && has("quota"),
		strings.HasPrefix(fault, exceededRetries) && (has("quota") || has("maximum number of ports")):
		return cloud.QuotaExceeded
	case strings.HasPrefix(fault, "No valid host was found"), strings.HasPrefix(fault, exceededRetries),
		has("insufficient compute resources"), has("availability zone"):
		return cloud.NoCapacity
	}
	return ""
}

// exceededRetries is how Nova's fault begins after each host that was tried has failed.
const exceededRetries = "Exceeded maximum number of retries"

// addresses returns the addresses that OpenStack's cloud controller sets on the Node: fixed ones
// are internal, floating and access ones external. IPv4 comes before IPv6 if the server has both in
// one network.
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

// port holds the fields of a Neutron port that the driver reads. Its name has the token, its
// description the rest: see portDescription.
type port struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	Description string    `json:"description"`
	CreatedAt   time.Time `json:"created_at"`
	Trunk       trunk     `json:"trunk_details,omitzero"`
}

func (p *port) token() string { return tokenOf(p.Name) }

// tokenOf returns the token in a name that portName returned, or "".
func tokenOf(name string) string {
	token, ok := strings.CutPrefix(name, portName(""))
	if !ok {
		return ""
	}
	return token
}

func (p *port) ownership() string { return p.marker(cloud.TagOwnership) }

// index returns the port's index in its machine, or -1.
func (p *port) index() int {
	index, err := strconv.Atoi(p.marker("drover-port"))
	if err != nil {
		return -1
	}
	return index
}

// floating reports whether the port has or will have a floating IP.
func (p *port) floating() bool { return p.marker(floatingMarker) != "" }

// volumes reports whether the port's machine has or will have volumes that Drover creates.
func (p *port) volumes() bool { return p.marker(volumesMarker) != "" }

func (p *port) marker(key string) string {
	for word := range strings.FieldsSeq(p.Description) {
		if value, ok := strings.CutPrefix(word, key+"="); ok {
			return strings.Clone(value) // does not keep the description in memory
		}
	}
	return ""
}

// resource returns the port, or its trunk if it has one: the trunk is deleted first.
func (p *port) resource() cloud.Resource {
	id := p.ID
	if p.Trunk.ID != "" {
		id = trunkID + p.Trunk.ID
	}
	return cloud.Resource{Kind: cloud.KindNIC, ID: id, Token: p.token(), OwnershipID: p.ownership(), CreatedAt: p.CreatedAt}
}
