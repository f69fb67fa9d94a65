// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/internal/keybound"
)

// Keys of the credentials Secret.
const (
	keyCredentials  = "credentials"
	keySubjectToken = "subjectToken"
	// keyOfMCM is machine-controller-manager's name of the first key. A Secret made for it can be
	// used as it is.
	keyOfMCM = "serviceAccountJSON"
)

const (
	// getToken is the operation name of the calls that obtain a token.
	getToken = "GetToken"
	// scope is the access that tokens give: what the identity's roles allow.
	scopeAll = "https://www.googleapis.com/auth/cloud-platform"
	// tokenLife is how long a token is valid that the driver asks for or signs.
	tokenLife = time.Hour
	// maxTokenAnswer limits an answer of a token service.
	maxTokenAnswer = 1 << 20
	// metadataServer is where a manager on Google Cloud gets tokens of its own service account.
	metadataServer = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
)

// keyFile is the JSON in the Secret: a service account key, or the configuration of a workload
// identity federation. Members that name a file, a program or another service are not used: whoever
// writes the Secret must not make the manager read, run or send anything.
type keyFile struct {
	Type     string `json:"type"`
	Universe string `json:"universe_domain"`

	PrivateKeyID string `json:"private_key_id"`
	PrivateKey   string `json:"private_key"`
	ClientEmail  string `json:"client_email"`

	Audience         string          `json:"audience"`
	SubjectTokenType string          `json:"subject_token_type"`
	TokenURL         string          `json:"token_url"`
	ImpersonationURL string          `json:"service_account_impersonation_url"`
	CredentialSource json.RawMessage `json:"credential_source"`
}

// credential obtains tokens.
type credential struct {
	client   *http.Client
	secrets  driverkit.Redactor
	universe string
	file     *keyFile // nil: the manager's own
	key      *rsa.PrivateKey
	subject  string
}

// newCredential returns the account's credential: from its Secret, or the manager's own if secret
// is nil. It makes no call.
func newCredential(account *infrav1.GCPAccount, secret map[string][]byte, client *http.Client) (*credential, error) {
	c := &credential{client: client, universe: universeOf(account), secrets: driverkit.NewRedactor()}
	if secret == nil {
		return c, nil
	}
	text := secret[keyCredentials]
	if len(text) == 0 {
		text = secret[keyOfMCM]
	}
	if len(text) == 0 {
		return nil, invalidSecret(keyCredentials, "is missing or empty")
	}
	c.file = &keyFile{}
	if json.Unmarshal(text, c.file) != nil {
		return nil, invalidSecret(keyCredentials, "is not JSON")
	}
	c.subject = strings.TrimSpace(string(secret[keySubjectToken]))
	c.secrets = driverkit.NewRedactor(string(text), c.file.PrivateKey, c.subject)
	if universe := c.file.Universe; universe != "" && universe != c.universe {
		return nil, invalidSecret(keyCredentials, "is for a universe other than spec.cloud.gcp.universeDomain")
	}
	switch c.file.Type {
	case "service_account":
		return c, c.useKey()
	case "external_account":
		return c, c.checkFederation()
	}
	return nil, invalidSecret(keyCredentials, `must have "type" "service_account" or "external_account"`)
}

func invalidSecret(key, why string) error {
	return cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q %s", key, why)
}

func (c *credential) useKey() (err error) {
	if c.file.ClientEmail == "" {
		return invalidSecret(keyCredentials, `lacks "client_email"`)
	}
	if err := keybound.PEM([]byte(c.file.PrivateKey)); err != nil {
		return invalidSecret(keyCredentials, `has a "private_key" that is refused: `+err.Error())
	}
	if c.key, err = jwt.ParseRSAPrivateKeyFromPEM([]byte(c.file.PrivateKey)); err != nil {
		return invalidSecret(keyCredentials, `has no private key in "private_key"`)
	}
	return nil
}

var impersonation = regexp.MustCompile(`^/v1/projects/-/serviceAccounts/[A-Za-z0-9.@_-]+:generateAccessToken$`)

