// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"math"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/simulator/host"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// maxBody is the maximum size of a request's body in bytes.
const maxBody = 1 << 20

// Server is a simulated cloud.
type Server struct {
	regions    []Region
	types      []wire.InstanceType
	images     []Image
	networks   []wire.Network
	adminToken string
	audit      *auditLog
	faults     *faults
	fleet      *body.Fleet
	ctx        context.Context
	stop       context.CancelFunc
	late       sync.WaitGroup
	unroute    func(context.Context) error // nil: there is no route to the load balancers

	mu       sync.Mutex
	rand     *mathrand.Rand
	settings Settings
	accounts map[string]*account
	pools    map[string]*pool
	// frontends are the addresses of load balancers. served are the servers of instances, by IP.
	frontends *pool
	served    map[string]string
	down      DownMode
}

// DownMode is how a cloud that is down behaves.
type DownMode string

// The modes. "" means up.
const (
	DownCut         DownMode = "Cut"
	DownUnavailable DownMode = "Unavailable"
	DownHang        DownMode = "Hang"
)

// New returns a cloud, which runs until Run's context ends.
func New(o Options) (*Server, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("simulated cloud: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{
		regions: o.Regions, types: o.InstanceTypes, images: o.Images, networks: o.Networks, adminToken: o.AdminToken,
		audit: newAuditLog(), faults: newFaults(o.Seed), fleet: body.NewFleet(ctx, o.Bodies), ctx: ctx, stop: stop,
		rand: mathrand.New(mathrand.NewPCG(o.Seed, 1)), settings: o.Settings,
		accounts: map[string]*account{}, pools: map[string]*pool{}, frontends: newPool(balancerNetwork), served: map[string]string{},
	}
	if slices.ContainsFunc(o.Images, func(i Image) bool { return len(i.ControlPlanePath) > 0 }) {
		s.frontends = newPool(routedNetwork)
		var err error
		if s.unroute, err = host.Route(ctx, routedNetwork); err != nil {
			stop()
			return nil, fmt.Errorf("simulated cloud: a network for load balancers: %w", err)
		}
	}
	for _, n := range o.Networks {
		s.pools[n.Name] = newPool(n.CIDR)
	}
	for _, a := range o.Accounts {
		s.setAccount(a)
	}
	return s, nil
}

// Run blocks until ctx ends, then stops every machine, waits for them, and takes back the route to
// load balancers.
func (s *Server) Run(ctx context.Context) error {
	<-ctx.Done()
	s.stop()
	s.fleet.Wait()
	s.late.Wait()
	if s.unroute != nil {
		if err := s.unroute(context.WithoutCancel(ctx)); err != nil {
			return fmt.Errorf("simulated cloud: a network for load balancers: %w", err)
		}
	}
	return nil
}

// Handler serves the wire API and the admin API.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.Prefix+"{operation}", s.serve)
	s.serveAdmin(mux)
	return mux
}

// call is one call of the wire API.
type call struct {
	op      string
	account *account
	fault   Fault
	body    []byte
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		write(w, http.StatusRequestEntityTooLarge, refuse(wire.InvalidParameterValue, "the request is too large, or broke off"), 0)
		return
	}
	c := &call{op: r.PathValue("operation"), body: body}
	if s.isDown(w, r, c.op) {
		return
	}
	if c.account = s.authenticate(r); c.account == nil {
		s.audit.count(c.op, "", wire.AuthFailure, nil)
		write(w, http.StatusUnauthorized, refuse(wire.AuthFailure, "the token is not valid"), 0)
		return
	}
	latency := s.drawLatency()
	s.pause(latency / 2)
	if wait, ok := s.allow(c); !ok {
		s.record(c, wire.RequestLimitExceeded)
		write(w, http.StatusServiceUnavailable, refuse(wire.RequestLimitExceeded, "request limit exceeded"), wait)
		return
	}
	if f := s.faults.match(c.op, c.account.name); f != nil {
		c.fault = *f
	}
	s.finish(w, c, latency-latency/2)
}

