// SPDX-License-Identifier: Apache-2.0

// Package vsphere is the driver of VMware vSphere: it turns requests into SOAP calls of a vCenter
// Server and answers into resources, by govmomi's types. What SOAP has not, content libraries and
// tags, it asks vCenter's Automation API for. It waits for no task. It knows no Kubernetes client
// and no other driver.
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

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// usernameKey and passwordKey are the credentials Secret's keys.
	usernameKey = "username"
	passwordKey = "password"
	// maxUserData keeps a guestinfo variable below 64 KiB, which is what VMware Tools carry in one
	// message, also when gzip can't make the data smaller and base64 adds its third.
	maxUserData = 47 << 10
	// maxBatch keeps one step's calls within the time of one call, at the rate below.
	maxBatch = 50
	// pageSize is how many objects vCenter is asked for in one answer: at about 1 KiB each, well
	// below a MiB.
	pageSize = 500
	// defaultPace is that of listings, where the account says nothing else.
	defaultPace = 5 * time.Second
)

// union is the cloud's member in those of CloudAccount and CloudMachine.
var union = driverkit.Fields[infrav1.VSphereAccount, infrav1.VSphereMachine]{
	Account:      func(a *infrav1.CloudAccountSpec) *infrav1.VSphereAccount { return a.VSphere },
	Machine:      func(m *infrav1.CloudMachineFields) *infrav1.VSphereMachine { return m.VSphere },
	CheckAccount: validateAccount,
	CheckMachine: validateMachine,
}

// Cloud is vSphere's row in the registry.
func Cloud() cloud.Cloud {
	return cloud.Cloud{
		Name:  "vsphere",
		Union: union,
		New:   newDriver,
		// Prudent guesses: vCenter documents no limits of rate. It queues what goes beyond 8 clones
		// on one host and 128 on one datastore ("Limits on Simultaneous Migrations", vCenter Server
		// and Host Management). As many clones as may be begun at once may also run at once.
		Limits: cloud.Limits{
			Create: cloud.Limit{PerSecond: 2, Burst: 20},
			Delete: cloud.Limit{PerSecond: 10, Burst: 50},
			Read:   cloud.Limit{PerSecond: 10, Burst: 50},
		},
		// A prudent guess: vCenter reads its own writes, but a clone's task and its VM are two
		// things to ask for.
		Traits:        cloud.Traits{ReadLag: 10 * time.Second},
		CheckUserData: driverkit.MaxUserData(maxUserData),
		Batch:         cloud.Batch{Read: maxBatch, Delete: maxBatch},
		ProviderID:    func(*infrav1.CloudAccountSpec) string { return providerID("{{ v1.instance_id }}") }, // as guestinfo tells it
	}
}

// identityOf derives a machine's UUID from its token. It becomes the VM's instance UUID, by which
// it is found, and its BIOS UUID, which is its name for Kubernetes.
func identityOf(token string) string {
	namespace := uuid.NewSHA1(uuid.NameSpaceDNS, []byte("vsphere.drover.infrastructure.cluster.x-k8s.io"))
	return uuid.NewSHA1(namespace, []byte(token)).String()
}

// providerID is as vSphere's cloud controller manager writes it.
func providerID(biosUUID string) string { return "vsphere://" + strings.ToLower(biosUUID) }

func validateAccount(spec *infrav1.CloudAccountSpec, path *field.Path) field.ErrorList {
	a := spec.VSphere
	var all field.ErrorList
	if spec.CredentialsRef == nil {
		all = append(all, field.Required(path.Child("credentialsRef"), "vSphere has no ambient credentials: name a Secret with username and password"))
	}
	if _, err := driverkit.CertPool(a.CABundle); err != nil {
		all = append(all, field.Invalid(path.Child("vsphere", "caBundle"), "", "must hold certificates in PEM"))
	}
	if _, err := thumbprintOf(a.Thumbprint); err != nil {
		all = append(all, field.Invalid(path.Child("vsphere", "thumbprint"), a.Thumbprint, "must be SHA-256: 64 hexadecimal digits"))
	}
	if n := a.NodeAddresses; n != nil {
		for i, text := range n.Exclude {
			if _, err := netip.ParsePrefix(text); err != nil {
				all = append(all, field.Invalid(path.Child("vsphere", "nodeAddresses", "exclude").Index(i), text, "must be a range of addresses, such as 192.0.2.0/24"))
			}
		}
	}
	return all
}

func validateMachine(m *infrav1.VSphereMachine, path *field.Path) field.ErrorList {
	var all field.ErrorList
	path = path.Child("vsphere")
	for i, option := range m.ExtraConfig {
		if reserved(option.Key) {
			all = append(all, field.Forbidden(path.Child("extraConfig").Index(i).Child("key"), "is Drover's own"))
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

// driver is one account's.
type driver struct {
	vcenter  *vcenter
	domains  []infrav1.VSphereFailureDomain
	category string // whose tags are the failure domains instead; "" for none
	choice   choice
	page     int32
	pace     time.Duration // between two looks at machines that change
	idle     time.Duration // how long vCenter is waited for while none does
	clones   clones
	seen     sightings
	removals removals
	groups   groups
	tagged   settled // with the tags of their own
	noted    settled // with the custom attributes of their own

	plans driverkit.Memo[*plan]             // by what they depend on of a machine's fields
	tags  driverkit.Memo[map[string]string] // the IDs of a category's tags, by name
	zones driverkit.Memo[map[string]zone]   // the one answer for all, by name
}

func newDriver(cfg cloud.Config) (cloud.Driver, error) {
	if cfg.Account == nil || cfg.Account.VSphere == nil {
		return nil, cloud.Errorf(cloud.InvalidSpec, "the account does not describe a vCenter")
	}
	account := cfg.Account.VSphere
	username, password := string(cfg.Credentials[usernameKey]), string(cfg.Credentials[passwordKey])
	for key, value := range map[string]string{usernameKey: username, passwordKey: password} {
		if value == "" {
			return nil, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q is missing or empty", key)
		}
	}
	config, err := trust(account)
	if err != nil {
		return nil, err
	}
	carrier, err := cfg.Connect(config)
	if err != nil {
		return nil, err
	}
	v, err := newVCenter(account, username, password, carrier)
	if err != nil {
		return nil, err
	}
	chosen, err := choiceOf(account.NodeAddresses)
	if err != nil {
		return nil, err
	}
	most := Cloud().Limits.Create.Burst
	if l := cfg.Account.RateLimits; l != nil && l.Create != nil {
		most = int(l.Create.Burst)
	}
	return &driver{
		vcenter: v,
		clones:  clones{most: most},
		domains: slices.Clone(account.FailureDomains), category: account.ZoneCategory,
		choice: chosen,
		page:   pageSize,
		plans:  driverkit.Memo[*plan]{TTL: planMemory},
		tags:   driverkit.Memo[map[string]string]{TTL: planMemory},
		zones:  driverkit.Memo[map[string]zone]{TTL: planMemory},
		pace:   cmp.Or(time.Duration(cfg.Account.Inventory.ActiveSeconds)*time.Second, defaultPace),
		idle:   idleWait,
	}, nil
}

// label makes a host name of a name, with room for a suffix.
func label(name string) string { return driverkit.HostName(name, 54) }

// vmName is what people see, and vCenter's own guard against doubles: names are unique in a folder,
// also among the clones under way, and this one belongs to the token.
func vmName(name, token string) string {
	sum := sha256.Sum256([]byte(token))
	return fmt.Sprintf("%s-%x", label(name), sum[:4])
}
