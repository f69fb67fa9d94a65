// SPDX-License-Identifier: Apache-2.0

// Package conformance is the suite that every driver must pass, run against the realest endpoint
// that there is for its cloud: it holds the driver to what cloud.Driver promises, one promise a
// subtest. It judges by what the driver answers and by what goes over the wire, where it plays the
// bad network itself; it knows no cloud. Only tests import it.
package conformance

import (
	"net/http"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

// Target is a cloud to be tried: its row, an account at a real endpoint, and what the suite can't
// know of it. Hooks that a cloud can't offer stay nil; the suite logs what it left out.
type Target struct {
	// Cloud is the row of the registry.
	Cloud cloud.Cloud

	// Account and Credentials work. BadCredentials are ones that the endpoint refuses, well-formed.
	Account                     *infrav1.CloudAccountSpec
	Credentials, BadCredentials map[string][]byte

	// Machine can be made, some hundred times over.
	Machine *infrav1.CloudMachineFields
	// Refused are machines that can't be made, each with the code that says so. At least an unknown
	// type and image.
	Refused map[string]Refused

	// Transport carries the calls. nil: one of the suite's own.
	Transport http.RoundTripper

	// Machines is how many the listing test makes. 0: 250.
	Machines int
	// Patience bounds how long a machine may take to run, or to be gone. 0: 1 minute.
	Patience time.Duration
	// Calls are the wire calls that a step may cost at most.
	Calls Calls

	// Inject makes every create fail at the endpoint with the code, until undo is called: one hook
	// for each code that the endpoint can produce, beyond Refused and BadCredentials.
	Inject map[cloud.Code]func(testing.TB) (undo func())
	// OtherPlace is where other credentials lead, such as another account's at the same endpoint.
	OtherPlace *Place
	// Late has the endpoint answer no create, and carry it out some time after, until undo is
	// called.
	Late func(testing.TB) (undo func())
	// Foreign makes an instance that carries none of our tags, behind the driver's back. alive
	// tells whether it is still there as it was.
	Foreign func(testing.TB) (alive func() bool)
	// Left lists, behind the driver's back, all that exists and carries the ownership ID;
	// terminated instances apart.
	Left func(t testing.TB, ownershipID string) []string
}

// Place is somewhere else.
type Place struct {
	// Account, where it differs in more than its credentials.
	Account     *infrav1.CloudAccountSpec
	Credentials map[string][]byte
}

// Refused is a machine that the cloud must refuse.
type Refused struct {
	Machine *infrav1.CloudMachineFields
	// FailureDomain to ask for. Usually empty.
	FailureDomain string
	Code          cloud.Code
	// OfferingToo is true where Offering must refuse it as well, as InvalidSpec: an unknown type or
	// image.
	OfferingToo bool
}

// Calls are wire calls. They are a promise to the users of the cloud's quota; 0 means 1.
type Calls struct {
	// Probe, Ensure of a new machine, Ensure of one that exists, and Offering.
	Probe, Create, Again, Offering int
	// List and Describe for each page of Page resources.
	List, Describe, Page int
	// Delete of one batch, which has instances only.
	Delete int
}

func (c Calls) withDefaults() Calls {
	for _, n := range []*int{&c.Probe, &c.Create, &c.Again, &c.Offering, &c.List, &c.Describe, &c.Delete} {
		*n = max(*n, 1)
	}
	if c.Page == 0 {
		c.Page = 100
	}
	return c
}
