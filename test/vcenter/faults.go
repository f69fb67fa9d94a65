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

// Fault makes calls go wrong. Of several that fit a call, the one injected first befalls it.
type Fault struct {
	// Operation that it befalls; "": each one. Example: "CloneVM_Task".
	Operation string
	// Skip lets the first calls pass, and Count is how many it befalls then. Count 0: all, until it
	// is undone.
	Skip, Count int

	// Method is the fault that vCenter answers with; nil leaves the call's own answer.
	Method types.BaseMethodFault
	// Instead is what is answered instead of that.
	Instead Instead
	// After lets the call take its effect although its answer is another.
	After bool
	// Delay comes before the effect, or with After before the answer.
	Delay time.Duration
	// Late leaves the client without an answer at once, and lets the call take its effect after
	// Delay.
	Late bool
	// Birth is what becomes of a VM that is switched on for the first time. Such a fault befalls no
	// call.
	Birth Birth
}

// Instead is what comes in the place of an answer.
type Instead string

// The answers that are none.
const (
	Cut       Instead = "Cut"       // the connection ends
	Half      Instead = "Half"      // half of the answer
	Page      Instead = "Page"      // a page of HTML, as a proxy has it
	Elsewhere Instead = "Elsewhere" // a redirection to nowhere
	Down      Instead = "Down"      // 503
)

// Birth is what goes wrong with a new VM.
type Birth string

// What may go wrong.
const (
	Stillborn Birth = "Stillborn" // it is destroyed at once
	Lifeless  Birth = "Lifeless"  // it runs, and nothing ever starts in it
)

var errCut = errors.New("the connection is cut")

type injected struct {
	Fault
	seen int
}

// befalls tells whether a call of which it is asked is one that it befalls.
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

// fault is what befalls a call, or a birth.
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

// admit tells whether a call is one of a session that was not ended, or needs none.
func (v *VCenter) admit(req *http.Request, operation string) bool {
	cookie, err := req.Cookie(sessionCookie)
	return err != nil || v.sessions[cookie.Value] || slices.Contains([]string{"Login", "Logout", "RetrieveServiceContent"}, operation)
}

// remember notes a session that has begun.
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

// Operation is what a call with this body asks for; "" for one that is not SOAP.
func Operation(body []byte) string {
	if m := operation.FindSubmatch(body); m != nil {
		return string(m[1])
	}
	return ""
}

// operationOf reads a call's operation, and leaves the call as it was. Of one that is not SOAP, it
// is the method and the path.
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

// spoil plays a fault on a call.
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

// answer is what comes instead of the call's own answer, if anything does.
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

// envelope is a fault as vCenter sends it.
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
		Env: "http://schemas.xmlsoap.org/soap/envelope/", XSD: "http://www.w3.org/2001/XMLSchema", XSI: "http://www.w3.org/2001/XMLSchema-instance",
		Body: content{simulator.Fault("it was told to fail", fault)},
	}
	raw, err := xml.Marshal(out)
	return append([]byte(xml.Header), raw...), err
}
