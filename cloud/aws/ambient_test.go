// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
)

// TestAmbientChain logs in with each kind of the manager's own credentials on AWS, as the SDK finds
// them: from the environment that EKS or EC2 sets, and from the endpoints there.
func TestAmbientChain(t *testing.T) {
	const session = "marked-session"
	for name, test := range map[string]struct {
		set     func(t *testing.T) // sets the environment
		session string
		asks    string // operation that must use the account's transport, as all calls do
	}{
		"role of the service account": {set: func(t *testing.T) {
			t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/drover")
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file(t, "identity-token"))
		}, asks: "AssumeRoleWithWebIdentity"},
		"pod identity": {set: func(t *testing.T) {
			t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", serve(t, func(r *http.Request) any {
				if r.Header.Get("Authorization") != "pod-token" {
					return nil
				}
				return keysFor(session)
			}))
			t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file(t, "pod-token"))
		}, session: session, asks: getCredentials},
		"instance profile": {set: func(t *testing.T) {
			t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", serve(t, func(r *http.Request) any {
				switch role := "/latest/meta-data/iam/security-credentials/"; {
				case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
					return "metadata-token"
				case r.Header.Get("X-Aws-Ec2-Metadata-Token") != "metadata-token":
					return nil
				case r.URL.Path == role:
					return "nodes"
				case r.URL.Path == role+"nodes":
					return keysFor(session)
				}
				return nil
			}))
		}, session: session, asks: getCredentials},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			nowhere := filepath.Join(t.TempDir(), "none")
			for _, variable := range os.Environ() {
				if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "AWS_") {
					t.Setenv(name, "") // restored at the end of the test
				}
			}
			t.Setenv("AWS_CONFIG_FILE", nowhere)
			t.Setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
			test.set(t)
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), SessionToken: test.session})
			account, asked := testAccount(""), map[string]int{}
			account.CredentialsRef.Name = ""
			d, err := newDriver(cloud.Config{Account: account, Connect: through(func(r *http.Request) (*http.Response, error) {
				op := cloud.OperationOf(r.Context()).Name
				asked[op]++
				if strings.HasSuffix(r.URL.Host, ".amazonaws.com") { // redirects the call to the stub
					r = r.Clone(r.Context())
					r.Host, r.URL.Host, r.URL.Scheme = r.URL.Host, strings.TrimPrefix(stub.URL, "http://"), "http"
				}
				return http.DefaultTransport.RoundTrip(r)
			})})
			g.Expect(err).NotTo(HaveOccurred())
			for range 2 {
				info, err := d.Probe(t.Context())
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(info.FailureDomains).To(HaveLen(3))
			}
			g.Expect(asked).To(HaveKey(test.asks))
			g.Expect(asked["DescribeAvailabilityZones"]).To(Equal(2))
		})
	}
}

// keysFor returns temporary keys in the format of both endpoints.
func keysFor(session string) any {
	return map[string]string{"Code": "Success", "AccessKeyId": testKey, "SecretAccessKey": testSecret, "Token": session,
		"Expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}
}

// serve answers on a loopback address: a string as it is, nil as a refusal, anything else as JSON.
func serve(t *testing.T, answer func(*http.Request) any) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch out := answer(r).(type) {
		case nil:
			w.WriteHeader(http.StatusForbidden)
		case string:
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
			_, _ = w.Write([]byte(out))
		default:
			_ = json.NewEncoder(w).Encode(out)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func file(t *testing.T, content string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
