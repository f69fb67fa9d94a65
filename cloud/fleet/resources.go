// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/internal/budget"
)

// Bounds of what the statuses of a DroverMachine and a DroverAccount can hold. Anyone can answer at
// a tenant's endpoint, and the API server would refuse all of a status that exceeds them.
const (
	maxProviderID = 512
	maxZones      = 100
	maxZoneName   = 256
	maxAddress    = 256
	maxImageID    = 256
	maxNotice     = 512
	maxAddresses  = 127 // the status has 128: its controller adds the machine's name
)

// sanitize drops or cuts values that no real cloud returns, and keeps the rest.
func sanitize(r cloud.Resource) cloud.Resource {
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
	if r.Balancer != nil {
		if _, err := zones(r.Balancer.Zones); err != nil {
			b := *r.Balancer
			b.Zones, r.Balancer = nil, &b
		}
	}
	return r
}

// sanitizeAll returns sanitized copies. A driver may keep what it has returned.
func sanitizeAll(resources []cloud.Resource) []cloud.Resource {
	all := slices.Clone(resources)
	for i := range all {
		all[i] = sanitize(all[i])
	}
	return all
}

// sizeOf returns how many bytes the records of these resources take, roughly.
func sizeOf(resources []cloud.Resource) (sum int64) {
	const machine = 768 // of the machine's own record
	for _, r := range resources {
		sum += machine + budget.SizeOf(r)
	}
	return sum
}

// zones returns the cloud's failure domains as a sorted set, or an error if they can't be real.
func zones(all []string) ([]string, error) {
	set := slices.Compact(slices.Sorted(slices.Values(all)))
	if len(set) > maxZones {
		return nil, cloud.Errorf(cloud.Unknown, "unexpected response: %d zones, at most %d are possible: check the account's endpoint", len(set),
			maxZones)
	}
	for _, zone := range set {
		if !fits(zone, maxZoneName) {
			return nil, cloud.Errorf(cloud.Unknown, "unexpected response: a zone's name has %d bytes: check the account's endpoint", len(zone))
		}
	}
	return set, nil
}

// fits reports whether text is valid UTF-8 of 1 to limit characters.
func fits(text string, limit int) bool {
	n := utf8.RuneCountInString(text)
	return n > 0 && n <= limit && utf8.ValidString(text)
}

// find returns the index of r among the resources, or -1.
func find(resources []cloud.Resource, r cloud.Resource) int {
	return slices.IndexFunc(resources, func(o cloud.Resource) bool { return o.Kind == r.Kind && o.ID == r.ID })
}

// liveInstances returns the instances that are not terminated.
func liveInstances(resources []cloud.Resource) (alive []cloud.Resource) {
	for _, r := range resources {
		if r.Kind == cloud.KindInstance && r.State != cloud.StateTerminated {
			alive = append(alive, r)
		}
	}
	return alive
}

// ownedBy returns a cluster's resources; all of them if the ownership ID is not known any more.
func ownedBy(resources []cloud.Resource, ownershipID string) (own []cloud.Resource) {
	for _, r := range resources {
		if ownershipID == "" || r.OwnershipID == ownershipID {
			own = append(own, r)
		}
	}
	return own
}

// ownOf returns a cluster's resources with a token. An error says that others have it, too.
func ownOf(resources []cloud.Resource, token, ownershipID string) ([]cloud.Resource, error) {
	own := ownedBy(resources, ownershipID)
	if len(own) == len(resources) {
		return own, nil
	}
	return own, otherOwnerError(token, slices.DeleteFunc(slices.Clone(resources),
		func(r cloud.Resource) bool { return r.OwnershipID == ownershipID }))
}

// hasInstance reports whether the resources hold the reference's instance, as it was recorded.
func hasInstance(resources []cloud.Resource, ref cloud.Reference) bool {
	return slices.ContainsFunc(resources, func(r cloud.Resource) bool {
		return r.Kind == cloud.KindInstance && isRecorded(r, ref)
	})
}

// recordedOf returns the instance that the reference records; all of the resources if it records
// none.
func recordedOf(ref cloud.Reference, resources []cloud.Resource) []cloud.Resource {
	if ref.ProviderID == "" {
		return resources
	}
	return slices.DeleteFunc(slices.Clone(resources), func(r cloud.Resource) bool {
		return r.Kind != cloud.KindInstance || !isRecorded(r, ref)
	})
}

// isRecorded reports whether an instance with the reference's token can be the recorded one. It
// compares only the ends of the provider IDs, and ignores case: a zone, a region or a resource
// group can be written in several ways, and a running machine must not be taken for another one.
func isRecorded(r cloud.Resource, ref cloud.Reference) bool {
	return ref.ProviderID == "" || strings.EqualFold(path.Base(r.ProviderID), path.Base(ref.ProviderID))
}

// checkToken returns an error for an empty token. It stands for no machine, and would select
// everything that has an ownership ID and no token.
func checkToken(token string) error {
	if token == "" {
		return cloud.Invalid("spec.creation.token is empty, so nothing in the cloud is known to belong to this object")
	}
	return nil
}
