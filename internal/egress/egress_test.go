// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/http/httpproxy"
)

func TestAllowed(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"192.0.2.1":                  true,
		"10.1.2.3":                   true, // private networks often contain clouds
		"10.9.2.3":                   false,
		"2001:db8::1":                true,
		"169.254.169.254":            false,
		"::ffff:169.254.169.254":     false,
		"64:ff9b::169.254.169.254":   false,
		"64:ff9b::192.0.2.1":         true,
		"64:ff9b:1::169.254.169.254": false,
		"64:ff9b:1:ff::10.9.2.3":     false,
		"64:ff9b:1::192.0.2.1":       false, // wherever it leads
		"2002:a9fe:a9fe::1":          false,
		"2002:7f00:1::":              false,
		"2002:c000:201::1":           true,
		"fd00:c1::a9fe:a9fe":         false,
		"fd00:42::42":                false,
		"fe80::1":                    false,
		"fe80::1%eth0":               false,
		"fd00:ec2::254":              false,
		"fd20:ce::254":               false,
		"168.63.129.16":              false,
		"127.0.0.1":                  false,
		"127.8.0.1":                  true, // in an allowed CIDR
		"::1":                        false,
		"0.0.0.0":                    false,
		"::":                         false,
		"224.0.0.1":                  false,
		"ff02::1":                    false,
		"10.9.9.9":                   true, // allow takes precedence
	} {
		d, err := New([]string{"127.8.0.0/16", "10.9.9.0/24"}, []string{"10.9.0.0/16"})
		if err != nil {
			t.Fatal(err)
		}
		if got := d.allowed(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: allowed is %t, want %t", address, got, want)
		}
	}
}

func TestNewRefusesNonsense(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"10.0.0.1", "example.com", ""} {
		if _, err := New([]string{text}, nil); err == nil || !strings.Contains(err.Error(), "CIDR") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestNamesAreJudgedByAddress: a name that resolves to a denied address is refused before any
// packet is sent, and the error does not contain the address.
func TestNamesAreJudgedByAddress(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	get := func(allow ...string) error {
		d, err := New(allow, nil)
		if err != nil {
			t.Fatal(err)
		}
		client := http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost:"+port, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err == nil {
			response.Body.Close()
		}
		return err
	}
	if err := get(); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("loopback by name: %v", err)
	}
	if len(asked) != 0 {
		t.Error("the denied endpoint was asked")
	}
	if err := get("127.0.0.0/8", "::1/128"); err != nil {
		t.Errorf("loopback that the operator allows: %v", err)
	}
}

// TestProxy: the operator's own proxy may have any address.
func TestProxy(t *testing.T) {
	t.Parallel()
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(proxy.Close)
	d, err := New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	address := proxy.Listener.Addr().String()
	if _, err := d.DialContext(t.Context(), "tcp", address); !errors.Is(err, fs.ErrPermission) {
		t.Fatalf("it is not a proxy yet: %v", err)
	}
	d.proxies = proxies(&httpproxy.Config{HTTPSProxy: proxy.URL})
	conn, err := d.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for text, want := range map[string]string{
		"http://Proxy.example": "proxy.example:80", "https://proxy.example": "proxy.example:443", "proxy.example:3128": "proxy.example:3128",
		"socks5://u:p@[::1]": "[::1]:1080",
	} {
		if got := proxies(&httpproxy.Config{HTTPProxy: text}); len(got) != 1 || got[0] != want {
			t.Errorf("%s: net/http dials %s, not %v", text, want, got)
		}
	}
}

// TestProxyIsNoEndpoint: a tenant who names the operator's proxy as an endpoint does not reach it.
// Other endpoints are reached through it, as net/http decides.
func TestProxyIsNoEndpoint(t *testing.T) {
	asked := 0
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	t.Cleanup(proxy.Close)
	t.Setenv("HTTPS_PROXY", proxy.URL) // for other requests than these
	d, err := New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{Proxy: Proxy, DialContext: d.DialContext}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, proxy.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err == nil {
		response.Body.Close()
	}
	if !errors.Is(err, fs.ErrPermission) || asked != 0 {
		t.Errorf("the proxy was asked %d times: %v", asked, err)
	}

	t.Setenv("HTTPS_PROXY", "https://Proxy.example")
	t.Setenv("HTTP_PROXY", "proxy.example:3128")
	for endpoint, denied := range map[string]bool{
		"https://proxy.example": true, "https://PROXY.example:443/path": true, "http://proxy.example:3128": true,
		"https://proxy.example:3128": true,
		"http://proxy.example":       false, "https://other.example": false,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, endpoint, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Proxy(request); errors.Is(err, fs.ErrPermission) != denied {
			t.Errorf("%s: %v, want it refused: %t", endpoint, err, denied)
		}
	}
}
