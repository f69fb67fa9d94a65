// SPDX-License-Identifier: Apache-2.0

// Package egress opens connections to endpoints that tenants name. The manager can reach what
// tenants can't: its own node, its cloud's metadata, the operator's network. So the package checks
// each address after its name is resolved.
package egress

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// metadata are the addresses of cloud services that hand out a machine's own credentials and are
// not link-local.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("fd00:ec2::/32"),      // Amazon EC2
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google Compute Engine
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba Cloud
	netip.MustParsePrefix("fd00:c1::/32"),       // Oracle Cloud
	netip.MustParsePrefix("fd00:42::42/128"),    // Scaleway
}

// The prefixes of IPv6 addresses that lead to an IPv4 address: of translators (RFC 6052), of 6to4
// relays (RFC 3056), and of an operator's own translators (RFC 8215), which may put the IPv4
// address anywhere.
var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")
)

// errDenied contains no address, so that a tenant can't learn how a name resolves inside the
// operator's network.
var errDenied = fmt.Errorf("the endpoint leads to an address that the operator does not allow: %w", fs.ErrPermission)

// Dialer connects only to permitted addresses. Its errors for others are fs.ErrPermission.
type Dialer struct {
	allow, deny []netip.Prefix
	proxies     []string // as net/http dials them
	guarded     net.Dialer
	free        net.Dialer
}

// New returns a Dialer for CIDRs. Allowed CIDRs take precedence over denied ones, and over
// addresses that are always denied: loopback, link-local, multicast and unspecified addresses, and
// the clouds' metadata services.
func New(allow, deny []string) (*Dialer, error) {
	d := &Dialer{proxies: proxies(httpproxy.FromEnvironment())}
	var err, err2 error
	d.allow, err = prefixes(allow)
	d.deny, err2 = prefixes(deny)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	d.free = net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second} // as http.DefaultTransport
	d.guarded = d.free
	d.guarded.ControlContext = d.control
	return d, nil
}

// DialContext connects to an address as net.Dialer does. It does not check the operator's own
// proxy, which is dialed in place of endpoints and must check them itself.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if slices.Contains(d.proxies, strings.ToLower(address)) {
		return d.free.DialContext(ctx, network, address)
	}
	return d.guarded.DialContext(ctx, network, address)
}

// Proxy is http.ProxyFromEnvironment for requests to endpoints that tenants name. A request to the
// proxy itself is fs.ErrPermission: DialContext would not check it.
func Proxy(r *http.Request) (*url.URL, error) {
	port := r.URL.Port()
	if port == "" {
		port = ports[r.URL.Scheme]
	}
	if slices.Contains(proxies(httpproxy.FromEnvironment()), strings.ToLower(net.JoinHostPort(r.URL.Hostname(), port))) {
		return nil, errDenied
	}
	return http.ProxyFromEnvironment(r)
}

// control checks a resolved address before any packet is sent to it.
func (d *Dialer) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !d.allowed(to.Addr()) {
		return errDenied
	}
	return nil
}

func (d *Dialer) allowed(to netip.Addr) bool {
	to = to.WithZone("").Unmap()
	if raw := to.As16(); nat64.Contains(to) {
		to = netip.AddrFrom4([4]byte(raw[12:]))
	} else if sixToFour.Contains(to) {
		to = netip.AddrFrom4([4]byte(raw[2:6]))
	}
	holds := func(p netip.Prefix) bool { return p.Contains(to) }
	switch {
	case slices.ContainsFunc(d.allow, holds):
		return true
	case slices.ContainsFunc(d.deny, holds), slices.ContainsFunc(metadata, holds), localNAT64.Contains(to):
		return false
	default:
		return !to.IsLoopback() && !to.IsLinkLocalUnicast() && !to.IsMulticast() && !to.IsUnspecified()
	}
}

func prefixes(texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a CIDR, such as 10.0.0.0/8: %w", text, err)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// ports are the ports of URLs without one, by scheme.
var ports = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}

// proxies returns the addresses that net/http dials for the environment's proxies.
func proxies(env *httpproxy.Config) []string {
	var all []string
	for _, text := range []string{env.HTTPProxy, env.HTTPSProxy} {
		if text == "" {
			continue
		}
		u, err := url.Parse(text)
		if err != nil || ports[u.Scheme] == "" {
			u, err = url.Parse("http://" + text) // as net/http parses it
		}
		if err != nil || u.Hostname() == "" {
			continue
		}
		port := u.Port()
		if port == "" {
			port = ports[u.Scheme]
		}
		all = append(all, strings.ToLower(net.JoinHostPort(u.Hostname(), port)))
	}
	return all
}
