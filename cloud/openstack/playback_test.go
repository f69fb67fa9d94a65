// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
)

// playback replays the answers of a real OpenStack: the files in testdata, which TestRecord
// of test/clouds/openstack writes.
type playback struct {
	t *testing.T

	mu sync.Mutex
	// answers are given in order for each operation. The last one repeats.
	answers map[string][]func() (*http.Response, error)
	calls   []call
}

type call struct {
	op   string
	req  *http.Request
	body []byte
}

// ordinary returns a cloud without failures in which nothing exists yet.
func ordinary(t *testing.T) *playback {
	p := &playback{t: t, answers: map[string][]func() (*http.Response, error){}}
	for op, name := range map[string]string{
		"CreateToken": "token", "ListAvailabilityZones": "zones", "ListFlavors": "flavors", "ListImages": "images",
		"ListNetworks": "networks", "ListSecurityGroups": "groups", "ListServers": "servers-none", "ListPorts": "ports-none",
		"CreateServer": "server-made", "CreatePorts": "ports-made", "DeleteServer": "server-gone", "DeletePort": "port-gone",
		"GetImage": "image-unknown", "CreateFloatingIP": "floating-ip-made", "ListFloatingIPs": "floating-ips",
		"DeleteFloatingIP": "floating-ip-gone",
		"CreateTrunk":      "trunk-made", "ListServerStates": "servers-none", "DeleteTrunk": "trunk-gone", "CreateVolume": "volume-made",
		"DeleteVolume": "volume-gone",
	} {
		p.play(op, recorded(t, name))
	}
	return p
}

// play sets the answers for an operation.
func (p *playback) play(op string, answers ...func() (*http.Response, error)) {
	p.answers[op] = answers
}

func (p *playback) RoundTrip(req *http.Request) (*http.Response, error) {
	op := cloud.OperationOf(req.Context()).Name
	var body []byte
	if req.Body != nil {
		body, _ = io.ReadAll(req.Body)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call{op, req, body})
	answers := p.answers[op]
	if len(answers) == 0 {
		p.t.Errorf("nobody expects %s %s", op, req.URL)
		return nil, io.ErrUnexpectedEOF
	}
	if len(answers) > 1 {
		p.answers[op] = answers[1:]
	}
	return answers[0]()
}

// ops returns the names of the calls so far.
func (p *playback) ops() (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		names = append(names, c.op)
	}
	return names
}

func (p *playback) count(op string) int {
	return len(slices.DeleteFunc(p.ops(), func(name string) bool { return name != op }))
}

// sent decodes the body of the last call of an operation.
func (p *playback) sent(op string, into any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range slices.Backward(p.calls) {
		if c.op == op {
			NewWithT(p.t).Expect(json.Unmarshal(c.body, into)).To(Succeed())
			return
		}
	}
	p.t.Fatalf("%s was not called", op)
}

func recorded(t *testing.T, name string) func() (*http.Response, error) {
	raw, err := os.ReadFile(filepath.Join("testdata", name+".http"))
	if err != nil {
		t.Fatal(err)
	}
	head, body, ok := strings.Cut(string(raw), "\r\n\r\n")
	if !ok {
		t.Fatalf("%s is not an answer", name)
	}
	if name == "token" { // the recorded token has expired
		body = regexp.MustCompile(`"expires_at": "[^"]*"`).ReplaceAllString(body, `"expires_at": "2999-01-01T00:00:00.000000Z"`)
	}
	return func() (*http.Response, error) {
		resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(head+"\r\n\r\n")), nil)
		if err != nil {
			return nil, err
		}
		resp.Body = io.NopCloser(strings.NewReader(body))
		return resp, nil
	}
}

// madeUp returns an answer that the real services do not produce in tests.
func madeUp(status int, header http.Header, body string) func() (*http.Response, error) {
	return func() (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

func lost() (*http.Response, error) { return nil, io.ErrUnexpectedEOF }

// projectOf reads the project's ID from the recorded token.
func projectOf(t *testing.T) string {
	raw, err := os.ReadFile(filepath.Join("testdata", "token.http"))
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := bytes.Cut(raw, []byte("\r\n\r\n"))
	var answer struct {
		Token struct{ Project struct{ ID string } }
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Token.Project.ID
}

const keystone = "http://127.0.0.1:25001/v3"

const clouds = `
clouds:
  blue:
    auth:
      auth_url: http://127.0.0.1:25001
      username: demo
      password: very-secret
      user_domain_id: default
`

func accountOf(t *testing.T) *infrav1.OpenStackAccount {
	return &infrav1.OpenStackAccount{AuthURL: keystone, ProjectID: projectOf(t)}
}

func connected(t *testing.T, p http.RoundTripper) *driver {
	t.Helper()
	d, err := newDriver(cloud.Config{
		Account:     &infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{OpenStack: accountOf(t)}},
		Credentials: map[string][]byte{cloudsKey: []byte(clouds)}, Connect: conformance.Through(p),
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return d.(*driver)
}

func requested(change func(*infrav1.OpenStackMachine)) cloud.Request {
	m := &infrav1.OpenStackMachine{Flavor: "small", Image: infrav1.OpenStackImage{Name: "node-image"},
		Ports: []infrav1.OpenStackPort{{Network: "nodes"}}}
	if change != nil {
		change(m)
	}
	return cloud.Request{
		Token: "recorded-token-0001", OwnershipID: "owner-1", Namespace: "team-a", Name: "blue-1",
		UserData: []byte("#cloud-config\n"), Spec: &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{OpenStack: m}},
	}
}
