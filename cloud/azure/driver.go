// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/internal/naming"
)

type driver struct {
	account                  *infrav1.AzureAccount
	api                      driverkit.JSON
	endpoint, scope, storage string
	source                   source
	guard                    driverkit.LoginGuard
	unusedSSHKey             string
	remaining                remaining

	tokens    driverkit.Memo[string]
	sizes     driverkit.Memo[map[string]size]
	rereads   driverkit.Memo[struct{}] // of the sizes, because one is missing
	leftovers driverkit.Memo[parts]
	power     driverkit.Memo[powers]
	failures  driverkit.Memo[*instanceView] // by ID and time of creation
	zones     driverkit.Memo[[]string]      // of the location
	frontends driverkit.Memo[string]        // public addresses of load balancers, by name
	addresses addressBook
	created   driverkit.Recent[time.Time] // when machines were created, by ID
	balancers balancers

	lastPower  atomic.Pointer[powers]
	lastDelete atomic.Int64 // time of the last delete, in Unix nanoseconds
}

func newDriver(cfg cloud.Config) (cloud.Driver, error) {
	account, err := union.AccountOf(cfg.Account)
	if err != nil {
		return nil, err
	}
	var trust *tls.Config
	if custom := account.Custom; custom != (infrav1.AzureCustomCloud{}) {
		if cfg.Credentials == nil {
			return nil, cloud.Invalid("a custom endpoint needs its own credentials")
		}
		pool, err := driverkit.CertPool(custom.CABundle)
		if err != nil {
			return nil, err
		}
		if pool != nil {
			trust = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		}
	}
	transport, err := cfg.Connect(trust)
	if err != nil {
		return nil, err
	}
	client := driverkit.Client(transport)
	credential, secrets, err := newCredential(account, cfg.Credentials, client)
	if err != nil {
		return nil, err
	}
	key, err := unusedSSHKey()
	if err != nil {
		return nil, err
	}
	p := placeOf(account)
	return &driver{
		account: account, endpoint: p.endpoint, scope: p.scope, storage: p.storage,
		unusedSSHKey: key,
		api:          driverkit.JSON{Client: client, Secrets: secrets, Cloud: "Azure", Settings: "spec.cloud.azure"},
		source: source{credential: credential, make: func() (azcore.TokenCredential, error) {
			again, _, err := newCredential(account, cfg.Credentials, client)
			return again, err
		}},
		tokens:    driverkit.Memo[string]{TTL: tokenTTL},
		sizes:     driverkit.Memo[map[string]size]{TTL: sizesTTL},
		rereads:   driverkit.Memo[struct{}]{TTL: rereadTTL},
		leftovers: driverkit.Memo[parts]{TTL: leftoversTTL},
		power:     driverkit.Memo[powers]{TTL: powerTTL},
		failures:  driverkit.Memo[*instanceView]{TTL: failureTTL},
		zones:     driverkit.Memo[[]string]{TTL: zonesTTL},
		frontends: driverkit.Memo[string]{TTL: frontendTTL},
	}, nil
}

// unusedSSHKey returns a public SSH key (RFC 8709) whose private key nobody has.
func unusedSSHKey() (string, error) {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", cloud.Errorf(cloud.Unavailable, "generating an SSH key failed")
	}
	var blob []byte
	for _, part := range [][]byte{[]byte("ssh-ed25519"), public} {
		blob = append(binary.BigEndian.AppendUint32(blob, uint32(len(part))), part...)
	}
	return "ssh-ed25519 " + base64.StdEncoding.EncodeToString(blob) + " nobody", nil
}

// Probe reads the locations that the subscription has, with their zones.
func (d *driver) Probe(ctx context.Context) (cloud.Info, error) {
	zones, err := d.readZones(ctx)
	if err != nil {
		return cloud.Info{}, err
	}
	place := strings.Join([]string{"azure", d.account.SubscriptionID, d.account.Location, strings.ToLower(d.account.ResourceGroup)}, ":")
	return cloud.Info{Place: place, FailureDomains: zones}, nil
}

