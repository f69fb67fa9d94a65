// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// These tests cover what a real API server does not do on demand. test/clouds/kubevirt uses a real
// one.

// served returns a driver for a test server. Its pages hold two objects.
func served(t testing.TB, handler http.HandlerFunc) *driver {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // no errors of closed connections
	server.StartTLS()
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	to := endpoint{server: address, bearer: func() (string, error) { return "marked-token", nil }}
	return &driver{client: newClient(to, server.Client().Transport), namespace: "vms", page: 2}
}

func write(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

func refusal(code int, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) metav1.Status {
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message, Details: &metav1.StatusDetails{Causes: causes}}
}

// listKind returns the kind of a listing's answer, by its path.
func listKind(req *http.Request) string {
	for path, kind := range map[string]string{"/virtualmachines": "VirtualMachineList",
		"/virtualmachineinstances": "VirtualMachineInstanceList",
		"/datavolumes":             "DataVolumeList", "/secrets": "PartialObjectMetadataList", "/services": "ServiceList",
		"/endpointslices": "EndpointSliceList"} {
		if strings.HasSuffix(req.URL.Path, path) {
			return kind
		}
	}
	return ""
}

func meta(token string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: token, UID: "uid-1", Labels: map[string]string{cloud.TagToken: token, cloud.TagOwnership: "blue"}}
}

// TestDryRun: both objects of a machine are tried, and nothing else is sent. A refusal is the
// answer.
func TestDryRun(t *testing.T) {
	for name, c := range map[string]struct {
		refused string // the kind of object that is refused
		want    cloud.Code
		posts   int
	}{
		"accepted":       {"", "", 2},
		"no right":       {"secrets", cloud.Unauthorized, 1},
		"no such memory": {"virtualmachines", cloud.InvalidSpec, 2},
	} {
		t.Run(name, func(t *testing.T) {
			g, posts := NewWithT(t), 0
			d := served(t, func(w http.ResponseWriter, req *http.Request) {
				posts++
				if req.Method != http.MethodPost || req.URL.Query().Get("dryRun") != "All" || req.URL.Query().Get("fieldValidation") != "Strict" {
					t.Errorf("sent: %s %s", req.Method, req.URL)
				}
				switch kind := filepath.Base(req.URL.Path); {
				case kind != c.refused && kind == "secrets":
					write(w, 201, metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata"}})
				case kind != c.refused:
					write(w, 201, kubevirtv1.VirtualMachine{TypeMeta: metav1.TypeMeta{Kind: "VirtualMachine"}})
				case kind == "secrets":
					write(w, 403, refusal(403, metav1.StatusReasonForbidden, "no"))
				default:
					write(w, 422, refusal(422, metav1.StatusReasonInvalid, "no"))
				}
			})
			spec := &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{KubeVirt: &infrav1.KubeVirtMachine{CPU: infrav1.KubeVirtCPU{Cores: 1}}}}
			err := d.DryRun(t.Context(), cloud.Request{Token: "token-1", OwnershipID: "blue", Name: "m", Namespace: "ns", Spec: spec})
			g.Expect(cloud.CodeOf(err)).To(Equal(c.want), "%v", err)
			g.Expect(posts).To(Equal(c.posts))
		})
	}
}

