// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/drover-io/drover/cloud/simulated/wire"
)

const (
	// healthInterval is the time between two health checks of a target, which also bounds a check.
	healthInterval = 500 * time.Millisecond
	// dialTimeout bounds the connection to a target.
	dialTimeout = 5 * time.Second
	// balancerNetwork has the addresses of load balancers. Linux needs no setup for loopback
	// addresses.
	balancerNetwork = "127.64.0.0/16"
	// routedNetwork has them where machines have a network of their own, which ends loopback
	// addresses.
	routedNetwork = "100.127.0.0/16"
	// maxListens bounds the addresses that are tried for a load balancer: other simulators on the
	// same host use some.
	maxListens = 1000
)

// balancerTargets are the targets of a load balancer from a time on.
type balancerTargets struct {
	at  time.Time
	ips []string
}

// balancer is a load balancer: a listener on an address of its own, which forwards each connection
// to one of its targets in turn. As in most clouds, it forwards to all targets if none is healthy.
type balancer struct {
	res      wire.Resource // targets and state aside
	lag      time.Duration // of reads, as of an instance
	ready    time.Time
	listener net.Listener
	stop     context.CancelFunc

	mu      sync.Mutex
	wanted  []balancerTargets // by time; the last one whose time has come is in force
	healthy map[string]bool   // by IP
	turn    int
}

// putBalancer creates a load balancer, or replaces its targets. The caller holds s.mu.
func (s *Server) putBalancer(a *account, req wire.PutLoadBalancerRequest) (*wire.PutLoadBalancerResponse, *wire.ErrorResponse) {
	if s.region(req.Region) == nil {
		return nil, refuse(wire.InvalidParameterValue, "there is no region %q", req.Region)
	}
	for _, ip := range req.TargetIPs {
		if _, err := netip.ParseAddr(ip); err != nil {
			return nil, refuse(wire.InvalidParameterValue, "target %q is not an IP address", ip)
		}
	}
	now, p := time.Now(), a.place(req.Region)
	b, used := p.balancerTokens[req.ClientToken]
	switch {
	case req.ClientToken == "" || len(req.ClientToken) > wire.MaxClientToken:
		return nil, refuse(wire.InvalidParameterValue, "the client token has 1 to %d characters", wire.MaxClientToken)
	case req.Port < 1 || req.Port > 65535:
		return nil, refuse(wire.InvalidParameterValue, "port %d is not between 1 and 65535", req.Port)
	case (used || req.MustExist) && (b == nil || p.balancers[b.res.ID] == nil):
		return nil, refuse(wire.ResourceNotFound, "the load balancer of client token %q does not exist", req.ClientToken)
	case b != nil && b.res.Port != req.Port:
		return nil, refuse(wire.IdempotentParameterMismatch, "the load balancer has port %d", b.res.Port)
	}
	if b == nil {
		if refusal := checkTags(req.Tags); refusal != nil {
			return nil, refusal
		}
		var err error
		if b, err = s.makeBalancer(req, now); err != nil {
			return nil, refuse(wire.InternalError, "listening: %v", err)
		}
		p.balancers[b.res.ID], p.balancerTokens[req.ClientToken] = b, b
	}
	b.aim(now, now.Add(s.settings.TargetLag.Duration), req.TargetIPs)
	r, _ := b.view(now)
	return &wire.PutLoadBalancerResponse{LoadBalancer: r}, nil
}

func (s *Server) makeBalancer(req wire.PutLoadBalancerRequest, now time.Time) (*balancer, error) {
	ctx, stop := context.WithCancel(s.ctx)
	var ip string
	var listener net.Listener
	err := error(syscall.EADDRINUSE)
	for try := 0; try < maxListens && errors.Is(err, syscall.EADDRINUSE); try++ {
		ip = s.frontends.take()
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(ip, strconv.Itoa(int(req.Port))))
	}
	if err != nil {
		stop()
		return nil, err
	}
	b := &balancer{
		res: wire.Resource{
			Kind: wire.Balancer, ID: newID("lb", s.rand), Region: req.Region, Name: req.Name, Tags: maps.Clone(req.Tags),
			CreatedAt: now, PrivateIP: ip, Port: req.Port,
		},
		lag: s.drawLag(), ready: now.Add(s.settings.BootMin.Duration), listener: listener, stop: stop, healthy: map[string]bool{},
	}
	s.late.Go(func() { s.forward(ctx, b) })
	s.late.Go(func() { s.checkHealth(ctx, b) })
	return b, nil
}

// end stops the load balancer and all its connections.
func (b *balancer) end() {
	b.stop()
	_ = b.listener.Close()
}

// aim replaces the targets as of a time.
func (b *balancer) aim(now, at time.Time, ips []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ips = slices.Compact(slices.Sorted(slices.Values(ips)))
	if n := len(b.wanted); n > 0 && slices.Equal(b.wanted[n-1].ips, ips) {
		return // a call that is repeated does not make the change later
	}
	b.wanted = slices.DeleteFunc(b.wanted, func(t balancerTargets) bool { return t.at.After(now) })
	b.wanted = append(b.wanted, balancerTargets{at, ips})
}