// finish executes the call with its fault, if any.
func (s *Server) finish(w http.ResponseWriter, c *call, latency time.Duration) {
	f := c.fault
	switch f.Kind {
	case ErrorBefore:
		s.record(c, f.code())
		writeFault(w, f)
		return
	case CutBefore:
		s.record(c, string(CutBefore))
		panic(http.ErrAbortHandler)
	case Late:
		s.record(c, OutcomeLate)
		s.late.Go(func() {
			if s.pause(f.Delay.Duration) {
				_, _ = s.effect(c)
			}
		})
		panic(http.ErrAbortHandler)
	case Slow:
		s.pause(f.Delay.Duration)
	}
	answer, refusal := s.effect(c)
	outcome := OutcomeOK
	if refusal != nil {
		outcome = refusal.Code
	}
	if f.Kind != "" && f.Kind != Slow {
		outcome += "/" + string(f.Kind)
	}
	s.record(c, outcome)
	if f.Kind == SlowAfter {
		s.pause(f.Delay.Duration)
	}
	s.pause(latency)
	respond(w, f, answer, refusal)
}

// respond writes the answer, or the fault's replacement.
func respond(w http.ResponseWriter, f Fault, answer any, refusal *wire.ErrorResponse) {
	switch f.Kind {
	case ErrorAfter:
		writeFault(w, f)
	case CutAfter:
		panic(http.ErrAbortHandler)
	case HTML:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!DOCTYPE html><html><body><h1>Welcome to the hotel's network</h1></body></html>")
	case Redirect:
		location := f.Location
		if location == "" {
			location = "http://elsewhere.invalid/"
		}
		w.Header().Set("Location", location)
		w.WriteHeader(http.StatusTemporaryRedirect)
	case TruncatedJSON:
		text, _ := json.Marshal(answer)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text[:len(text)/2])
	default:
		if refusal != nil {
			write(w, statusOf(refusal.Code), refusal, 0)
			return
		}
		write(w, http.StatusOK, answer, 0)
	}
}

// effect executes the call. As in a real cloud, it continues whether or not the client still waits.
func (s *Server) effect(c *call) (any, *wire.ErrorResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch c.op {
	case wire.RunInstances:
		return do(c, func(req wire.RunInstancesRequest) (*wire.RunInstancesResponse, *wire.ErrorResponse) {
			return s.run(c.account, req, c.fault.Kind)
		})
	case wire.DescribeInstances, wire.DescribeResources:
		return do(c, func(req wire.DescribeRequest) (*wire.DescribeResponse, *wire.ErrorResponse) {
			return s.describe(c.op, c.account, req, c.fault.Kind == PartialPage)
		})
	case wire.TerminateInstances:
		return do(c, func(req wire.BatchRequest) (*wire.BatchResponse, *wire.ErrorResponse) {
			return s.terminate(c.account, req)
		})
	case wire.DeleteResources:
		return do(c, func(req wire.BatchRequest) (*wire.BatchResponse, *wire.ErrorResponse) {
			return s.remove(c.account, req)
		})
	case wire.PutLoadBalancer:
		return do(c, func(req wire.PutLoadBalancerRequest) (*wire.PutLoadBalancerResponse, *wire.ErrorResponse) {
			return s.putBalancer(c.account, req)
		})
	case wire.DescribeCatalog:
		return do(c, func(req wire.CatalogRequest) (*wire.CatalogResponse, *wire.ErrorResponse) {
			return s.catalog(c.account, req)
		})
	case wire.GetConsoleOutput:
		return do(c, func(req wire.ConsoleRequest) (*wire.ConsoleResponse, *wire.ErrorResponse) {
			return s.console(c.account, req)
		})
	}
	return nil, refuse(wire.InvalidAction, "there is no operation %q", c.op)
}

// do decodes the request and calls f.
func do[In, Out any](c *call, f func(In) (*Out, *wire.ErrorResponse)) (any, *wire.ErrorResponse) {
	var in In
	if err := json.Unmarshal(c.body, &in); err != nil {
		return nil, refuse(wire.InvalidParameterValue, "the request is not the JSON of this operation")
	}
	out, refusal := f(in)
	if refusal != nil {
		return nil, refusal
	}
	return out, nil
}

// record counts the call and the machines that it names.
func (s *Server) record(c *call, outcome string) {
	s.audit.count(c.op, c.account.name, outcome, s.machinesOf(c))
}

