// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"encoding/json"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// rules returns a function that checks vSphere's fields in a kind's spec by the CRD's validation
// rules, as the API server does. It returns the messages of broken rules.
func rules(t testing.TB, crd string) func(fields any) []string {
	t.Helper()
	var v1 apiextensionsv1.CustomResourceDefinition
	data, err := os.ReadFile("../../config/crd/bases/infrastructure.cluster.x-k8s.io_" + crd + ".yaml")
	if err == nil {
		err = yaml.UnmarshalStrict(data, &v1)
	}
	var props apiextensions.JSONSchemaProps
	if err == nil {
		of := v1.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["cloud"].Properties["vsphere"]
		err = apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&of, &props, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	structural, err := schema.NewStructural(&props)
	if err != nil {
		t.Fatal(err)
	}
	const budget = 10_000_000 // an API server's budget for one object
	validator := cel.NewValidator(structural, false, budget)
	return func(fields any) (broken []string) {
		var object map[string]any
		text, err := json.Marshal(fields)
		if err == nil {
			err = json.Unmarshal(text, &object)
		}
		if err != nil {
			t.Fatal(err)
		}
		all, _ := validator.Validate(t.Context(), nil, structural, object, nil, budget)
		for _, e := range all {
			broken = append(broken, e.Detail)
		}
		return broken
	}
}

// TestRules: the CRD's rules refuse invalid fields, with the remedy, and accept valid ones.
func TestRules(t *testing.T) {
	g := NewWithT(t)
	check := rules(t, "drovermachines")
	item := infrav1.VSphereLibraryItem{Library: "images", Item: "ubuntu"}
	g.Expect(check(infrav1.VSphereMachine{Template: "t"})).To(BeEmpty())
	g.Expect(check(infrav1.VSphereMachine{ContentLibrary: item})).To(BeEmpty())
	for _, both := range []infrav1.VSphereMachine{{}, {Template: "t", ContentLibrary: item}} {
		g.Expect(check(both)).To(ConsistOf("set template or contentLibrary, and not both"))
	}
	secure := func(firmware infrav1.VSphereFirmware) infrav1.VSphereMachine {
		return infrav1.VSphereMachine{Template: "t", SecureBoot: infrav1.FeatureEnabled,
			BootOptions: infrav1.VSphereBootOptions{Firmware: firmware, DelayMilliseconds: 1}}
	}
	g.Expect(check(secure(""))).To(BeEmpty())
	g.Expect(check(secure(infrav1.VSphereFirmwareEFI))).To(BeEmpty())
	g.Expect(check(secure(infrav1.VSphereFirmwareBIOS))).To(ConsistOf(ContainSubstring("set bootOptions.firmware to EFI")))
	insecure := secure(infrav1.VSphereFirmwareBIOS)
	insecure.SecureBoot = infrav1.FeatureDisabled
	g.Expect(check(insecure)).To(BeEmpty())
	dhcp := func(state infrav1.FeatureState, address string) infrav1.VSphereMachine {
		return infrav1.VSphereMachine{Template: "t", Networks: []infrav1.VSphereNetwork{{Name: "n", DHCP4: state, Addresses: []string{address}}}}
	}
	g.Expect(check(dhcp(infrav1.FeatureEnabled, "2001:db8::10/64"))).To(BeEmpty())
	g.Expect(check(dhcp(infrav1.FeatureDisabled, "192.0.2.10/24"))).To(BeEmpty())
	g.Expect(check(dhcp("", "192.0.2.10/24"))).To(BeEmpty())
	g.Expect(check(dhcp(infrav1.FeatureEnabled, "192.0.2.10/24"))).To(ConsistOf(ContainSubstring("has no IPv4 addresses of its own")))
	check = rules(t, "droveraccounts")
	domains := []infrav1.VSphereFailureDomain{{Name: "rack-a", ResourcePool: "a"}}
	g.Expect(check(infrav1.VSphereAccount{FailureDomains: domains})).To(BeEmpty())
	g.Expect(check(infrav1.VSphereAccount{ZoneCategory: "k8s-zone"})).To(BeEmpty())
	g.Expect(check(infrav1.VSphereAccount{FailureDomains: domains,
		ZoneCategory: "k8s-zone"})).To(ConsistOf(ContainSubstring("set one of them")))
}
