// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"reflect"
	"strings"
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/drover-io/drover/cloud"
)

// TestSanitize: values that a status can't hold are dropped, and nothing else.
func TestSanitize(t *testing.T) {
	ip := func(text string) clusterv1.MachineAddress {
		return clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: text}
	}
	good := cloud.Resource{Kind: cloud.KindInstance, ID: "i-1", FailureDomain: "zone-a",
		Addresses: []clusterv1.MachineAddress{ip("10.0.0.1"), ip("fd00::1")}}
	if got := sanitize(good); !reflect.DeepEqual(got, good) {
		t.Errorf("%+v became %+v", good, got)
	}
	for what, zone := range map[string]string{"long": strings.Repeat("z", maxZoneName+1), "no text": "\xff\xfe", "none": ""} {
		if got := sanitize(cloud.Resource{FailureDomain: zone}).FailureDomain; got != "" {
			t.Errorf("a zone that is %s became %q", what, got)
		}
	}
	bad := cloud.Resource{Addresses: []clusterv1.MachineAddress{ip(""), ip("\xff"), ip(strings.Repeat("1", maxAddress+1)), ip("10.0.0.1")}}
	if got := sanitize(bad).Addresses; !reflect.DeepEqual(got, []clusterv1.MachineAddress{ip("10.0.0.1")}) || len(bad.Addresses) != 4 {
		t.Errorf("bad addresses became %v", got)
	}
	many := cloud.Resource{}
	for range 10_000 {
		many.Addresses = append(many.Addresses, ip("10.0.0.1"))
	}
	if n := len(sanitize(many).Addresses); n != maxAddresses {
		t.Errorf("%d addresses became %d", len(many.Addresses), n)
	}
}

// TestSanitizeCopies: what a driver has returned stays as it is. A Watcher compares it with what
// comes later.
func TestSanitizeCopies(t *testing.T) {
	for name, bad := range map[string]cloud.Resource{
		"zone":    {FailureDomain: strings.Repeat("z", maxZoneName+1)},
		"notice":  {Notice: strings.Repeat("n", maxNotice+1)},
		"address": {Addresses: []clusterv1.MachineAddress{{Address: "\xff"}, {Address: "10.0.0.1"}}},
	} {
		returned := []cloud.Resource{{ID: "i-1"}, bad}
		if kept := sanitizeAll(returned); reflect.DeepEqual(kept[1], bad) || !reflect.DeepEqual(returned[1], bad) {
			t.Errorf("%s: %+v was kept of %+v", name, kept[1], returned[1])
		}
	}
}
