// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// webhookTimeout is the API server's own limit for a webhook.
const webhookTimeout = 10 * time.Second

// service stands in for a Service: one address for any number of processes, which are managers that
// serve webhooks, or the API server. It closes connections while no process is ready. It forwards
// bytes, so TLS is between the caller and the process.
type service struct {
	listener net.Listener

	mu       sync.Mutex
	backends map[*Process]string
	open     map[net.Conn]struct{}
	closed   bool
	wg       sync.WaitGroup
}

// newService returns a service at an address of this computer.
func newService(ip string) (*service, error) {
	l, err := listen(ip, 1, firstPort, endPort)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", ip, err)
	}
	s := &service{listener: l[0], backends: map[*Process]string{}, open: map[net.Conn]struct{}{}}
	s.wg.Go(s.accept)
	return s, nil
}

// url returns the base URL of the service.
func (s *service) url() string { return "https://" + s.listener.Addr().String() }

// add adds a process as a backend until it ends.
func (s *service) add(p *Process, addr string) {
	s.mu.Lock()
	s.backends[p] = addr
	s.mu.Unlock()
	go func() {
		<-p.Done()
		s.mu.Lock()
		delete(s.backends, p)
		s.mu.Unlock()
	}()
}

func (s *service) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return // closed
		}
		s.wg.Go(func() { s.forward(c) })
	}
}

// forward connects the caller to the first reachable process, or closes the connection.
func (s *service) forward(caller net.Conn) {
	defer caller.Close()
	for _, addr := range s.addresses() {
		// A process that is gone refuses at once. One that answers late is busy, and is waited for.
		backend, err := net.DialTimeout("tcp", addr, webhookTimeout)
		if err != nil {
			continue
		}
		defer backend.Close()
		if !s.keep(caller, backend) {
			return
		}
		defer s.forget(caller, backend)
		var both sync.WaitGroup
		both.Go(func() { pump(backend, caller) })
		both.Go(func() { pump(caller, backend) })
		both.Wait()
		return
	}
}

// pump copies until one side closes, and then closes the other side for writing.
func pump(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.(*net.TCPConn).CloseWrite()
}

func (s *service) addresses() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]string, 0, len(s.backends))
	for _, addr := range s.backends {
		all = append(all, addr)
	}
	return all
}

// keep records open connections, so that close can close them. It returns false when the service is
// already closed.
func (s *service) keep(conns ...net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range conns {
		s.open[c] = struct{}{}
	}
	return !s.closed
}

func (s *service) forget(conns ...net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range conns {
		delete(s.open, c)
	}
}

// close frees the port and closes all connections.
func (s *service) close() {
	s.listener.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}
