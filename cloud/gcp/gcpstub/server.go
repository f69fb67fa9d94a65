// SPDX-License-Identifier: Apache-2.0

package gcpstub

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud/conformance/faults"
)

// The world of the stub.
const (
	Project = "nodes-4711"
	Other   = "others-4711" // another project that the same service account may use
	Region  = "europe-west4"
	Image   = "ubuntu-2404"
	// ImageProject is somebody else's project, with a family that is called as the image.
	ImageProject = "ubuntu-os-cloud"
	Snapshot     = "snap"
	Network      = "vpc"
	Subnet       = "nodes"
	Universe     = "gcp.test" // besides googleapis.com
)

// Zones are those of the region, sorted.
func Zones() []string { return []string{Region + "-a", Region + "-b", Region + "-c"} }

// Options configure a cloud at its start.
type Options struct {
	// Email and Key are the service account key that the token service knows. KeyID is its ID; ""
	// means any.
	Email, KeyID string
	Key          *rsa.PublicKey
	// Subjects, if set, judges the tokens of another identity provider.
	Subjects func(token string) bool
	// PageSize limits one page of a listing. 0 means what the caller asks for.
	PageSize int
	// Boot and Stop are how long an instance is being created, and deleted. For the first half of
	// Boot, the instance may still be refused.
	Boot, Stop time.Duration
	// Parts is how long a part of a load balancer is being created, changed, and deleted.
	Parts time.Duration
	// Lag is how long listings do not show new resources.
	Lag time.Duration
	// Keep makes each instance leave its disks behind.
	Keep bool
	// Project is the ID of the project; "" means Project.
	Project string
	// Network is the third number of the instances' addresses.
	Network int
	// Power boots a guest and returns a function that switches it off. It must not block or call
	// the stub. nil: there are no guests.
	Power func(Guest) (off func())
}

// Cloud is a project.
type Cloud struct {
	// CA is the authority of the stub's certificate, as PEM.
	CA string
	// Address is where the stub listens.
	Address string

	options  Options
	server   *httptest.Server
	faults   faults.List[Fault]
	document *Document // of Compute Engine
	manager  *Document // of the Cloud Resource Manager
	trust    *x509.CertPool

	mu           sync.Mutex
	tokens       map[string]string // what they are for: "compute" or "impersonation"
	calls        map[string]int
	objections   []string
	instances    map[string]*instance  // by zone/name
	disks        map[string]*disk      // by zone/name
	requests     map[string]*operation // by request ID
	operations   []*operation
	numbers      uint64
	quota        int                   // instances; 0: no limit
	rate, used   int                   // changes in a minute, 0: no limit; and in the current one
	minute       time.Time             // the current one
	throttled    int                   // changes that were refused for the rate
	exhausted    map[string]bool       // zones without capacity
	dead         map[string]bool       // zones that do not answer
	limits       map[string][2]float64 // quotas of the region by metric: limit and usage
	architecture string                // of the image
	denied       map[string]bool       // permissions that the caller does not have
	late         string                // the code with which accepted instances fail
	birth        string                // of the instance that the current call creates
	short        bool                  // whether the current call's page is
	buried       []*instance           // those that are gone
	made         int
	parts        map[string]*part // of load balancers, by collection and name
	balancers    int              // forwarding rules that were ever made
}

