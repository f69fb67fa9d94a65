// SPDX-License-Identifier: Apache-2.0

package toycloud

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
)

// TestConformance is the only test that a new driver needs at first.
func TestConformance(t *testing.T) {
	toy, endpoint := startToy(t)
	toy.conform(t, Cloud(), endpoint)
}

func (toy *toy) conform(t *testing.T, row cloud.Cloud, endpoint string) {
	machine := func(size, image, zone string) *infrav1.DroverMachineFields {
		return &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{Simulated: &infrav1.SimulatedMachine{InstanceType: size, Image: image,
			Zone: zone, DiskGiB: 20}}}
	}
	conformance.Run(t, conformance.Target{
		Cloud:          row,
		Account:        &infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Endpoint: endpoint}}},
		Credentials:    map[string][]byte{"token": []byte(toyKey)},
		BadCredentials: map[string][]byte{"token": []byte("marked-other-key")},
		Machine:        machine("small", "node-image", ""),
		Refused: map[string]conformance.Refused{
			"unknown size":  {Machine: machine("enormous", "node-image", ""), Code: cloud.InvalidSpec, OfferingToo: true},
			"unknown image": {Machine: machine("small", "nothing", ""), Code: cloud.InvalidSpec, OfferingToo: true},
			"unknown zone":  {Machine: machine("small", "node-image", "toy-z"), Code: cloud.InvalidSpec},
		},
		Timeout: 20 * time.Second,
		// For an existing server, Ensure reads it too. A page holds 40 servers or volumes. Delete
		// has no batches.
		Calls: conformance.Calls{Again: 2, List: 2, Describe: 2, Page: toyPageSize, Delete: 5},
		Inject: map[cloud.Code]func(testing.TB) func(){
			cloud.Throttled:     toy.inject(429),
			cloud.QuotaExceeded: toy.inject(403),
			cloud.NoCapacity:    toy.inject(507),
			cloud.Unavailable:   toy.inject(503),
			cloud.Unknown:       toy.inject(418),
		},
		FailsLater:      func(testing.TB) func() { return toy.during(&toy.full) },
		LosePermissions: func(testing.TB) func() { return toy.during(&toy.blind) },
		Foreign: func(testing.TB) func() bool {
			toy.mu.Lock()
			defer toy.mu.Unlock()
			toy.servers["theirs"] = &toyServer{server: server{ID: "server-theirs", Name: "theirs", Labels: map[string]string{"team": "others"}}}
			return func() bool { return len(toy.left("team", "others")) == 1 }
		},
		Remaining: func(_ testing.TB, owner string) []string { return toy.left(cloud.TagOwnership, owner) },
	})
}

// during sets a fault, until undo is called.
func (c *toy) during(fault *bool) (undo func()) {
	set := func(to bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		*fault = to
	}
	set(true)
	return func() { set(false) }
}

func (c *toy) inject(status int) func(testing.TB) func() {
	set := func(refuse func() (int, string)) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refuse = refuse
	}
	return func(testing.TB) func() {
		set(func() (int, string) { return status, "1" })
		return func() { set(nil) }
	}
}

// TestGuide compares docs/adding-a-cloud.md with the code: the example contains each listing of the
// guide, and stays short.
func TestGuide(t *testing.T) {
	read := func(name string) []byte {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	driver := read("driver.go")
	if lines := bytes.Count(driver, []byte("\n")); lines >= 300 {
		t.Errorf("driver.go has %d lines; the guide promises fewer than 300", lines)
	}
	code := string(driver) + string(read("borrowed.go")) + string(read("driver_test.go"))
	listings := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(read("../../adding-a-cloud.md")), -1)
	if len(listings) < 5 {
		t.Errorf("found %d listings in the guide", len(listings))
	}
	for _, listing := range listings {
		for _, part := range strings.Split(listing[1], "\t// …\n") {
			if !strings.Contains(code, part) {
				t.Errorf("the guide shows code that is not in the example:\n%s", part)
			}
		}
	}
}
