// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// TestCode: a code says what keeps a VM from running, and the reason is the cloud's own text.
func TestCode(t *testing.T) {
	g := NewWithT(t)
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: meta("token-1")}
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: meta("token-1")}
	vmi.Status.Phase = kubevirtv1.Scheduling
	vmi.Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{
		Type: kubevirtv1.VirtualMachineInstanceConditionType(corev1.PodScheduled), Status: corev1.ConditionFalse,
		Message: "0/3 nodes are available",
	}}
	g.Expect(instance(vm, vmi, nil)).To(And(HaveField("State", cloud.StatePending), HaveField("Code", cloud.NoCapacity),
		HaveField("Reason", "0/3 nodes are available")))
	const refused = "pods is forbidden: exceeded quota: q"
	vm.Status.Conditions = []kubevirtv1.VirtualMachineCondition{{Type: kubevirtv1.VirtualMachineFailure, Status: corev1.ConditionTrue,
		Message: refused}}
	g.Expect(instance(vm, nil, nil)).To(And(HaveField("Code", cloud.QuotaExceeded), HaveField("Reason", refused)))
	vmi.Status.Phase = kubevirtv1.Running
	g.Expect(instance(vm, vmi, nil)).To(And(HaveField("State", cloud.StateRunning), HaveField("Code", cloud.Code("")),
		HaveField("Reason", "")))
}

// TestGuestReported: KubeVirt fills in unknown addresses from the guest agent, also for interfaces
// that the machine asked for.
func TestGuestReported(t *testing.T) {
	g := NewWithT(t)
	vm, vmi := &kubevirtv1.VirtualMachine{ObjectMeta: meta("token-1")}, &kubevirtv1.VirtualMachineInstance{ObjectMeta: meta("token-1")}
	vmi.Status.Interfaces = []kubevirtv1.VirtualMachineInstanceNetworkInterface{
		{Name: "pod", InfoSource: "domain", IP: "10.0.0.1", IPs: []string{"10.0.0.1"}},
		{Name: "lan", InfoSource: "domain, guest-agent, multus-status", IP: "192.0.2.7", IPs: []string{"192.0.2.7", "10.96.0.1", "10.0.0.1"}},
		{Name: "agent", InfoSource: "guest-agent", IP: "192.0.2.8"},
		{InfoSource: "guest-agent", IP: "172.17.0.1"},
	}
	r := instance(vm, vmi, nil)
	g.Expect(r.Addresses).To(HaveLen(4))
	g.Expect(r.GuestReported).To(ConsistOf("192.0.2.7", "10.96.0.1", "192.0.2.8"), "and not 10.0.0.1, which KubeVirt tells too")
}

// secretAndVM is a fake API server that accepts a Secret and refuses to create the VM. It returns
// the requests.
func secretAndVM(t *testing.T, status int, said metav1.Status) (*driver, func() []string) {
	t.Helper()
	var mu sync.Mutex
	var asked []string
	d := served(t, func(w http.ResponseWriter, req *http.Request) {
		text := req.Method + " " + req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]
		if req.Method == http.MethodDelete {
			var options metav1.DeleteOptions
			_ = json.NewDecoder(req.Body).Decode(&options)
			if p := options.Preconditions; p != nil {
				text += fmt.Sprintf(" %s %s", *p.UID, *p.ResourceVersion)
			}
			text += " " + req.URL.Query().Get("labelSelector")
		}
		mu.Lock()
		asked = append(asked, text)
		mu.Unlock()
		switch {
		case req.Method == http.MethodDelete:
			write(w, 200, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
		case strings.HasSuffix(req.URL.Path, "/secrets"):
			write(w, 201, at("PartialObjectMetadata", "token-1", "7"))
		default:
			write(w, status, said)
		}
	})
	return d, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), asked...)
	}
}

