// SPDX-License-Identifier: Apache-2.0

package options

import (
	"time"

	"github.com/spf13/pflag"
)

// Orphans define what an orphan is, and limit what one pass deletes. Flags that mean the same as in
// machine-controller-manager have the same name.
type Orphans struct {
	Grace        time.Duration
	MaxDeletions int
	MaxShare     int
}

// AddFlags adds the flags to a set.
func (o *Orphans) AddFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.Grace, "machine-safety-orphan-vms-grace", 30*time.Minute,
		"How long a resource must have had no machine, in every listing, to count as an orphan. It must be longer than the longest creation.")
	f.IntVar(&o.MaxDeletions, "machine-safety-orphan-vms-max-deletions", 10,
		"Maximum number of machines whose remaining resources one pass over an account starts to delete.")
	f.IntVar(&o.MaxShare, "machine-safety-orphan-vms-max-share", 20,
		"Maximum share of orphans in an account's fleet, in percent. If the orphans of 3 machines or more exceed it, Drover deletes none of them until a person confirms it.")
}