// New starts a cloud that stops at the end of the test.
func New(t interface {
	Cleanup(func())
	Fatal(...any)
}, options Options) *Cloud {
	c, err := Start(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Start starts a cloud. Close stops it.
func Start(options Options) (*Cloud, error) {
	options.Project = cmp.Or(options.Project, Project)
	c := &Cloud{
		options: options, tokens: map[string]string{}, calls: map[string]int{}, instances: map[string]*instance{}, disks: map[string]*disk{},
		requests: map[string]*operation{}, exhausted: map[string]bool{}, dead: map[string]bool{}, denied: map[string]bool{},
		limits: map[string][2]float64{}, parts: map[string]*part{},
		numbers: 9_007_199_254_740_993, // the first number that a floating-point number can't hold
	}
	var err error
	if c.document, err = Load(); err != nil {
		return nil, err
	}
	if c.manager, err = loadManager(); err != nil {
		return nil, err
	}
	certificate, err := c.certificate()
	if err != nil {
		return nil, err
	}
	c.server = httptest.NewUnstartedServer(c)
	c.server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	c.server.EnableHTTP2 = true
	c.server.StartTLS()
	c.Address = c.server.Listener.Addr().String()
	return c, nil
}

// Close stops the cloud.
func (c *Cloud) Close() { c.server.Close() }

// certificate makes the stub's certificate, which is its own authority.
func (c *Cloud) certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gcpstub"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"*.googleapis.com", "*." + Universe, "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	c.CA = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	c.trust = x509.NewCertPool()
	c.trust.AppendCertsFromPEM([]byte(c.CA))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Transport returns a transport that leads all names to the stub and trusts it.
func (c *Cloud) Transport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, c.Address)
		},
		TLSClientConfig: &tls.Config{RootCAs: c.trust, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
	}
}

// call is one request to Compute Engine.
type call struct {
	method, project  string
	zone, region     string
	collection, name string
	action           string
	query            map[string][]string
	body             []byte
	op               string // as in Fault
	badPath          bool
}

// failure is an error answer.
type failure struct {
	status          int
	reason, message string
	header          map[string]string
}

func refuse(status int, reason, format string, args ...any) *failure {
	return &failure{status: status, reason: reason, message: fmt.Sprintf(format, args...)}
}

// ServeHTTP implements http.Handler.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 4<<20))
	if err != nil {
		return
	}
	if !isCall(r) {
		service, _, _ := strings.Cut(r.Host, ".")
		c.serveToken(w, r, service, body)
		return
	}
	in := parse(r, body)
	c.mu.Lock()
	c.calls[in.op]++
	c.objections = append(c.objections, c.judge(r).JudgeRequest(r.Method, r.URL, body)...)
	authorized := c.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")] == "compute" || c.isSelfSigned(r)
	c.mu.Unlock()
	if !authorized {
		writeFailure(w, refuse(http.StatusUnauthorized, "authError", "Invalid Credentials"))
		return
	}
	c.serve(w, r, in, c.faults.Draw(in.op))
}

// serve answers a call that a fault may hit.
func (c *Cloud) serve(w http.ResponseWriter, r *http.Request, in call, fault Fault) {
	switch {
	case fault.Late:
		time.AfterFunc(fault.Delay, func() { _, _ = c.do(in, fault) })
		panic(http.ErrAbortHandler)
	case !fault.After:
		faults.Pause(r.Context(), fault.Delay)
	}
	var out any
	var fail *failure
	if fault.After || !fault.replaces() {
		out, fail = c.do(in, fault)
	}
	if fault.After {
		faults.Pause(r.Context(), fault.Delay)
	}
	if fault.replaces() {
		fault.answer(c, w, r, out, fail)
		return
	}
	c.write(w, r, out, fail, false)
}

// Operation names a call as Fault does; one of a token service is "POST token".
func Operation(r *http.Request) string {
	if !isCall(r) {
		return r.Method + " token"
	}
	return parse(r, nil).op
}

// managerHost begins the name of the Cloud Resource Manager.
const managerHost = "cloudresourcemanager."

// isCall reports whether a request is for Compute Engine or the Cloud Resource Manager, and so not
// for a token service.
func isCall(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/compute/v1/") || strings.HasPrefix(r.Host, managerHost)
}

// judge returns the document that a request is held to.
func (c *Cloud) judge(r *http.Request) *Document {
	if strings.HasPrefix(r.Host, managerHost) {
		return c.manager
	}
	return c.document
}