// machinesOf returns the tokens of the machines that a call names: by a tag in the request, or by
// the IDs of tagged resources.
func (s *Server) machinesOf(c *call) []string {
	var req struct {
		Region    string            `json:"region"`
		Tags      map[string]string `json:"tags"`
		ID        string            `json:"id"`
		IDs       []string          `json:"ids"`
		TagKey    string            `json:"tagKey"`
		TagValues []string          `json:"tagValues"`
	}
	if json.Unmarshal(c.body, &req) != nil {
		return nil
	}
	var out []string
	if token := req.Tags[cloud.TagToken]; token != "" {
		out = append(out, token)
	}
	if req.TagKey == cloud.TagToken {
		out = append(out, req.TagValues...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.region(req.Region) == nil {
		return out
	}
	p := c.account.place(req.Region)
	for _, id := range append(req.IDs, req.ID) {
		if i := p.instances[id]; i != nil {
			out = append(out, i.res.Tags[cloud.TagToken])
		} else if d := p.dependants[id]; d != nil {
			out = append(out, d.res.Tags[cloud.TagToken])
		} else if b := p.balancers[id]; b != nil {
			out = append(out, b.res.Tags[cloud.TagToken])
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(t string) bool { return t == "" })
}

// isDown reports whether the cloud is down, and if so answers the call.
func (s *Server) isDown(w http.ResponseWriter, r *http.Request, op string) bool {
	s.mu.Lock()
	mode := s.down
	s.mu.Unlock()
	if mode == "" {
		return false
	}
	s.audit.count(op, "", "Down", nil)
	switch mode {
	case DownUnavailable:
		write(w, http.StatusServiceUnavailable, refuse(wire.ServiceUnavailable, "the service is not available"), 0)
		return true
	case DownHang:
		select {
		case <-r.Context().Done():
		case <-s.ctx.Done():
		}
	}
	panic(http.ErrAbortHandler)
}

func (s *Server) authenticate(r *http.Request) *account {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.accounts {
		if a.tokens[token] {
			return a
		}
	}
	return nil
}

func (s *Server) allow(c *call) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.account.throttle.allow(c.op, time.Now())
}

func (s *Server) drawLatency() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings.Latency.draw(s.rand)
}

// pause waits, and reports whether the cloud is still running.
func (s *Server) pause(d time.Duration) bool {
	if d <= 0 {
		return s.ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

func (s *Server) region(name string) *Region {
	i := slices.IndexFunc(s.regions, func(r Region) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &s.regions[i]
}

// setAccount adds an account, or changes its tokens and quota. The caller holds s.mu, or s is not
// shared yet.
func (s *Server) setAccount(o AccountOptions) {
	a := s.accounts[o.Name]
	if a == nil {
		p, _ := throttlePreset(s.settings.Throttle)
		a = &account{name: o.Name, id: strings.ToLower(rand.Text()), throttle: newThrottle(p), places: map[string]*place{}}
		s.accounts[o.Name] = a
	}
	a.quota, a.tokens = o.Quota, map[string]bool{}
	for _, t := range o.Tokens {
		a.tokens[t] = true
	}
}

func (f Fault) code() string {
	if f.Code == "" {
		return wire.InternalError
	}
	return f.Code
}

func writeFault(w http.ResponseWriter, f Fault) {
	status := f.Status
	if status == 0 {
		status = statusOf(f.code())
	}
	write(w, status, refuse(f.code(), "injected"), time.Duration(f.RetryAfter*float64(time.Second)))
}

// statusOf returns the HTTP status for a code, as in EC2.
func statusOf(code string) int {
	switch code {
	case wire.AuthFailure:
		return http.StatusUnauthorized
	case wire.InternalError, wire.InsufficientInstanceCapacity:
		return http.StatusInternalServerError
	case wire.ServiceUnavailable, wire.RequestLimitExceeded:
		return http.StatusServiceUnavailable
	case wire.DryRunOperation:
		return http.StatusPreconditionFailed
	}
	return http.StatusBadRequest
}

func write(w http.ResponseWriter, status int, answer any, retryAfter time.Duration) {
	w.Header().Set("Content-Type", "application/json")
	if retryAfter > 0 {
		// HTTP does not define fractions, but EC2 gives its callers no value at all.
		w.Header().Set("Retry-After", strconv.FormatFloat(math.Ceil(retryAfter.Seconds()*100)/100, 'f', -1, 64))
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}
