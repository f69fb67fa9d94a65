// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// markerTag is on every server of Drover: Nova lists servers by tags, but not by metadata.
const markerTag = "drover"

// tokenTag returns the tag that finds a machine's server. The server's metadata proves its
// ownership.
func tokenTag(token string) string {
	tag := cloud.TagToken + "=" + token
	if len(tag) > maxTag {
		sum := sha256.Sum256([]byte(token))
		tag = "drover-creation-digest=" + hex.EncodeToString(sum[:16])
	}
	return tag
}

// portName returns the name of all ports of a machine. Not every Neutron accepts tags in a create,
// but every Neutron finds ports by name.
func portName(token string) string { return cloud.TagToken + "=" + token }

const (
	// floatingMarker marks the description of a port that has or will have a floating IP.
	floatingMarker = "drover-floating-ip"
	// volumesMarker marks the description of the first port of a machine that has or will have
	// volumes that Drover creates.
	volumesMarker = "drover-volumes"
)

// portDescription returns a description with the port's ownership ID, its index, its dependants,
// and the machine's name for users.
func portDescription(req cloud.Request, index int) string {
	machine, markers := req.Spec.Cloud.OpenStack, ""
	if machine.Ports[index].FloatingNetwork != "" {
		markers += " " + floatingMarker + "=yes"
	}
	if index == 0 && len(ownVolumes(machine, "")) > 0 {
		markers += " " + volumesMarker + "=yes"
	}
	return cloud.Clip(describePort(req.OwnershipID, index, markers, req.Namespace+"/"+req.Name), maxText)
}

func describePort(ownershipID string, index int, markers, machine string) string {
	return cloud.TagOwnership + "=" + ownershipID + " drover-port=" + strconv.Itoa(index) + markers + " " + cloud.TagMachine + "=" + machine
}

// Ensure finds the machine's server by its tag, or creates it. Nova has no client token, so the
// driver depends on a read that finds nothing. It runs one create per token at a time. If a create
// lost its answer, or an earlier process may have sent one, Ensure waits until it can't take effect
// any more.
func (d *driver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	machine, err := union.MachineOf(req.Spec)
	if err != nil {
		return cloud.Resource{}, err
	}
	mine, release, err := d.creating.begin(ctx, req.Token)
	if err != nil {
		return cloud.Resource{}, err
	}
	defer release()
	made, err := d.adopt(ctx, req)
	if err != nil || made.ID != "" {
		return made, err
	}
	open := mine.deadline()
	if req.MaybeSent && d.inheritedUntil.After(open) {
		open = d.inheritedUntil
	}
	if left := time.Until(open); left > 0 {
		return cloud.Resource{}, pendingCreate(min(left, minPending)) // a server that appears is found soon
	}
	if !open.IsZero() {
		if err := d.cellsAnswer(ctx); err != nil {
			return cloud.Resource{}, err
		}
	}
	made, err = d.create(ctx, req, machine, mine)
	if code := cloud.CodeOf(err); code == cloud.InvalidSpec || code == cloud.NotFound {
		d.forget() // a resolved name may be outdated
	}
	return made, err
}

// adopt returns the server with the token, or the zero Resource if there is none.
func (d *driver) adopt(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	found, err := d.serverReads.get(ctx, req.Token)
	if err != nil {
		return cloud.Resource{}, err
	}
	found = filterByTokens(found, func(token string) bool { return token == req.Token })
	switch {
	case len(found) == 0:
		return cloud.Resource{}, nil
	case len(found) > 1:
		ids := make([]string, len(found))
		for i := range found {
			ids[i] = found[i].ID
		}
		return cloud.Resource{}, cloud.Errorf(cloud.Conflict, "%d servers have the token %s: %s", len(found), req.Token, strings.Join(ids, ", "))
	case found[0].OwnershipID != req.OwnershipID:
		return cloud.Resource{}, cloud.Errorf(cloud.Conflict, "server %s has the token %s and belongs to another cluster", found[0].ID, req.Token)
	}
	return found[0], nil
}

