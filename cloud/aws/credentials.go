// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// Keys of the credentials Secret.
const (
	keyAccessKeyID  = "aws_access_key_id"
	keySecretKey    = "aws_secret_access_key"
	keySessionToken = "aws_session_token"
	keyRoleARN      = "aws_role_arn"
	keyIdentity     = "aws_web_identity_token"
)

// getCredentials is the operation name for credential calls without a name of their own.
const getCredentials = "GetCredentials"

// sessionName returns the name of an assumed role's session, which CloudTrail shows and a role's
// trust policy can require (sts:RoleSessionName): tenants can't choose it. AWS accepts 64
// characters. A dot, which no namespace has, keeps a long name from being another namespace's.
func sessionName(namespace string) string {
	const maxLength, digits = 64, 16
	name := strings.TrimSuffix("drover-"+namespace, "-")
	if len(name) <= maxLength {
		return name
	}
	sum := sha256.Sum256([]byte(namespace))
	return name[:maxLength-digits-1] + "." + hex.EncodeToString(sum[:digits/2])
}

// login holds an account's credentials provider and its secrets.
type login struct {
	provider aws.CredentialsProvider
	secrets  redactor
}

// newLogin returns the account's login: from its Secret, or the manager's own if there is none, and
// then the role to assume. It makes no call.
func newLogin(cfg cloud.Config, base aws.Config) (login, error) {
	account, session := cfg.Account.Cloud.AWS, sessionName(cfg.Namespace)
	l, err := secretLogin(cfg.Credentials, base, account, session)
	if cfg.Credentials == nil {
		l, err = ambientLogin(base)
	}
	if err != nil {
		return login{}, err
	}
	if role := account.AssumeRole; role.ARN != "" {
		base.Credentials = l.cached()
		l.provider = stscreds.NewAssumeRoleProvider(newSTS(base, account), role.ARN, func(o *stscreds.AssumeRoleOptions) {
			o.RoleSessionName = session
			if role.ExternalID != "" {
				o.ExternalID = &role.ExternalID
			}
		})
	}
	l.provider = l.cached()
	return l, nil
}

func secretLogin(secret map[string][]byte, base aws.Config, account *infrav1.AWSAccount, session string) (login, error) {
	values := map[string]string{}
	for _, key := range []string{keyAccessKeyID, keySecretKey, keySessionToken, keyRoleARN, keyIdentity} {
		value := strings.TrimSpace(string(secret[key]))
		if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return login{}, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q contains invalid characters", key)
		}
		values[key] = value
	}
	needed := []string{keyAccessKeyID, keySecretKey}
	if values[keyIdentity] != "" && values[keyAccessKeyID] == "" {
		needed = []string{keyRoleARN, keyIdentity}
	}
	for _, key := range needed {
		if values[key] == "" {
			return login{}, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q is missing or empty", key)
		}
	}
	if _, given := secret[keySessionToken]; given && values[keySessionToken] == "" {
		return login{}, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q is empty: remove it for long-term keys",
			keySessionToken)
	}
	l := login{
		secrets: newRedactor(values[keyIdentity], values[keySessionToken], values[keySecretKey], values[keyAccessKeyID]),
	}
	if needed[0] == keyAccessKeyID {
		l.provider = credentials.NewStaticCredentialsProvider(values[keyAccessKeyID], values[keySecretKey], values[keySessionToken])
		return l, nil
	}
	base.Credentials = aws.AnonymousCredentials{}
	l.provider = stscreds.NewWebIdentityRoleProvider(newSTS(base, account), values[keyRoleARN], identityToken(values[keyIdentity]),
		func(o *stscreds.WebIdentityRoleOptions) { o.RoleSessionName = session })
	return l, nil
}

// ambientLogin uses the SDK's default chain: environment, web identity (IRSA), Pod Identity,
// instance profile.
func ambientLogin(base aws.Config) (login, error) {
	if os.Getenv("AWS_CA_BUNDLE") != "" { // the SDK would load it into its own transport, not the account's
		return login{}, cloud.Errorf(cloud.Unauthorized,
			"the manager's variable AWS_CA_BUNDLE is not supported: set SSL_CERT_FILE, which applies to all clouds")
	}
	chain, err := config.LoadDefaultConfig(context.Background(), config.WithRegion(base.Region),
		config.WithHTTPClient(base.HTTPClient), config.WithRetryer(base.Retryer),
		// Without this option, the SDK calls Pod Identity's agent with its own client, not through
		// the account's transport.
		config.WithEndpointCredentialOptions(func(o *endpointcreds.Options) { o.HTTPClient = base.HTTPClient }))
	if err != nil {
		return login{}, cloud.Errorf(cloud.Unauthorized, "the manager's own AWS configuration can't be read")
	}
	secrets := newRedactor(os.Getenv("AWS_SESSION_TOKEN"), os.Getenv("AWS_SECRET_ACCESS_KEY"))
	return login{provider: chain.Credentials, secrets: secrets}, nil
}

func newSTS(base aws.Config, account *infrav1.AWSAccount) *sts.Client {
	return sts.NewFromConfig(base, func(o *sts.Options) {
		o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = endpointKinds(account)
	})
}

// endpointKinds returns whether to use AWS's FIPS and dual-stack endpoints.
func endpointKinds(account *infrav1.AWSAccount) (aws.FIPSEndpointState, aws.DualStackEndpointState) {
	fips, dual := aws.FIPSEndpointStateUnset, aws.DualStackEndpointStateUnset
	if account.FIPS == infrav1.FeatureEnabled {
		fips = aws.FIPSEndpointStateEnabled
	}
	if account.DualStack == infrav1.FeatureEnabled {
		dual = aws.DualStackEndpointStateEnabled
	}
	return fips, dual
}

// cached caches the credentials until shortly before they expire.
func (l login) cached() aws.CredentialsProvider {
	return aws.NewCredentialsCache(typedProvider{l.provider, l.secrets},
		func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = credentialsEarly })
}

// typedProvider gives a provider's errors a code and a clear message: the SDK wraps them in the
// errors of the call that needed the credentials.
type typedProvider struct {
	aws.CredentialsProvider
	secrets redactor
}

func (e typedProvider) Retrieve(ctx context.Context) (aws.Credentials, error) {
	// The SDK's clients for instance metadata and Pod Identity's agent set no operation name.
	// Without this line their calls would use the name of the call that needs the credentials, and
	// their answers would be checked against it.
	ctx = awsmiddleware.SetServiceID(awsmiddleware.SetOperationName(ctx, getCredentials), "")
	got, err := e.CredentialsProvider.Retrieve(ctx)
	return got, e.secrets.typed("get credentials", err)
}

// identityToken is a web identity token from the Secret. A new token makes a new driver.
type identityToken string

// GetIdentityToken implements stscreds.IdentityTokenRetriever.
func (t identityToken) GetIdentityToken() ([]byte, error) { return []byte(t), nil }