// TestPages: a listing is complete or returns an error.
func TestPages(t *testing.T) {
	pages := func(broken func(w http.ResponseWriter, at string) bool) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			at, kind := req.URL.Query().Get("continue"), listKind(req)
			if kind != "VirtualMachineList" {
				write(w, 200, map[string]any{"kind": kind, "metadata": map[string]any{}, "items": []any{}})
				return
			}
			if broken(w, at) {
				return
			}
			next := map[string]string{"": "1", "1": "2", "2": ""}[at]
			vm := kubevirtv1.VirtualMachine{ObjectMeta: meta("token-" + at)}
			write(w, 200, map[string]any{"kind": kind, "metadata": map[string]any{"continue": next}, "items": []any{vm}})
		}
	}
	g := NewWithT(t)
	d := served(t, pages(func(http.ResponseWriter, string) bool { return false }))
	found, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(3), "one on each page")
	for name, answer := range map[string]func(http.ResponseWriter){
		"too old":     func(w http.ResponseWriter) { write(w, 410, refusal(410, metav1.StatusReasonExpired, "too old")) },
		"other kind":  func(w http.ResponseWriter) { write(w, 200, map[string]any{"kind": "PodList", "items": []any{}}) },
		"no metadata": func(w http.ResponseWriter) { write(w, 200, map[string]any{"kind": "VirtualMachineList"}) },
		"empty":       func(w http.ResponseWriter) { write(w, 200, map[string]any{}) },
		"lost":        func(w http.ResponseWriter) { http.NotFound(w, &http.Request{}) },
	} {
		for _, page := range []string{"", "1", "2"} {
			d := served(t, pages(func(w http.ResponseWriter, at string) bool {
				if at == page {
					answer(w)
				}
				return at == page
			}))
			found, err := d.List(t.Context())
			g.Expect(err).To(HaveOccurred(), "%s at page %q", name, page)
			g.Expect(found).To(BeEmpty())
		}
	}
	endless := served(t, pages(func(w http.ResponseWriter, _ string) bool {
		write(w, 200, map[string]any{"kind": "VirtualMachineList", "metadata": map[string]any{"continue": "1"}, "items": []any{}})
		return true
	}))
	_, err = endless.List(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown), "%v", err)
}

// TestWithoutCDI: a cluster without the DataVolume API lists without error. A cluster that refuses
// to list DataVolumes returns the error, because it may have some.
func TestWithoutCDI(t *testing.T) {
	g := NewWithT(t)
	answer := func(volumes func(http.ResponseWriter)) *driver {
		return served(t, func(w http.ResponseWriter, req *http.Request) {
			if kind := listKind(req); kind != "DataVolumeList" {
				write(w, 200, map[string]any{"kind": kind, "metadata": map[string]any{}, "items": []any{}})
				return
			}
			volumes(w)
		})
	}
	_, err := answer(func(w http.ResponseWriter) { http.Error(w, "404 page not found", http.StatusNotFound) }).List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = answer(func(w http.ResponseWriter) { write(w, 403, refusal(403, metav1.StatusReasonForbidden, "no")) }).List(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	_, err = answer(func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }).List(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
}

// TestCodes: each refusal has its code, and no error text holds the token.
func TestCodes(t *testing.T) {
	g := NewWithT(t)
	for name, test := range map[string]struct {
		status     int
		said       metav1.Status
		code       cloud.Code
		retryAfter time.Duration
	}{
		"credentials": {status: 401, said: refusal(401, metav1.StatusReasonUnauthorized, "Unauthorized"), code: cloud.Unauthorized},
		"rights": {status: 403, said: refusal(403, metav1.StatusReasonForbidden, `User "drover" cannot create resource "secrets"`),
			code: cloud.Unauthorized},
		"quota": {status: 403, said: refusal(403, metav1.StatusReasonForbidden,
			`secrets "x" is forbidden: exceeded quota: q, requested: secrets=1`), code: cloud.QuotaExceeded},
		"quota wants limits": {status: 403, said: refusal(403, metav1.StatusReasonForbidden,
			`x is forbidden: failed quota: q: must specify limits.cpu`), code: cloud.InvalidSpec},
		"policy": {status: 403, said: refusal(403, metav1.StatusReasonForbidden,
			`admission webhook "policy.example.com" denied the request: no`), code: cloud.Conflict},
		"namespace goes": {status: 403, said: refusal(403, metav1.StatusReasonForbidden,
			"x is forbidden: unable to create new content in namespace vms because it is being terminated",
			metav1.StatusCause{Type: corev1.NamespaceTerminatingCause}), code: cloud.Conflict},
		"no namespace": {status: 404, said: refusal(404, metav1.StatusReasonNotFound, `namespaces "vms" not found`), code: cloud.NotFound},
		"webhook": {status: 422, said: refusal(422, metav1.StatusReasonInvalid, "denied", metav1.StatusCause{Field: "spec.template"}),
			code: cloud.InvalidSpec},
		"old KubeVirt": {status: 400, said: refusal(400, metav1.StatusReasonBadRequest, `strict decoding error: unknown field "spec.x"`),
			code: cloud.InvalidSpec},
		"busy": {status: 429, said: refusal(429, metav1.StatusReasonTooManyRequests, "later"), code: cloud.Throttled,
			retryAfter: 3 * time.Second},
		"webhook away": {status: 500, said: refusal(500, metav1.StatusReasonInternalError, "failed calling webhook"), code: cloud.Unavailable,
			retryAfter: 3 * time.Second},
		"too slow": {status: 504, said: refusal(504, metav1.StatusReasonTimeout, "timeout"), code: cloud.Unavailable,
			retryAfter: 3 * time.Second},
	} {
		test.said.Message += " marked-token"
		test.said.Details.RetryAfterSeconds = 3 // from which an API server makes the header
		d := served(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3")
			write(w, test.status, test.said)
		})
		_, err := d.Ensure(t.Context(), cloud.Request{Token: "token-1", OwnershipID: "blue",
			Spec: &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{KubeVirt: &infrav1.KubeVirtMachine{}}}})
		var e *cloud.Error
		g.Expect(err).To(BeAssignableToTypeOf(e), name)
		e = err.(*cloud.Error) //nolint:errorlint // it is asserted above
		g.Expect(e.Code).To(Equal(test.code), "%s: %v", name, err)
		g.Expect(e.RetryAfter).To(Equal(test.retryAfter), name)
		g.Expect(e.Message).NotTo(ContainSubstring("marked-token"), name)
		for _, cause := range test.said.Details.Causes {
			g.Expect(e.Message).To(ContainSubstring(cause.Field), name)
		}
	}
}