// create resolves the machine's references, creates its ports if it asks for any, and then the
// server. If the server was definitely refused, create deletes what it made.
func (d *driver) create(ctx context.Context, req cloud.Request, machine *infrav1.OpenStackMachine, mine *creation) (cloud.Resource, error) {
	if len(req.UserData) > maxUserData {
		return cloud.Resource{}, cloud.Invalid("the user data has %d bytes, and Nova accepts at most %d", len(req.UserData), maxUserData)
	}
	size, err := d.flavor(ctx, machine.Flavor)
	if err != nil {
		return cloud.Resource{}, err
	}
	from, err := d.image(ctx, machine.Image)
	if err != nil {
		return cloud.Resource{}, err
	}
	var made cloud.Resource
	with, err := d.ensureParts(ctx, req, machine, from.ID, mine)
	if err == nil {
		req.FailureDomain = cmp.Or(with.zone, req.FailureDomain)
		made, err = d.createServer(ctx, req, serverBody(req, machine, size.ID, from.ID, with))
		mine.recordError(err)
	}
	switch cloud.CodeOf(err) {
	case "":
		mine.setPending(consistency)
		return made, nil
	case cloud.Unavailable, cloud.Unknown:
		return made, err
	case cloud.InvalidSpec:
		if machine.Image.ID == "" && strings.Contains(err.Error(), from.ID) { // the next lookup finds another
			err = cloud.Errorf(cloud.NotFound, "image %s exists, but Nova rejected it: %v", from.ID, err)
		}
	}
	for _, r := range with.own {
		if d.delete(ctx, r) != nil {
			break // the ports lead to the rest, and deleting the machine finds the ports by the token
		}
	}
	return made, err
}

// DryRun implements preflight.DryRunner. It looks up what the machine names. Nova checks no server
// without creating it.
func (d *driver) DryRun(ctx context.Context, req cloud.Request) error {
	machine, err := union.MachineOf(req.Spec)
	if err == nil {
		_, err = d.flavor(ctx, machine.Flavor)
	}
	if err == nil {
		_, err = d.image(ctx, machine.Image)
	}
	for i := 0; err == nil && i < len(machine.Ports); i++ {
		_, err = d.portBody(ctx, req, i, &machine.Ports[i])
	}
	return err
}

func (d *driver) createServer(ctx context.Context, req cloud.Request, body newServerRequest) (cloud.Resource, error) {
	op := operation{"CreateServer", cloud.ClassCreate, compute, http.MethodPost}
	if namesVolumeType(body.Server.Disks) {
		op.service = computeStein
	}
	var answer struct {
		Server struct {
			ID string `json:"id"`
		} `json:"server"`
	}
	if err := d.call(ctx, op, "servers", body, &answer); err != nil {
		return cloud.Resource{}, err
	}
	if answer.Server.ID == "" {
		return cloud.Resource{}, unexpectedResponse(op)
	}
	return cloud.Resource{
		Kind: cloud.KindInstance, ID: answer.Server.ID, Token: req.Token, OwnershipID: req.OwnershipID,
		ProviderID: providerID(d.account, answer.Server.ID), State: cloud.StatePending, FailureDomain: zoneOf(req),
	}, nil
}

// zoneOf returns the requested availability zone, or "".
func zoneOf(req cloud.Request) string {
	return cmp.Or(req.FailureDomain, req.Spec.Cloud.OpenStack.AvailabilityZone)
}

// networkRef is an interface of a server: a network in which Nova creates a port, or a port.
type networkRef struct {
	UUID string `json:"uuid,omitempty"`
	Port string `json:"port,omitempty"`
}

type nameRef struct {
	Name string `json:"name"`
}

type newServer struct {
	Name             string            `json:"name"`
	FlavorRef        string            `json:"flavorRef"`
	ImageRef         string            `json:"imageRef,omitempty"`
	Disks            []disk            `json:"block_device_mapping_v2,omitempty"`
	Networks         any               `json:"networks"`
	SecurityGroups   []nameRef         `json:"security_groups,omitempty"`
	AvailabilityZone string            `json:"availability_zone,omitempty"`
	KeyName          string            `json:"key_name,omitempty"`
	ConfigDrive      *bool             `json:"config_drive,omitempty"`
	UserData         string            `json:"user_data,omitempty"`
	Metadata         map[string]string `json:"metadata"`
	Tags             []string          `json:"tags"`
}

type newServerRequest struct {
	Server newServer         `json:"server"`
	Hints  map[string]string `json:"OS-SCH-HNT:scheduler_hints,omitempty"`
}

// serverBody returns the request for the whole machine: "Create Server" in Nova's API reference.
func serverBody(req cloud.Request, machine *infrav1.OpenStackMachine, flavor, image string, with parts) newServerRequest {
	server := newServer{
		Name:             cloud.Clip(req.Name, maxText),
		FlavorRef:        flavor,
		Disks:            disksOf(machine, image, with.volumes),
		Networks:         "auto",
		AvailabilityZone: zoneOf(req),
		KeyName:          machine.KeyName,
		ConfigDrive:      driverkit.Bool(machine.ConfigDrive),
		UserData:         base64.StdEncoding.EncodeToString(req.UserData),
		Metadata: map[string]string{
			cloud.TagOwnership: req.OwnershipID,
			cloud.TagToken:     req.Token,
			cloud.TagMachine:   cloud.Clip(req.Namespace+"/"+req.Name, maxText),
		},
		Tags:           append([]string{markerTag, tokenTag(req.Token)}, machine.Tags...),
		SecurityGroups: with.groups,
	}
	if machine.RootVolume.SizeGiB == 0 {
		server.ImageRef = image
	}
	if len(with.interfaces) > 0 {
		server.Networks = with.interfaces
	}
	for key, value := range machine.Metadata {
		server.Metadata[key] = value
	}
	hints := map[string]string{}
	for key, value := range machine.SchedulerHints {
		hints[key] = value
	}
	if machine.ServerGroupID != "" {
		hints["group"] = machine.ServerGroupID
	}
	return newServerRequest{server, hints}
}