// targets returns the targets at t. The caller holds b.mu.
func (b *balancer) targets(t time.Time) (ips []string) {
	for _, w := range b.wanted {
		if !w.at.After(t) {
			ips = w.ips
		}
	}
	return ips
}

// view returns what a read at t shows, or false before the load balancer was created.
func (b *balancer) view(t time.Time) (wire.Resource, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.res
	if r.State = wire.Running; t.Before(b.ready) {
		r.State = wire.Pending
	}
	for _, ip := range b.targets(t) {
		r.Targets = append(r.Targets, wire.Target{IP: ip, Healthy: b.healthy[ip]})
	}
	return r, !t.Before(r.CreatedAt)
}

// next returns the address of the target for a new connection: of the healthy ones in turn, or of
// all if none is healthy.
func (b *balancer) next(now time.Time) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.targets(now)
	healthy := slices.DeleteFunc(slices.Clone(all), func(ip string) bool { return !b.healthy[ip] })
	if len(healthy) == 0 {
		healthy = all
	}
	if now.Before(b.ready) || len(healthy) == 0 {
		return "", false
	}
	b.turn++
	return healthy[b.turn%len(healthy)], true
}

// forward accepts connections until ctx ends.
func (s *Server) forward(ctx context.Context, b *balancer) {
	context.AfterFunc(ctx, func() { _ = b.listener.Close() })
	for {
		client, err := b.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed) || ctx.Err() != nil:
			return
		case err != nil:
			if !s.pause(healthInterval) { // out of file descriptors, for example
				return
			}
		default:
			s.late.Go(func() { s.splice(ctx, b, client) })
		}
	}
}

// splice connects a client with a target until either closes its connection, or ctx ends.
func (s *Server) splice(ctx context.Context, b *balancer, client net.Conn) {
	defer func() { _ = client.Close() }()
	ip, ok := b.next(time.Now())
	if !ok {
		return
	}
	target, err := s.dial(ctx, ip, b.res.Port, dialTimeout)
	if err != nil {
		return
	}
	defer func() { _ = target.Close() }()
	ctx, stop := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { _, _ = client.Close(), target.Close() })()
	go func() {
		defer stop()
		_, _ = io.Copy(target, client)
	}()
	_, _ = io.Copy(client, target)
	stop()
}

// checkHealth checks the targets by TCP connections, until ctx ends.
func (s *Server) checkHealth(ctx context.Context, b *balancer) {
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	for {
		b.mu.Lock()
		ips := b.targets(time.Now())
		b.mu.Unlock()
		var mu sync.Mutex
		var checks sync.WaitGroup
		healthy := map[string]bool{}
		for _, ip := range ips {
			checks.Go(func() {
				if conn, err := s.dial(ctx, ip, b.res.Port, healthInterval); err == nil {
					_ = conn.Close()
					mu.Lock()
					defer mu.Unlock()
					healthy[ip] = true
				}
			})
		}
		checks.Wait()
		b.mu.Lock()
		b.healthy = healthy
		b.mu.Unlock()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// dial connects to a port of an instance: to the server that was given to it (Admin.Serve), or to
// its address. An address without a running instance is not this computer's to connect to.
func (s *Server) dial(ctx context.Context, ip string, port int32, limit time.Duration) (net.Conn, error) {
	s.mu.Lock()
	address, ok := s.served[ip]
	runs := s.runsAt(ip, time.Now())
	s.mu.Unlock()
	if !runs {
		return nil, syscall.EHOSTUNREACH
	}
	if !ok {
		address = net.JoinHostPort(ip, strconv.Itoa(int(port)))
	}
	return (&net.Dialer{Timeout: limit}).DialContext(ctx, "tcp", address)
}

// runsAt reports whether a running instance has an address. The caller holds s.mu.
func (s *Server) runsAt(ip string, now time.Time) bool {
	for _, a := range s.accounts {
		for _, p := range a.places {
			for _, i := range p.instances {
				if e, ok := i.at(now); ok && e.state == wire.Running && i.res.PrivateIP == ip {
					return true
				}
			}
		}
	}
	return false
}

// serveRequest gives an instance a server.
type serveRequest struct {
	ID      string `json:"id"`
	Address string `json:"address"`
}

func (s *Server) setServed(r serveRequest) (nothing, *wire.ErrorResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, i := s.locate(r.ID)
	if i == nil {
		return nothing{}, refuse(wire.InstanceNotFound, "there is no instance %q", r.ID)
	}
	if s.served[i.res.PrivateIP] = r.Address; r.Address == "" {
		delete(s.served, i.res.PrivateIP)
	}
	return nothing{}, nil
}

// removeBalancer deletes a load balancer, and reports whether it existed.
func (p *place) removeBalancer(id string) bool {
	b := p.balancers[id]
	if b == nil {
		return false
	}
	b.end()
	delete(p.balancers, id)
	return true
}