// TestRefusedLeavesNothing: the Secret is deleted, if unchanged, when the VM was certainly refused.
// It stays if a VM that reads it may still be created.
func TestRefusedLeavesNothing(t *testing.T) {
	quota := refusal(403, metav1.StatusReasonForbidden, "exceeded quota: q")
	for name, test := range map[string]struct {
		status    int
		said      metav1.Status
		maybeSent bool
		code      cloud.Code
		removed   bool
	}{
		"quota":            {status: 403, said: quota, code: cloud.QuotaExceeded, removed: true},
		"webhook":          {status: 422, said: refusal(422, metav1.StatusReasonInvalid, "denied"), code: cloud.InvalidSpec, removed: true},
		"open":             {status: 500, said: refusal(500, metav1.StatusReasonInternalError, "etcd"), code: cloud.Unavailable},
		"busy":             {status: 429, said: refusal(429, metav1.StatusReasonTooManyRequests, "later"), code: cloud.Throttled},
		"earlier one open": {status: 403, said: quota, maybeSent: true, code: cloud.QuotaExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			d, asked := secretAndVM(t, test.status, test.said)
			_, err := d.Ensure(t.Context(), cloud.Request{Token: "token-1", OwnershipID: "blue", MaybeSent: test.maybeSent,
				Spec: &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{KubeVirt: &infrav1.KubeVirtMachine{}}}})
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			want := []string{"POST secrets", "POST virtualmachines"}
			if test.removed {
				want = append(want, "DELETE secrets uid-1 7 drover-creation-token in (token-1),drover-ownership-id=blue")
			}
			g.Expect(asked()).To(Equal(want))
		})
	}
}

// TestHeartbeatsAreRateLimited: a fleet that changes all the time sends one heartbeat per second,
// because for each the engine looks at all machines.
func TestHeartbeatsAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var signs []time.Time
		f := newWatchState(objects{}, func(c cloud.Update) {
			if !c.All && c.Token == "" {
				signs = append(signs, time.Now())
			}
		})
		a, b := &stream{}, &stream{}
		f.vmStream = a
		f.add(a, "10")
		f.add(b, "10")
		ctx, cancel := context.WithCancel(t.Context())
		incoming, ended := make(chan streamEvent), make(chan error, 1)
		go func() { ended <- f.run(ctx, incoming, time.Minute) }()
		for range 100 { // ten seconds
			time.Sleep(50 * time.Millisecond)
			incoming <- streamEvent{stream: a, at: time.Now(), version: "11"}
			time.Sleep(50 * time.Millisecond)
			incoming <- streamEvent{stream: b, at: time.Now(), version: "11"}
		}
		last := time.Now()
		time.Sleep(5 * time.Second)
		cancel()
		g.Expect(<-ended).To(HaveOccurred())
		g.Expect(len(signs)).To(And(BeNumerically(">=", 9), BeNumerically("<=", 11)))
		g.Expect(signs[len(signs)-1]).To(BeTemporally(">=", last.Add(-time.Second)), "what was said last is told in the end")
	})
}

// fatVM and fatGuest return objects as large as KubeVirt's own.
func fatVM(n int) map[string]any {
	return fat("VirtualMachine", n, map[string]any{"runStrategy": "Always", "template": map[string]any{"spec": fatSpec()}},
		map[string]any{"printableStatus": "Running", "conditions": fatConditions()})
}

func fatGuest(n int) map[string]any {
	return fat("VirtualMachineInstance", n, fatSpec(), map[string]any{
		"phase": "Running", "conditions": fatConditions(), "nodeName": "node-1",
		"interfaces":   []any{map[string]any{"name": "default", "ipAddress": "10.0.0." + strconv.Itoa(n%250+1), "infoSource": "domain"}},
		"volumeStatus": []any{map[string]any{"name": "root", "target": "vda", "message": strings.Repeat("v", 500)}},
	})
}

func fat(kind string, n int, spec, status any) map[string]any {
	name := "token-" + strconv.Itoa(n)
	return map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": kind, "spec": spec, "status": status,
		"metadata": map[string]any{
			"name": name, "namespace": "vms", "uid": "uid-" + name, "resourceVersion": "9", "creationTimestamp": "2026-01-01T00:00:00Z",
			"labels":      map[string]any{cloud.TagToken: name, cloud.TagOwnership: "blue", "app": strings.Repeat("l", 60)},
			"annotations": map[string]any{"kubevirt.io/latest-observed-api-version": "v1", "note": strings.Repeat("a", 3000)},
			"managedFields": []any{map[string]any{"manager": "m",
				"fieldsV1": map[string]any{"f:spec": map[string]any{"f:x": strings.Repeat("m", 2000)}}}},
		},
	}
}

func fatSpec() map[string]any {
	var disks, volumes []any
	for i := range 8 {
		name := "disk-" + strconv.Itoa(i)
		disks = append(disks, map[string]any{"name": name, "serial": strings.Repeat("s", 100), "disk": map[string]any{"bus": "virtio"}})
		volumes = append(volumes, map[string]any{"name": name, "dataVolume": map[string]any{"name": strings.Repeat("d", 100)}})
	}
	return map[string]any{
		"evictionStrategy": "LiveMigrate", "volumes": volumes,
		"domain": map[string]any{"devices": map[string]any{"disks": disks}, "firmware": map[string]any{"uuid": strings.Repeat("u", 36)}},
	}
}

