// SPDX-License-Identifier: Apache-2.0

// Package tagging is about instances that others have made: what a driver may add for "drover
// import", which makes them Drover's, and the tokens that they then have.
package tagging

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/drover-io/drover/cloud"
)

// Tagger is a Driver that can tag instances that others have made, so that they become Drover's. It
// runs with the credentials of the user of "drover import". The manager must never have the right:
// it deletes what carries Drover's tags, so who may tag any instance may have any deleted.
type Tagger interface {
	cloud.Driver
	// Tagged returns the instances that carry all of these tag keys and are not terminated.
	Tagged(ctx context.Context, keys []string) ([]Instance, error)
	// Tag adds Drover's tags to an instance, by its ID in Tagged's answer, and replaces the values
	// of those it has. own are the names or IDs of what else is the instance's alone, but stays
	// when the cloud deletes the instance: ports, volumes, addresses. From then on, it goes with
	// the instance. Tag can be repeated, and must be until it succeeds.
	Tag(ctx context.Context, id string, tags map[string]string, own []string) error
	// Untag removes tags from instances, by the same IDs and by key. Tags that an instance does not
	// have are no error. With Drover's own tags, everything becomes as it was before Tag. Untag can
	// be repeated.
	Untag(ctx context.Context, ids, keys []string) error
}

// Instance is an instance with all its tags.
type Instance struct {
	cloud.Resource
	// Type and Tags are in the cloud's words.
	Type string
	Tags map[string]string
	// Partial is true if the instance has Drover's tags, but Tag or Untag has not come to its end.
	Partial bool
}

// ImportToken returns the creation token of a machine that others made. Like the tokens that Drover
// makes up, it begins with the management cluster's identity, so Drover counts what the VM leaves
// behind as its own. The digest depends on the ownership ID, which is random: otherwise, whoever
// knows the cloud's ID of a VM could use its token before its owner imports it.
func ImportToken(identity, ownershipID, instance string) string {
	sum := sha256.Sum256([]byte(ownershipID + "/" + instance))
	return identity + "-" + hex.EncodeToString(sum[:16])
}

// IsImportToken reports whether the token is that of a machine that others made: the tokens that
// Drover makes up have no hyphen after the identity.
func IsImportToken(token string) bool {
	const identityLength = 8
	identity, rest, _ := strings.Cut(token, "-")
	return len(identity) == identityLength && strings.Trim(identity, "0123456789abcdef") == "" && rest != ""
}