// TestNotKubernetes: the text of an answer that is not an API server's is not shown, however it
// looks, and one that does not end is cut. It says nothing of the cluster.
func TestNotKubernetes(t *testing.T) {
	for name, test := range map[string]struct {
		status     int
		kind, text string
		code       cloud.Code
		retryAfter time.Duration
	}{
		"a proxy":      {403, "text/html", "<html>marked-page</html>", cloud.Unauthorized, 0},
		"a gateway":    {502, "text/html", "<html>marked-page</html>", cloud.Unavailable, 3 * time.Second},
		"a rate limit": {429, "text/plain; charset=utf-8", "marked-page", cloud.Throttled, 3 * time.Second},
		"a redirect":   {307, "text/plain", "marked-page", cloud.Unknown, 0},
		"another API":  {403, "application/json", `{"message":"marked-page","code":403}`, cloud.Unauthorized, 0},
		"a Status of none": {403, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Success","message":"marked-page"}`,
			cloud.Unauthorized, 0},
		"no type":           {500, "; /", "marked-page", cloud.Unavailable, 0},
		"an endless answer": {500, "text/plain", strings.Repeat("marked-page", 1<<20), cloud.Unavailable, 3 * time.Second},
	} {
		g := NewWithT(t)
		d := served(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", test.kind)
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, test.text)
		})
		_, err := d.Probe(t.Context())
		e, ok := errors.AsType[*cloud.Error](err)
		g.Expect(ok).To(BeTrue(), name)
		g.Expect(e.Code).To(Equal(test.code), "%s: %v", name, err)
		g.Expect(e.RetryAfter).To(Equal(test.retryAfter), name)
		for cause := err; cause != nil; cause = errors.Unwrap(cause) {
			g.Expect(cause.Error()).NotTo(ContainSubstring("marked"), name)
		}
		_, err = d.identify(t.Context())
		g.Expect(err).To(HaveOccurred(), "%s: a refusal by something else is not the cluster's", name)
	}
}

