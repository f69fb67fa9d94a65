// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	azurecloud "github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/internal/keybound"
)

// Keys of the credentials Secret.
const (
	keyTenantID       = "tenantID"
	keyClientID       = "clientID"
	keyClientSecret   = "clientSecret"
	keyCertificate    = "clientCertificate"
	keyFederatedToken = "federatedToken"
)

// oldKeys are names of keys that machine-controller-manager has deprecated and still reads. A
// Secret made for it can be used as it is.
var oldKeys = map[string]string{keyTenantID: "azureTenantId", keyClientID: "azureClientId", keyClientSecret: "azureClientSecret"}

// getToken is the operation name of the calls that obtain a token.
const getToken = "GetToken"

// maxTokenAnswer limits an answer of the token service.
const maxTokenAnswer = 1 << 20

// place is where a cloud's services are.
type place struct {
	config azurecloud.Configuration
	// endpoint is Azure Resource Manager's, without a slash at the end.
	endpoint, scope string
	// storage is the domain of the storage accounts.
	storage string
}

func placeOf(account *infrav1.AzureAccount) place {
	known := map[string]place{
		"AzurePublic":     {config: azurecloud.AzurePublic, storage: "core.windows.net"},
		"AzureGovernment": {config: azurecloud.AzureGovernment, storage: "core.usgovcloudapi.net"},
		"AzureChina":      {config: azurecloud.AzureChina, storage: "core.chinacloudapi.cn"},
	}
	p, ok := known[string(account.Cloud)]
	if !ok {
		p = known["AzurePublic"]
	}
	if custom := account.Custom; custom != (infrav1.AzureCustomCloud{}) {
		_, host, _ := strings.Cut(custom.Endpoint, "://")
		host, _, _ = strings.Cut(host, ":")
		_, domain, _ := strings.Cut(host, ".") // management.DOMAIN
		audience := custom.Audience
		if audience == "" {
			audience = custom.Endpoint
		}
		p = place{storage: domain, config: azurecloud.Configuration{
			ActiveDirectoryAuthorityHost: custom.AuthorityHost,
			Services: map[azurecloud.ServiceName]azurecloud.ServiceConfiguration{
				azurecloud.ResourceManager: {Endpoint: custom.Endpoint, Audience: audience},
			},
		}}
	}
	service := p.config.Services[azurecloud.ResourceManager]
	p.endpoint, p.scope = strings.TrimSuffix(service.Endpoint, "/"), strings.TrimSuffix(service.Audience, "/")+"/.default"
	return p
}

// newCredential returns the account's credential: from its Secret, or the manager's own if secret
// is nil. It makes no call. DefaultAzureCredential is not used: it tries one source after the
// other, and so would use the manager's own for a tenant.
func newCredential(account *infrav1.AzureAccount, secret map[string][]byte,
	client *http.Client) (azcore.TokenCredential, driverkit.Redactor, error) {
	options := azcore.ClientOptions{
		Cloud:     placeOf(account).config,
		Transport: exchanges{client},
		Retry:     policy.RetryOptions{MaxRetries: -1},
		Telemetry: policy.TelemetryOptions{Disabled: true},
	}
	if secret == nil {
		made, err := ambientCredential(options)
		return made, driverkit.NewRedactor(), err
	}
	values := map[string]string{}
	for _, key := range []string{keyTenantID, keyClientID, keyClientSecret, keyFederatedToken} {
		value := cmp.Or(strings.TrimSpace(string(secret[key])), strings.TrimSpace(string(secret[oldKeys[key]])))
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, driverkit.Redactor{}, invalidSecret(key, "contains invalid characters")
		}
		values[key] = value
	}
	redactor := driverkit.NewRedactor(values[keyClientSecret], values[keyFederatedToken], string(secret[keyCertificate]))
	for _, key := range []string{keyTenantID, keyClientID} {
		if values[key] == "" {
			return nil, redactor, invalidSecret(key, "is missing or empty")
		}
	}
	made, err := secretCredential(values, secret[keyCertificate], options)
	return made, redactor, err
}

func invalidSecret(key, why string) error {
	return cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q %s", key, why)
}

func secretCredential(values map[string]string, certificate []byte, options azcore.ClientOptions) (made azcore.TokenCredential, err error) {
	given := 0
	for _, value := range []string{values[keyClientSecret], string(certificate), values[keyFederatedToken]} {
		if value != "" {
			given++
		}
	}
	if given != 1 {
		return nil, cloud.Errorf(cloud.Unauthorized, "the credentials Secret must have exactly one of the keys %q, %q and %q", keyClientSecret,
			keyCertificate, keyFederatedToken)
	}
	tenant, id := values[keyTenantID], values[keyClientID]
	switch {
	case values[keyClientSecret] != "":
		made, err = azidentity.NewClientSecretCredential(tenant, id, values[keyClientSecret],
			&azidentity.ClientSecretCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true})
	case values[keyFederatedToken] != "":
		assertion := func(context.Context) (string, error) { return values[keyFederatedToken], nil }
		made, err = azidentity.NewClientAssertionCredential(tenant, id, assertion,
			&azidentity.ClientAssertionCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true})
	default:
		// The parser would take everything else for PFX. The key in it is bounded by nothing, and no
		// check can see it before the parser has decrypted and used it.
		if block, _ := pem.Decode(certificate); block == nil {
			return nil, invalidSecret(keyCertificate, "is not PEM; OpenSSL converts PFX: openssl pkcs12 -legacy -nodes -in FILE")
		}
		if err := keybound.PEM(certificate); err != nil {
			return nil, invalidSecret(keyCertificate, "is refused: "+err.Error())
		}
		certificates, key, invalid := azidentity.ParseCertificates(certificate, nil)
		if invalid != nil {
			return nil, invalidSecret(keyCertificate, "is no certificate with its private key, both unencrypted PEM")
		}
		made, err = azidentity.NewClientCertificateCredential(tenant, id, certificates, key,
			&azidentity.ClientCertificateCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true, SendCertificateChain: true})
	}
	if err != nil {
		return nil, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's keys %q and %q, or the authority's host, are invalid", keyTenantID,
			keyClientID)
	}
	return made, nil
}

