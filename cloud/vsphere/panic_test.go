// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
)

// A fault of a type that is not a fault: govmomi's decoder panics on it.
const (
	badFault   = `<fault><fault xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="xsd:string">x</fault><localizedMessage></localizedMessage></fault>`
	badListing = `<objects><obj type="VirtualMachine">vm-1</obj><missingSet><path>name</path>` + badFault + `</missingSet></objects>`
)

// answerBadly adds what govmomi can't decode to each page of objects, and counts them.
func (v *vcsim) answerBadly() (sent *atomic.Int32) {
	sent = new(atomic.Int32)
	v.spoil(func(called string, send func() (*http.Response, error)) (*http.Response, error) {
		resp, err := send()
		if err != nil || called != "RetrievePropertiesEx" {
			return resp, err
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return nil, err
		}
		if i := bytes.LastIndex(body, []byte("</returnval>")); i > 0 {
			body = bytes.Join([][]byte{body[:i], []byte(badListing), body[i:]}, nil)
			sent.Add(1)
		}
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		resp.Header.Del("Content-Length")
		return resp, nil
	})
	return sent
}

// TestAnswerThatPanicsTheDecoder: each method returns an error, and works again later.
func TestAnswerThatPanicsTheDecoder(t *testing.T) {
	v := start(t, 2)
	made, err := v.driver(t).Ensure(t.Context(), request("blue-1"))
	if err != nil {
		t.Fatal(err)
	}
	ref := cloud.Reference{Token: "blue-1", OwnershipID: made.OwnershipID, ProviderID: made.ProviderID}
	none := func(cloud.Update) {}
	for name, call := range map[string]func(context.Context, *driver) error{
		"List":   func(ctx context.Context, d *driver) error { _, err := d.List(ctx); return err },
		"Ensure": func(ctx context.Context, d *driver) error { _, err := d.Ensure(ctx, request("blue-2")); return err },
		"DryRun": func(ctx context.Context, d *driver) error { return d.DryRun(ctx, request("blue-3")) },
		"Describe": func(ctx context.Context, d *driver) error {
			_, err := d.Describe(ctx, []cloud.Reference{ref})
			return err
		},
		"Tagged": func(ctx context.Context, d *driver) error {
			_, err := d.Tagged(ctx, []string{cloud.TagToken})
			return err
		},
		"Delete": func(ctx context.Context, d *driver) error { return d.Delete(ctx, []cloud.Resource{made})[0] },
		"Watch":  func(ctx context.Context, d *driver) error { return d.Watch(ctx, none) },
	} {
		t.Run(name, func(t *testing.T) {
			d := v.driver(t)
			sent := v.answerBadly()
			err := call(t.Context(), d)
			v.spoil(nil)
			if sent.Load() == 0 {
				t.Fatalf("it read nothing: %v", err)
			}
			if _, panicked := errors.AsType[*cloud.PanicError](err); !panicked || cloud.CodeOf(err) != cloud.Unknown {
				t.Errorf("got %v, want the decoder's panic as Unknown", err)
			}
			if _, err := d.List(t.Context()); err != nil {
				t.Errorf("a listing after that: %v", err)
			}
		})
	}
}

// TestAnswerThatPanicsTheDecoderReachesNoOther runs the engine: its loops are goroutines of their
// own, where a panic would end the process.
func TestAnswerThatPanicsTheDecoderReachesNoOther(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 2)
	v.account.Inventory.ActiveSeconds = 1
	sent := v.answerBadly()
	a := v.connected(t)
	a.Observe(cloud.Reference{Token: "blue-1", OwnershipID: "blue"}, false)
	g.Eventually(sent.Load).Should(BeNumerically(">", 1), "the loops go on")
	g.Eventually(func() cloud.Code { return cloud.CodeOf(a.Inventory().Err) }).Should(Equal(cloud.Unknown))
	v.spoil(nil)
	g.Eventually(func() bool { s := a.Inventory(); return s.Err == nil && s.Fresh }).Should(BeTrue(), "the account works again")
}
