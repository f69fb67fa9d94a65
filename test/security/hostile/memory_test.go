// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/fleet"
)

const (
	// most is how much memory one page may take, and manyMost those of a hundred accounts.
	most     = 64 << 20
	manyMost = 256 << 20
)

// heap returns the bytes of the objects that the last collection found to be in use.
func heap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// taken returns how much the heap grows at most while f runs. It looks often, and the collector
// runs when there is this much garbage, in percent, so a slow computer only sees less.
func taken(garbage int, f func()) uint64 {
	defer debug.SetGCPercent(debug.SetGCPercent(garbage))
	runtime.GC()
	before := heap()
	done, highest := make(chan struct{}), make(chan uint64)
	go func() {
		top := before
		for tick := time.NewTicker(time.Millisecond); ; {
			select {
			case <-done:
				tick.Stop()
				highest <- top
				return
			case <-tick.C:
				top = max(top, heap())
			}
		}
	}()
	f()
	close(done)
	return <-highest - before
}

// nested returns an answer's unit inside other text.
func nested(head, unit, between, tail string) answer { return answer{head, unit, between, tail} }

const (
	soapHead = `<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><Body><RetrievePropertiesExResponse xmlns="urn:vim25"><returnval>`
	soapTail = `</returnval></RetrievePropertiesExResponse></Body></Envelope>`
)

// hostile are the answers to the listing of instances that become most, for their size.
var hostile = map[string]map[string]answer{
	"aws": {
		"instances": nested("<DescribeInstancesResponse><reservationSet><item><instancesSet>", "<item/>", "",
			"</instancesSet></item></reservationSet></DescribeInstancesResponse>"),
		"reservations": nested("<DescribeInstancesResponse><reservationSet>", "<item><instancesSet><item/></instancesSet></item>", "",
			"</reservationSet></DescribeInstancesResponse>"),
		"interfaces": nested("<DescribeInstancesResponse><reservationSet><item><instancesSet><item><networkInterfaceSet>", "<item></item>", "",
			"</networkInterfaceSet></item></instancesSet></item></reservationSet></DescribeInstancesResponse>"),
		"attributes": nested("<DescribeInstancesResponse><reservationSet ", "b=''", " ", "/></DescribeInstancesResponse>"),
		"depth":      nested("<DescribeInstancesResponse>", "<a>", "", "</DescribeInstancesResponse>"),
	},
	"gcp": {
		"instances": nested(`{"kind":"compute#instanceAggregatedList","items":{"zones/europe-west4-a":{"instances":[`, "{}", ",", `]}}}`),
		"numbers":   nested(`{"kind":"compute#instanceAggregatedList","items":{"zones/europe-west4-a":{"instances":[`, "0", ",", `]}}}`),
		"interfaces": nested(`{"kind":"compute#instanceAggregatedList","items":{"zones/europe-west4-a":{"instances":[{"networkInterfaces":[`,
			`{"accessConfigs":[{}]}`, ",", `]}]}}}`),
	},
	"azure": {
		"instances": nested(`{"value":[`, "{}", ",", `]}`),
		"nulls":     nested(`{"value":[`, "null", ",", `]}`),
		"disks":     nested(`{"value":[{"properties":{"storageProfile":{"dataDisks":[`, `{"managedDisk":{}}`, ",", `]}}}]}`),
	},
	"openstack": {
		"servers":   nested(`{"servers":[`, "{}", ",", `]}`),
		"addresses": nested(`{"servers":[{"addresses":{"a":[`, "{}", ",", `]}}]}`),
	},
	"kubevirt": {
		"instances":  nested(`{"kind":"VirtualMachineInstanceList","metadata":{"resourceVersion":"1"},"items":[`, "{}", ",", `]}`),
		"interfaces": nested(`{"kind":"VirtualMachineInstanceList","metadata":{"resourceVersion":"1"},"items":[{"spec":{"domain":{"devices":{"interfaces":[`, "{}", ",", `]}}}}]}`),
		"conditions": nested(`{"kind":"VirtualMachineInstanceList","metadata":{"resourceVersion":"1"},"items":[{"status":{"conditions":[`, "{}",
			",", `]}}]}`),
	},
	"vsphere": {
		"objects": nested(soapHead, `<objects/>`, "", soapTail),
		"summaries": nested(soapHead+`<objects><propSet><name>a</name><val xsi:type="ArrayOfVirtualMachineSummary">`, "<VirtualMachineSummary/>",
			"", `</val></propSet></objects>`+soapTail),
		"configs": nested(soapHead+`<objects>`, `<propSet><val xsi:type="VirtualMachineConfigInfo"/></propSet>`, "", `</objects>`+soapTail),
		"anything": nested(soapHead+`<objects><propSet><name>a</name><val xsi:type="ArrayOfAnyType">`,
			`<anyType xsi:type="VirtualMachineConfigInfo"/>`, "", `</val></propSet></objects>`+soapTail),
	},
}

