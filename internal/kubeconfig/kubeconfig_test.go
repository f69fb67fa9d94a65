// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-io/drover/internal/test/authority"
)

// marked is in every secret of these tests, and must not be in any message.
const marked = "HUSH-a3f9"

// write returns a kubeconfig with a token, changed by edit.
func write(t testing.TB, ca *authority.Authority, edit func(*clientcmdapi.Config)) []byte {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://10.0.0.1:6443", CertificateAuthorityData: ca.PEM}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: marked}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	if edit != nil {
		edit(config)
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseRefuses(t *testing.T) {
	ca := authority.New(t)
	cluster := func(edit func(*clientcmdapi.Cluster)) func(*clientcmdapi.Config) {
		return func(c *clientcmdapi.Config) { edit(c.Clusters["c"]) }
	}
	user := func(edit func(*clientcmdapi.AuthInfo)) func(*clientcmdapi.Config) {
		return func(c *clientcmdapi.Config) { edit(c.AuthInfos["u"]) }
	}
	_, otherKey := ca.Issue(t, time.Now().Add(time.Hour))
	certificate, key := ca.Issue(t, time.Now().Add(time.Hour))
	keyAndCA := append(append([]byte{}, ca.PEM...), key...)

	tests := map[string]struct {
		edit func(*clientcmdapi.Config)
		want string
	}{
		"exec": {user(func(u *clientcmdapi.AuthInfo) {
			u.Exec = &clientcmdapi.ExecConfig{Command: "/bin/" + marked, APIVersion: "client.authentication.k8s.io/v1"}
		}), "exec is not permitted"},
		"auth-provider": {user(func(u *clientcmdapi.AuthInfo) { u.AuthProvider = &clientcmdapi.AuthProviderConfig{Name: "gcp"} }),
			"auth-provider is not permitted"},
		"client cert file": {user(func(u *clientcmdapi.AuthInfo) { u.ClientCertificate = "/etc/" + marked }),
			"client-certificate refers to a file"},
		"client key file": {user(func(u *clientcmdapi.AuthInfo) { u.ClientKey = "/etc/" + marked }), "client-key refers to a file"},
		"token file":      {user(func(u *clientcmdapi.AuthInfo) { u.TokenFile = "/var/run/" + marked }), "tokenFile refers to a file"},
		"impersonation":   {user(func(u *clientcmdapi.AuthInfo) { u.Impersonate = marked }), "impersonation"},
		"imp. groups":     {user(func(u *clientcmdapi.AuthInfo) { u.ImpersonateGroups = []string{marked} }), "impersonation"},
		"imp. uid":        {user(func(u *clientcmdapi.AuthInfo) { u.ImpersonateUID = marked }), "impersonation"},
		"imp. extra": {user(func(u *clientcmdapi.AuthInfo) { u.ImpersonateUserExtra = map[string][]string{"a": {marked}} }),
			"impersonation"},
		"password":       {user(func(u *clientcmdapi.AuthInfo) { u.Password = marked }), "username and password"},
		"no credentials": {user(func(u *clientcmdapi.AuthInfo) { u.Token = "" }), "has no credentials"},
		"broken token":   {user(func(u *clientcmdapi.AuthInfo) { u.Token = marked + "\r\nX-Remote-User: admin" }), "can't be sent"},
		"key only":       {user(func(u *clientcmdapi.AuthInfo) { u.ClientKeyData = key }), "not a certificate and its key"},
		"wrong key": {user(func(u *clientcmdapi.AuthInfo) { u.ClientCertificateData, u.ClientKeyData = certificate, otherKey }),
			"not a certificate and its key"},
		"garbage key": {user(func(u *clientcmdapi.AuthInfo) {
			u.ClientCertificateData, u.ClientKeyData = certificate, []byte(marked)
		}), "not a certificate and its key"},

		"insecure": {cluster(func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData, c.InsecureSkipTLSVerify = nil, true }),
			"insecure-skip-tls-verify is not permitted"},
		"CA file": {cluster(func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData, c.CertificateAuthority = nil, "/etc/passwd" }),
			"certificate-authority refers to a file"},
		"no CA":   {cluster(func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = nil }), "certificate-authority-data is missing"},
		"not PEM": {cluster(func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = []byte(marked) }), "no PEM certificate"},
		"broken CA": {cluster(func(c *clientcmdapi.Cluster) {
			c.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(marked)})
		}), "can't be parsed"},
		"cut CA": {cluster(func(c *clientcmdapi.Cluster) {
			c.CertificateAuthorityData = append(slices.Clone(c.CertificateAuthorityData), "-----BEGIN CERTIFICATE-----\n"+marked...)
		}), "can't be parsed"},
		"key in CA":     {cluster(func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = keyAndCA }), "something other than certificates"},
		"proxy":         {cluster(func(c *clientcmdapi.Cluster) { c.ProxyURL = "http://" + marked }), "proxy-url is not permitted"},
		"http":          {cluster(func(c *clientcmdapi.Cluster) { c.Server = "http://10.0.0.1" }), "must begin with https"},
		"no scheme":     {cluster(func(c *clientcmdapi.Cluster) { c.Server = "10.0.0.1:6443" }), "server is not a URL"},
		"file":          {cluster(func(c *clientcmdapi.Cluster) { c.Server = "file:///etc/passwd" }), "must begin with https"},
		"no server":     {cluster(func(c *clientcmdapi.Cluster) { c.Server = "" }), "server is missing"},
		"no host":       {cluster(func(c *clientcmdapi.Cluster) { c.Server = "https://:6443" }), "no valid host"},
		"bad host":      {cluster(func(c *clientcmdapi.Cluster) { c.Server = "https://a_b/" }), "no valid host"},
		"bad port":      {cluster(func(c *clientcmdapi.Cluster) { c.Server = "https://a:70000" }), "no valid port"},
		"userinfo":      {cluster(func(c *clientcmdapi.Cluster) { c.Server = "https://me:" + marked + "@a" }), "must not contain a user"},
		"query":         {cluster(func(c *clientcmdapi.Cluster) { c.Server = "https://a/?" + marked }), "must not have a query"},
		"tls-server":    {cluster(func(c *clientcmdapi.Cluster) { c.TLSServerName = "a b" }), "tls-server-name"},
		"no context":    {func(c *clientcmdapi.Config) { c.CurrentContext, c.Contexts = "", nil }, "current-context is not set"},
		"other context": {func(c *clientcmdapi.Config) { c.CurrentContext = marked }, "refers to a context that does not exist"},
		"other cluster": {func(c *clientcmdapi.Config) { c.Contexts["x"].Cluster = marked }, "refers to a cluster that does not exist"},
		"other user":    {func(c *clientcmdapi.Config) { c.Contexts["x"].AuthInfo = marked }, "refers to a user that does not exist"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { wantRefusal(t, write(t, ca, test.edit), test.want) })
	}
	for name, huge := range authority.HugeKeys(t) {
		t.Run("huge key "+name, func(t *testing.T) {
			wantRefusal(t, write(t, ca, user(func(u *clientcmdapi.AuthInfo) { u.ClientCertificateData, u.ClientKeyData = certificate, huge })),
				"client-key-data: an RSA key has more than")
		})
	}
	t.Run("huge CA", func(t *testing.T) {
		huge := append(slices.Clone(ca.PEM), ca.Huge(t, 16<<10)...)
		wantRefusal(t, write(t, ca, cluster(func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = huge })),
			"certificate-authority-data: an RSA key has more than")
	})
	t.Run("empty", func(t *testing.T) { wantRefusal(t, nil, "is empty") })
	t.Run("too big", func(t *testing.T) { wantRefusal(t, bytes.Repeat([]byte(" "), maxKubeconfig+1), "at most") })
	t.Run("not YAML", func(t *testing.T) { wantRefusal(t, []byte(marked+": [\x00"), "can't be parsed") })
	t.Run("a string", func(t *testing.T) { wantRefusal(t, []byte("clusters: "+marked), "can't be parsed") })
	t.Run("invalid UTF-8", func(t *testing.T) { wantRefusal(t, []byte("\xff\xfe\xfd"), "can't be parsed") })
}