// parse reads a path: below the project, "zones/Z/", "regions/R/", "global/" or "aggregated/" may
// be before a collection, a name and an action.
func parse(r *http.Request, body []byte) (in call) {
	in = call{method: r.Method, query: r.URL.Query(), body: body}
	if project, ok := strings.CutPrefix(r.URL.Path, "/v1/projects/"); ok && strings.HasPrefix(r.Host, managerHost) {
		in.project, in.action, _ = strings.Cut(project, ":")
		in.op = in.method + " projects/" + in.action
		return in
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/compute/v1/projects/"), "/")
	if len(parts) < 3 {
		in.badPath = true
		return in
	}
	in.project, parts = parts[0], parts[1:]
	scope := ""
	switch parts[0] {
	case "zones":
		if len(parts) > 2 {
			in.zone, parts = parts[1], parts[2:]
		}
	case "regions":
		if len(parts) > 2 {
			in.region, parts = parts[1], parts[2:]
		}
	case "global":
		parts = parts[1:]
	case "aggregated":
		scope, parts = "aggregated/", parts[1:]
	}
	in.collection = parts[0]
	if len(parts) > 2 && parts[1] == "family" {
		in.collection, parts = "images/family", parts[1:]
	}
	if len(parts) > 1 {
		in.name = parts[1]
	}
	if len(parts) > 2 {
		in.action = "/" + parts[2]
	}
	in.op = in.method + " " + scope + in.collection + in.action
	return in
}

func (in *call) is(key string) string {
	if len(in.query[key]) == 0 {
		return ""
	}
	return in.query[key][0]
}

// do carries out a call.
func (c *Cloud) do(in call, fault Fault) (any, *failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeEnded()
	c.birth, c.short = fault.Birth, fault.Short
	if isChange := in.method != http.MethodGet && !strings.HasSuffix(in.op, "testIamPermissions") &&
		!strings.HasPrefix(in.action, "/list"); isChange && c.rate > 0 {
		if now := time.Now().Truncate(time.Minute); now != c.minute {
			c.minute, c.used = now, 0
		}
		if c.used++; c.used > c.rate {
			c.throttled++
			return nil, refuse(http.StatusForbidden, "rateLimitExceeded",
				"Quota exceeded for quota group 'default' and limit 'Queries per minute per region'.")
		}
	}
	switch {
	case in.badPath:
		return nil, refuse(http.StatusNotFound, "notFound", "Not found.")
	case in.project != c.options.Project && in.project != Other && in.project != ImageProject:
		return nil, refuse(http.StatusNotFound, "notFound", "The resource 'projects/%s' was not found", in.project)
	case in.zone != "" && !slices.Contains(Zones(), in.zone):
		return nil, refuse(http.StatusBadRequest, "invalid", "Invalid value for field 'zone': '%s'. Unknown zone.", in.zone)
	case c.dead[in.zone]:
		return nil, refuse(http.StatusServiceUnavailable, "backendError", "The zone '%s' does not respond.", in.zone)
	}
	switch in.op {
	case "GET regions":
		return c.region(in)
	case "POST instances":
		return c.insert(in)
	case "GET instances":
		return c.getInstance(in)
	case "DELETE instances":
		return c.deleteInstance(in)
	case "POST instances/setLabels", "POST instances/setTags":
		return c.setOn(in)
	case "GET instances/serialPort":
		return c.serialPort(in)
	case "GET aggregated/instances":
		return c.listInstances(in)
	case "GET aggregated/disks":
		return c.listDisks(in)
	case "GET aggregated/operations":
		return c.listOperations(in)
	case "DELETE disks":
		return c.deleteDisk(in)
	case "POST healthChecks", "POST networkEndpointGroups", "POST backendServices", "POST targetTcpProxies", "POST forwardingRules":
		return c.insertPart(in)
	case "GET healthChecks", "GET networkEndpointGroups", "GET backendServices", "GET targetTcpProxies", "GET forwardingRules":
		return c.getPart(in)
	case "DELETE healthChecks", "DELETE networkEndpointGroups", "DELETE backendServices", "DELETE targetTcpProxies", "DELETE forwardingRules":
		return c.deletePart(in)
	case "POST networkEndpointGroups/attachNetworkEndpoints", "POST networkEndpointGroups/detachNetworkEndpoints":
		return c.changeEndpoints(in)
	case "POST networkEndpointGroups/listNetworkEndpoints":
		return c.listEndpoints(in)
	case "GET machineTypes":
		return machineType(in)
	case "GET images", "GET images/family":
		return c.getImage(in)
	case "GET snapshots":
		return c.getSnapshot(in)
	case "POST subnetworks/testIamPermissions":
		return c.testSubnetwork(in)
	case "POST projects/testIamPermissions":
		return c.test(in)
	}
	return nil, refuse(http.StatusNotFound, "notFound", "%s: not found", in.op)
}

// write writes an answer, or half of it, and has it judged.
func (c *Cloud) write(w http.ResponseWriter, r *http.Request, out any, fail *failure, half bool) {
	if fail != nil {
		writeFailure(w, fail)
		return
	}
	body, err := json.Marshal(out)
	if err != nil {
		panic(err)
	}
	objections := c.judge(r).JudgeAnswer(r.Method, r.URL.Path, body)
	c.mu.Lock()
	c.objections = append(c.objections, objections...)
	c.mu.Unlock()
	if half {
		body = body[:len(body)/2]
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	_, _ = w.Write(body)
}

func writeFailure(w http.ResponseWriter, f *failure) {
	for key, value := range f.header {
		w.Header().Set(key, value)
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(f.status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{
		"code": f.status, "message": f.message, "errors": []any{map[string]any{"message": f.message, "domain": "global", "reason": f.reason}},
	}})
}

// Objections returns what Google's document does not have of the requests and answers so far.
func (c *Cloud) Objections() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.objections)
}

