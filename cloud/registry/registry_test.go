// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/registry"
)

// endpointFields names, for each cloud, the fields of an account by which it chooses where its
// calls go and whom they trust there, and all other fields. A new field belongs to one of them.
var endpointFields = map[string]struct{ endpoint, others []string }{
	"aws": {[]string{"endpoint"}, []string{"region", "accountID", "fips", "dualStack", "assumeRole.arn", "assumeRole.externalID",
		"interruptionQueue.url", "interruptionQueue.rebalance"}},
	"azure": {[]string{"custom.endpoint", "custom.authorityHost", "custom.audience", "custom.caBundle"},
		[]string{"subscriptionID", "location", "resourceGroup", "cloud"}},
	"gcp":       {[]string{"universeDomain", "endpoint", "caBundle"}, []string{"projectID", "region"}},
	"openstack": {[]string{"authURL", "caBundle"}, []string{"projectID", "region", "regionalProviderIDs", "interface", "cloud"}},
	"vsphere": {[]string{"server", "caBundle", "thumbprint"},
		[]string{"datacenter", "failureDomains", "zoneCategory", "nodeAddresses.network", "nodeAddresses.exclude"}},
	"simulated": {[]string{"endpoint"}, []string{"region"}},
}

// TestEndpoint: each field that decides where an account's calls go tells its rate limit apart from
// others', and no other field does. An account that names none is at the cloud's own endpoints.
func TestEndpoint(t *testing.T) {
	for _, c := range registry.WithSimulated("https://simulated.example") {
		t.Run(c.Name, func(t *testing.T) {
			if c.Endpoint == nil {
				if c.Name != "kubevirt" { // its endpoint is in the credentials
					t.Fatal("the row has no Endpoint")
				}
				return
			}
			want := endpointFields[c.Name]
			var endpoint, others []string
			plain := c.Endpoint(account(t, c.Name, ""))
			for _, field := range fieldsOf(account(t, c.Name, "")) {
				if c.Endpoint(account(t, c.Name, field)) != plain {
					endpoint = append(endpoint, field)
				} else {
					others = append(others, field)
				}
			}
			if !equal(endpoint, want.endpoint) || !equal(others, want.others) {
				t.Errorf("the endpoint depends on %q, and not on %q; want %q, and not %q", endpoint, others, want.endpoint, want.others)
			}
			if own := strings.TrimSpace(plain) != ""; own {
				t.Errorf("an account that names no endpoint has its own: %q", plain)
			}
		})
	}
}

// account returns an account of a cloud. The field at path is set, if there is one.
func account(t *testing.T, cloud, path string) *infrav1.DroverAccountSpec {
	t.Helper()
	spec := &infrav1.DroverAccountSpec{}
	member := memberOf(spec, cloud)
	if !member.IsValid() {
		t.Fatalf("AccountCloud has no field %s", cloud)
	}
	member.Set(reflect.New(member.Type().Elem()))
	value := member.Elem()
	for name := range strings.SplitSeq(path, ".") {
		if name == "" {
			break
		}
		value = value.Field(index(value.Type(), name))
		if value.Kind() == reflect.Pointer {
			value.Set(reflect.New(value.Type().Elem()))
			value = value.Elem()
		}
	}
	switch value.Kind() {
	case reflect.String:
		value.SetString("other.example")
	case reflect.Bool:
		value.SetBool(true)
	}
	return spec
}

func memberOf(spec *infrav1.DroverAccountSpec, cloud string) reflect.Value {
	value := reflect.ValueOf(&spec.Cloud).Elem()
	return value.Field(index(value.Type(), cloud))
}

// fieldsOf returns the paths of the text and truth values in the account's only cloud.
func fieldsOf(spec *infrav1.DroverAccountSpec) (paths []string) {
	value := reflect.ValueOf(&spec.Cloud).Elem()
	for i := range value.NumField() {
		if f := value.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			paths = append(paths, leaves(f.Type().Elem(), "")...)
		}
	}
	return paths
}

func leaves(typ reflect.Type, prefix string) (paths []string) {
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, of := prefix+jsonName(field), field.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of.Kind() == reflect.Struct {
			paths = append(paths, leaves(of, name+".")...)
		} else {
			paths = append(paths, name)
		}
	}
	return paths
}

func index(typ reflect.Type, name string) int {
	for i := range typ.NumField() {
		if jsonName(typ.Field(i)) == name {
			return i
		}
	}
	return -1
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func equal(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}
