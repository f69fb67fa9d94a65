// SPDX-License-Identifier: Apache-2.0

// Package conformance is the suite that every driver must pass. Run it against the most real
// endpoint that the cloud has. Each subtest checks one promise of cloud.Driver, by what the driver
// returns and by its calls on the wire, where the suite itself simulates network faults. It knows
// no cloud. Only tests import it.
package conformance

import (
	"net/http"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// Target is a cloud under test: its row, an account at a real endpoint, and what the suite can't
// know of it. Hooks that a cloud can't offer stay nil. The suite logs what it leaves out.
type Target struct {
	// Cloud is the row of the registry.
	Cloud cloud.Cloud

	// Account and Credentials work. BadCredentials are well-formed, and the endpoint refuses them.
	Account                     *infrav1.DroverAccountSpec
	Credentials, BadCredentials map[string][]byte

	// Machine can be made, some hundred times.
	Machine *infrav1.DroverMachineFields
	// Balancer are the settings of load balancers; nil: the cloud's defaults.
	Balancer *infrav1.LoadBalancerCloud
	// Refused are machines that can't be made, each with its expected code. Include at least an
	// unknown type and an unknown image.
	Refused map[string]Refused

	// Transport carries the calls; nil: a new one.
	Transport http.RoundTripper

	// Machines is how many machines the listing test makes; 0: 250.
	Machines int
	// Timeout is how long a machine may take to run, or to be gone; 0: 1 minute.
	Timeout time.Duration
	// Calls are the wire calls that a step may cost at most.
	Calls Calls

	// Inject makes every create fail at the endpoint with the code, until undo is called: one hook
	// for each code that the endpoint can return, beyond Refused and BadCredentials.
	Inject map[cloud.Code]func(testing.TB) (undo func())
	// OtherPlace is where other credentials lead, such as another account's at the same endpoint.
	OtherPlace *Place
	// LateCreates makes the endpoint leave creates without an answer, and carry them out some time
	// later, until undo is called.
	LateCreates func(testing.TB) (undo func())
	// FailsLater makes the endpoint accept creates that then fail for lack of capacity, until undo
	// is called.
	FailsLater func(testing.TB) (undo func())
	// LosePermissions makes the endpoint hide or refuse the machines in reads, as for credentials
	// that have lost a permission, until undo is called.
	LosePermissions func(testing.TB) (undo func())
	// Foreign makes an instance without Drover's tags, without the driver. alive reports whether it
	// still exists unchanged.
	Foreign func(testing.TB) (alive func() bool)
	// Remaining lists, without the driver, all that exists and carries the ownership ID, except
	// terminated instances.
	Remaining func(t testing.TB, ownershipID string) []string
}

// Place is another place.
type Place struct {
	// Account is nil if it differs only in its credentials.
	Account     *infrav1.DroverAccountSpec
	Credentials map[string][]byte
}

// Refused is a machine that the cloud must refuse.
type Refused struct {
	Machine *infrav1.DroverMachineFields
	// FailureDomain is the requested one; usually empty.
	FailureDomain string
	Code          cloud.Code
	// OfferingToo is true if Offering must refuse it as InvalidSpec too, as for an unknown type or
	// image.
	OfferingToo bool
}

// Calls are limits on wire calls. They protect the users' quota at the cloud; 0 means 1.
type Calls struct {
	// Probe, Ensure of a new machine, Ensure of one that exists, and Offering.
	Probe, Create, Again, Offering int
	// List and Describe for each page of Page resources.
	List, Describe, Page int
	// Delete of one batch of instances only.
	Delete int
	// Console of one instance.
	Console int
	// Balancer is the creation of a load balancer, and Targets a change of its targets.
	Balancer, Targets int
}

func (c Calls) withDefaults() Calls {
	for _, n := range []*int{&c.Probe, &c.Create, &c.Again, &c.Offering, &c.List, &c.Describe, &c.Delete, &c.Console, &c.Balancer,
		&c.Targets} {
		*n = max(*n, 1)
	}
	if c.Page == 0 {
		c.Page = 100
	}
	return c
}