func wantRefusal(t *testing.T, data []byte, want string) {
	t.Helper()
	_, err := Parse(data)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("got %v, want %q", err, want)
	}
	if strings.Contains(err.Error(), marked) {
		t.Fatalf("a secret is in the message: %v", err)
	}
}

// TestKubeconfigIsReduced: only the current context counts, and the output has only validated
// content.
func TestKubeconfigIsReduced(t *testing.T) {
	ca := authority.New(t)
	certificate, key := ca.Issue(t, time.Now().Add(time.Hour))
	data := write(t, ca, func(c *clientcmdapi.Config) {
		c.Clusters["c"].Server = "https://API.example.org/k8s/clusters/c-1"
		c.Clusters["c"].TLSServerName = "kubernetes"
		c.AuthInfos["u"].ClientCertificateData, c.AuthInfos["u"].ClientKeyData = certificate, key
		c.AuthInfos["other"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{Command: "evil",
			APIVersion: "client.authentication.k8s.io/v1"}}
		c.Clusters["other"] = &clientcmdapi.Cluster{Server: "http://evil", InsecureSkipTLSVerify: true}
		c.Contexts["other"] = &clientcmdapi.Context{Cluster: "other", AuthInfo: "other"}
		c.Preferences.Colors = true //nolint:staticcheck // what people have in there
	})
	config, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Endpoint(); got.Host != "API.example.org" || got.Port != 443 {
		t.Errorf("endpoint %v", got)
	}
	first, err := config.Serialize("prod")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(first, []byte("evil")) {
		t.Errorf("other contexts came along:\n%s", first)
	}
	again, err := Parse(first)
	if err != nil {
		t.Fatalf("what was written is refused: %v", err)
	}
	second, err := again.Serialize("prod")
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("not the same bytes twice (%v)", err)
	}
	if again.Server.String() != config.Server.String() || again.tlsServerName != "kubernetes" || again.Token != marked ||
		!bytes.Equal(again.certificate, certificate) || !bytes.Equal(again.key, key) || !bytes.Equal(again.ca, ca.PEM) {
		t.Error("something was lost on the way")
	}
	// Other clients read it, so it must mean the same to client-go.
	rest, err := clientcmd.RESTConfigFromKubeConfig(first)
	if err != nil {
		t.Fatal(err)
	}
	if rest.Host != "https://API.example.org/k8s/clusters/c-1" || rest.BearerToken != marked || rest.ExecProvider != nil || rest.Insecure {
		t.Errorf("client-go reads host %q", rest.Host)
	}
}

