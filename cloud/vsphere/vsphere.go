// SPDX-License-Identifier: Apache-2.0

// Package vsphere is the driver for VMware vSphere. It turns requests into SOAP calls to a vCenter
// Server and answers into resources, with govmomi's types. For content libraries and tags, which
// SOAP lacks, it calls vCenter's Automation API. It never waits for a task. It imports no
// Kubernetes client and no other driver.
package vsphere

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// usernameKey and passwordKey are the keys in the credentials Secret.
	usernameKey = "username"
	passwordKey = "password"
	// maxUserData keeps a guestinfo variable below 64 KiB, the size of one VMware Tools message,
	// even if gzip can't shrink the data and base64 adds a third.
	maxUserData = 47 << 10
	// maxBatch keeps the calls of one step within the time of one call, at the rate below.
	maxBatch = 50
	// pageSize is the number of objects in one answer of vCenter. At about 1 KiB each, an answer
	// stays well below a MiB.
	pageSize = 500
	// defaultPace is the pace of listings if the account does not set one.
	defaultPace = 5 * time.Second
)

// union accesses vSphere's member of the unions in DroverAccount and DroverMachine.
var union = driverkit.Fields[infrav1.VSphereAccount, infrav1.VSphereMachine]{
	Account:      func(a *infrav1.DroverAccountSpec) *infrav1.VSphereAccount { return a.Cloud.VSphere },
	Machine:      func(m *infrav1.DroverMachineFields) *infrav1.VSphereMachine { return m.Cloud.VSphere },
	CheckAccount: validateAccount,
	CheckMachine: validateMachine,
}

// Cloud returns vSphere's entry in the registry.
func Cloud() cloud.Cloud {
	return cloud.Cloud{
		Name:  "vsphere",
		Union: union,
		New:   newDriver,
		Endpoint: func(spec *infrav1.DroverAccountSpec) string {
			a := spec.Cloud.VSphere
			return strings.Join([]string{a.Server, a.CABundle, a.Thumbprint}, "\n")
		},
		// Conservative guesses: vCenter documents no rate limits. It queues clones beyond 8 on one
		// host and 128 on one datastore ("Limits on Simultaneous Migrations", vCenter Server and
		// Host Management). A clone's task runs on after the call.
		Limits: cloud.Limits{
			AtOnce: 20,
			Create: cloud.Limit{PerSecond: 2, Burst: 20},
			Delete: cloud.Limit{PerSecond: 10, Burst: 50},
			Read:   cloud.Limit{PerSecond: 10, Burst: 50},
		},
		// A conservative guess: vCenter reads its own writes, but a clone's task and its VM are
		// read by separate calls.
		Traits:        cloud.Traits{ReadLag: 10 * time.Second},
		CheckUserData: driverkit.MaxUserData(maxUserData),
		Batch:         cloud.Batch{Read: maxBatch, Delete: maxBatch},
		ProviderID:    func(*infrav1.DroverAccountSpec) string { return providerID("{{ v1.instance_id }}") }, // as guestinfo gives it
	}
}

// identityOf returns a machine's UUID, derived from its token. It is the VM's instance UUID, by
// which the driver finds it, and its BIOS UUID, which Kubernetes knows it by. The token of a VM
// that others made ends in its BIOS UUID; its instance UUID is another.
func identityOf(token string) string {
	if id := importedID(token); id != "" {
		return id
	}
	namespace := uuid.NewSHA1(uuid.NameSpaceDNS, []byte("vsphere.drover.infrastructure.cluster.x-k8s.io"))
	return uuid.NewSHA1(namespace, []byte(token)).String()
}

// importedID returns the UUID that the token of a VM that others made ends in, or "".
func importedID(token string) string {
	const length = len("00000000-0000-0000-0000-000000000000")
	if at := len(token) - length; at > 0 && token[at-1] == '-' && uuid.Validate(token[at:]) == nil {
		return token[at:]
	}
	return ""
}

// providerID returns the provider ID in the format of vSphere's cloud controller manager.
func providerID(biosUUID string) string { return "vsphere://" + strings.ToLower(biosUUID) }

func validateAccount(spec *infrav1.DroverAccountSpec, path *field.Path) field.ErrorList {
	a := spec.Cloud.VSphere
	var all field.ErrorList
	if spec.CredentialsRef.Name == "" {
		all = append(all, field.Required(path.Child("credentialsRef"),
			"vSphere has no ambient credentials: name a Secret with username and password"))
	}
	if _, err := driverkit.CertPool(a.CABundle); err != nil {
		all = append(all, field.Invalid(path.Child("cloud", "vsphere", "caBundle"), "", "must contain PEM certificates"))
	}
	if _, err := thumbprintOf(a.Thumbprint); err != nil {
		all = append(all, field.Invalid(path.Child("cloud", "vsphere", "thumbprint"), a.Thumbprint, "must be SHA-256: 64 hexadecimal digits"))
	}
	if n := a.NodeAddresses; n != nil {
		for i, text := range n.Exclude {
			if _, err := netip.ParsePrefix(text); err != nil {
				all = append(all, field.Invalid(path.Child("cloud", "vsphere", "nodeAddresses", "exclude").Index(i), text,
					"must be an address range, such as 192.0.2.0/24"))
			}
		}
	}
	return all
}

