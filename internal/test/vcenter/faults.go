// SPDX-License-Identifier: Apache-2.0

package vcenter

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vim25/xml"
)

// Fault makes calls fail. If several faults match a call, the one injected first applies.
type Fault struct {
	// Operation is the operation to match, "" for all. Example: "CloneVM_Task".
	Operation string
	// Skip is the number of matching calls to pass first. Count is the number of calls to fail
	// after those. 0 means all, until undo is called.
	Skip, Count int

	// Method is the fault in vCenter's answer. nil keeps the call's own answer.
	Method types.BaseMethodFault
	// Instead is sent in place of vCenter's answer.
	Instead Instead
	// After lets the call take effect before its answer is replaced.
	After bool
	// Delay comes before the effect, or with After before the answer.
	Delay time.Duration
	// Late closes the connection immediately, without an answer. The call takes effect after Delay.
	Late bool
	// Birth is what happens to a VM that is powered on for the first time. A fault with Birth does
	// not apply to calls.
	Birth Birth
}

// Instead is what is sent in place of an answer.
type Instead string

// The values of Instead.
const (
	Cut       Instead = "Cut"       // the connection is closed
	Half      Instead = "Half"      // half of the answer
	Page      Instead = "Page"      // an HTML page, as from a proxy
	Elsewhere Instead = "Elsewhere" // a redirect to an unreachable address
	Down      Instead = "Down"      // 503
)

// Birth is a failure of a new VM.
type Birth string

// The values of Birth.
const (
	Stillborn Birth = "Stillborn" // it is destroyed immediately
	Lifeless  Birth = "Lifeless"  // it runs, but nothing starts in it
)

var errCut = errors.New("the connection is cut")

type injected struct {
	Fault
	seen int
}

// befalls reports whether the fault applies to this call, and counts the call.
func (f *injected) befalls(operation string, birth bool) bool {
	if (f.Birth != "") != birth || (f.Operation != "" && f.Operation != operation && !birth) {
		return false
	}
	f.seen++
	return f.seen > f.Skip && (f.Count == 0 || f.seen <= f.Skip+f.Count)
}

// Inject adds a fault until undo is called.
func (v *VCenter) Inject(f Fault) (undo func()) {
	v.faulty.Lock()
	defer v.faulty.Unlock()
	own := &injected{Fault: f}
	v.faults = append(v.faults, own)
	return func() {
		v.faulty.Lock()
		defer v.faulty.Unlock()
		v.faults = slices.DeleteFunc(v.faults, func(f *injected) bool { return f == own })
	}
}

// fault returns the fault that applies to a call or a birth, or the zero value.
func (v *VCenter) fault(operation string, birth bool) Fault {
	v.faulty.Lock()
	defer v.faulty.Unlock()
	for _, f := range v.faults {
		if f.befalls(operation, birth) {
			return f.Fault
		}
	}
	return Fault{}
}

// SetPassword changes the password, and ends all sessions.
func (v *VCenter) SetPassword(password string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.options.Password, v.sessions = password, map[string]bool{}
}

const sessionCookie = "vmware_soap_session"

// admit reports whether a call belongs to an open session, or needs none.
func (v *VCenter) admit(req *http.Request, operation string) bool {
	cookie, err := req.Cookie(sessionCookie)
	return err != nil || v.sessions[cookie.Value] || slices.Contains([]string{"Login", "Logout", "RetrieveServiceContent"}, operation)
}

// remember stores a new session.
func (v *VCenter) remember(resp *http.Response, operation string) {
	if operation != "Login" || resp.StatusCode != http.StatusOK {
		return
	}
	for _, c := range resp.Cookies() {
		if c.Name == sessionCookie {
			v.sessions[c.Value] = true
		}
	}
}

var operation = regexp.MustCompile(`<(?:\w+:)?Body[^>]*>\s*<(?:\w+:)?(\w+)`)

// Operation returns the SOAP operation of a request body, or "" if it is not SOAP.
func Operation(body []byte) string {
	if m := operation.FindSubmatch(body); m != nil {
		return string(m[1])
	}
	return ""
}

// operationOf returns the operation of a call, and keeps its body readable. For calls that are not
// SOAP, it returns the method and the path.
func operationOf(req *http.Request) (operation string, err error) {
	if req.Body != nil {
		var raw []byte
		raw, err = io.ReadAll(req.Body)
		_ = req.Body.Close()
		req.Body = io.NopCloser(bytes.NewReader(raw))
		operation = Operation(raw)
	}
	return cmp.Or(operation, req.Method+" "+req.URL.Path), err
}

// spoil applies the fault to a call.
func (f Fault) spoil(req *http.Request, send func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	switch {
	case f.Late:
		raw, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		late := req.Clone(context.WithoutCancel(req.Context()))
		late.Body = io.NopCloser(bytes.NewReader(raw))
		time.AfterFunc(f.Delay, func() {
			if resp, err := send(late); err == nil {
				_ = resp.Body.Close()
			}
		})
		return nil, errCut
	case !f.After:
		if err := f.pause(req); err != nil || f.Instead != "" || f.Method != nil {
			return f.answer(req, nil, err)
		}
		return send(req)
	}
	resp, err := send(req)
	if err == nil {
		err = f.pause(req)
	}
	return f.answer(req, resp, err)
}

func (f Fault) pause(req *http.Request) error {
	timer := time.NewTimer(f.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-req.Context().Done():
		return req.Context().Err()
	}
}

// answer returns the answer that replaces the call's own, or the call's own answer.
func (f Fault) answer(req *http.Request, own *http.Response, err error) (*http.Response, error) {
	if err != nil {
		return nil, err
	}
	with := func(status int, kind string, content []byte) *http.Response {
		return &http.Response{
			Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
			Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(bytes.NewReader(content)), ContentLength: int64(len(content)),
		}
	}
	switch f.Instead {
	case Cut:
		return nil, errCut
	case Page:
		return with(http.StatusOK, "text/html", []byte("<html><body>Please log in.</body></html>")), nil
	case Elsewhere:
		resp := with(http.StatusFound, "text/plain", nil)
		resp.Header.Set("Location", "https://127.0.0.1:1/")
		return resp, nil
	case Down:
		return with(http.StatusServiceUnavailable, "text/plain", []byte("down")), nil
	case Half:
		if own == nil {
			return nil, errCut
		}
		whole, err := io.ReadAll(own.Body)
		return with(own.StatusCode, own.Header.Get("Content-Type"), whole[:len(whole)/2]), err
	}
	if f.Method != nil {
		content, err := envelope(f.Method)
		return with(http.StatusInternalServerError, "text/xml", content), err
	}
	return own, nil
}

// envelope returns a fault as vCenter sends it.
func envelope(fault types.BaseMethodFault) ([]byte, error) {
	type content struct {
		Fault *soap.Fault `xml:"http://schemas.xmlsoap.org/soap/envelope/ Fault"`
	}
	out := struct {
		XMLName xml.Name `xml:"soapenv:Envelope"`
		Env     string   `xml:"xmlns:soapenv,attr"`
		XSD     string   `xml:"xmlns:xsd,attr"`
		XSI     string   `xml:"xmlns:xsi,attr"`
		Body    content  `xml:"soapenv:Body"`
	}{
		Env: "http://schemas.xmlsoap.org/soap/envelope/", XSD: "http://www.w3.org/2001/XMLSchema",
		XSI:  "http://www.w3.org/2001/XMLSchema-instance",
		Body: content{simulator.Fault("it was told to fail", fault)},
	}
	raw, err := xml.Marshal(out)
	return append([]byte(xml.Header), raw...), err
}