// readZones returns the zones of the location, sorted.
func (d *driver) readZones(ctx context.Context) (zones []string, err error) {
	const op = "ListLocations"
	prefix := "/subscriptions/" + d.account.SubscriptionID + "/locations"
	all, err := pages[location](ctx, d, op, prefix, locationsVersion, nil)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(l location) bool {
		return l.Name == d.account.Location && strings.EqualFold(l.ID, prefix+"/"+l.Name)
	})
	switch {
	case len(all) == 0:
		return nil, d.api.Unexpected(op, "without locations")
	case i < 0:
		return nil, cloud.Errorf(cloud.InvalidSpec, "the subscription has no location %q", d.account.Location)
	}
	for _, mapping := range all[i].Mappings {
		if mapping.LogicalZone != "" {
			zones = append(zones, mapping.LogicalZone)
		}
	}
	slices.Sort(zones)
	return zones, nil
}

// Ensure creates the machine with one PUT that never changes an existing one. Names are unique in a
// resource group, over all its zones, so there is never a second machine.
func (d *driver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	spec, err := union.MachineOf(req.Spec)
	if err != nil {
		return cloud.Resource{}, err
	}
	if err := driverkit.MaxUserData(maxCustomData)(req.UserData); err != nil {
		return cloud.Resource{}, cloud.Invalid("%s", err)
	}
	const op = "CreateVirtualMachine"
	name := naming.NodeName(req.Name) // Azure's cloud controller finds a Node's machine by it
	var made virtualMachine
	status, err := d.call(ctx, request{
		op: op, class: cloud.ClassCreate, method: http.MethodPut, path: pathOf(d.account, virtualMachines) + "/" + name,
		version: machinesVersion, create: true, in: d.machine(req, spec), out: &made,
	})
	switch {
	case driverkit.RefusedAs(err, preconditionFailed, propertyChange, conflictingUserInput):
		return d.adopt(ctx, req, name, err)
	case driverkit.RefusedAs(err, invalidZone, zoneNotSupported):
		return cloud.Resource{}, d.checkZone(ctx, req.FailureDomain, err)
	case err != nil:
		return cloud.Resource{}, err
	case status != http.StatusCreated:
		return cloud.Resource{}, cloud.Errorf(cloud.Conflict,
			"%s: Azure answered with status %d instead of 201: the virtual machine %s existed: delete the Machine to replace it", op, status, name)
	}
	r := d.instance(&made, nil)
	if r.Token != req.Token || r.OwnershipID != req.OwnershipID || !strings.EqualFold(made.Name, name) {
		return cloud.Resource{}, cloud.Errorf(cloud.Unknown,
			"%s: unexpected response: the virtual machine does not have the token of the request", op)
	}
	if r.State == cloud.StateFailed { // only the view says why
		return d.adopt(ctx, req, name, nil)
	}
	return r, nil
}

// checkZone returns InvalidSpec in place of a refusal because of the zone if the location has no
// such zone at all.
func (d *driver) checkZone(ctx context.Context, zone string, refusal error) error {
	zones, err := d.zones.Get(ctx, "", d.readZones)
	if err != nil || slices.Contains(zones, zone) {
		return refusal
	}
	return cloud.Errorf(cloud.InvalidSpec, "failure domain %q is not a zone of location %s", cloud.Clip(zone, 63), d.account.Location)
}

// adopt returns the machine with the name if an earlier request made it. why is why this request
// made none.
func (d *driver) adopt(ctx context.Context, req cloud.Request, name string, why error) (cloud.Resource, error) {
	found, err := d.get(ctx, name)
	switch {
	case err != nil:
		return cloud.Resource{}, err
	case found == nil && driverkit.RefusedAs(why, conflictingUserInput, propertyChange):
		return cloud.Resource{}, why // about another resource
	case found == nil:
		return cloud.Resource{}, cloud.Errorf(cloud.Unavailable, "CreateVirtualMachine: the virtual machine %s existed, and is gone now", name)
	case found.Token != req.Token || found.OwnershipID != req.OwnershipID:
		return cloud.Resource{}, cloud.Errorf(cloud.Conflict,
			"a virtual machine %s exists in resource group %s and does not belong to this machine: delete it, or the Machine", name,
			d.account.ResourceGroup)
	}
	return *found, nil
}