// TestServerPath: an API server may be below a path of its host, as behind Rancher.
func TestServerPath(t *testing.T) {
	g := NewWithT(t)
	var asked string
	d := served(t, func(w http.ResponseWriter, req *http.Request) {
		asked = req.URL.String()
		write(w, 200, map[string]any{"kind": "PartialObjectMetadata", "metadata": map[string]any{"uid": "1"}})
	})
	for path, want := range map[string]string{"": "/api/v1/namespaces/kube-system",
		"/k8s/clusters/c-1/": "/k8s/clusters/c-1/api/v1/namespaces/kube-system"} {
		d.server.Path = path
		_, err := d.identify(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(asked).To(Equal(want))
	}
}

// TestStates: the state and the reason follow from a machine's objects together.
func TestStates(t *testing.T) {
	vm := func(strategy kubevirtv1.VirtualMachineRunStrategy) *kubevirtv1.VirtualMachine {
		return &kubevirtv1.VirtualMachine{ObjectMeta: meta("token-1"), Spec: kubevirtv1.VirtualMachineSpec{RunStrategy: &strategy}}
	}
	vmi := func(phase kubevirtv1.VirtualMachineInstancePhase,
		conditions ...kubevirtv1.VirtualMachineInstanceCondition) *kubevirtv1.VirtualMachineInstance {
		return &kubevirtv1.VirtualMachineInstance{ObjectMeta: meta("token-1"),
			Status: kubevirtv1.VirtualMachineInstanceStatus{Phase: phase, Conditions: conditions}}
	}
	going := vm(kubevirtv1.RunStrategyAlways)
	going.DeletionTimestamp = ptr.To(metav1.Now())
	ending := vmi(kubevirtv1.Running)
	ending.DeletionTimestamp = ptr.To(metav1.Now())
	refused := vm(kubevirtv1.RunStrategyAlways)
	refused.Status.Conditions = []kubevirtv1.VirtualMachineCondition{{Type: kubevirtv1.VirtualMachineFailure, Status: corev1.ConditionTrue,
		Message: "pods is forbidden: exceeded quota: q"}}
	importing := &cdiv1.DataVolume{Status: cdiv1.DataVolumeStatus{Phase: cdiv1.ImportInProgress,
		Conditions: []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeRunning, Status: corev1.ConditionFalse, Reason: "Error", Message: "404"}}}}
	for name, test := range map[string]struct {
		vm      *kubevirtv1.VirtualMachine
		vmi     *kubevirtv1.VirtualMachineInstance
		volumes []*cdiv1.DataVolume
		state   cloud.State
		reason  string
	}{
		"just made":       {vm: vm(kubevirtv1.RunStrategyAlways), state: cloud.StatePending},
		"being scheduled": {vm: vm(kubevirtv1.RunStrategyAlways), vmi: vmi(kubevirtv1.Scheduling), state: cloud.StatePending},
		"importing": {vm: vm(kubevirtv1.RunStrategyAlways), volumes: []*cdiv1.DataVolume{importing}, state: cloud.StatePending,
			reason: "404"},
		"pod refused": {vm: refused, state: cloud.StatePending, reason: "pods is forbidden"},
		"runs":        {vm: vm(kubevirtv1.RunStrategyOnce), vmi: vmi(kubevirtv1.Running), state: cloud.StateRunning},
		"migrates": {vm: vm(kubevirtv1.RunStrategyAlways),
			vmi:   vmi(kubevirtv1.Running, kubevirtv1.VirtualMachineInstanceCondition{Type: kubevirtv1.VirtualMachineInstanceIsMigratable}),
			state: cloud.StateRunning},
		"paused": {vm: vm(kubevirtv1.RunStrategyAlways),
			vmi: vmi(kubevirtv1.Running, kubevirtv1.VirtualMachineInstanceCondition{Type: kubevirtv1.VirtualMachineInstancePaused,
				Status: corev1.ConditionTrue}), state: cloud.StateStopped, reason: "paused"},
		"halted": {vm: vm(kubevirtv1.RunStrategyHalted), state: cloud.StateStopped, reason: "Halted"},
		"ended, once": {vm: vm(kubevirtv1.RunStrategyOnce), vmi: vmi(kubevirtv1.Succeeded), state: cloud.StateStopped,
			reason: "has shut down"},
		"failed, once": {vm: vm(kubevirtv1.RunStrategyOnce), vmi: vmi(kubevirtv1.Failed), state: cloud.StateStopped, reason: "has shut down"},
		"ended, always": {vm: vm(kubevirtv1.RunStrategyAlways), vmi: vmi(kubevirtv1.Succeeded), state: cloud.StatePending,
			reason: "is restarting"},
		"failed, rerun": {vm: vm(kubevirtv1.RunStrategyRerunOnFailure), vmi: vmi(kubevirtv1.Failed), state: cloud.StatePending,
			reason: "is restarting"},
		"shut down, rerun": {vm: vm(kubevirtv1.RunStrategyRerunOnFailure), vmi: vmi(kubevirtv1.Succeeded), state: cloud.StateStopped},
		"guest going":      {vm: vm(kubevirtv1.RunStrategyAlways), vmi: ending, state: cloud.StateStopping},
		"deleted":          {vm: going, vmi: vmi(kubevirtv1.Running), state: cloud.StateStopping, reason: beingDeleted},
	} {
		g := NewWithT(t)
		state, _, reason := stateOf(test.vm, test.vmi, test.volumes)
		g.Expect(state).To(Equal(test.state), name)
		g.Expect(reason).To(ContainSubstring(test.reason), name)
	}
	g := NewWithT(t)
	alone := (&objects{vmis: []kubevirtv1.VirtualMachineInstance{*vmi(kubevirtv1.Running)}}).resources()
	g.Expect(alone).To(HaveLen(1), "a guest whose VM is gone is not nothing")
	k, name, uid, err := object(alone[0])
	g.Expect(fmt.Sprint(k.plural, name, uid, err)).To(Equal("virtualmachineinstancestoken-1uid-1<nil>"))
}

