// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-io/drover/cloud"
)

// TestConsole: of a VM that migrates, the newer pod's console is read. A missing console is no
// error, but a missing right to read it is.
func TestConsole(t *testing.T) {
	pod := func(name string, age time.Duration) metav1.PartialObjectMetadata {
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))}}
	}
	for name, test := range map[string]struct {
		status int
		reason metav1.StatusReason
		text   string
		code   cloud.Code
	}{
		"read": {status: 200, text: "drover: Done\n"}, "no container": {status: 400, reason: metav1.StatusReasonBadRequest},
		"no right": {status: 403, reason: metav1.StatusReasonForbidden, code: cloud.Unauthorized},
		"gone":     {status: 404, reason: metav1.StatusReasonNotFound, code: cloud.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			d := served(t, func(w http.ResponseWriter, req *http.Request) {
				switch {
				case strings.HasSuffix(req.URL.Path, "/pods"):
					g.Expect(req.URL.Query().Get("labelSelector")).To(Equal("kubevirt.io=virt-launcher,drover-creation-token=m1,drover-ownership-id=blue"))
					write(w, 200, map[string]any{"kind": "PartialObjectMetadataList", "metadata": map[string]any{},
						"items": []metav1.PartialObjectMetadata{pod("before", time.Hour), pod("after", time.Minute), pod("long-before", 2*time.Hour)}})
				case test.status == 200:
					g.Expect(req.URL.Path).To(HaveSuffix("/namespaces/vms/pods/after/log"))
					_, _ = w.Write([]byte(test.text))
				default:
					write(w, test.status, refusal(test.status, test.reason, "no"))
				}
			})
			text, err := d.Console(t.Context(), cloud.Resource{Token: "m1", OwnershipID: "blue"})
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			g.Expect(string(text)).To(Equal(test.text))
		})
	}
}