// parts are the dependants and interfaces for a new server.
type parts struct {
	interfaces []networkRef
	groups     []nameRef      // of the ports that Nova creates
	volumes    map[int]string // IDs of the volumes that Drover creates, by index
	zone       string         // the volumes' zone, if they must be in the machine's
	own        []cloud.Resource
}

// novaCreatesPorts reports whether Nova can create the ports with the server: each sets a network,
// all set the same groups, and there is no volume of Drover's, which would need a port to be found.
func novaCreatesPorts(machine *infrav1.OpenStackMachine) bool {
	return len(machine.Ports) == 0 || len(ownVolumes(machine, "")) == 0 &&
		!slices.ContainsFunc(machine.Ports, func(p infrav1.OpenStackPort) bool {
			return !reflect.DeepEqual(p, infrav1.OpenStackPort{Network: p.Network, SecurityGroups: machine.Ports[0].SecurityGroups})
		})
}

// novaParts resolves the networks of the ports that Nova creates.
func (d *driver) novaParts(ctx context.Context, machine *infrav1.OpenStackMachine) (made parts, err error) {
	for _, port := range machine.Ports {
		id, err := d.networkID(ctx, port.Network)
		if err != nil {
			return parts{}, err
		}
		made.interfaces = append(made.interfaces, networkRef{UUID: id})
		made.groups = make([]nameRef, len(port.SecurityGroups)) // the same for all ports
		for i, group := range port.SecurityGroups {
			made.groups[i].Name = group
		}
	}
	return made, nil
}

// ensureParts creates the machine's own parts, the ports first, because they lead to the rest. Even
// after an error, own lists the existing parts, in an order in which they can be deleted.
func (d *driver) ensureParts(ctx context.Context, req cloud.Request, machine *infrav1.OpenStackMachine, image string,
	mine *creation) (made parts, err error) {
	if novaCreatesPorts(machine) {
		return d.novaParts(ctx, machine)
	}
	ports, fresh, err := d.ensurePorts(ctx, req, machine.Ports, mine)
	if err != nil {
		return parts{}, err
	}
	addresses, err := d.adoptFloatingIPs(ctx, req, machine.Ports, fresh)
	if err != nil {
		return parts{}, err
	}
	disks, err := d.adoptVolumes(ctx, req, machine, fresh[0])
	if err != nil {
		return parts{}, err
	}
	addresses, err = d.ensureFloatingIPs(ctx, req, machine.Ports, ports, addresses, mine)
	if err == nil {
		err = d.ensureTrunks(ctx, req, machine.Ports, ports, mine)
	}
	if err == nil {
		made.zone, err = d.ensureVolumes(ctx, req, machine, image, disks, mine)
	}
	for _, a := range addresses {
		made.own = append(made.own, cloud.Resource{Kind: cloud.KindAddress, ID: a.ID})
	}
	made.volumes = map[int]string{}
	for index, v := range disks {
		made.volumes[index] = v.ID
		made.own = append(made.own, cloud.Resource{Kind: cloud.KindDisk, ID: v.ID})
	}
	for _, p := range ports {
		made.interfaces = append(made.interfaces, networkRef{Port: p.ID})
		if p.Trunk.ID != "" {
			made.own = append(made.own, p.resource())
		}
	}
	for _, p := range ports {
		made.own = append(made.own, cloud.Resource{Kind: cloud.KindNIC, ID: p.ID})
	}
	return made, err
}

// ensurePorts adopts the machine's ports and creates the missing ones with one call, which creates
// all or none. fresh holds the indices of those that it created.
func (d *driver) ensurePorts(ctx context.Context, req cloud.Request, wanted []infrav1.OpenStackPort,
	mine *creation) (ports []port, fresh map[int]bool, err error) {
	if ports, err = d.adoptPorts(ctx, req, len(wanted)); err != nil {
		return nil, nil, err
	}
	fresh = map[int]bool{}
	var bodies []newPort
	for i := range wanted {
		if ports[i].ID == "" {
			body, err := d.portBody(ctx, req, i, &wanted[i])
			if err != nil {
				return nil, nil, err
			}
			bodies, fresh[i] = append(bodies, body), true
		}
	}
	if len(bodies) > 0 {
		err = d.createPorts(ctx, bodies, ports)
		mine.recordError(err)
	}
	return ports, fresh, err
}

