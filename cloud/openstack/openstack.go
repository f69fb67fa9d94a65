// SPDX-License-Identifier: Apache-2.0

// Package openstack is the driver of OpenStack: it turns requests into calls of Keystone, Nova,
// Neutron and Glance and answers into resources, over gophercloud's clients. It knows no Kubernetes
// client and no other driver, and all its traffic goes through the account's transport.
package openstack

import (
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// microversion is Nova's that calls are made in: 2.61, of the release Rocky. It has tags in the
	// create (2.52), the flavor's extra specs (2.61), and is the last that this driver would gain
	// from.
	microversion = "2.61"
	// steinMicroversion is of the release Stein. It has the types of volumes in the create (2.67),
	// and shows servers of a cell that does not answer (2.69). It is used for these alone.
	steinMicroversion = "2.69"
	// maxUserData is what fits into the 65,535 bytes that Nova takes, as base64.
	maxUserData = 65535 / 4 * 3
	// maxTokens keeps a listing by tokens in one line of 4 KiB.
	maxTokens = 50
	// maxBatch is for one listing of everything, or as many by tokens as end within a call's time.
	maxBatch = 300
	// maxDelete has one step's deletes end within a call's time, at the rate below.
	maxDelete = 50
	// maxText is how long a name, a value of metadata and a description may be.
	maxText = 255
	// maxTag is how long a server's tag may be.
	maxTag = 60
)

// union is the cloud's member in those of CloudAccount and CloudMachine.
var union = driverkit.Fields[infrav1.OpenStackAccount, infrav1.OpenStackMachine]{
	Account:      func(a *infrav1.CloudAccountSpec) *infrav1.OpenStackAccount { return a.OpenStack },
	Machine:      func(m *infrav1.CloudMachineFields) *infrav1.OpenStackMachine { return m.OpenStack },
	CheckAccount: validateAccount,
	CheckMachine: validateMachine,
}

// Cloud is OpenStack's row in the registry.
func Cloud() cloud.Cloud {
	return cloud.Cloud{
		Name:  "openstack",
		Union: union,
		New:   newDriver,
		// Prudent guesses: Nova and Neutron have no limits of rate themselves; what stands before
		// them may.
		Limits: cloud.Limits{
			Create: cloud.Limit{PerSecond: 5, Burst: 20},
			Delete: cloud.Limit{PerSecond: 5, Burst: 20},
			Read:   cloud.Limit{PerSecond: 10, Burst: 50},
		},
		Traits:        cloud.Traits{ReadLag: consistency, CreateHorizon: inheritedTTL},
		CheckUserData: driverkit.MaxUserData(maxUserData),
		Batch:         cloud.Batch{Read: maxBatch, Delete: maxDelete},
		ProviderID: func(a *infrav1.CloudAccountSpec) string {
			return providerID(a.OpenStack, "{{ v1.instance_id }}")
		},
	}
}

// providerID is the server's as OpenStack's cloud controller writes it; that names the region where
// it runs with OS_CCM_REGIONAL.
func providerID(account *infrav1.OpenStackAccount, id string) string {
	region := ""
	if account.RegionalProviderIDs {
		region = account.Region
	}
	return "openstack://" + region + "/" + id
}

func validateAccount(spec *infrav1.CloudAccountSpec, path *field.Path) (all field.ErrorList) {
	a := spec.OpenStack
	if spec.CredentialsRef == nil {
		all = append(all, field.Required(path.Child("credentialsRef"), "OpenStack has no ambient credentials: name a Secret with clouds.yaml"))
	}
	if _, err := driverkit.CertPool(a.CABundle); err != nil {
		all = append(all, field.Invalid(path.Child("openstack", "caBundle"), "", "must hold certificates in PEM"))
	}
	return all
}

func validateMachine(m *infrav1.OpenStackMachine, path *field.Path) (all field.ErrorList) {
	path = path.Child("openstack")
	for key, value := range m.Metadata {
		at := path.Child("metadata").Key(cloud.Clip(key, maxText))
		switch {
		case strings.HasPrefix(key, "drover-"):
			all = append(all, field.Forbidden(at, `keys that begin with "drover-" are Drover's`))
		case key == "" || len(key) > maxText || len(value) > maxText:
			all = append(all, field.Invalid(at, cloud.Clip(value, maxText), "Nova takes keys of 1 to 255 bytes, and values of at most 255"))
		}
	}
	for i, tag := range m.Tags {
		if strings.HasPrefix(tag, "drover") {
			all = append(all, field.Forbidden(path.Child("tags").Index(i), `tags that begin with "drover" are Drover's`))
		}
	}
	for i, port := range m.Ports {
		for j, text := range port.AllowedAddressPairs {
			if !isAddress(text) {
				all = append(all, field.Invalid(path.Child("ports").Index(i).Child("allowedAddressPairs").Index(j), text, "must be an address, or a network such as 10.244.0.0/16"))
			}
		}
		for j, text := range port.FixedIPs {
			if _, err := netip.ParseAddr(text); err != nil {
				all = append(all, field.Invalid(path.Child("ports").Index(i).Child("fixedIPs").Index(j), text, "must be an address"))
			}
		}
	}
	return all
}

func isAddress(text string) bool {
	if _, err := netip.ParsePrefix(text); err == nil {
		return true
	}
	_, err := netip.ParseAddr(text)
	return err == nil
}