// checkFederation refuses a configuration that could make the manager read a file, fetch a URL or
// run a program, or send a token to anyone but Google.
func (c *credential) checkFederation() error {
	path, google := strings.CutPrefix(c.file.ImpersonationURL, "https://iamcredentials."+c.universe)
	switch {
	case len(c.file.CredentialSource) > 0 && string(c.file.CredentialSource) != "null":
		return invalidSecret(keyCredentials, `must not have "credential_source": the manager reads no file, URL or program for it; put the token into the key "`+keySubjectToken+`"`)
	case c.file.TokenURL != c.stsURL():
		return invalidSecret(keyCredentials, `must have "token_url" `+c.stsURL())
	case c.file.ImpersonationURL != "" && (!google || !impersonation.MatchString(path)):
		return invalidSecret(keyCredentials, `has a "service_account_impersonation_url" that is not https://iamcredentials.`+c.universe+`/v1/projects/-/serviceAccounts/EMAIL:generateAccessToken`)
	case c.file.Audience == "" || c.file.SubjectTokenType == "":
		return invalidSecret(keyCredentials, `lacks "audience" or "subject_token_type"`)
	case c.subject == "":
		return invalidSecret(keySubjectToken, "is missing or empty")
	}
	return nil
}

func (c *credential) stsURL() string { return "https://sts." + c.universe + "/v1/token" }

// token is an access token.
type token struct {
	text string
	life time.Duration
}

// get obtains a token.
func (c *credential) get(ctx context.Context) (token, error) {
	switch {
	case c.file == nil:
		return c.ask(ctx, http.MethodGet, metadataServer+"?scopes="+url.QueryEscape(scopeAll), nil)
	case c.key == nil:
		return c.exchange(ctx)
	}
	claims := jwt.MapClaims{"iss": c.file.ClientEmail, "scope": scopeAll, "iat": time.Now().Unix(), "exp": time.Now().Add(tokenLife).Unix()}
	if c.universe != googleapis { // other universes have no service that exchanges it
		claims["sub"] = c.file.ClientEmail
		text, err := c.sign(claims)
		return token{text, tokenLife}, err
	}
	service := "https://oauth2." + googleapis + "/token" // whatever the key says
	claims["aud"] = service
	assertion, err := c.sign(claims)
	if err != nil {
		return token{}, err
	}
	return c.ask(ctx, http.MethodPost, service, url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"},
		"assertion": {assertion}})
}

func (c *credential) sign(claims jwt.MapClaims) (string, error) {
	unsigned := jwt.NewWithClaims(jwt.SigningMethodRS256, claims)
	unsigned.Header["kid"] = c.file.PrivateKeyID
	text, err := unsigned.SignedString(c.key)
	if err != nil {
		return "", invalidSecret(keyCredentials, `has a "private_key" that can't sign`)
	}
	return text, nil
}

// exchange obtains a token for the one of another identity provider (RFC 8693), and for a service
// account with it if there is one to impersonate.
func (c *credential) exchange(ctx context.Context) (token, error) {
	made, err := c.ask(ctx, http.MethodPost, c.stsURL(), url.Values{
		"grant_type":           {"urn:ietf:params:oauth:grant-type:token-exchange"},
		"requested_token_type": {"urn:ietf:params:oauth:token-type:access_token"},
		"audience":             {c.file.Audience},
		"scope":                {scopeAll},
		"subject_token":        {c.subject},
		"subject_token_type":   {c.file.SubjectTokenType},
	})
	if err != nil || c.file.ImpersonationURL == "" {
		return made, err
	}
	return c.impersonate(ctx, made)
}

// ask makes a call of a token service that answers as RFC 6749 says.
func (c *credential) ask(ctx context.Context, method, address string, form url.Values) (token, error) {
	var answer struct {
		AccessToken string `json:"access_token"`
		ExpiresIn   int64  `json:"expires_in"`
	}
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(form.Encode()))
	if err != nil {
		return token{}, cloud.Errorf(cloud.InvalidSpec, "%s: the address is not a URL: check spec.cloud.gcp", getToken)
	}
	if form == nil {
		req.Header.Set("Metadata-Flavor", "Google")
	} else {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if err := c.send(req, &answer); err != nil {
		return token{}, err
	}
	return usable(answer.AccessToken, time.Duration(answer.ExpiresIn)*time.Second)
}