// TestUnlabelledVM: a VM whose labels were taken off is not gone. Its guest and its volumes, which
// have theirs, are no reason to take it for something else, and the guest is not deleted. A guest
// whose VM is gone is deleted.
func TestUnlabelledVM(t *testing.T) {
	for name, vm := range map[string]*kubevirtv1.VirtualMachine{
		"exists": {TypeMeta: metav1.TypeMeta{Kind: "VirtualMachine"}, ObjectMeta: metav1.ObjectMeta{Name: "token-1", UID: "uid-vm"}},
		"gone":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			g, deleted := NewWithT(t), 0
			guest := running("token-1", "11")
			guest.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&metav1.ObjectMeta{Name: "token-1"},
				kubevirtv1.VirtualMachineGroupVersionKind)}
			d := served(t, func(w http.ResponseWriter, req *http.Request) {
				var items []any
				switch kind := listKind(req); {
				case req.Method == http.MethodDelete:
					deleted++
					write(w, 200, guest)
				case kind == "" && vm != nil:
					write(w, 200, vm)
				case kind == "":
					none := refusal(404, metav1.StatusReasonNotFound, "not found")
					none.Details.Name = "token-1"
					write(w, 404, none)
				default:
					switch kind {
					case "VirtualMachineInstanceList":
						items = []any{guest}
					case "DataVolumeList":
						items = []any{cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Name: dataVolumeName("token-1", "root"), UID: "uid-2",
							Labels: guest.Labels}}}
					}
					write(w, 200, map[string]any{"kind": kind, "metadata": map[string]any{}, "items": items})
				}
			})
			listed, err := d.List(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(listed).To(HaveExactElements(HaveField("Kind", cloud.KindDisk)), "only a live read tells what became of the VM")
			ref := cloud.Reference{Token: "token-1", OwnershipID: "blue", ProviderID: "kubevirt://token-1"}
			read, err := d.Describe(t.Context(), []cloud.Reference{ref})
			g.Expect(err).NotTo(HaveOccurred())
			found, err := d.Find(t.Context(), ref)
			g.Expect(err).NotTo(HaveOccurred())
			left := cloud.Resource{Kind: cloud.KindInstance, ID: "vmi/uid-1", ProviderID: ref.ProviderID, Token: "token-1", OwnershipID: "blue"}
			err = d.Delete(t.Context(), []cloud.Resource{left})[0]
			if vm == nil {
				g.Expect(read).To(ConsistOf(HaveField("Kind", cloud.KindDisk),
					And(HaveField("ID", "vmi/uid-1"), HaveField("State", cloud.StateStopping))))
				g.Expect(found).To(BeNil())
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(deleted).To(Equal(1))
				return
			}
			g.Expect(read).To(HaveExactElements(HaveField("Kind", cloud.KindDisk)))
			g.Expect(found).To(HaveValue(And(HaveField("ID", "uid-vm"), HaveField("Token", ""))))
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict))
			g.Expect(deleted).To(BeZero())
		})
	}
}

