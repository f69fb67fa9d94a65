// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// row checks what the registry says of the cloud, and that none of it makes a call.
func (s *suite) row() {
	calls := s.net.count(func() {
		c := s.Cloud
		if c.Name == "" || c.Batch.Read < 1 || c.Batch.Delete < 1 || c.CheckUserData == nil || c.Traits.ReadLag < 0 ||
			c.Traits.CreateHorizon < 0 {
			s.Errorf("Cloud lacks Name, Batch or CheckUserData, or a duration in Traits is negative: %q %+v %+v", c.Name, c.Batch, c.Traits)
		}
		for class, limit := range map[cloud.Class]cloud.Limit{
			cloud.ClassCreate: c.Limits.Create, cloud.ClassDelete: c.Limits.Delete, cloud.ClassRead: c.Limits.Read,
		} {
			if limit.PerSecond <= 0 || limit.Burst < 1 {
				s.Errorf("Limits of class %s are invalid: %+v", class, limit)
			}
		}
		if !c.Union.InAccount(s.Account) || c.Union.InAccount(&infrav1.DroverAccountSpec{}) {
			s.Error("InAccount is wrong")
		}
		if !c.Union.InMachine(s.Machine) || c.Union.InMachine(&infrav1.DroverMachineFields{}) {
			s.Error("InMachine is wrong")
		}
		if errs := c.Union.ValidateAccount(s.Account, field.NewPath("spec")); len(errs) > 0 {
			s.Errorf("ValidateAccount rejects the account: %v", errs)
		}
		if errs := c.Union.ValidateMachine(s.Machine, field.NewPath("spec")); len(errs) > 0 {
			s.Errorf("ValidateMachine rejects the machine: %v", errs)
		}
		if c.ProviderID != nil {
			if id := c.ProviderID(s.Account); !strings.Contains(id, "{{") {
				s.Errorf("ProviderID is %q for all machines", id)
			}
		}
		s.newDriver(s.Credentials)
	})
	if calls != 0 {
		s.Errorf("Cloud and New made %d calls, want none", calls)
	}
}

// credentials checks the codes for missing, empty, malformed and refused credentials.
func (s *suite) credentials() {
	for key := range s.Credentials {
		for name, change := range map[string]func(map[string][]byte){
			"lacks":    func(c map[string][]byte) { delete(c, key) },
			"empty":    func(c map[string][]byte) { c[key] = nil },
			"newlines": func(c map[string][]byte) { c[key] = []byte("a\r\nX-Injected: b") },
		} {
			changed := maps.Clone(s.Credentials)
			change(changed)
			driver, err := s.Cloud.New(cloud.Config{Account: s.Account, Credentials: changed, Connect: s.net.connect})
			if err == nil {
				_, err = driver.Probe(s.Context()) // what New can't detect, the cloud must
			}
			if code := cloud.CodeOf(err); code != cloud.Unauthorized && code != cloud.InvalidSpec {
				s.Errorf("a Secret that %s key %q: got %v, want Unauthorized or InvalidSpec", name, key, err)
			}
		}
	}
	bad := s.newDriver(s.BadCredentials)
	_, err := bad.Probe(s.Context())
	s.wantCode(err, cloud.Unauthorized)
	_, err = bad.Ensure(s.Context(), s.request(s.token()))
	s.wantCode(err, cloud.Unauthorized)
	_, err = bad.List(s.Context())
	s.wantCode(err, cloud.Unauthorized)
	_, err = bad.Describe(s.Context(), []cloud.Reference{{Token: s.token(), OwnershipID: s.owner}})
	s.wantCode(err, cloud.Unauthorized)

	made := s.ensure(s.request(s.token()))
	s.wantCode(bad.Delete(s.Context(), []cloud.Resource{made})[0], cloud.Unauthorized)
	s.wantOne(made.Token, made.ID)
}

func (s *suite) probe() {
	var info cloud.Info
	calls := s.net.count(func() {
		var err error
		if info, err = s.driver.Probe(s.Context()); err != nil {
			s.Fatalf("Probe: %v", err)
		}
	})
	s.wantCalls("Probe", calls, s.Calls.Probe)
	if !slices.IsSorted(info.FailureDomains) || slices.Contains(info.FailureDomains, "") {
		s.Errorf("FailureDomains are not sorted, or one is empty: %q", info.FailureDomains)
	}
}

func (s *suite) offering() {
	var offering cloud.Offering
	calls := s.net.count(func() {
		var err error
		if offering, err = s.driver.Offering(s.Context(), s.Machine); err != nil {
			s.Fatalf("Offering: %v", err)
		}
	})
	s.wantCalls("Offering", calls, s.Calls.Offering)
	if offering.Capacity.Cpu().Sign() <= 0 || offering.Capacity.Memory().Sign() <= 0 {
		s.Errorf("Capacity must have at least CPU and memory, got %v", offering.Capacity)
	}
	if !slices.Contains([]string{"amd64", "arm64", "s390x", "ppc64le"}, offering.Architecture) || offering.OperatingSystem == "" {
		s.Errorf("Architecture %q or OperatingSystem %q is invalid", offering.Architecture, offering.OperatingSystem)
	}
	for name, refused := range s.Refused {
		if !refused.OfferingToo {
			continue
		}
		if _, err := s.driver.Offering(s.Context(), refused.Machine); cloud.CodeOf(err) != cloud.InvalidSpec {
			s.Errorf("Offering of %s: got %v, want InvalidSpec", name, err)
		}
	}
}
