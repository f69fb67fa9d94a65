// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// skew is the maximum clock difference of a request.
const skew = 5 * time.Minute

// authenticate verifies the signature as AWS does: it signs the request with its own copy of the
// secret and compares.
func (c *Cloud) authenticate(r *http.Request, in call, body []byte) *failure {
	if in.op == "AssumeRoleWithWebIdentity" {
		return nil // authenticated by its token
	}
	credential, signed, ok := authorization(r.Header.Get("Authorization"))
	if !ok {
		return &failure{http.StatusForbidden, "MissingAuthenticationToken", "Request is missing Authentication Token"}
	}
	c.mu.Lock()
	secret, known := c.keys[credential[0]]
	expired := c.expired
	c.mu.Unlock()
	if expired {
		return refuse("ExpiredToken", "The provided token has expired.")
	}
	if !known && in.service == "sts" {
		return &failure{http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid."}
	}
	if !known || r.Header.Get("X-Amz-Security-Token") != c.sessionToken(credential[0]) {
		return &failure{http.StatusUnauthorized, "AuthFailure", "AWS was not able to validate the provided access credentials"}
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil || time.Since(at).Abs() > skew {
		return refuse("RequestExpired", "Request has expired.")
	}
	again := r.Clone(r.Context())
	again.Header = http.Header{}
	for _, name := range signed {
		if values := r.Header.Values(name); len(values) > 0 {
			again.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	again.URL.Scheme, again.URL.Host = "http", r.Host
	sum := sha256.Sum256(body)
	keys := aws.Credentials{AccessKeyID: credential[0], SecretAccessKey: secret}
	if token := r.Header.Get("X-Amz-Security-Token"); token != "" {
		keys.SessionToken = token
	}
	err = v4.NewSigner().SignHTTP(r.Context(), keys, again, hex.EncodeToString(sum[:]), credential[3], credential[2], at)
	if err != nil || again.Header.Get("Authorization") != r.Header.Get("Authorization") {
		return &failure{http.StatusForbidden, "SignatureDoesNotMatch",
			"The request signature we calculated does not match the signature you provided."}
	}
	return nil
}

// sessionToken returns the session token of an access key. Keys from STS have their own.
func (c *Cloud) sessionToken(key string) string {
	if strings.HasPrefix(key, "ASIA") {
		return "session-of-" + key
	}
	return c.options.SessionToken
}

// authorization parses the header into key, date, region and service, and the names of the signed
// headers.
func authorization(header string) (credential, signed []string, ok bool) {
	rest, ok := strings.CutPrefix(header, "AWS4-HMAC-SHA256 ")
	if !ok {
		return nil, nil, false
	}
	for part := range strings.SplitSeq(rest, ", ") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "Credential":
			credential = strings.Split(value, "/")
		case "SignedHeaders":
			signed = strings.Split(value, ";")
		}
	}
	return credential, signed, len(credential) == 5 && len(signed) > 0
}

// assumeRole returns keys to every authenticated caller.
func (c *Cloud) assumeRole(form url.Values) (any, *failure) {
	if token, given := form["WebIdentityToken"]; given && token[0] != "identity-token" {
		return nil, refuse("InvalidIdentityToken", "Couldn't retrieve verification key from your identity provider")
	}
	if strings.Contains(form.Get("RoleArn"), "foreign") && form.Get("ExternalId") != "drover-test" {
		return nil, &failure{http.StatusForbidden, "AccessDenied", "User is not authorized to perform: sts:AssumeRole on resource: " +
			form.Get("RoleArn")}
	}
	key := c.number("ASIA")
	c.keys[key] = "secret-of-" + key
	return roleAnswer{roleCredentials{AccessKeyID: key, SecretAccessKey: c.keys[key], SessionToken: c.sessionToken(key),
		Expiration: time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}}, nil
}

// AccountID returns the account's number.
func (c *Cloud) AccountID() string { return fmt.Sprintf("%012d", c.account) }

const getCallerIdentity = "GetCallerIdentity"

// callerIdentity requires no permission.
func (c *Cloud) callerIdentity(url.Values) (any, *failure) {
	id := c.AccountID()
	return identityAnswer{Account: id, ARN: "arn:" + cmp.Or(c.options.Partition, "aws") + ":iam::" + id + ":user/drover"}, nil
}

// other returns the account beside c that owns the call's key, or nil if c does or the key is
// unknown.
func (c *Cloud) other(r *http.Request) *Cloud {
	credential, _, ok := authorization(r.Header.Get("Authorization"))
	c.mu.Lock()
	other := c.beside
	c.mu.Unlock()
	if !ok || other == nil {
		return nil
	}
	other.mu.Lock()
	defer other.mu.Unlock()
	if _, known := other.keys[credential[0]]; !known {
		return nil
	}
	return other
}

// tagged returns the parameters "name.N.rest", in the order of N.
func tagged(form url.Values, name string) (all []url.Values) {
	for n := 1; ; n++ {
		prefix, sub := name+"."+itoa(n), url.Values{}
		for key, values := range form {
			if key == prefix {
				sub[""] = values
			} else if rest, ok := strings.CutPrefix(key, prefix+"."); ok {
				sub[rest] = values
			}
		}
		if len(sub) == 0 {
			return all
		}
		all = append(all, sub)
	}
}

// list returns the parameters "name.N".
func list(form url.Values, name string) (all []string) {
	for _, item := range tagged(form, name) {
		all = append(all, item.Get(""))
	}
	return all
}

// fingerprint returns the same hash for equal requests.
func fingerprint(form url.Values) [sha256.Size]byte {
	return sha256.Sum256(bytes.TrimSpace([]byte(form.Encode()))) // Encode sorts
}