// TestEvacuation: a guest whose node is drained gives way if its strategy is External, and
// otherwise keeps its machine.
func TestEvacuation(t *testing.T) {
	vmi := func(strategy kubevirtv1.EvictionStrategy, from string) *kubevirtv1.VirtualMachineInstance {
		vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: meta("token-1")}
		vmi.Spec.EvictionStrategy, vmi.Status.Phase, vmi.Status.EvacuationNodeName = &strategy, kubevirtv1.Running, from
		return vmi
	}
	ended := vmi(kubevirtv1.EvictionStrategyExternal, "node-1")
	ended.Status.Phase = kubevirtv1.Succeeded
	unsaid := vmi("", "node-1")
	unsaid.Spec.EvictionStrategy = nil
	for name, test := range map[string]struct {
		vmi           *kubevirtv1.VirtualMachineInstance
		interruptible bool
		reclaim       cloud.Reclaim
		notice        string
	}{
		"just made": {interruptible: true},
		"runs":      {vmi: vmi(kubevirtv1.EvictionStrategyExternal, ""), interruptible: true},
		"gives way": {vmi: vmi(kubevirtv1.EvictionStrategyExternal, "node-1"), interruptible: true, reclaim: cloud.ReclaimAdvised,
			notice: "node-1"},
		"has given way":   {vmi: ended, interruptible: true},
		"is moved":        {vmi: vmi(kubevirtv1.EvictionStrategyLiveMigrate, "node-1"), notice: "migrates the VM"},
		"by the default":  {vmi: unsaid, notice: "migrates the VM"},
		"is not migrated": {vmi: vmi(kubevirtv1.EvictionStrategyLiveMigrate, "")},
	} {
		g := NewWithT(t)
		vm := &kubevirtv1.VirtualMachine{ObjectMeta: meta("token-1")}
		vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
		vm.Spec.Template.Spec.EvictionStrategy = ptr.To(kubevirtv1.EvictionStrategyExternal)
		r := instance(vm, test.vmi, nil)
		g.Expect(r.Interruptible).To(Equal(test.interruptible), name)
		g.Expect(r.Reclaim).To(Equal(test.reclaim), name)
		if test.notice == "" {
			g.Expect(r.Notice).To(BeEmpty(), name)
		}
		g.Expect(r.Notice).To(ContainSubstring(test.notice), name)
	}
}

// TestPodEndpoint: without a Secret, the endpoint is the cluster that the manager runs in. The
// token may be renewed.
func TestPodEndpoint(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	folder := t.TempDir()
	put := func(name string, content []byte) {
		g.Expect(os.WriteFile(filepath.Join(folder, name), content, 0o600)).To(Succeed())
	}
	_, err := podEndpoint(folder, "", "")
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	_, err = podEndpoint(folder, "10.0.0.1", "443")
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	put("ca.crt", []byte("none"))
	_, err = podEndpoint(folder, "10.0.0.1", "443")
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	put("ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	to, err := podEndpoint(folder, "fd00::1", "6443")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(to.server.String()).To(Equal("https://[fd00::1]:6443"))
	g.Expect(to.tls.RootCAs).NotTo(BeNil())
	_, err = to.bearer()
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	for _, token := range []string{"first", "second"} {
		put("token", []byte(token+"\n"))
		g.Expect(to.bearer()).To(Equal(token))
	}
}

// TestValidate: rules that the CRD can't express.
func TestValidate(t *testing.T) {
	g := NewWithT(t)
	errs := union.ValidateMachine(&infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{KubeVirt: &infrav1.KubeVirtMachine{
		Labels:        map[string]string{cloud.TagToken: "mine", "team": "a b"},
		Annotations:   map[string]string{"drover-machine": "x", "a b": ""},
		NodeSelector:  map[string]string{"a b": ""},
		RequiredNodes: []infrav1.KubeVirtNodeCondition{{Key: "zone", Operator: "In", Values: []string{"a b"}}},
		Spread:        []infrav1.KubeVirtSpread{{TopologyKey: "a b"}},
		GPUs:          []infrav1.KubeVirtDevice{{DeviceName: "a b"}},
		Networks:      []infrav1.KubeVirtNetwork{{Name: "a"}, {Name: "b"}},
	}}}, field.NewPath("spec"))
	var at []string
	for _, e := range errs {
		at = append(at, e.Field)
	}
	g.Expect(at).To(ConsistOf("spec.cloud.kubevirt.labels", "spec.cloud.kubevirt.labels[drover-creation-token]",
		"spec.cloud.kubevirt.annotations[drover-machine]",
		"spec.cloud.kubevirt.annotations[a b]", "spec.cloud.kubevirt.nodeSelector", "spec.cloud.kubevirt.requiredNodes[0].values[0]",
		"spec.cloud.kubevirt.spread[0].topologyKey",
		"spec.cloud.kubevirt.gpus[0].deviceName", "spec.cloud.kubevirt.networks[1]"))
	errs = validateAccount(&infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{KubeVirt: &infrav1.KubeVirtAccount{
		FailureDomains: []infrav1.KubeVirtFailureDomain{{Name: "a", NodeSelector: map[string]string{"a b": ""}}},
	}}}, field.NewPath("spec"))
	g.Expect(errs).To(HaveLen(1))
}

