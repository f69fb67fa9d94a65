// SPDX-License-Identifier: Apache-2.0

// Package tagging is what a driver may add for "drover import". The manager does not use it.
package tagging

import (
	"context"

	"github.com/drover-io/drover/cloud"
)

// Tagger is a Driver that can tag instances that others have made, so that they become Drover's. It
// runs with the credentials of the user of "drover import". The manager must never have the right:
// it deletes what carries Drover's tags, so who may tag any instance may have any deleted.
type Tagger interface {
	cloud.Driver
	// Tagged returns the instances that carry all of these tag keys and are not terminated.
	Tagged(ctx context.Context, keys []string) ([]Instance, error)
	// Tag adds Drover's tags to an instance, and replaces the values of those it has. own are the
	// names or IDs of what else is the instance's alone, but stays when the cloud deletes the
	// instance: ports, volumes, addresses. From then on, it goes with the instance. Tag can be
	// repeated, and must be until it succeeds.
	Tag(ctx context.Context, id string, tags map[string]string, own []string) error
	// Untag removes tags from instances, by key. Tags that an instance does not have are no error.
	// With Drover's own tags, everything becomes as it was before Tag. Untag can be repeated.
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
