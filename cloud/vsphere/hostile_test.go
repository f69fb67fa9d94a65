// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/drover-io/drover/cloud"
)

// TestHostileUpdates: whatever a server answers to a wait for changes, the stream keeps a bounded
// number of references, and none that is long.
func TestHostileUpdates(t *testing.T) {
	entered := func(from, n int, format string) string {
		out := &strings.Builder{}
		for i := range n {
			fmt.Fprintf(out, `<objectSet><kind>enter</kind><obj type="VirtualMachine">`+format+`</obj></objectSet>`, from+i)
		}
		return out.String()
	}
	for name, c := range map[string]struct {
		objects func(answer int) string
		want    string
	}{
		"a long reference":      {func(int) string { return entered(0, 1, "vm-%0200d") }, "a reference has"},
		"VMs without end":       {func(answer int) string { return entered(answer*9000, 9000, "vm-%d") }, "more than 100000 VMs"},
		"the same VMs, renamed": {func(answer int) string { return entered(answer*9000, 9000, "vm-%020d") }, "more than 100000 VMs"},
	} {
		t.Run(name, func(t *testing.T) {
			v := start(t, 1)
			d := v.driver(t)
			if _, err := d.List(t.Context()); err != nil {
				t.Fatal(err)
			}
			answers := 0
			v.spoil(func(called string, send func() (*http.Response, error)) (*http.Response, error) {
				resp, err := send()
				if err != nil || called != "WaitForUpdatesEx" {
					return resp, err
				}
				_ = resp.Body.Close()
				body := `<?xml version="1.0"?><soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"><soapenv:Body>` +
					`<WaitForUpdatesExResponse xmlns="urn:vim25"><returnval><version>` + fmt.Sprint(answers) + `</version><filterSet>` +
					`<filter type="PropertyFilter">f</filter>` + c.objects(answers) + `</filterSet><truncated>true</truncated>` +
					`</returnval></WaitForUpdatesExResponse></soapenv:Body></soapenv:Envelope>`
				answers++
				resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
				resp.Header.Del("Content-Length")
				return resp, nil
			})
			err := d.Watch(t.Context(), func(cloud.Update) {})
			if err == nil || !strings.Contains(err.Error(), c.want) || answers > 12 {
				t.Errorf("after %d answers: %v", answers, err)
			}
		})
	}
}

// TestStoredProperties: a listing whose VMs have large properties ends before they fill the memory.
func TestStoredProperties(t *testing.T) {
	v := start(t, 1)
	d := v.driver(t)
	if _, err := d.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	pages := 0
	large := strings.Repeat("x", 6<<20)
	v.spoil(func(called string, send func() (*http.Response, error)) (*http.Response, error) {
		resp, err := send()
		response := ""
		switch called {
		case "RetrievePropertiesEx":
			response = "RetrievePropertiesExResponse"
		case "ContinueRetrievePropertiesEx":
			response = "ContinueRetrievePropertiesExResponse"
		}
		if err != nil || response == "" {
			return resp, err
		}
		_ = resp.Body.Close()
		pages++
		body := fmt.Sprintf(`<?xml version="1.0"?><soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"><soapenv:Body>`+
			`<%s xmlns="urn:vim25"><returnval><token>%d</token><objects><obj type="VirtualMachine">vm-%d</obj><propSet><name>config.uuid</name>`+
			`<val xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema" xsi:type="xsd:string">%s</val></propSet></objects>`+
			`</returnval></%s></soapenv:Body></soapenv:Envelope>`, response, pages, pages, large, response)
		resp.StatusCode = http.StatusOK
		resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		resp.Header.Del("Content-Length")
		return resp, nil
	})
	_, err := d.List(t.Context())
	if err == nil || !strings.Contains(err.Error(), "take more than 96 MiB") || pages > 17 {
		t.Errorf("after %d pages: %v", pages, err)
	}
}
