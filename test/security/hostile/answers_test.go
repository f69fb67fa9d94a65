// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws"
	"github.com/drover-io/drover/cloud/azure"
	"github.com/drover-io/drover/cloud/gcp"
	"github.com/drover-io/drover/cloud/kubevirt"
	"github.com/drover-io/drover/cloud/openstack"
	"github.com/drover-io/drover/cloud/vsphere"
)

// endpoint answers an account's calls; listing is its answer to that of the instances.
type endpoint func(r *http.Request, listing io.Reader) (status int, body io.Reader)

// target is a driver and an endpoint of its cloud.
type target struct {
	cloud       cloud.Cloud
	account     infrav1.DroverAccountSpec
	credentials map[string][]byte
	xml         bool
	endpoint    endpoint
}

// answer is a listing with a unit many times.
type answer struct{ head, unit, between, tail string }

// of returns an answer with n units. It costs no memory here, and little on the network: with gzip,
// which the transport undoes by itself, a thousandth of its size.
func (a answer) of(n int) io.Reader {
	parts := []io.Reader{strings.NewReader(a.head + a.unit)}
	block := strings.Repeat(a.between+a.unit, 1024)
	for n--; n > 1024; n -= 1024 {
		parts = append(parts, strings.NewReader(block))
	}
	return io.MultiReader(append(parts, strings.NewReader(strings.Repeat(a.between+a.unit, n)+a.tail))...)
}

// numbered is an answer with a unit that contains a number.
type numbered struct {
	answer
	n, next int
	text    []byte // to be read
}

func (a *numbered) Read(p []byte) (int, error) {
	if len(a.text) == 0 {
		switch {
		case a.next == 0:
			a.text = fmt.Appendf([]byte(a.head), a.unit, 0)
		case a.next < a.n:
			a.text = fmt.Appendf([]byte(a.between), a.unit, a.next)
		case a.next == a.n:
			a.text = []byte(a.tail)
		default:
			return 0, io.EOF
		}
		a.next++
	}
	n := copy(p, a.text)
	a.text = a.text[n:]
	return n, nil
}

// transport carries an account's calls to its endpoint.
type transport struct {
	target  *target
	listing func() io.Reader
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := t.target.endpoint(r, t.listing())
	kind := "application/json"
	if t.target.xml {
		kind = "text/xml"
	}
	return &http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(body), Request: r, ContentLength: -1,
		Header: http.Header{"Content-Type": {kind}, "X-Openstack-Request-Id": {"req-1"}, "X-Subject-Token": {"token"}},
	}, nil
}

func (t *target) connect(tb testing.TB, listing func() io.Reader) cloud.Driver {
	tb.Helper()
	d, err := t.cloud.New(cloud.Config{Account: &t.account, Credentials: t.credentials,
		Connect: func(*tls.Config) (http.RoundTripper, error) { return transport{t, listing}, nil }})
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func text(format string, args ...any) io.Reader {
	return strings.NewReader(fmt.Sprintf(format, args...))
}

func targets(t testing.TB) map[string]*target {
	ref := infrav1.LocalReference{Name: "c"}
	return map[string]*target{
		"aws": {
			cloud: aws.Cloud(), account: infrav1.DroverAccountSpec{CredentialsRef: ref,
				Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "us-east-1", Endpoint: "http://cloud.test"}}},
			credentials: map[string][]byte{"aws_access_key_id": []byte("key"), "aws_secret_access_key": []byte("secret")}, xml: true, endpoint: ec2,
		},
		"gcp": {
			cloud: gcp.Cloud(), account: infrav1.DroverAccountSpec{CredentialsRef: ref,
				Cloud: infrav1.AccountCloud{GCP: &infrav1.GCPAccount{ProjectID: "p", Region: "europe-west4", Endpoint: "https://cloud.test"}}},
			credentials: map[string][]byte{"credentials": serviceAccount(t)}, endpoint: computeEngine,
		},
		"azure": {
			cloud: azure.Cloud(), account: infrav1.DroverAccountSpec{CredentialsRef: ref, Cloud: infrav1.AccountCloud{Azure: &infrav1.AzureAccount{
				SubscriptionID: "00000000-1111-2222-3333-444444444444", Location: "westeurope", ResourceGroup: "g",
				Custom: infrav1.AzureCustomCloud{Endpoint: "https://management.cloud.test", AuthorityHost: "https://login.cloud.test"}}}},
			credentials: map[string][]byte{"tenantID": []byte("11111111-1111-2222-3333-444444444444"), "clientID": []byte("c"),
				"clientSecret": []byte("s")},
			endpoint: resourceManager,
		},
		"openstack": {
			cloud: openstack.Cloud(), account: infrav1.DroverAccountSpec{CredentialsRef: ref,
				Cloud: infrav1.AccountCloud{OpenStack: &infrav1.OpenStackAccount{AuthURL: "https://cloud.test/v3", ProjectID: "p"}}},
			credentials: map[string][]byte{"clouds.yaml": []byte(
				"clouds: {c: {auth: {auth_url: 'https://cloud.test/v3', username: u, password: p, user_domain_name: d}}}")},
			endpoint: nova,
		},
		"kubevirt": {
			cloud: kubevirt.Cloud(), account: infrav1.DroverAccountSpec{CredentialsRef: ref,
				Cloud: infrav1.AccountCloud{KubeVirt: &infrav1.KubeVirtAccount{Namespace: "vms"}}},
			credentials: map[string][]byte{"kubeconfig": kubeconfig(t)}, endpoint: apiServer,
		},
		"vsphere": {
			cloud: vsphere.Cloud(), account: infrav1.DroverAccountSpec{CredentialsRef: ref,
				Cloud: infrav1.AccountCloud{VSphere: &infrav1.VSphereAccount{Server: "cloud.test", Datacenter: "dc"}}},
			credentials: map[string][]byte{"username": []byte("u"), "password": []byte("p")}, xml: true, endpoint: vCenter,
		},
	}
}