// TestFamily: the endpoints are of the family of the Service.
func TestFamily(t *testing.T) {
	g := NewWithT(t)
	service := &corev1.Service{ObjectMeta: meta("token-1"),
		Spec: corev1.ServiceSpec{IPFamilies: []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}}}
	slice, err := newSlice(cloud.BalancerRequest{Token: "token-1", OwnershipID: "blue", Port: 6443, Targets: []string{"fd00::1"}}, service)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(slice.AddressType).To(Equal(discoveryv1.AddressTypeIPv6))
	_, err = newSlice(cloud.BalancerRequest{Targets: []string{"10.0.0.1"}}, service)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "%v", err)
}

// TestHealth: a target is healthy while the guest with its address runs, is ready, and stays.
func TestHealth(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*kubevirtv1.VirtualMachineInstance)
		want   bool
	}{
		"ready":         {func(*kubevirtv1.VirtualMachineInstance) {}, true},
		"not ready":     {func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.Status.Conditions[0].Status = corev1.ConditionFalse }, false},
		"no condition":  {func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.Status.Conditions = nil }, false},
		"starting":      {func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.Status.Phase = kubevirtv1.Scheduled }, false},
		"being deleted": {func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, false},
		"another":       {func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.Status.Interfaces[0].IP = "10.0.0.2" }, false},
	} {
		vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: meta("token-2")}
		vmi.Status.Phase = kubevirtv1.Running
		vmi.Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{Type: kubevirtv1.VirtualMachineInstanceReady,
			Status: corev1.ConditionTrue}}
		vmi.Status.Interfaces = []kubevirtv1.VirtualMachineInstanceNetworkInterface{{Name: "default", IP: "10.0.0.1"}}
		test.change(vmi)
		slice := discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}
		r := balancer(&corev1.Service{}, []discoveryv1.EndpointSlice{slice}, []kubevirtv1.VirtualMachineInstance{pruneVMI(vmi)})
		NewWithT(t).Expect(r.Balancer.Targets).To(Equal([]cloud.BalancerTarget{{Address: "10.0.0.1", Healthy: test.want}}), name)
	}
}

