// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// cluster is a fake API server without machines. uid is that of kube-system, "" if the account may
// not read it.
type cluster struct {
	*driver
	uid          atomic.Value
	asked, calls atomic.Int32 // calls for kube-system, and all calls
	watch        func(http.ResponseWriter, *http.Request)
}

func newCluster(t *testing.T, uid string) *cluster {
	t.Helper()
	c := &cluster{watch: func(w http.ResponseWriter, _ *http.Request) {
		write(w, 403, refusal(403, metav1.StatusReasonForbidden, "no watches"))
	}}
	c.uid.Store(uid)
	c.driver = served(t, func(w http.ResponseWriter, req *http.Request) {
		c.calls.Add(1)
		switch {
		case strings.HasSuffix(req.URL.Path, "/api/v1/namespaces/kube-system"):
			c.asked.Add(1)
			uid, _ := c.uid.Load().(string)
			if uid == "page" {
				http.Error(w, "a proxy's", http.StatusForbidden)
				return
			}
			if uid == "" {
				write(w, 403, refusal(403, metav1.StatusReasonForbidden, `namespaces "kube-system" is forbidden`))
				return
			}
			write(w, 200, map[string]any{"kind": "PartialObjectMetadata", "metadata": map[string]any{"name": "kube-system", "uid": uid}})
		case req.URL.Query().Get("watch") != "":
			c.watch(w, req)
		case req.URL.Query().Get("limit") == "1":
			write(w, 200, map[string]any{"kind": "PartialObjectMetadataList", "metadata": map[string]any{}})
		default:
			write(w, 200, map[string]any{"kind": listKind(req), "metadata": map[string]any{"resourceVersion": "10"}, "items": []any{}})
		}
	})
	c.streamTimeout, c.absentInterval = time.Hour, time.Hour
	return c
}

func (c *cluster) follow(t *testing.T) error {
	return c.Watch(t.Context(), func(cloud.Update) {})
}

// TestPlace: the cluster itself identifies the place. It is asked once, and again after the watches
// have failed.
func TestPlace(t *testing.T) {
	g := NewWithT(t)
	c := newCluster(t, "uid-a")
	for range 3 {
		info, err := c.Probe(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Place).To(Equal("kubevirt:uid-a:vms"))
	}
	g.Expect(c.asked.Load()).To(BeEquivalentTo(1))
	g.Expect(cloud.CodeOf(c.follow(t))).To(Equal(cloud.Unauthorized), "no watches")
	g.Expect(c.asked.Load()).To(BeEquivalentTo(1))
	g.Expect(cloud.CodeOf(c.follow(t))).To(Equal(cloud.Unauthorized), "no watches")
	g.Expect(c.asked.Load()).To(BeEquivalentTo(2), "the watches have failed")
}

// TestAnotherPlace: if another cluster answers at the same address, nothing is read, created or
// deleted there until the first one is back.
func TestAnotherPlace(t *testing.T) {
	g := NewWithT(t)
	c := newCluster(t, "uid-a")
	_, err := c.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cloud.CodeOf(c.follow(t))).To(Equal(cloud.Unauthorized), "no watches")
	c.uid.Store("uid-b")
	err = c.follow(t)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	g.Expect(err).To(MatchError(And(ContainSubstring("kubevirt:uid-a:vms"), ContainSubstring("kubevirt:uid-b:vms"))))
	calls := c.calls.Load()
	_, err = c.List(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	_, err = c.Describe(t.Context(), []cloud.Reference{{Token: "token-1", OwnershipID: "blue"}})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	_, err = c.Ensure(t.Context(), cloud.Request{Token: "token-1", OwnershipID: "blue",
		Spec: &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{KubeVirt: &infrav1.KubeVirtMachine{}}}})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	errs := c.Delete(t.Context(), []cloud.Resource{{Kind: cloud.KindInstance, ID: "uid-1", Token: "token-1"}})
	g.Expect(cloud.CodeOf(errs[0])).To(Equal(cloud.Conflict), "%v", errs)
	g.Expect(c.calls.Load()).To(Equal(calls), "none of these is a call")

	info, err := c.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Place).To(Equal("kubevirt:uid-b:vms"), "which the engine refuses")
	c.uid.Store("uid-a")
	info, err = c.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Place).To(Equal("kubevirt:uid-a:vms"))
	_, err = c.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
}

// TestPlaceWithoutRight: if the account may not read kube-system, the place is the authority that
// verifies the API server's certificate.
func TestPlaceWithoutRight(t *testing.T) {
	g := NewWithT(t)
	c := newCluster(t, "")
	c.ca = append([]byte("# a comment\n"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("authority")})...)
	sum := sha256.Sum256([]byte("authority"))
	info, err := c.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Place).To(Equal("kubevirt-ca:" + hex.EncodeToString(sum[:])[:32] + ":vms"))
	c.uid.Store("uid-a")
	info, err = c.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Place).To(HavePrefix("kubevirt-ca:"), "as long as the driver lives it is the same")
	g.Expect(c.asked.Load()).To(BeEquivalentTo(1))

	info, err = newCluster(t, "page").Probe(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%v", err)
	g.Expect(info.Place).To(BeEmpty(), "what is before the API server is no cluster")
}

// TestPlaceAfterCut: after a watch is cut off, another cluster may answer, so the cluster is
// identified before the watch restarts.
func TestPlaceAfterCut(t *testing.T) {
	g := NewWithT(t)
	c := newCluster(t, "uid-a")
	c.watch = func(w http.ResponseWriter, req *http.Request) {
		kind := strings.TrimSuffix(listKind(req), "List")
		w.WriteHeader(http.StatusOK)
		bookmark(w, kind, "11")
		if kind != "VirtualMachine" {
			untilGone(req)
		}
		c.uid.Store("uid-b")
	}
	_, err := c.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	err = c.follow(t)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	_, err = c.List(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
}
