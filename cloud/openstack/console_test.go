// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
)

// TestConsole: a real Nova's output is returned. A server without console yet, or a hypervisor
// without consoles, is no error. An answer that is not Nova's is not returned.
func TestConsole(t *testing.T) {
	type answers = func() (*http.Response, error)
	for name, test := range map[string]struct {
		answer answers
		text   string
		code   cloud.Code
	}{
		"recorded": {answer: recorded(t, "console"), text: "FAKE CONSOLE OUTPUT\nANOTHER\nLAST LINE"},
		"not yet":  {answer: madeUp(http.StatusConflict, nil, `{"conflictingRequest": {"code": 409, "message": "Instance is not ready"}}`)},
		"never":    {answer: madeUp(http.StatusNotImplemented, nil, `{"notImplemented": {"code": 501, "message": "Unable to get console log"}}`)},
		"gone": {answer: madeUp(http.StatusNotFound, nil, `{"itemNotFound": {"code": 404, "message": "Instance could not be found."}}`),
			code: cloud.NotFound},
		"foreign": {answer: madeUp(http.StatusOK, nil, `{"welcome": "log in first"}`), code: cloud.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := ordinary(t)
			p.play("GetConsoleOutput", test.answer)
			text, err := connected(t, p).Console(t.Context(), cloud.Resource{Kind: cloud.KindInstance, ID: "one"})
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			g.Expect(string(text)).To(Equal(test.text))
			if test.code == "" {
				var sent map[string]map[string]int
				p.sent("GetConsoleOutput", &sent)
				g.Expect(sent).To(Equal(map[string]map[string]int{"os-getConsoleOutput": {"length": consoleLines}}))
			}
		})
	}
}
