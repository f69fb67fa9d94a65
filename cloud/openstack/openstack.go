// SPDX-License-Identifier: Apache-2.0

// Package openstack is the driver for OpenStack: it turns requests into calls of Keystone, Nova,
// Neutron, Glance, Cinder and Octavia and answers into resources, with gophercloud's clients. It
// imports no Kubernetes client and no other driver. All its traffic goes through the account's
// transport.
package openstack

import (
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// microversion is Nova's microversion for calls: 2.61, of the release Rocky. It has tags in the
	// create (2.52) and the flavor's extra specs (2.61). Later ones add nothing that most calls
	// use.
	microversion = "2.61"
	// steinMicroversion is of the release Stein. It has volume types in the create (2.67) and shows
	// servers of a cell that is down (2.69). The driver uses it for these only.
	steinMicroversion = "2.69"
	// ussuriMicroversion is of the release Ussuri. It changes whether Nova deletes a volume with
	// its server (2.85). The driver uses it for this only.
	ussuriMicroversion = "2.85"
	// maxUserData is what fits as base64 into the 65,535 bytes that Nova accepts.
	maxUserData = 65535 / 4 * 3
	// maxTokens keeps the request line of a listing by tokens within 4 KiB.
	maxTokens = 50
	// maxBatch fits one full listing, or the listings by tokens that end within a call's time.
	maxBatch = 300
	// maxDelete lets one step's deletes end within a call's time, at the rate below.
	maxDelete = 50
	// maxText is the maximum length of names, metadata values and descriptions.
	maxText = 255
	// maxTag is the maximum length of a server tag.
	maxTag = 60
)

// union selects OpenStack's members of DroverAccount and DroverMachine.
var union = driverkit.Fields[infrav1.OpenStackAccount, infrav1.OpenStackMachine]{
	Account:      func(a *infrav1.DroverAccountSpec) *infrav1.OpenStackAccount { return a.Cloud.OpenStack },
	Machine:      func(m *infrav1.DroverMachineFields) *infrav1.OpenStackMachine { return m.Cloud.OpenStack },
	CheckAccount: validateAccount,
	CheckMachine: validateMachine,
}

// Cloud returns OpenStack's entry in the registry.
func Cloud() cloud.Cloud {
	return cloud.Cloud{
		Name:  "openstack",
		Union: union,
		New:   newDriver,
		Endpoint: func(spec *infrav1.DroverAccountSpec) string {
			return spec.Cloud.OpenStack.AuthURL + "\n" + spec.Cloud.OpenStack.CABundle
		},
		// Cautious guesses: Nova and Neutron have no rate limits, but a proxy in front of them may.
		Limits: cloud.Limits{
			Create: cloud.Limit{PerSecond: 5, Burst: 20},
			Delete: cloud.Limit{PerSecond: 5, Burst: 20},
			Read:   cloud.Limit{PerSecond: 10, Burst: 50},
		},
		Traits:        cloud.Traits{ReadLag: consistency, CreateHorizon: inheritedPending},
		CheckUserData: driverkit.MaxUserData(maxUserData),
		Batch:         cloud.Batch{Read: maxBatch, Delete: maxDelete},
		ProviderID: func(a *infrav1.DroverAccountSpec) string {
			return providerID(a.Cloud.OpenStack, "{{ v1.instance_id }}")
		},
	}
}

// providerID returns the provider ID as OpenStack's cloud controller writes it. With
// OS_CCM_REGIONAL it includes the region.
func providerID(account *infrav1.OpenStackAccount, id string) string {
	region := ""
	if account.RegionalProviderIDs == infrav1.FeatureEnabled {
		region = account.Region
	}
	return "openstack://" + region + "/" + id
}

func validateAccount(spec *infrav1.DroverAccountSpec, path *field.Path) (all field.ErrorList) {
	a := spec.Cloud.OpenStack
	if spec.CredentialsRef.Name == "" {
		all = append(all, field.Required(path.Child("credentialsRef"), "OpenStack has no ambient credentials: name a Secret with clouds.yaml"))
	}
	if _, err := driverkit.CertPool(a.CABundle); err != nil {
		all = append(all, field.Invalid(path.Child("cloud", "openstack", "caBundle"), "", "must contain PEM certificates"))
	}
	return all
}

func validateMachine(m *infrav1.OpenStackMachine, path *field.Path) (all field.ErrorList) {
	path = path.Child("cloud", "openstack")
	for key, value := range m.Metadata {
		at := path.Child("metadata").Key(cloud.Clip(key, maxText))
		switch {
		case strings.HasPrefix(key, "drover-"):
			all = append(all, field.Forbidden(at, `keys that begin with "drover-" are Drover's`))
		case key == "" || len(key) > maxText || len(value) > maxText:
			all = append(all, field.Invalid(at, cloud.Clip(value, maxText), "keys must have 1 to 255 bytes, and values at most 255"))
		}
	}
	for i, tag := range m.Tags {
		if strings.HasPrefix(tag, "drover") {
			all = append(all, field.Forbidden(path.Child("tags").Index(i), `the prefix "drover" is reserved`))
		}
	}
	for i, port := range m.Ports {
		at := path.Child("ports").Index(i)
		for j, pair := range port.AllowedAddressPairs {
			if !isAddress(pair.IPAddress) {
				all = append(all, field.Invalid(at.Child("allowedAddressPairs").Index(j).Child("ipAddress"), pair.IPAddress,
					"must be an address, or a network such as 10.244.0.0/16"))
			}
		}
		for j, ip := range port.FixedIPs {
			if _, err := netip.ParseAddr(ip.IPAddress); err != nil && ip.IPAddress != "" {
				all = append(all, field.Invalid(at.Child("fixedIPs").Index(j).Child("ipAddress"), ip.IPAddress, "must be an address"))
			}
		}
	}
	return all
}

func isAddress(text string) bool {
	_, notNetwork := netip.ParsePrefix(text)
	_, notAddress := netip.ParseAddr(text)
	return notNetwork == nil || notAddress == nil
}