// get reads one machine with its view; nil: there is none.
func (d *driver) get(ctx context.Context, name string) (*cloud.Resource, error) {
	var vm virtualMachine
	path := pathOf(d.account, virtualMachines) + "/" + url.PathEscape(name)
	err := d.read(ctx, "GetVirtualMachine", path, machinesVersion, url.Values{"$expand": {"instanceView"}}, &vm)
	switch {
	case driverkit.RefusedAs(err, resourceNotFound, notFound):
		return nil, nil
	case err != nil:
		return nil, err
	case !strings.EqualFold(vm.Name, name):
		return nil, d.api.Unexpected("GetVirtualMachine", "without the virtual machine "+name)
	}
	r := d.instance(&vm, vm.Properties.InstanceView)
	return &r, nil
}

// List reads the machines on every call. It reads network interfaces, disks and addresses every few
// minutes, when a machine's addresses are not known, and for some minutes after a delete.
func (d *driver) List(ctx context.Context) ([]cloud.Resource, error) {
	vms, err := d.machines(ctx)
	if err != nil {
		return nil, err
	}
	if time.Since(time.Unix(0, d.lastDelete.Load())) < leftoversTTL {
		d.leftovers.Forget("")
	}
	left, err := d.leftovers.Get(ctx, "", d.readParts)
	if err != nil {
		return nil, err
	}
	if err := d.learnAddresses(ctx, d.running(vms)); err != nil {
		return nil, err
	}
	all, err := d.listBalancers(ctx)
	if err != nil {
		return nil, err
	}
	stopped := d.powerOf(ctx, vms)
	for i := range vms {
		r, err := d.withView(ctx, &vms[i], stopped)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return append(all, left.unattached()...), nil
}

// Describe reads the machines of the resource group, or the only one that is asked for. It looks
// for load balancers only if a token has no machine, and for network interfaces, disks and
// addresses only if it has neither: until then they belong to the machine or the load balancer.
func (d *driver) Describe(ctx context.Context, refs []cloud.Reference) ([]cloud.Resource, error) {
	wanted := map[string]bool{}
	for _, ref := range refs {
		if ref.Token != "" {
			wanted[ref.Token] = true
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	found, err := d.describeMachines(ctx, refs, wanted)
	if err != nil {
		return nil, err
	}
	for _, r := range found {
		delete(wanted, r.Token)
	}
	balancers, err := d.balancersOf(ctx, wanted, len(driverkit.RecordedBalancers(refs)) > 0)
	if err != nil {
		return nil, err
	}
	for _, r := range balancers {
		delete(wanted, r.Token)
	}
	found = append(found, balancers...)
	if len(wanted) == 0 {
		return found, nil
	}
	left, err := d.readParts(ctx)
	if err != nil {
		return nil, err
	}
	return append(found, slices.DeleteFunc(left.unattached(), func(r cloud.Resource) bool { return !wanted[r.Token] })...), nil
}

func (d *driver) describeMachines(ctx context.Context, refs []cloud.Reference, wanted map[string]bool) ([]cloud.Resource, error) {
	if len(refs) == 1 && refs[0].ProviderID != "" {
		found, err := d.get(ctx, lastPart(refs[0].ProviderID))
		if err != nil {
			return nil, err
		}
		if found != nil && found.OwnershipID != "" && wanted[found.Token] {
			if found.State == cloud.StateRunning {
				err = d.learnAddresses(ctx, []cloud.Resource{*found})
			}
			if err != nil {
				return nil, err
			}
			found.Addresses = d.addresses.get(found)
			return []cloud.Resource{*found}, nil
		}
	}
	vms, err := d.machines(ctx)
	if err != nil {
		return nil, err
	}
	vms = slices.DeleteFunc(vms, func(vm virtualMachine) bool { return !wanted[tag(vm.Tags, cloud.TagToken)] })
	if err := d.learnAddresses(ctx, d.running(vms)); err != nil {
		return nil, err
	}
	var stopped powers
	if last := d.lastPower.Load(); last != nil {
		stopped = *last
	}
	var all []cloud.Resource
	for i := range vms {
		r, err := d.withView(ctx, &vms[i], stopped)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// Find implements cloud.Finder. Azure has other codes for a subscription and a resource group that
// do not exist, and for what the credentials may not see.
func (d *driver) Find(ctx context.Context, ref cloud.Reference) (*cloud.Resource, error) {
	name := lastPart(ref.ProviderID)
	if !strings.EqualFold(ref.ProviderID, providerID(d.idOf(virtualMachines, name))) {
		return nil, cloud.Invalid("provider ID %q is not of a virtual machine in the account's resource group", cloud.Clip(ref.ProviderID, 256))
	}
	return d.get(ctx, name)
}

// machines lists the machines that carry an ownership ID, each once.
func (d *driver) machines(ctx context.Context) ([]virtualMachine, error) {
	all, err := pages[virtualMachine](ctx, d, "ListVirtualMachines", pathOf(d.account, virtualMachines), machinesVersion, nil)
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(vm virtualMachine) bool {
		key := strings.ToLower(vm.Name)
		drop := vm.Name == "" || tag(vm.Tags, cloud.TagOwnership) == "" || seen[key]
		seen[key] = true
		return drop
	}), err
}

// withView returns a machine of a listing. Listings do not say why a creation failed, so a failed
// machine is read once.
func (d *driver) withView(ctx context.Context, vm *virtualMachine, stopped powers) (cloud.Resource, error) {
	view := stopped.get(d.idOf(virtualMachines, vm.Name), vm.Properties.TimeCreated)
	if vm.Properties.ProvisioningState == stateFailed {
		key := vm.Name
		if at := vm.Properties.TimeCreated; at != nil {
			key += at.String()
		}
		var err error
		view, err = d.failures.Get(ctx, key, func(ctx context.Context) (*instanceView, error) { return d.view(ctx, vm.Name) })
		if err != nil {
			return cloud.Resource{}, err
		}
	}
	r := d.instance(vm, view)
	r.Addresses = d.addresses.get(&r)
	return r, nil
}

// view reads the view of one machine; nil: it is gone.
func (d *driver) view(ctx context.Context, name string) (*instanceView, error) {
	var view instanceView
	path := pathOf(d.account, virtualMachines) + "/" + url.PathEscape(name) + "/instanceView"
	err := d.read(ctx, "GetInstanceView", path, machinesVersion, nil, &view)
	if driverkit.RefusedAs(err, resourceNotFound, notFound) {
		return nil, nil
	}
	return d.essence(&view), err
}

// powerOf returns which machines of the subscription are stopped, every few minutes: listings of a
// group can't say so (https://github.com/Azure/azure-rest-api-specs/issues/42411). A failure
// changes nothing, because power is only shown.
func (d *driver) powerOf(ctx context.Context, vms []virtualMachine) powers {
	if len(vms) == 0 {
		return powers{}
	}
	all, err := d.power.Get(ctx, "", func(ctx context.Context) (powers, error) {
		read := powers{at: time.Now(), views: map[string]*instanceView{}}
		path := "/subscriptions/" + d.account.SubscriptionID + "/providers/" + virtualMachines
		all, err := pages[virtualMachine](ctx, d, "ListVirtualMachineStatuses", path, machinesVersion, url.Values{"statusOnly": {"true"}})
		if last := d.lastPower.Load(); err != nil && last != nil {
			return *last, nil
		}
		own := strings.ToLower(pathOf(d.account, virtualMachines)) + "/"
		for _, vm := range all {
			if strings.HasPrefix(strings.ToLower(vm.ID), own) && vm.Properties.InstanceView.isStopped() {
				read.views[d.idOf(virtualMachines, lastPart(vm.ID))] = d.essence(vm.Properties.InstanceView)
			}
		}
		d.lastPower.Store(&read)
		return read, nil
	})
	if err != nil { // ctx has ended
		return powers{}
	}
	return all
}

// Delete makes one call for each resource. Azure deletes the parts of a machine with it.
func (d *driver) Delete(ctx context.Context, resources []cloud.Resource) []error {
	d.lastDelete.Store(time.Now().UnixNano())
	return driverkit.InParallel(deletesAtOnce, resources, func(r cloud.Resource) error { return d.remove(ctx, r) })
}

func (d *driver) remove(ctx context.Context, r cloud.Resource) error {
	of, known := map[cloud.Kind]struct{ op, kind, version string }{
		cloud.KindInstance: {"DeleteVirtualMachine", virtualMachines, machinesVersion},
		cloud.KindNIC:      {"DeleteNetworkInterface", networkInterfaces, networkVersion},
		cloud.KindDisk:     {"DeleteDisk", disks, disksVersion},
		cloud.KindAddress:  {"DeletePublicIPAddress", publicAddresses, networkVersion},
		cloud.KindBalancer: {"DeleteLoadBalancer", loadBalancers, networkVersion},
	}[r.Kind]
	if !known {
		return cloud.Invalid("delete %s %s: the kind is not supported on Azure", r.Kind, r.ID)
	}
	_, err := d.call(ctx, request{
		op: of.op, class: cloud.ClassDelete, method: http.MethodDelete, version: of.version,
		path: pathOf(d.account, of.kind) + "/" + url.PathEscape(lastPart(r.ID)),
	})
	if driverkit.RefusedAs(err, resourceNotFound, notFound) {
		return nil
	}
	return err
}

// readParts lists the network interfaces, disks and addresses of the resource group.
func (d *driver) readParts(ctx context.Context) (p parts, err error) {
	p.idOf = d.idOf
	if p.disks, err = pages[dependant](ctx, d, "ListDisks", pathOf(d.account, disks), disksVersion, nil); err != nil {
		return parts{}, err
	}
	if p.addresses, err = pages[dependant](ctx, d, "ListPublicIPAddresses", pathOf(d.account, publicAddresses), networkVersion,
		nil); err != nil {
		return parts{}, err
	}
	p.nics, err = d.readInterfaces(ctx)
	d.addresses.learn(d, p.nics, p.addresses)
	return p, err
}

func (d *driver) readInterfaces(ctx context.Context) ([]dependant, error) {
	return pages[dependant](ctx, d, "ListNetworkInterfaces", pathOf(d.account, networkInterfaces), networkVersion, nil)
}

// running returns the machines that may run, and so have addresses.
func (d *driver) running(vms []virtualMachine) (all []cloud.Resource) {
	for i := range vms {
		if vms[i].Properties.ProvisioningState == stateSucceeded {
			all = append(all, d.instance(&vms[i], nil))
		}
	}
	return all
}

// learnAddresses lists the network interfaces if the addresses of a running machine are not known.
// They don't change while the machine exists.
func (d *driver) learnAddresses(ctx context.Context, running []cloud.Resource) error {
	unknown := false
	for i := range running {
		unknown = len(d.addresses.get(&running[i])) == 0 || unknown
	}
	if !unknown {
		return nil
	}
	nics, err := d.readInterfaces(ctx)
	if err != nil {
		return err
	}
	var public []dependant
	if slices.ContainsFunc(nics, hasPublic) {
		if public, err = pages[dependant](ctx, d, "ListPublicIPAddresses", pathOf(d.account, publicAddresses), networkVersion, nil); err != nil {
			return err
		}
	}
	d.addresses.learn(d, nics, public)
	return nil
}

// tag returns a tag's value. Azure's keys are equal in any case.
func tag(tags map[string]string, key string) string {
	if value, ok := tags[key]; ok {
		return value
	}
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		if strings.EqualFold(k, key) {
			return tags[k]
		}
	}
	return ""
}

// lastPart returns the last part of a resource's ID: its name. It is a copy, which does not keep the
// ID in memory.
func lastPart(id string) string { return strings.Clone(id[strings.LastIndexByte(id, '/')+1:]) }
