// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// testDriver is the driver of testCloud.
type testDriver struct {
	region     string
	credential string
	http       http.Client
}

func (d *testDriver) call(ctx context.Context, op string, in wireRequest) (wireAnswer, error) {
	var out wireAnswer
	text, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	req, err := http.NewRequestWithContext(cloud.WithOperation(ctx, op, opClasses[op]), http.MethodPost, "http://cloud/"+op,
		strings.NewReader(string(text)))
	if err != nil {
		return out, err
	}
	req.GetBody = nil // no retry by the client
	req.Header.Set("Authorization", d.credential)
	resp, err := d.http.Do(req)
	var queued *cloud.Queued
	switch {
	case errors.As(err, &queued):
		return out, queued
	case err != nil:
		return out, &cloud.Error{Code: cloud.Unavailable, Message: op + ": no response", Err: err}
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		return out, &cloud.Error{Code: cloud.Unavailable, Message: op + ": half an answer", Err: err}
	}
	if out.Code != "" {
		return out, &cloud.Error{Code: cloud.Code(out.Code), Message: op + ": " + out.Message, RetryAfter: out.RetryAfter}
	}
	return out, nil
}

func (d *testDriver) Probe(ctx context.Context) (cloud.Info, error) {
	out, err := d.call(ctx, "probe", wireRequest{})
	return cloud.Info{Place: out.Place, FailureDomains: []string{"a", "b"}}, err
}

func (d *testDriver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	out, err := d.call(ctx, "run", wireRequest{Token: req.Token, OwnershipID: req.OwnershipID, Zone: req.FailureDomain})
	if err != nil {
		return cloud.Resource{}, err
	}
	return toResource(out.Resources[0]), nil
}

func (d *testDriver) EnsureBalancer(ctx context.Context, req cloud.BalancerRequest) (cloud.Resource, error) {
	out, err := d.call(ctx, "balance", wireRequest{Token: req.Token, OwnershipID: req.OwnershipID, Targets: req.Targets,
		Recorded: req.Recorded})
	if err != nil {
		return cloud.Resource{}, err
	}
	return toResource(out.Resources[0]), nil
}

func (d *testDriver) List(ctx context.Context) (all []cloud.Resource, err error) {
	for page := 0; ; page++ {
		out, err := d.call(ctx, "list", wireRequest{Page: page})
		if err != nil {
			return nil, err
		}
		for _, r := range out.Resources {
			all = append(all, toResource(r))
		}
		if !out.More {
			return all, nil
		}
	}
}

func (d *testDriver) Describe(ctx context.Context, refs []cloud.Reference) (all []cloud.Resource, err error) {
	var in wireRequest
	for _, r := range refs {
		in.Tokens, in.Recorded = append(in.Tokens, r.Token), in.Recorded || r.Balancer
	}
	out, err := d.call(ctx, "describe", in)
	for _, r := range out.Resources {
		all = append(all, toResource(r))
	}
	return all, err
}

func (d *testDriver) Delete(ctx context.Context, resources []cloud.Resource) []error {
	var in wireRequest
	for _, r := range resources {
		in.IDs = append(in.IDs, r.ID)
	}
	out, err := d.call(ctx, "terminate", in)
	errs := make([]error, len(resources))
	for i := range errs {
		switch {
		case err != nil:
			errs[i] = err
		case out.Codes[i] != "":
			errs[i] = cloud.Errorf(cloud.Code(out.Codes[i]), "terminate %s: refused", resources[i].ID)
		}
	}
	return errs
}

func (d *testDriver) Offering(ctx context.Context, spec *infrav1.DroverMachineFields) (cloud.Offering, error) {
	if _, err := d.call(ctx, "offering", wireRequest{}); err != nil {
		return cloud.Offering{}, err
	}
	if spec.Cloud.Simulated.InstanceType == "none" {
		return cloud.Offering{}, cloud.Errorf(cloud.InvalidSpec, "no such type")
	}
	return cloud.Offering{Architecture: "amd64"}, nil
}

func toResource(r testResource) cloud.Resource {
	out := cloud.Resource{Kind: r.Kind, ID: r.ID, Token: r.Token, OwnershipID: r.OwnershipID, CreatedAt: r.Created}
	if r.Kind == cloud.KindBalancer {
		out.State, out.Balancer = r.State, &cloud.BalancerState{Address: "lb.example.com", Port: 6443}
		for _, address := range r.Targets {
			out.Balancer.Targets = append(out.Balancer.Targets, cloud.BalancerTarget{Address: address, Healthy: true})
		}
	}
	if r.Kind == cloud.KindInstance {
		out.ProviderID, out.State, out.Code, out.FailureDomain = "test:///"+r.ID, r.State, r.Code, r.Zone
	}
	return out
}

