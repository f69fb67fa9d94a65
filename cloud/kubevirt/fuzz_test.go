// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/drover-io/drover/cloud"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// FuzzStream: whatever a stream of VirtualMachines says, it ends with an error of this program.
func FuzzStream(f *testing.F) {
	vm := kubevirtv1.VirtualMachine{TypeMeta: metav1.TypeMeta{Kind: "VirtualMachine"}, ObjectMeta: meta("token-1")}
	vm.ResourceVersion = "11"
	modified, err := json.Marshal(map[string]any{"type": "MODIFIED", "object": vm})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(modified))
	f.Add(`{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}`)
	f.Add(`{"type":"BOOKMARK","object":{"kind":"VirtualMachine","metadata":{"resourceVersion":"99999999999999999999999999"}}}`)
	f.Add(`{"type":"DELETED","object":null}`)
	f.Fuzz(func(t *testing.T, body string) {
		answer := roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		})
		to := endpoint{server: &url.URL{Scheme: "https", Host: "10.0.0.1"}, bearer: func() (string, error) { return "", nil }}
		d := &driver{client: newClient(to, answer), namespace: "vms", page: 2, streamTimeout: time.Minute, absentInterval: time.Hour}
		store := newStore(virtualMachines.kind, func(vm *kubevirtv1.VirtualMachine) kubevirtv1.VirtualMachine { return *vm }, nil)
		vms := &stream{
			op:   operation{"WatchVirtualMachines", cloud.ClassRead, http.MethodGet, wholeObject, virtualMachines.kind},
			path: d.path(virtualMachines, ""), read: store.toChange,
		}
		version := "10"
		err := d.readStream(t.Context(), vms, &version, func(e streamEvent) {
			if e.change != nil {
				e.change()
			}
		})
		if _, typed := errors.AsType[*cloud.Error](err); err != nil && !typed {
			t.Errorf("%q ended with %v", body, err)
		}
	})
}

// FuzzInstance: no VirtualMachine and no instance of one breaks what reads them.
func FuzzInstance(f *testing.F) {
	f.Add(`{"metadata":{"name":"x"},"status":{"printableStatus":"Running","conditions":[{"type":"Failure"}]}}`,
		`{"status":{"phase":"Running","interfaces":[{"ip":"1.2.3.4","ipAddresses":["::1"]}]}}`)
	f.Add(`{"spec":{"template":null}}`, `null`)
	f.Fuzz(func(t *testing.T, machine, running string) {
		var vm kubevirtv1.VirtualMachine
		var vmi kubevirtv1.VirtualMachineInstance
		if json.Unmarshal([]byte(machine), &vm) != nil || json.Unmarshal([]byte(running), &vmi) != nil {
			return
		}
		if stopped := instance(&vm, nil, nil); stopped.Kind != cloud.KindInstance {
			t.Errorf("%s is %+v", machine, stopped)
		}
		if r := instance(&vm, &vmi, nil); r.Kind != cloud.KindInstance {
			t.Errorf("%s with %s is %+v", machine, running, r)
		}
	})
}