// TestDeleteWithoutOwner: no Secret is selected by an empty token or ownership ID, and no path
// without a name is deleted: these would be the objects of others.
func TestDeleteWithoutOwner(t *testing.T) {
	g := NewWithT(t)
	var asked []string
	d := served(t, func(w http.ResponseWriter, req *http.Request) {
		asked = append(asked, req.Method+" "+req.URL.Path)
		write(w, 200, metav1.Status{Status: metav1.StatusSuccess})
	})
	all := []cloud.Resource{
		{Kind: cloud.KindDisk, ID: secretID + "uid-1"},
		{Kind: cloud.KindDisk, ID: secretID + "uid-1", Token: "token-1"},
		{Kind: cloud.KindDisk, ID: secretID + "uid-1", OwnershipID: "blue"},
		{Kind: cloud.KindDisk, ID: volumeID + "/uid-1", Token: "token-1", OwnershipID: "blue"},
		{Kind: cloud.KindInstance, ID: "uid-1", OwnershipID: "blue"},
		{Kind: cloud.KindInstance, ProviderID: "kubevirt://token-1", Token: "token-1", OwnershipID: "blue"},
	}
	for i, err := range d.Delete(t.Context(), all) {
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "%+v: %v", all[i], err)
	}
	g.Expect(asked).NotTo(ContainElement(HavePrefix(http.MethodDelete)))
}

// TestBalancerWithoutLabels: a load balancer whose labels somebody took off is not taken for gone.
// A machine, and one that the driver does not know, cost no call for that.
func TestBalancerWithoutLabels(t *testing.T) {
	g := NewWithT(t)
	service := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: balancerName("token-1"), UID: "uid-1"}}
	asked := 0
	d := served(t, func(w http.ResponseWriter, req *http.Request) {
		kind := listKind(req)
		if kind != "" {
			write(w, 200, map[string]any{"kind": kind, "metadata": map[string]any{}, "items": []any{}})
			return
		}
		asked++
		if service != nil && strings.HasSuffix(req.URL.Path, "/services/lb-token-1") {
			write(w, 200, service)
			return
		}
		none := refusal(404, metav1.StatusReasonNotFound, "not found")
		none.Details.Name = balancerName("token-1")
		write(w, 404, none)
	})
	refs := []cloud.Reference{{Token: "machine", OwnershipID: "blue"}, {Token: "token-1", OwnershipID: "blue"}}
	g.Expect(d.Describe(t.Context(), refs)).To(BeEmpty())
	g.Expect(asked).To(BeZero())
	d.balancers.put("token-1", nil) // as EnsureBalancer does, also for one that was made before
	for n := range 2 {
		_, err := d.Describe(t.Context(), refs)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
		g.Expect(err).To(MatchError(ContainSubstring("lb-token-1")))
		g.Expect(asked).To(Equal(n + 1))
	}
	d.balancers.Forget("token-1") // as after a restart
	recorded := []cloud.Reference{refs[0], {Token: "token-1", OwnershipID: "blue", Balancer: true}}
	_, err := d.Describe(t.Context(), recorded)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	g.Expect(asked).To(Equal(3))
	d.balancers.put("token-1", nil)
	service = nil
	for range 2 {
		g.Expect(d.Describe(t.Context(), refs)).To(BeEmpty())
		g.Expect(asked).To(Equal(4), "it is gone, and forgotten")
	}
	g.Expect(d.Describe(t.Context(), recorded)).To(BeEmpty())
}

// TestDeleteConflict: a delete is done if another object has the name by now. A webhook's refusal
// is an error, which a person must see.
func TestDeleteConflict(t *testing.T) {
	for name, test := range map[string]struct {
		said metav1.Status
		code cloud.Code
	}{
		"gone":                     {refusal(404, metav1.StatusReasonNotFound, `virtualmachines "token-1" not found`), ""},
		"another":                  {refusal(409, metav1.StatusReasonConflict, "the UID in the precondition (uid-1) does not match the UID in record"), ""},
		"refused":                  {refusal(403, metav1.StatusReasonForbidden, `admission webhook "keep.example.com" denied the request: kept`), cloud.Conflict},
		"refused without a reason": {refusal(403, "", `admission webhook "keep.example.com" denied the request: kept`), cloud.Conflict},
	} {
		d := served(t, func(w http.ResponseWriter, _ *http.Request) { write(w, int(test.said.Code), test.said) })
		err := d.Delete(t.Context(), []cloud.Resource{{Kind: cloud.KindInstance, ID: "uid-1", ProviderID: "kubevirt://token-1",
			Token: "token-1", OwnershipID: "blue"}})[0]
		NewWithT(t).Expect(cloud.CodeOf(err)).To(Equal(test.code), "%s: %v", name, err)
	}
}
