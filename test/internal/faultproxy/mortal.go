// SPDX-License-Identifier: Apache-2.0

package faultproxy

import "net"

// KillConnections makes the connections that callers have now dead, as a firewall does that forgets
// them: nothing arrives any more in either direction, and neither side is told. New connections
// work.
func (p *Proxy) KillConnections() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.dead)
	p.dead = make(chan struct{})
}

// mortalListener accepts connections that KillConnections can kill.
type mortalListener struct {
	net.Listener
	proxy *Proxy
}

func (l mortalListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	return mortalConn{conn, l.proxy.dead}, nil
}

type mortalConn struct {
	net.Conn
	dead <-chan struct{} // closed when the connection is dead
}

func (c mortalConn) isDead() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

// Read drops what arrives on a dead connection, and returns only when the connection is closed.
func (c mortalConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.isDead() {
			return n, err
		}
	}
}

// Write drops what is sent on a dead connection.
func (c mortalConn) Write(b []byte) (int, error) {
	if c.isDead() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}
