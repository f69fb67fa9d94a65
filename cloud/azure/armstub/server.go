// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud/conformance/faults"
)

// The world of the stub.
const (
	Subscription = "00000000-1111-2222-3333-444444444444"
	Other        = "99999999-1111-2222-3333-444444444444" // another subscription of the same tenant
	Location     = "westeurope"
	Group        = "Nodes" // Azure answers with the group's name as it was created, or in capitals
	Endpoint     = "https://management.azure.test"
	Authority    = "https://login.azure.test"
)

// Options configure a cloud at its start.
type Options struct {
	// Tenant, Client and Secret are the accepted credentials.
	Tenant, Client, Secret string
	// Assertions, if set, judges client assertions: federated tokens and certificates.
	Assertions func(assertion string) bool
	// PageSize limits one page of a listing. 0 means 100.
	PageSize int
	// Boot and Stop are how long a machine is being created, and deleted.
	Boot, Stop time.Duration
	// Parts is how long a load balancer and its public address take to be created, changed and
	// deleted, and the health of its targets to be found.
	Parts time.Duration
	// Lag is how long listings do not show new resources.
	Lag time.Duration
	// Keep makes each machine leave its network interface and disk behind.
	Keep bool
	// Group is the name of the resource group; "" means Group.
	Group string
	// Network is the second number of the private addresses, 10.<network>.x.y.
	Network int
	// Record, if set, gets each body of a request and of a successful answer, with the name of its
	// model. It must not call the Cloud.
	Record func(model string, body []byte)
	// Power boots a guest and returns a function that switches it off. It must not block or call
	// the Cloud. If nil, machines run without a guest.
	Power func(Guest) (off func())
}