// maps are answers whose members have names of their own.
var maps = map[string]map[string]answer{
	"gcp":       {"zones": nested(`{"kind":"compute#instanceAggregatedList","items":{`, `"%d":{}`, ",", `}}`)},
	"azure":     {"tags": nested(`{"value":[{"tags":{`, `"%d":""`, ",", `}}]}`)},
	"openstack": {"metadata": nested(`{"servers":[{"metadata":{`, `"%d":""`, ",", `}}]}`)},
	"kubevirt": {"labels": nested(`{"kind":"VirtualMachineInstanceList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"labels":{`,
		`"%d":""`, ",", `}}}]}`)},
}

// TestMemoryOfOneAnswer: no page takes much memory, whatever it contains: neither one of the
// greatest size, nor one that is just within the bounds.
func TestMemoryOfOneAnswer(t *testing.T) {
	for name, to := range targets(t) {
		listing := func(what string, body func() io.Reader) {
			t.Run(name+"/"+what, func(t *testing.T) {
				d := to.connect(t, body)
				var err error
				used := taken(5, func() { _, err = d.List(t.Context()) })
				t.Logf("%d MiB; %v", used>>20, err)
				if used > most {
					t.Errorf("one page takes %d MiB: %v", used>>20, err)
				}
			})
		}
		for what, a := range hostile[name] {
			listing(what, func() io.Reader { return a.of(driverkit.MaxAnswer / len(a.unit+a.between)) })
			a.between += strings.Repeat(" ", max(0, 12-len(a.unit+a.between))) // as a decoder ignores
			for _, n := range []int{28_000, 12_000} {
				listing(what, func() io.Reader { return a.of(n) })
			}
		}
		for what, a := range maps[name] {
			for _, n := range []int{driverkit.MaxAnswer / 9, 390_000} {
				listing(what, func() io.Reader { return bufio.NewReader(&numbered{answer: a, n: n}) })
			}
		}
	}
}

// TestMemoryOfManyAccounts: a hundred accounts whose endpoints answer with as much as they may take
// no more together than a part of the manager's memory. An honest account among them is answered.
func TestMemoryOfManyAccounts(t *testing.T) {
	to, a := targets(t)["gcp"], hostile["gcp"]["instances"]
	a.between += strings.Repeat(" ", 12-len(a.unit+a.between))
	honest := targets(t)["gcp"]
	honest.account.Cloud.GCP.Endpoint = "https://honest.test"
	accounts := fleet.NewAccounts(fleet.Options{
		Clouds: []cloud.Cloud{to.cloud}, Times: fleet.TimesFor(10 * time.Minute),
		Transport: byHost{
			"oauth2.googleapis.com": transport{to, func() io.Reader { return text("") }},
			"cloud.test":            transport{to, func() io.Reader { return a.of(28_000) }},
			"honest.test":           transport{honest, func() io.Reader { return a.of(500) }},
		},
	})
	used := taken(50, func() {
		var reads sync.WaitGroup
		for i := range 100 {
			account := made(t, accounts, to, fmt.Sprint("account-", i))
			reads.Go(func() { account.Read(t.Context(), []cloud.Reference{{Token: "token"}}) })
		}
		if _, failed := made(t, accounts, honest, "honest").Read(t.Context(), []cloud.Reference{{Token: "token"}}); len(failed) > 0 {
			t.Errorf("an honest account: %v", failed)
		}
		reads.Wait()
	})
	t.Logf("%d MiB", used>>20)
	if used > manyMost {
		t.Errorf("100 accounts take %d MiB", used>>20)
	}
}

// byHost is a transport to endpoints with names.
type byHost map[string]http.RoundTripper

func (b byHost) RoundTrip(r *http.Request) (*http.Response, error) { return b[r.URL.Host].RoundTrip(r) }

// made returns an account whose credentials are proved.
func made(t *testing.T, accounts *fleet.Accounts, to *target, name string) *fleet.Account {
	t.Helper()
	key := types.NamespacedName{Namespace: name, Name: name}
	cfg := fleet.AccountConfig{Spec: to.account, Credentials: to.credentials}
	cfg.Spec.RateLimits = &infrav1.RateLimits{Read: infrav1.RateLimit{PerSecond: "1000", Burst: 1000}}
	a, err := accounts.Set(key, cfg)
	if err != nil {
		t.Fatal(err)
	}
	info, err := a.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Place = to.cloud.Name + ":" + strings.TrimPrefix(info.Place, to.cloud.Name+":")
	if a, err = accounts.Set(key, cfg); err != nil {
		t.Fatal(err)
	}
	return a
}