func ec2(r *http.Request, listing io.Reader) (int, io.Reader) {
	body, _ := io.ReadAll(r.Body)
	form, _ := url.ParseQuery(string(body))
	switch op := form.Get("Action"); op {
	case "DescribeInstances":
		return 200, listing
	case "GetCallerIdentity":
		return 200, text(`<GetCallerIdentityResponse><GetCallerIdentityResult><Arn>arn:aws:iam::123456789012:user/u</Arn><Account>123456789012</Account></GetCallerIdentityResult></GetCallerIdentityResponse>`)
	default:
		return 200, text("<%[1]sResponse></%[1]sResponse>", op)
	}
}

func computeEngine(r *http.Request, listing io.Reader) (int, io.Reader) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/token"):
		return 200, text(`{"access_token":"t","expires_in":3600}`)
	case strings.HasSuffix(r.URL.Path, "aggregated/instances"):
		return 200, listing
	case strings.HasSuffix(r.URL.Path, "regions/europe-west4"):
		return 200, text(`{"name":"europe-west4","selfLink":"https://cloud.test/compute/v1/projects/p/regions/europe-west4","status":"UP","zones":["https://cloud.test/compute/v1/projects/p/zones/europe-west4-a"]}`)
	}
	return 200, text(`{"kind":"compute#diskAggregatedList"}`)
}

func resourceManager(r *http.Request, listing io.Reader) (int, io.Reader) {
	switch {
	case strings.Contains(r.URL.Path, ".well-known"):
		return 200, text(`{"token_endpoint":"%[1]s/oauth2/v2.0/token","authorization_endpoint":"%[1]s/oauth2/v2.0/authorize","issuer":"%[1]s/v2.0"}`,
			"https://login.cloud.test/11111111-1111-2222-3333-444444444444")
	case strings.HasSuffix(r.URL.Path, "/token"):
		return 200, text(`{"token_type":"Bearer","expires_in":3599,"ext_expires_in":3599,"access_token":"t"}`)
	case strings.HasSuffix(r.URL.Path, "/virtualMachines"):
		return 200, listing
	}
	return 200, text(`{"value":[]}`)
}

func nova(r *http.Request, listing io.Reader) (int, io.Reader) {
	if strings.HasSuffix(r.URL.Path, "/auth/tokens") {
		var catalog []map[string]any
		for _, kind := range []string{"compute", "network", "image"} {
			catalog = append(catalog, map[string]any{"type": kind, "name": kind,
				"endpoints": []map[string]string{{"interface": "public", "region": "R", "region_id": "R", "url": "https://cloud.test/" + kind}}})
		}
		body, _ := json.Marshal(map[string]any{"token": map[string]any{
			"expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "project": map[string]any{"id": "p"}, "catalog": catalog}})
		return 201, text("%s", body)
	}
	if strings.Contains(r.URL.Path, "servers/detail") {
		return 200, listing
	}
	return 200, text(`{"ports":[],"servers":[],"floatingips":[],"volumes":[],"loadbalancers":[]}`)
}

func apiServer(r *http.Request, listing io.Reader) (int, io.Reader) {
	if strings.HasSuffix(r.URL.Path, "/virtualmachineinstances") {
		return 200, listing
	}
	return 200, text(`{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"1"},"items":[]}`)
}

func vCenter(r *http.Request, listing io.Reader) (int, io.Reader) {
	body, _ := io.ReadAll(r.Body)
	for op, returned := range map[string]string{
		"RetrieveServiceContent": `<returnval><rootFolder type="Folder">f</rootFolder><propertyCollector type="PropertyCollector">p</propertyCollector><viewManager type="ViewManager">v</viewManager>
<about><name>vCenter</name><fullName>v</fullName><vendor>v</vendor><version>8</version><build>1</build><osType>l</osType><productLineId>v</productLineId><apiType>VirtualCenter</apiType><apiVersion>8</apiVersion><instanceUuid>id</instanceUuid></about>
<sessionManager type="SessionManager">s</sessionManager><authorizationManager type="AuthorizationManager">a</authorizationManager><searchIndex type="SearchIndex">i</searchIndex><taskManager type="TaskManager">t</taskManager></returnval>`,
		"Login":               `<returnval><key>k</key><userName>u</userName><fullName>u</fullName><loginTime>2026-01-01T00:00:00Z</loginTime><lastActiveTime>2026-01-01T00:00:00Z</lastActiveTime><locale>en</locale><messageLocale>en</messageLocale></returnval>`,
		"FindByInventoryPath": `<returnval type="Datacenter">dc</returnval>`,
		"CreateContainerView": `<returnval type="ContainerView">view</returnval>`,
	} {
		if strings.Contains(string(body), "<"+op+" ") {
			return 200, text(`<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/"><Body><%[1]sResponse xmlns="urn:vim25">%[2]s</%[1]sResponse></Body></Envelope>`, op, returned)
		}
	}
	return 200, listing
}

func serviceAccount(t testing.TB) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	out, err := json.Marshal(map[string]string{"type": "service_account", "client_email": "a@p.test", "private_key": string(block),
		"private_key_id": "1"})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func kubeconfig(t testing.TB) []byte {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: "https://cloud.test",
			CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {Token: "t"}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}