func TestEndpoint(t *testing.T) {
	for server, want := range map[string]string{
		"https://10.0.0.1":           "10.0.0.1:443",
		"https://10.0.0.1:6443/":     "10.0.0.1:6443",
		"https://[fd00::1]:6443":     "[fd00::1]:6443",
		"https://a.example.org:8443": "a.example.org:8443",
	} {
		url, err := parseServer(server)
		if err != nil {
			t.Errorf("%s: %v", server, err)
			continue
		}
		k := Config{Server: url}
		if endpoint := k.Endpoint(); endpoint.String() != want {
			t.Errorf("%s: got %s, want %s", server, endpoint.String(), want)
		}
	}
}

func TestExpired(t *testing.T) {
	ca := authority.New(t)
	past := time.Now().Add(-time.Hour).Truncate(time.Second)
	certificate, key := ca.Issue(t, past)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	k := Config{pair: &pair}
	if got := k.Expired(time.Now()); !got.Equal(past) {
		t.Errorf("got %v, want %v", got, past)
	}
	if got := k.Expired(past.Add(-time.Minute)); !got.IsZero() {
		t.Errorf("not expired yet, but got %v", got)
	}
}

// FuzzParse: no input causes a panic or a message with a secret, and accepted input is safe and
// survives a round trip.
func FuzzParse(f *testing.F) {
	ca := authority.New(f)
	f.Add(write(f, ca, nil))
	f.Add(write(f, ca, func(c *clientcmdapi.Config) { c.AuthInfos["u"].TokenFile = "/etc/passwd" }))
	f.Add([]byte(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"https://a","proxy-url":"http://b"}}]}`))
	f.Add([]byte("a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := Parse(data)
		if err != nil {
			if strings.Contains(err.Error(), marked) {
				t.Fatalf("a secret is in the message: %v", err)
			}
			return
		}
		if config.Server.Scheme != "https" || config.roots == nil || config.Token == "" && config.pair == nil {
			t.Fatal("taken, but not safe")
		}
		written, err := config.Serialize("prod")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(written); err != nil {
			t.Fatalf("what was written is refused: %v", err)
		}
	})
}