// adoptPorts returns n ports by index. Missing ones have no ID.
func (d *driver) adoptPorts(ctx context.Context, req cloud.Request, n int) ([]port, error) {
	found, err := d.portReads.get(ctx, req.Token)
	if err != nil {
		return nil, err
	}
	ports := make([]port, n)
	for _, p := range found {
		index := p.index()
		if p.token() != req.Token || p.ownership() != req.OwnershipID || index < 0 || index >= len(ports) {
			continue
		}
		if ports[index].ID != "" {
			return nil, cloud.Errorf(cloud.Conflict, "ports %s and %s both have the machine's index %d", ports[index].ID, p.ID, index)
		}
		ports[index] = p
	}
	return ports, nil
}

// createPorts creates ports and stores them in ports by index.
func (d *driver) createPorts(ctx context.Context, bodies []newPort, ports []port) error {
	op := operation{"CreatePorts", cloud.ClassCreate, network, http.MethodPost}
	var answer struct {
		Ports []port `json:"ports"`
	}
	if err := d.call(ctx, op, "ports", map[string]any{"ports": bodies}, &answer); err != nil {
		return err
	}
	for _, p := range answer.Ports {
		if index := p.index(); index >= 0 && index < len(ports) {
			ports[index] = p
		}
	}
	if len(answer.Ports) != len(bodies) || slices.ContainsFunc(ports, func(p port) bool { return p.ID == "" }) {
		return unexpectedResponse(op)
	}
	return nil
}

type newPort struct {
	Name                string            `json:"name"`
	Description         string            `json:"description"`
	NetworkID           string            `json:"network_id"`
	FixedIPs            []fixedIP         `json:"fixed_ips,omitempty"`
	MACAddress          string            `json:"mac_address,omitempty"`
	SecurityGroups      []string          `json:"security_groups,omitempty"`
	AllowedAddressPairs []pair            `json:"allowed_address_pairs,omitempty"`
	VNICType            string            `json:"binding:vnic_type,omitempty"`
	Profile             map[string]string `json:"binding:profile,omitempty"`
	PortSecurity        *bool             `json:"port_security_enabled,omitempty"`
	QoSPolicyID         string            `json:"qos_policy_id,omitempty"`
	Tags                []string          `json:"tags,omitempty"`
}

// fixedIP is an address, or any address of a subnet.
type fixedIP struct {
	SubnetID string `json:"subnet_id,omitempty"`
	Address  string `json:"ip_address,omitempty"`
}

type pair struct {
	Address    string `json:"ip_address"`
	MACAddress string `json:"mac_address,omitempty"`
}

// portBody returns a port of "Bulk create ports" in Neutron's API reference.
func (d *driver) portBody(ctx context.Context, req cloud.Request, index int, wanted *infrav1.OpenStackPort) (newPort, error) {
	in, err := d.networkID(ctx, wanted.Network)
	if err != nil {
		return newPort{}, err
	}
	body := newPort{
		Name: portName(req.Token), Description: portDescription(req, index), NetworkID: in,
		MACAddress: wanted.MACAddress, VNICType: string(wanted.VNICType), Profile: wanted.BindingProfile,
		PortSecurity: driverkit.Bool(wanted.PortSecurity), Tags: wanted.Tags,
	}
	for _, ip := range wanted.FixedIPs {
		body.FixedIPs = append(body.FixedIPs, fixedIP{SubnetID: ip.SubnetID, Address: ip.IPAddress})
	}
	if wanted.FloatingNetwork != "" { // fails on an unknown name before anything is created
		if _, err := d.networkID(ctx, wanted.FloatingNetwork); err != nil {
			return newPort{}, err
		}
	}
	if wanted.QoSPolicy != "" {
		if body.QoSPolicyID, err = d.policyID(ctx, wanted.QoSPolicy); err != nil {
			return newPort{}, err
		}
	}
	for _, name := range wanted.SecurityGroups {
		id, err := d.groupID(ctx, name)
		if err != nil {
			return newPort{}, err
		}
		body.SecurityGroups = append(body.SecurityGroups, id)
	}
	for _, allowed := range wanted.AllowedAddressPairs {
		body.AllowedAddressPairs = append(body.AllowedAddressPairs, pair{Address: allowed.IPAddress, MACAddress: allowed.MACAddress})
	}
	return body, nil
}