func validateMachine(m *infrav1.VSphereMachine, path *field.Path) field.ErrorList {
	var all field.ErrorList
	path = path.Child("cloud", "vsphere")
	for i, option := range m.ExtraConfig {
		if reserved(option.Key) {
			all = append(all, field.Forbidden(path.Child("extraConfig").Index(i).Child("key"), "is reserved for Drover"))
		}
	}
	for i, network := range m.Networks {
		all = append(all, validateNetwork(network, path.Child("networks").Index(i))...)
	}
	return all
}

func validateNetwork(n infrav1.VSphereNetwork, path *field.Path) field.ErrorList {
	var all field.ErrorList
	for i, text := range n.Addresses {
		if _, err := netip.ParsePrefix(text); err != nil {
			all = append(all, field.Invalid(path.Child("addresses").Index(i), text, "must be an address with its prefix length"))
		}
	}
	for i, text := range n.Nameservers {
		if _, err := netip.ParseAddr(text); err != nil {
			all = append(all, field.Invalid(path.Child("nameservers").Index(i), text, "must be an address"))
		}
	}
	if a, err := netip.ParseAddr(n.Gateway4); n.Gateway4 != "" && (err != nil || !a.Is4()) {
		all = append(all, field.Invalid(path.Child("gateway4"), n.Gateway4, "must be an IPv4 address"))
	}
	if a, err := netip.ParseAddr(n.Gateway6); n.Gateway6 != "" && (err != nil || !a.Is6()) {
		all = append(all, field.Invalid(path.Child("gateway6"), n.Gateway6, "must be an IPv6 address"))
	}
	for i, route := range n.Routes {
		if _, err := netip.ParsePrefix(route.To); err != nil {
			all = append(all, field.Invalid(path.Child("routes").Index(i).Child("to"), route.To, "must be an address with its prefix length"))
		}
		if _, err := netip.ParseAddr(route.Via); err != nil {
			all = append(all, field.Invalid(path.Child("routes").Index(i).Child("via"), route.Via, "must be an address"))
		}
	}
	return all
}

// driver is the driver of one account.
type driver struct {
	vcenter   *vcenter
	domains   []infrav1.VSphereFailureDomain
	category  string // the category whose tags are the failure domains instead; "" for none
	choice    choice
	page      int32
	pace      func() time.Duration // between two reads of machines that change
	idle      time.Duration        // how long one call waits if no machine changes
	clones    clones
	locations locations
	removals  removals
	writes    writes
	groups    groups
	tagged    updatedVMs // VMs that have their tags
	annotated updatedVMs // VMs that have their custom attributes

	plans driverkit.Memo[*plan]             // by the machine's fields that they depend on
	tags  driverkit.Memo[map[string]string] // tag IDs by name, for each category
	zones driverkit.Memo[map[string]zone]   // one entry with all zones, by name
	names driverkit.Recent[string]          // of categories and tags, by ID, until all of them are read
}

func newDriver(cfg cloud.Config) (cloud.Driver, error) {
	if cfg.Account == nil || cfg.Account.Cloud.VSphere == nil {
		return nil, cloud.Invalid("the account's spec.cloud.vsphere is not set")
	}
	account := cfg.Account.Cloud.VSphere
	// The line break after a value is the tool's that made the Secret. A space may be the user's.
	username, password := strings.TrimRight(string(cfg.Credentials[usernameKey]), "\r\n"),
		strings.TrimRight(string(cfg.Credentials[passwordKey]), "\r\n")
	for key, value := range map[string]string{usernameKey: username, passwordKey: password} {
		if value == "" {
			return nil, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q is missing or empty", key)
		}
	}
	config, err := trust(account)
	if err != nil {
		return nil, err
	}
	transport, err := cfg.Connect(config)
	if err != nil {
		return nil, err
	}
	v, err := newVCenter(account, username, password, transport)
	if err != nil {
		return nil, err
	}
	chosen, err := newChoice(account.NodeAddresses)
	if err != nil {
		return nil, err
	}
	d := &driver{
		vcenter: v,
		domains: slices.Clone(account.FailureDomains), category: account.ZoneCategory,
		choice: chosen,
		page:   pageSize,
		plans:  driverkit.Memo[*plan]{TTL: planTTL},
		tags:   driverkit.Memo[map[string]string]{TTL: planTTL},
		zones:  driverkit.Memo[map[string]zone]{TTL: planTTL},
		idle:   maxWait,
		pace:   func() time.Duration { return defaultPace },
	}
	if cfg.ActiveInterval != nil {
		d.pace = func() time.Duration { return cmp.Or(cfg.ActiveInterval(), defaultPace) }
	}
	return d, nil
}

// label returns a host name for a name, with room for a suffix.
func label(name string) string { return driverkit.HostName(name, 54) }

// vmName returns the name that people see. It also makes vCenter refuse duplicates: names are
// unique in a folder, even among running clones, and this one is derived from the token.
func vmName(name, token string) string {
	sum := sha256.Sum256([]byte(token))
	return fmt.Sprintf("%s-%x", label(name), sum[:4])
}