// ambientCredential returns the manager's own: its workload identity if the environment has one,
// otherwise its managed identity.
func ambientCredential(options azcore.ClientOptions) (azcore.TokenCredential, error) {
	var made azcore.TokenCredential
	var err error
	if os.Getenv("AZURE_FEDERATED_TOKEN_FILE") != "" {
		made, err = azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{ClientOptions: options,
			DisableInstanceDiscovery: true})
	} else {
		managed := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: options}
		if id := os.Getenv("AZURE_CLIENT_ID"); id != "" {
			managed.ID = azidentity.ClientID(id)
		}
		made, err = azidentity.NewManagedIdentityCredential(managed)
	}
	if err != nil {
		return nil, cloud.Errorf(cloud.Unauthorized, "the manager's own Azure configuration can't be used")
	}
	return made, nil
}

// renewal is how often refused tokens lead to a new login: others may be refused for good.
const renewal = time.Minute

// source is where tokens come from. The SDK's credential caches them, so a token that was revoked
// is replaced only by a new credential.
type source struct {
	make func() (azcore.TokenCredential, error)

	mu         sync.Mutex
	credential azcore.TokenCredential
	renewed    time.Time
}

func (s *source) get() (made azcore.TokenCredential, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.credential == nil {
		s.credential, err = s.make()
	}
	return s.credential, err
}

// forget drops the cached tokens, and reports whether it did.
func (s *source) forget() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.renewed) < renewal {
		return false
	}
	s.credential, s.renewed = nil, time.Now()
	return true
}

// token returns a token for Azure Resource Manager. One caller asks, and the others wait for it.
func (d *driver) token(ctx context.Context) (string, error) {
	return d.tokens.Get(ctx, "", func(ctx context.Context) (string, error) {
		if err := d.guard.Allow(); err != nil {
			return "", err
		}
		token, err := d.login(ctx)
		d.guard.Done(err)
		return token, err
	})
}

func (d *driver) login(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", &cloud.Error{Code: cloud.Unavailable, Message: getToken + ": not sent: " + err.Error(), Err: err}
	}
	credential, err := d.source.get()
	if err != nil {
		return "", err
	}
	last := &exchange{}
	ctx = context.WithValue(cloud.WithOperation(ctx, getToken, cloud.ClassRead), exchangeKey{}, last)
	got, err := credential.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{d.scope}})
	switch {
	case err == nil && got.Token != "":
		return got.Token, nil
	case err == nil:
		return "", d.api.Unexpected(getToken, "without a token")
	}
	return "", d.loginError(ctx, last, err)
}

// exchange is the last call to the token service: what the SDK's errors are about. They have no
// common form, may quote whole answers, and lose the transport's own errors.
type exchange struct {
	err    error
	status int
	header http.Header
	body   []byte
}

type exchangeKey struct{}

// exchanges is the SDK's transport. It records the call in its context's exchange.
type exchanges struct{ http *http.Client }

// Do implements policy.Transporter.
func (e exchanges) Do(req *http.Request) (*http.Response, error) {
	last, ok := req.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		last = &exchange{}
	}
	if last.err = req.Context().Err(); last.err != nil {
		return nil, last.err
	}
	resp, err := e.http.Do(req)
	if err != nil {
		last.err = err
		return nil, err
	}
	last.status, last.header = resp.StatusCode, resp.Header
	defer func() { _ = resp.Body.Close() }()
	if last.body, last.err = driverkit.NewRedactor().ReadBody(getToken, resp.Body, maxTokenAnswer); last.err != nil {
		return nil, last.err
	}
	resp.Body = io.NopCloser(bytes.NewReader(last.body))
	return resp, nil
}

// loginError types the SDK's error by the last call to the token service.
func (d *driver) loginError(ctx context.Context, last *exchange, err error) error {
	var answer struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	switch {
	case last.err != nil:
		return d.api.Secrets.NoResponse(getToken, last.err)
	case ctx.Err() != nil:
		return d.api.Secrets.NoResponse(getToken, ctx.Err())
	case last.status == 0: // no call was made
		return cloud.Errorf(cloud.Unauthorized, "%s: the credentials can't be used: %s", getToken, d.api.Secrets.Clean(err.Error(), 256))
	}
	isAnswer := json.Unmarshal(last.body, &answer) == nil && answer.Error != ""
	code := driverkit.CodeOfStatus(last.status)
	switch {
	case isAnswer && (last.status == http.StatusBadRequest || last.status == http.StatusUnauthorized):
		code = cloud.Unauthorized
	case !isAnswer:
		return &cloud.Error{Code: code, Message: getToken + ": unexpected response of the token service (not Azure): check spec.cloud.azure",
			RetryAfter: driverkit.RetryAfter(code, last.header), Err: errors.New("no token")}
	}
	words, _, _ := strings.Cut(answer.Description, " Trace ID:") // differs in every answer
	words, _, _ = strings.Cut(words, "\r\n")
	return &cloud.Error{Code: code, Message: getToken + ": " + d.api.Secrets.Clean(answer.Error, 64) + ": " + d.api.Secrets.Clean(words, 256),
		RetryAfter: driverkit.RetryAfter(code, last.header)}
}