// row returns testCloud's row.
func (c *testCloud) row() cloud.Cloud {
	return cloud.Cloud{
		Name:     "test",
		Endpoint: func(s *infrav1.DroverAccountSpec) string { return s.Cloud.Simulated.Endpoint },
		Union: driverkit.Fields[infrav1.SimulatedAccount,
			infrav1.SimulatedMachine]{Account: func(s *infrav1.DroverAccountSpec) *infrav1.SimulatedAccount { return s.Cloud.Simulated }},
		Limits: cloud.Limits{Create: cloud.Limit{PerSecond: 2, Burst: 5}, Delete: cloud.Limit{PerSecond: 5, Burst: 10},
			Read: cloud.Limit{PerSecond: 10, Burst: 20}},
		Traits: cloud.Traits{CreateHorizon: c.horizon, ReadLag: max(c.lag, c.readLag), TerminationTime: c.ending, CascadesDelete: c.cascades,
			ZonalIdempotency: c.zonal, Named: c.named},
		Batch: cloud.Batch{Read: 100, Delete: 100},
		New: func(cfg cloud.Config) (cloud.Driver, error) {
			if len(cfg.Credentials["token"]) == 0 {
				return nil, cloud.Errorf(cloud.Unauthorized, "the Secret lacks the key token")
			}
			transport, err := cfg.Connect(nil)
			if err != nil {
				return nil, err
			}
			return &testDriver{region: cfg.Account.Cloud.Simulated.Region, credential: string(cfg.Credentials["token"]),
				http: http.Client{Transport: transport}}, nil
		},
	}
}

// testPlace is the place of these tests' accounts, unless a test sets another one.
const testPlace = "test:here"

var testKey = types.NamespacedName{Namespace: "team", Name: "account"}

// notifications records the calls of the callbacks.
type notifications struct {
	mu            sync.Mutex
	machines      map[string]int
	healthChanges int // calls of OnAccount
}

func (h *notifications) count(token string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.machines[token]
}

func (h *notifications) accountChanges() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.healthChanges
}

// session is the Accounts of one process, from start to end.
type session struct {
	*Accounts
	*notifications
	end func()
}

// begin starts Accounts for the cloud. They end with the test at the latest.
func (c *testCloud) begin(t *testing.T, change ...func(*Options)) *session {
	h := &notifications{machines: map[string]int{}}
	o := Options{
		Clouds: []cloud.Cloud{c.row()}, Times: TimesFor(DefaultCall), Transport: c.transport,
		OnMachines: func(_ types.NamespacedName, tokens []string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, token := range tokens {
				h.machines[token]++
			}
		},
		OnAccount: func(types.NamespacedName) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.healthChanges++
		},
	}
	source := rand.New(rand.NewPCG(2, 2))
	var mu sync.Mutex
	o.random = func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return source.Float64()
	}
	for _, f := range change {
		f(&o)
	}
	s := &session{Accounts: NewAccounts(o), notifications: h}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Start(ctx); err != nil {
			t.Error(err)
		}
	}()
	s.end = func() {
		cancel()
		<-done
	}
	t.Cleanup(s.end)
	return s
}

// account sets and returns the account.
func (s *session) account(t *testing.T, change ...func(*AccountConfig)) *Account {
	t.Helper()
	cfg := AccountConfig{
		Spec: infrav1.DroverAccountSpec{
			Cloud:     infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Region: "r"}},
			Inventory: infrav1.InventorySpec{IdleSeconds: 60, ActiveSeconds: 5},
		},
		Credentials: map[string][]byte{"token": []byte("right")},
		Place:       testPlace,
	}
	for _, f := range change {
		f(&cfg)
	}
	a, err := s.Set(testKey, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Place == testPlace {
		_ = a.recordPlace(testPlace) // as a probe does, without a call
	}
	return a
}

// request returns a request for a machine of the cluster "own".
func request(token string) cloud.Request {
	return cloud.Request{Token: token, OwnershipID: "own", Namespace: "team", Name: "m-" + token,
		Spec: &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{Simulated: &infrav1.SimulatedMachine{InstanceType: "small"}}}}
}

// ensure makes a machine as a controller does: it retries when the account says.
func ensure(t *testing.T, a *Account, token string, domains ...string) cloud.Reference {
	t.Helper()
	for {
		r, err := a.Ensure(t.Context(), request(token), domains)
		var queued *cloud.Queued
		switch {
		case errors.As(err, &queued):
			time.Sleep(queued.After)
		case err != nil:
			t.Fatalf("ensure %s: %v", token, err)
		default:
			return cloud.Reference{Token: token, OwnershipID: "own", ProviderID: r.ProviderID}
		}
	}
}

// until waits for a condition, checks it every 100 ms, and returns how long it took.
func until(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if took := time.Since(start); ok() {
			return took
		} else if took > limit {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// join returns another account of the same place.
func (s *session) join(t *testing.T, key types.NamespacedName, change ...func(*AccountConfig)) *Account {
	t.Helper()
	cfg := AccountConfig{
		Spec:        infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Region: "r"}}},
		Credentials: map[string][]byte{"token": []byte("right")}, Place: testPlace,
	}
	for _, c := range change {
		c(&cfg)
	}
	a, err := s.Set(key, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.recordPlace(testPlace); err != nil {
		t.Fatal(err)
	}
	return a
}