// Calls returns the calls so far, as Fault names them; those of token services have the collection
// "token".
func (c *Cloud) Calls() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}

// set changes the cloud, and returns how to undo it.
func (c *Cloud) set(change, back func()) (undo func()) {
	locked := func(f func()) {
		c.mu.Lock()
		defer c.mu.Unlock()
		f()
	}
	locked(change)
	return func() { locked(back) }
}

// SetQuota limits the instances until undo is called.
func (c *Cloud) SetQuota(n int) (undo func()) {
	return c.set(func() { c.quota = n }, func() { c.quota = 0 })
}

// SetRate limits the changes of each minute of the clock, refused ones included. 0 is no limit.
func (c *Cloud) SetRate(n int) { c.set(func() { c.rate = n }, nil) }

// Throttled returns how many changes were refused for the rate.
func (c *Cloud) Throttled() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.throttled
}

// SetKeep changes Options.Keep.
func (c *Cloud) SetKeep(keep bool) { c.set(func() { c.options.Keep = keep }, nil) }

// SetPower changes Options.Power for new instances.
func (c *Cloud) SetPower(power func(Guest) (off func())) {
	c.set(func() { c.options.Power = power }, nil)
}

// Exhaust makes accepted instances of a zone fail for lack of capacity, until undo is called.
func (c *Cloud) Exhaust(zone string) (undo func()) {
	return c.set(func() { c.exhausted[zone] = true }, func() { c.exhausted[zone] = false })
}

// SetLag sets how long listings do not show new instances.
func (c *Cloud) SetLag(lag time.Duration) { c.set(func() { c.options.Lag = lag }, nil) }

// SetPageSize limits one page of a listing.
func (c *Cloud) SetPageSize(n int) { c.set(func() { c.options.PageSize = n }, nil) }

// SetKeyID makes the stub know the service account's key by another ID.
func (c *Cloud) SetKeyID(id string) { c.set(func() { c.options.KeyID = id }, nil) }

// Kill makes a zone not answer until undo is called. It may be one of another region.
func (c *Cloud) Kill(zone string) (undo func()) {
	return c.set(func() { c.dead[zone] = true }, func() { c.dead[zone] = false })
}

// Deny takes a permission from the caller, as far as tests of permissions tell, until undo is
// called.
func (c *Cloud) Deny(permission string) (undo func()) {
	return c.set(func() { c.denied[permission] = true }, func() { c.denied[permission] = false })
}

// FailLate makes accepted instances fail with the code until undo is called.
func (c *Cloud) FailLate(code string) (undo func()) {
	return c.set(func() { c.late = code }, func() { c.late = "" })
}

// Forget forgets the request IDs, as after an hour.
func (c *Cloud) Forget() { c.set(func() { clear(c.requests) }, nil) }

// Made returns how many instances were ever created.
func (c *Cloud) Made() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made
}
