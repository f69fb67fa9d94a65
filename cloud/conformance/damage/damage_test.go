// SPDX-License-Identifier: Apache-2.0

package damage

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// careless is a driver whose Probe makes a call and does with the answer what the test says.
type careless struct {
	transport http.RoundTripper
	probe     func(ctx context.Context, get func() (string, error)) error
}

func (c careless) Probe(ctx context.Context) (cloud.Info, error) {
	return cloud.Info{}, c.probe(ctx, func() (string, error) {
		req, err := http.NewRequestWithContext(cloud.WithOperation(ctx, "Get", cloud.ClassRead), http.MethodGet, "http://cloud/", nil)
		if err != nil {
			return "", err
		}
		resp, err := c.transport.RoundTrip(req)
		if err != nil {
			return "", err
		}
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	})
}

func (careless) Ensure(context.Context, cloud.Request) (cloud.Resource, error) {
	return cloud.Resource{}, nil
}
func (careless) List(context.Context) ([]cloud.Resource, error) { return nil, nil }
func (careless) Describe(context.Context, []cloud.Reference) ([]cloud.Resource, error) {
	return nil, nil
}
func (careless) Delete(context.Context, []cloud.Resource) []error { return nil }
func (careless) Offering(context.Context, *infrav1.DroverMachineFields) (cloud.Offering, error) {
	return cloud.Offering{}, nil
}

// found returns what the test would find in a driver, by method.
func found(t *testing.T, target Target, probe func(context.Context, func() (string, error)) error) (wrong []string) {
	t.Helper()
	var tape Tape
	tape.Add("Get", 200, nil, []byte(`{"name":"one","items":[{"id":"1"},{"id":"2"}]}`))
	target.Connect = func(transport http.RoundTripper) (cloud.Driver, error) { return careless{transport, probe}, nil }
	f := newFindings(t)
	f.report = func(text string) { wrong = append(wrong, text) }
	for seed := range uint64(10) {
		f.live(&tape, &target, seed)
	}
	return wrong
}

// TestFindings: each kind of mistake is found, and reported once.
func TestFindings(t *testing.T) {
	known := func(p *cloud.PanicError) bool { return bytes.Contains(p.Stack, []byte("careless")) }
	for name, c := range map[string]struct {
		target Target
		probe  func(ctx context.Context, get func() (string, error)) error
		want   string
	}{
		"a panic": {Target{}, func(_ context.Context, get func() (string, error)) error {
			body, err := get()
			_ = body[5]
			return err
		}, "a panic: runtime error: index out of range"},
		"a recovered panic": {Target{}, func(context.Context, func() (string, error)) error {
			return cloud.Recover(func() error { panic("x") })
		}, "a panic: panic with a value of type string"},
		"a known panic": {Target{Recovers: known}, func(context.Context, func() (string, error)) error {
			return cloud.Recover(func() error { panic("x") })
		}, ""},
		"a call without end": {Target{}, func(ctx context.Context, get func() (string, error)) error {
			for ctx.Err() == nil {
				_, _ = get()
			}
			return ctx.Err()
		}, "more than 1000 calls"},
		"a secret": {Target{Secrets: []string{"marked"}}, func(context.Context, func() (string, error)) error {
			return errors.New("the password marked is wrong")
		}, `the secret "marked"`},
		"a long text": {Target{}, func(context.Context, func() (string, error)) error {
			return errors.New(strings.Repeat("x", 10_000))
		}, "an error of 10000 bytes"},
		"a decoder's text": {Target{}, func(_ context.Context, get func() (string, error)) error {
			body, err := get()
			if err == nil {
				var into struct{ Name string }
				err = json.Unmarshal([]byte(body), &into)
			}
			return err
		}, "internals of the program"},
		"a goroutine": {Target{}, func(context.Context, func() (string, error)) error {
			go func() { <-make(chan int) }()
			return nil
		}, "deadlock"},
		"a wait for the context": {Target{}, func(ctx context.Context, _ func() (string, error)) error {
			<-ctx.Done()
			return ctx.Err()
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := found(t, c.target, c.probe)
			if c.want == "" && len(wrong) > 0 || c.want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], c.want)) {
				t.Errorf("got %q, want one with %q", wrong, c.want)
			}
		})
	}
}

// TestSeeds: what is played depends on the seed alone, and differs.
func TestSeeds(t *testing.T) {
	var tape Tape
	for range 3 {
		tape.Add("Get", 200, http.Header{"Date": {"now"}, "Location": {"here"}}, []byte(`{"name":"one","items":[{"id":"1"},{"id":"2"}]}`))
		tape.Add("Soap", 200, nil, []byte(`<a><b>1</b><c type="x">2</c></a>`))
	}
	played := func(seed uint64) (all string) {
		p := tape.play(seed)
		p.begin(func() {})
		for _, operation := range []string{"Get", "Soap", "Get", "Unknown", "Get", "Get", "Soap"} {
			a, _ := p.next(operation)
			all += string(a.body) + http.StatusText(a.status) + a.header.Get("Location") + a.header.Get("Date")
		}
		return all
	}
	seen := map[string]bool{}
	for seed := range uint64(100) {
		one := played(seed)
		if one != played(seed) {
			t.Fatalf("seed %d is played in two ways", seed)
		}
		seen[one] = true
	}
	if len(seen) < 50 {
		t.Errorf("100 seeds gave %d plays", len(seen))
	}
}

// TestDocuments: JSON stays JSON, and every kind of damage to XML comes about.
func TestDocuments(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	text := []byte(`{"name":"one","n":1,"items":[{"id":"1","tags":["a","b"]},{"id":"2"}]}`)
	different := map[string]bool{}
	for range 1000 {
		out := damagedJSON(r, text)
		if !json.Valid(out) {
			t.Fatalf("not JSON: %s", out)
		}
		different[string(out)] = true
	}
	if len(different) < 300 {
		t.Errorf("%d different documents of 1,000", len(different))
	}
	element := []byte(`<a><fault xsi:type="NotFound">x</fault></a>`)
	want := []string{`xsi:type="xsd:string">x`, `<a></a>`, `<a><fault xsi:type="NotFound"></fault></a>`, `<a>x</a>`,
		`<a><fault xsi:type="NotFound">x</fault><fault xsi:type="NotFound">x</fault></a>`}
	for range 20_000 {
		out := damagedElement(r, element)
		want = slices.DeleteFunc(want, func(w string) bool { return bytes.Contains(out, []byte(w)) })
	}
	if len(want) > 0 {
		t.Errorf("never made: %q", want)
	}
	if err := xml.Unmarshal(ofType([]byte("<a>"), "xsd:int"), new(any)); errors.As(err, new(*xml.SyntaxError)) &&
		!strings.Contains(err.Error(), "EOF") {
		t.Errorf("a tag with a type added: %v", err)
	}
}