func fatConditions() (all []any) {
	for _, kind := range []string{"Ready", "LiveMigratable", "StorageLiveMigratable", "AgentConnected"} {
		all = append(all, map[string]any{"type": kind, "status": "True", "message": strings.Repeat("c", 300)})
	}
	return all
}

// heapOf returns the heap, in bytes, of an account that follows the given number of machines. It
// includes the resources that Watch reported first.
func heapOf(t testing.TB, machines int) uint64 {
	fats := map[string]func(int) map[string]any{"VirtualMachineList": fatVM, "VirtualMachineInstanceList": fatGuest}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	watched := make(chan struct{}, 8)
	d := served(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Get("watch") != "" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			watched <- struct{}{}
			untilGone(req)
			return
		}
		kind := listKind(req)
		from, _ := strconv.Atoi(req.URL.Query().Get("continue"))
		items, next := []any{}, ""
		if of := fats[kind]; of != nil {
			for n := from; n < min(from+pageSize, machines); n++ {
				items = append(items, of(n))
			}
			if from+pageSize < machines {
				next = strconv.Itoa(from + pageSize)
			}
		}
		write(w, 200, map[string]any{"kind": kind, "metadata": map[string]any{"resourceVersion": "10", "continue": next}, "items": items})
	})
	d.page, d.streamTimeout, d.absentInterval = pageSize, time.Hour, time.Hour
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	before := heap()
	var resources []cloud.Resource
	go func() {
		ended <- d.Watch(ctx, func(c cloud.Update) { resources = c.Resources })
	}()
	for range 6 {
		<-watched
	}
	held := int64(heap()) - int64(before)
	cancel()
	if err := <-ended; err == nil {
		t.Error("the watch ended by itself")
	}
	if len(resources) != machines {
		t.Fatalf("%d of %d machines were told", len(resources), machines)
	}
	return uint64(max(held, 0))
}

// TestMemory: 10,000 followed machines take less than 100 MB. The test measures a tenth of that.
// The benchmark measures all.
func TestMemory(t *testing.T) {
	const machines, each = 1000, 10_000
	if held := heapOf(t, machines); held > machines*each {
		t.Errorf("%d machines take %d bytes each, and at most %d are meant", machines, held/machines, each)
	}
}

func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(float64(heapOf(b, 10_000))/1e6, "MB")
	}
}

// TestStoredObjectsAreBounded: an account does not keep more than a part of the memory, whether its
// cluster names many objects, or few with long texts. What is gone does not count.
func TestStoredObjectsAreBounded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text   string
		events int
	}{
		"long texts":   {text: strings.Repeat("x", 4<<20), events: maxStored >> 22},
		"many objects": {events: maxStored >> 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			f := newWatchState(objects{}, func(cloud.Update) {})
			s := &stream{op: operation{name: "WatchVirtualMachines"}, read: f.vms.toChange}
			f.add(s, "1")
			f.vmStream = s
			events := make(chan streamEvent)
			ended := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { ended <- f.run(ctx, events, time.Hour) }()
			vm := func(name string) *kubevirtv1.VirtualMachine {
				o := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name,
					Labels: map[string]string{cloud.TagToken: name, cloud.TagOwnership: "owner"}}}
				o.Status.Conditions = []kubevirtv1.VirtualMachineCondition{{Type: kubevirtv1.VirtualMachineFailure, Message: tt.text}}
				return o
			}
			sent := 0
			send := func(change func() []string) (open bool) {
				select {
				case events <- streamEvent{stream: s, at: time.Now(), version: "2", change: change}:
					sent++
					return true
				case err := <-ended:
					g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown))
					g.Expect(err).To(MatchError(ContainSubstring("take more than 96 MiB")))
					return false
				}
			}
			for range 2 * maxStored >> 22 { // as much as is kept, and each gone before the next one
				g.Expect(send(func() []string { return f.vms.put(vm("gone")) })).To(BeTrue())
				g.Expect(send(func() []string { return f.vms.remove("gone") })).To(BeTrue())
			}
			sent = 0
			for open := true; open; {
				next := vm(fmt.Sprint("token-", sent))
				open = send(func() []string { return f.vms.put(next) })
				if sent > tt.events {
					t.Fatalf("%d objects were kept", sent)
				}
			}
			g.Expect(sent).To(BeNumerically(">", 10))
		})
	}
}