func (c *credential) impersonate(ctx context.Context, own token) (token, error) {
	var answer struct {
		AccessToken string    `json:"accessToken"`
		ExpireTime  time.Time `json:"expireTime"`
	}
	body := `{"scope":["` + scopeAll + `"],"lifetime":"3600s"}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.file.ImpersonationURL, strings.NewReader(body))
	if err != nil {
		return token{}, invalidSecret(keyCredentials, `has a "service_account_impersonation_url" that is not a URL`)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+own.text)
	if err := c.send(req, &answer); err != nil {
		return token{}, err
	}
	return usable(answer.AccessToken, time.Until(answer.ExpireTime))
}

func usable(text string, life time.Duration) (token, error) {
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) || life <= 0 {
		return token{}, cloud.Errorf(cloud.Unknown, "%s: unexpected response without a token (not Google): check spec.cloud.gcp", getToken)
	}
	return token{text, life}, nil
}

// send makes one call of a token service.
func (c *credential) send(req *http.Request, out any) error {
	resp, err := c.client.Do(req)
	if err != nil {
		return c.secrets.NoResponse(getToken, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := c.secrets.ReadBody(getToken, resp.Body, maxTokenAnswer)
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusOK && json.Unmarshal(body, out) == nil {
		return nil
	}
	return c.refusal(resp, body)
}

// refusal types an answer without a token. Token services answer as RFC 6749 says; the service for
// impersonation answers as Google's other services.
func (c *credential) refusal(resp *http.Response, body []byte) error {
	var grant struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	var service struct {
		Error struct {
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"error"`
	}
	code, word, text := driverkit.CodeOfStatus(resp.StatusCode), "", ""
	switch {
	case json.Unmarshal(body, &grant) == nil && grant.Error != "":
		word, text = grant.Error, grant.Description
	case json.Unmarshal(body, &service) == nil && service.Error.Status != "":
		word, text = service.Error.Status, service.Error.Message
	default:
		return &cloud.Error{Code: code, RetryAfter: driverkit.RetryAfter(code, resp.Header),
			Message: getToken + ": unexpected response of the token service (not Google): check spec.cloud.gcp"}
	}
	if resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusNotFound {
		code = cloud.Unauthorized
	}
	return &cloud.Error{Code: code, RetryAfter: driverkit.RetryAfter(code, resp.Header),
		Message: getToken + ": " + c.secrets.Clean(word, 64) + ": " + c.secrets.Clean(text, 256)}
}

// renewal is how long before its end a token is replaced.
const renewal = 5 * time.Minute

// tokenCache keeps the token. One caller obtains it, and the others wait for it.
type tokenCache struct {
	lock    chan struct{} // guards the fields below
	text    string
	until   time.Time
	dropped time.Time // when a token was last dropped before its end
}

func newTokenCache() tokenCache { return tokenCache{lock: make(chan struct{}, 1)} }

func (t *tokenCache) get(ctx context.Context, login func(context.Context) (token, error)) (string, error) {
	select {
	case t.lock <- struct{}{}:
		defer func() { <-t.lock }()
	case <-ctx.Done():
		return "", &cloud.Error{Code: cloud.Unavailable, Message: getToken + ": timed out while another caller obtained a token", Err: ctx.Err()}
	}
	if time.Now().Before(t.until) {
		return t.text, nil
	}
	made, err := login(ctx)
	if err != nil {
		return "", err
	}
	t.text, t.until = made.text, time.Now().Add(max(made.life-renewal, made.life/2))
	return t.text, nil
}

// forget drops a token that was refused, so that the next call obtains another one. It does so once
// a minute, because others may be refused, too.
func (t *tokenCache) forget(text string) {
	select {
	case t.lock <- struct{}{}:
		defer func() { <-t.lock }()
	default: // somebody obtains another one
		return
	}
	if t.text == text && time.Since(t.dropped) >= time.Minute {
		t.until, t.dropped = time.Time{}, time.Now()
	}
}

// login obtains a token, unless the credentials were refused a moment ago.
func (d *driver) login(ctx context.Context) (token, error) {
	if err := d.guard.Allow(); err != nil {
		return token{}, err
	}
	if err := ctx.Err(); err != nil {
		return token{}, &cloud.Error{Code: cloud.Unavailable, Message: getToken + ": not sent: " + err.Error(), Err: err}
	}
	made, err := d.credential.get(cloud.WithOperation(ctx, getToken, cloud.ClassRead))
	d.guard.Done(err)
	return made, err
}
