// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"strings"
	"unicode/utf8"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/drover-io/drover/cloud"
)

// What the statuses of a CloudMachine and a CloudAccount can hold. Anybody may answer at a tenant's
// endpoint, and a status that the API server refuses would tell of nothing at all.
const (
	maxProviderID = 512
	maxZones      = 100
	maxZoneName   = 256
	maxAddress    = 256
	maxImageID    = 256
	maxNotice     = 512
	maxAddresses  = 100
)

// tame drops what no cloud says of a resource, and keeps the rest.
func tame(r cloud.Resource) cloud.Resource {
	if !fits(r.FailureDomain, maxZoneName) {
		r.FailureDomain = ""
	}
	r.Notice = cloud.Clip(strings.ToValidUTF8(r.Notice, ""), maxNotice)
	if !fits(r.ImageID, maxImageID) {
		r.ImageID = ""
	}
	unfit := func(a clusterv1.MachineAddress) bool { return !fits(a.Address, maxAddress) }
	if slices.ContainsFunc(r.Addresses, unfit) {
		r.Addresses = slices.DeleteFunc(slices.Clone(r.Addresses), unfit)
	}
	if len(r.Addresses) > maxAddresses {
		r.Addresses = r.Addresses[:maxAddresses]
	}
	return r
}

func tameAll(resources []cloud.Resource) []cloud.Resource {
	for i := range resources {
		resources[i] = tame(resources[i])
	}
	return resources
}

// zones makes a set of what the cloud calls its failure domains, or says why it is none.
func zones(all []string) ([]string, error) {
	set := slices.Compact(slices.Sorted(slices.Values(all)))
	if len(set) > maxZones {
		return nil, cloud.Errorf(cloud.Unknown, "the endpoint names %d zones, more than the %d that any cloud has: does it belong to one?", len(set), maxZones)
	}
	for _, zone := range set {
		if !fits(zone, maxZoneName) {
			return nil, cloud.Errorf(cloud.Unknown, "the endpoint names a zone of %d bytes: does it belong to a cloud?", len(zone))
		}
	}
	return set, nil
}

// fits tells whether a text is one, of so many characters at most.
func fits(text string, limit int) bool {
	n := utf8.RuneCountInString(text)
	return n > 0 && n <= limit && utf8.ValidString(text)
}

// find returns where r is among the resources, or -1.
func find(resources []cloud.Resource, r cloud.Resource) int {
	return slices.IndexFunc(resources, func(o cloud.Resource) bool { return o.Kind == r.Kind && o.ID == r.ID })
}

// living are the instances that are not terminated.
func living(resources []cloud.Resource) (alive []cloud.Resource) {
	for _, r := range resources {
		if r.Kind == cloud.KindInstance && r.State != cloud.StateTerminated {
			alive = append(alive, r)
		}
	}
	return alive
}

// ownedBy are those of a cluster; all of them when it is not known any more which cluster it was.
func ownedBy(resources []cloud.Resource, ownershipID string) (own []cloud.Resource) {
	for _, r := range resources {
		if ownershipID == "" || r.OwnershipID == ownershipID {
			own = append(own, r)
		}
	}
	return own
}

// recorded tells whether the reference's instance, as it was recorded, is among the resources.
func recorded(resources []cloud.Resource, ref cloud.Reference) bool {
	return slices.ContainsFunc(resources, func(r cloud.Resource) bool {
		return r.Kind == cloud.KindInstance && (ref.ProviderID == "" || r.ProviderID == ref.ProviderID)
	})
}