// Cloud is a subscription with one resource group.
type Cloud struct {
	// CA is the authority of the stub's certificate, as PEM.
	CA string
	// Address is where the stub listens. All names of the services lead there.
	Address string

	options Options
	trust   *x509.CertPool
	server  *httptest.Server

	mu         sync.Mutex
	tokens     map[string]bool
	calls      map[string]int
	objections []string
	faults     faults.List[Fault]
	machines   map[string]*machine
	buried     []*machine                  // those that are gone
	parts      map[string]map[string]*part // by kind and name in lower case
	balancers  map[string]*balancer        // by name in lower case
	operations map[string]*operation
	quotas     map[string]int // without an entry: no limit
	grants     []Grant
	required   map[string]bool // actions
	accepted   bool            // whether the terms of Paid are
	capacity   map[string]bool // zones without capacity
	birth      string          // of the machine that the current call creates
	short      bool            // whether the current call's page is
	made       int

	balancersMade int

	buckets   map[string]*bucket // by operation; without an entry: no limit
	perMinute float64            // what each bucket gets
	throttled int
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
	options.Group = cmp.Or(options.Group, Group)
	c := &Cloud{
		options: options, tokens: map[string]bool{}, calls: map[string]int{}, machines: map[string]*machine{},
		parts:      map[string]map[string]*part{nicKind: {}, diskKind: {}, addressKind: {}},
		balancers:  map[string]*balancer{},
		operations: map[string]*operation{}, capacity: map[string]bool{}, quotas: map[string]int{}, required: map[string]bool{},
		grants: []Grant{{Actions: []string{"*"}, NotActions: []string{}}},
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
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "armstub"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames:    []string{"management.azure.test", "login.azure.test", "diagnostics.blob.azure.test", "localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
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

// call is one request to Resource Manager.
type call struct {
	method, kind, name, action string
	part                       string // of a load balancer
	path                       string
	subscription               string
	query                      map[string][]string
	body                       []byte
	create                     bool
	match                      string // the ETag that the resource must have
	host                       string
}

// failure is an error answer.
type failure struct {
	status        int
	code, message string
	details       []any
	header        map[string]string
}

func refuse(status int, code, format string, args ...any) *failure {
	return &failure{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

// answer is a successful answer. model is the judge's name of the body's model.
type answer struct {
	status int
	body   any
	model  string
	header map[string]string
}

// ServeHTTP implements http.Handler.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 4<<20))
	if err != nil {
		return
	}
	switch {
	case isToken(r):
		c.serveToken(w, r, body)
	case strings.HasPrefix(r.Host, "diagnostics.blob."):
		c.serveBlob(w, r)
	default:
		c.serveManager(w, r, body)
	}
}

func (c *Cloud) serveManager(w http.ResponseWriter, r *http.Request, body []byte) {
	in := call{method: r.Method, query: r.URL.Query(), body: body, create: r.Header.Get("If-None-Match") == "*",
		match: r.Header.Get("If-Match"), path: r.URL.Path, host: r.Host}
	in.parse(r.URL.Path, c.options.Group)
	op := in.op()
	c.mu.Lock()
	c.calls[op]++
	authorized := c.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	forbidden := c.forbid(r.URL.Path, actionOf(r.Method, r.URL.Path), "AuthorizationFailed")
	var fault Fault
	if authorized {
		fault = c.faults.Draw(op)
	}
	c.mu.Unlock()
	switch {
	case !authorized:
		writeFailure(w, refuse(http.StatusUnauthorized, "InvalidAuthenticationToken", "The access token is invalid."))
		return
	case forbidden != nil:
		writeFailure(w, forbidden)
		return
	case fault.Late:
		time.AfterFunc(fault.Delay, func() { _, _ = c.do(in, fault) })
		panic(http.ErrAbortHandler)
	case !fault.After:
		faults.Pause(r.Context(), fault.Delay)
	}
	var out answer
	var fail *failure
	if fault.After || !fault.replaces() {
		out, fail = c.do(in, fault)
	}
	if fault.After {
		faults.Pause(r.Context(), fault.Delay)
	}
	if fault.replaces() {
		fault.answer(c, w, out, fail)
		return
	}
	c.write(w, out, fail, false)
}

// Operation names a call as Fault does; one of the token service is "POST token" or "GET token".
func Operation(r *http.Request) string {
	if isToken(r) {
		return r.Method + " token"
	}
	in := call{method: r.Method}
	in.parse(r.URL.Path, "")
	return in.op()
}

func isToken(r *http.Request) bool {
	return strings.Contains(r.URL.Path, "/oauth2/") || strings.Contains(r.URL.Path, "/.well-known/")
}

func (in *call) op() string { return in.method + " " + in.kind + in.action }

// parse reads the path: /subscriptions/S[/resourceGroups/G]/[providers/P/]kind[/name[/action]].
// Only the group exists, and what is read elsewhere; with "", all do.
func (in *call) parse(path, group string) {
	for _, r := range reads {
		if strings.Contains(strings.ToLower(path), r.part) {
			in.kind, in.name = r.kind, path
			in.subscription = strings.Split(path, "/")[2]
			return
		}
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if len(parts) < 3 || !strings.EqualFold(parts[0], "subscriptions") {
		return
	}
	in.subscription, parts = parts[1], parts[2:]
	if strings.EqualFold(parts[0], "resourceGroups") && len(parts) > 2 {
		if group != "" && !strings.EqualFold(parts[1], group) {
			in.kind = "unknownGroup"
			return
		}
		parts = parts[2:]
	} else if strings.EqualFold(parts[0], "providers") && len(parts) == 3 && parts[2] == "virtualMachines" {
		in.kind = "allVirtualMachines"
		return
	}
	if parts[0] == "providers" && len(parts) > 2 {
		parts = parts[2:]
	}
	if parts[0] == "locations" && len(parts) == 4 { // …/locations/L/operations/ID
		in.kind, in.name = parts[2], parts[3]
		return
	}
	in.kind = parts[0]
	if len(parts) > 1 {
		in.name = parts[1]
	}
	if len(parts) > 2 {
		in.action = "/" + parts[2]
	}
	if len(parts) > 3 {
		in.part = parts[3]
	}
	if len(parts) > 4 {
		in.action += "/" + parts[4]
	}
}

func (in *call) is(key string) string {
	if len(in.query[key]) == 0 {
		return ""
	}
	return in.query[key][0]
}

// versions are the api-versions that the stub has, with those that the SDK uses.
var versions = map[string][]string{
	"virtualMachines": {"2025-04-01", "2026-04-01"}, "allVirtualMachines": {"2025-04-01", "2026-04-01"},
	"operations": {"2025-04-01", "2026-04-01", "2024-05-01"},
	balancerKind: {"2024-05-01"}, "operationResults": {"2024-05-01"},
	diskKind: {"2024-03-02"}, nicKind: {"2024-05-01"}, addressKind: {"2024-05-01"}, "skus": {"2021-07-01"}, "locations": {"2022-12-01"},
}

// do carries out a call.
func (c *Cloud) do(in call, f Fault) (answer, *failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.short, c.birth = f.Short, f.Birth
	switch {
	case in.kind == "unknownGroup":
		return answer{}, refuse(http.StatusNotFound, "ResourceGroupNotFound", "Resource group could not be found.")
	case in.subscription != Subscription && !(in.subscription == Other && in.kind == "locations"):
		return answer{}, refuse(http.StatusNotFound, "SubscriptionNotFound", "The subscription '%s' could not be found.", in.subscription)
	case in.isRead():
		return c.read(in)
	case in.action == tagsAction:
		return c.changeTags(in)
	case versions[in.kind] == nil:
		return answer{}, refuse(http.StatusNotFound, "InvalidResourceType", "The resource type could not be found: %s", in.kind)
	case !slices.Contains(versions[in.kind], in.is("api-version")):
		return answer{}, refuse(http.StatusBadRequest, "InvalidApiVersionParameter", "The api-version '%s' is invalid.", in.is("api-version"))
	}
	header, throttled := c.draw(in.op())
	if throttled != nil {
		return answer{}, throttled
	}
	out, fail := c.carryOut(in)
	if len(header) > 0 {
		maps.Copy(header, out.header)
		out.header = header
	}
	return out, fail
}

// carryOut carries out a valid call.
func (c *Cloud) carryOut(in call) (answer, *failure) {
	switch op := in.op(); {
	case op == "PUT virtualMachines":
		return c.create(in)
	case op == "DELETE virtualMachines":
		return c.deleteMachine(in)
	case op == "GET virtualMachines" && in.name != "":
		return c.getMachine(in)
	case op == "GET virtualMachines/instanceView":
		return c.getView(in)
	case op == "POST virtualMachines/retrieveBootDiagnosticsData":
		return c.diagnostics(in)
	case op == "GET virtualMachines", op == "GET allVirtualMachines":
		return c.listMachines(in)
	case op == "GET operations":
		return c.getOperation(in)
	case op == "GET skus":
		return ok("skuList", map[string]any{"value": catalog()})
	case op == "GET locations":
		return ok("locationList", map[string]any{"value": locations(in.subscription)})
	case op == "PUT loadBalancers":
		return c.putBalancer(in)
	case op == "GET loadBalancers" && in.name != "":
		return c.getBalancer(in)
	case op == "GET loadBalancers":
		return c.listBalancers(in)
	case op == "DELETE loadBalancers":
		return c.deleteBalancer(in)
	case op == "PUT loadBalancers/backendAddressPools":
		return c.putPool(in)
	case op == "GET loadBalancers/backendAddressPools":
		return c.getPool(in)
	case op == "POST loadBalancers/loadBalancingRules/health":
		return c.askHealth(in)
	case op == "GET operationResults":
		return c.getResult(in)
	case op == "PUT publicIPAddresses":
		return c.putAddress(in)
	case op == "GET publicIPAddresses" && in.name != "":
		return c.getAddress(in)
	case in.method == http.MethodGet && in.name == "":
		return c.listParts(in)
	case in.method == http.MethodDelete:
		return c.deletePart(in)
	}
	return answer{}, refuse(http.StatusMethodNotAllowed, "MethodNotAllowed", "%s %s", in.method, in.kind)
}

// write writes an answer, or half of it, and has its body judged.
func (c *Cloud) write(w http.ResponseWriter, out answer, fail *failure, half bool) {
	if fail != nil {
		writeFailure(w, fail)
		return
	}
	for key, value := range out.header {
		w.Header().Set(key, value)
	}
	if out.body == nil {
		w.WriteHeader(out.status)
		return
	}
	body, err := json.Marshal(out.body)
	if err != nil {
		panic(err)
	}
	c.mu.Lock()
	c.judge(out.model, body)
	c.mu.Unlock()
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(out.status)
	if half {
		body = body[:len(body)/2]
	}
	_, _ = w.Write(body)
}

func writeFailure(w http.ResponseWriter, f *failure) {
	for key, value := range f.header {
		w.Header().Set(key, value)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(f.status)
	var body bytes.Buffer
	failed := map[string]any{"code": f.code, "message": f.message}
	if f.details != nil {
		failed["details"] = f.details
	}
	_ = json.NewEncoder(&body).Encode(map[string]any{"error": failed})
	_, _ = w.Write(body.Bytes())
}

// judge holds a body to its model. The caller holds the lock.
func (c *Cloud) judge(model string, body []byte) {
	c.objections = append(c.objections, Judge(model, body)...)
	if c.options.Record != nil {
		c.options.Record(model, body)
	}
}

func (c *Cloud) object(objections []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objections = append(c.objections, objections...)
}

// SetPageSize changes Options.PageSize.
func (c *Cloud) SetPageSize(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.PageSize = n
}

// SetLag changes Options.Lag.
func (c *Cloud) SetLag(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.Lag = d
}

// Objections returns what Microsoft's models do not have of the bodies so far.
func (c *Cloud) Objections() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.objections)
}

// Calls returns the calls of Resource Manager so far, by method and kind; those of the token
// service have the kind "token".
func (c *Cloud) Calls() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}

// pageOf returns one page of n items, and the link to the next one, which names port 443 as Azure's
// do.
func (c *Cloud) pageOf(in call, n int) (from, to int, next string) {
	size := c.options.PageSize
	if size == 0 {
		size = 100
	}
	from, _ = strconv.Atoi(in.is("$skiptoken"))
	from = min(from, n)
	to = min(from+size, n)
	switch {
	case c.short:
		to = from + (to-from)/2
	case to == n:
		return from, to, ""
	}
	path := "/subscriptions/" + Subscription + "/resourceGroups/" + strings.ToUpper(c.options.Group) + "/providers/Microsoft.X/" + in.kind
	if in.kind == "allVirtualMachines" {
		path = "/subscriptions/" + Subscription + "/providers/Microsoft.Compute/virtualMachines"
	}
	host := in.host
	if !strings.Contains(host, ":") {
		host += ":443"
	}
	next = "https://" + host + path + "?api-version=" + in.is("api-version") + "&$skiptoken=" + strconv.Itoa(to)
	if in.is("statusOnly") != "" {
		next += "&statusOnly=true"
	}
	return from, to, next
}
